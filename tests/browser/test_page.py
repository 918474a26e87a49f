"""What a person meets who opens the page: a wide or a narrow window, light or dark, a keyboard, a printer, no network."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from selenium.webdriver import Chrome

KINDS = ("failing", "hostile", "long", "many updates", "passing", "stale", "trainers")
WIDTHS = (360, 768, 1280)
LOOK = (Path(__file__).parent / "look.js").read_text()
LARGEST = 3_000_000
"""Bytes that the page of a run of 100 000 events may have."""
SLOWEST = 10.0
"""Seconds in which it opens even on a machine that is busy; on an idle one it is far below 2."""


def open_page(browser: Chrome, path: Path, *, width: int = 1280, scheme: str = "light", media: str = "screen") -> None:
    size = {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": width < 500}
    browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
    features = [{"name": "prefers-color-scheme", "value": scheme}]
    browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": media, "features": features})
    browser.get("about:blank")
    browser.get_log("browser")
    browser.get(path.as_uri())


def look(browser: Chrome, name: str) -> Any:
    return browser.execute_script(LOOK, name)


@pytest.mark.parametrize("kind", KINDS)
def test_it_opens_offline_without_a_complaint(browser: Chrome, pages: dict[str, Path], kind: str) -> None:
    open_page(browser, pages[kind])
    assert browser.get_log("browser") == []
    assert browser.execute_script("return performance.getEntriesByType('resource').length") == 0
    assert browser.execute_script("return document.scripts.length") == 0
    assert browser.title.split(" · ")[0] in ("PASS", "FAIL")


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("kind", KINDS)
def test_it_fits_its_window(browser: Chrome, pages: dict[str, Path], kind: str, width: int) -> None:
    open_page(browser, pages[kind], width=width)
    wide, window = browser.execute_script("const d = document.documentElement; return [d.scrollWidth, d.clientWidth]")
    assert wide <= window
    assert look(browser, "cutOff") == []
    assert look(browser, "overlapping") == []
    assert look(browser, "labels") == []


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("kind", KINDS)
def test_text_stands_out_in_light_and_dark(browser: Chrome, pages: dict[str, Path], kind: str, scheme: str) -> None:
    open_page(browser, pages[kind], scheme=scheme)
    ground = browser.execute_script("return getComputedStyle(document.body).backgroundColor")
    brightness = sum(int(part) for part in ground[4:-1].split(",")) / 3
    assert brightness > 200 if scheme == "light" else brightness < 60
    assert look(browser, "faint") == []


@pytest.mark.parametrize("width", [360, 1280])
@pytest.mark.parametrize("kind", ["failing", "trainers"])
def test_a_keyboard_reaches_everything_in_order(browser: Chrome, pages: dict[str, Path], kind: str, width: int) -> None:
    from selenium.webdriver import ActionChains, Keys

    open_page(browser, pages[kind], width=width)
    count = look(browser, "reachable")
    assert count > 10
    for position in range(count):
        ActionChains(browser).send_keys(Keys.TAB).perform()
        assert look(browser, "focused") == {"position": position, "marked": True, "seen": True}


def test_a_key_opens_what_is_folded(browser: Chrome, pages: dict[str, Path]) -> None:
    from selenium.webdriver import Keys
    from selenium.webdriver.common.by import By

    open_page(browser, pages["failing"])
    summary = browser.find_element(By.CSS_SELECTOR, "#rule-RLS204 > summary")
    summary.send_keys(Keys.ENTER)
    assert browser.find_element(By.CSS_SELECTOR, "#rule-RLS204 > p").is_displayed()


def test_the_skip_link_comes_first_and_leads_past_the_links(browser: Chrome, pages: dict[str, Path]) -> None:
    from selenium.webdriver import ActionChains, Keys

    open_page(browser, pages["failing"])
    ActionChains(browser).send_keys(Keys.TAB).perform()
    left = browser.execute_script("return document.activeElement.getBoundingClientRect().left")
    assert left >= 0
    ActionChains(browser).send_keys(Keys.ENTER).perform()
    assert browser.execute_script("return location.hash") == "#counts"


def test_the_finding_is_one_link_away(browser: Chrome, pages: dict[str, Path]) -> None:
    from selenium.webdriver.common.by import By

    open_page(browser, pages["failing"], width=360)
    browser.find_element(By.CSS_SELECTOR, ".verdict .why a").click()
    assert browser.execute_script("return location.hash") == "#finding-0"
    text = browser.find_element(By.CSS_SELECTOR, "#finding-0").text
    assert "RLS204" in text
    assert "fix" in text


def test_print_shows_what_is_folded(browser: Chrome, pages: dict[str, Path]) -> None:
    open_page(browser, pages["failing"], width=700, media="print")
    shown = "return [...document.querySelectorAll('details > :not(summary)')].map(part => part.checkVisibility())"
    assert set(browser.execute_script(shown)) == {True}
    assert look(browser, "cutOff") == []


def test_a_run_of_100_000_events_opens_at_once(browser: Chrome, pages: dict[str, Path]) -> None:
    assert pages["long"].stat().st_size < LARGEST
    open_page(browser, pages["long"])
    timing = browser.execute_script("return performance.getEntriesByType('navigation')[0].loadEventEnd")
    assert 0 < timing / 1000 < SLOWEST
