"""Pages of real records in a real browser: headless Chromium, driven through chromedriver, without a network."""

from __future__ import annotations

import shutil
from typing import TYPE_CHECKING, Any

import msgspec
import pytest

from rlstep_hooks.record.events import Rollout, RunStarted, Update
from rlstep_hooks.record.ledger import FolderLedger, rank_process
from rlstep_hooks.show.page.writer import write_page
from tests.reports import recorded_page
from tests.scripted import make_plan, scripted_run
from tests.scripted_phases import PhaseCase, phase_plan, scripted_phases, write_records

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from selenium.webdriver import Chrome

    from rlstep_hooks.record.events import AnyEvent

NEEDED = "needs Chromium and chromedriver (Debian: apt-get install chromium chromium-driver)"
QUIET = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
)
LONG_RUN = 100_000
"""Events of the longest run that is shown here."""


@pytest.fixture(scope="session")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Chrome]:
    """A browser that has no network and no past."""
    program = next(
        (path for name in ("chromium", "chromium-browser", "google-chrome") if (path := shutil.which(name))), None
    )
    driver = shutil.which("chromedriver")
    if program is None or driver is None:
        pytest.skip(NEEDED)
    from selenium import webdriver

    options = webdriver.ChromeOptions()
    options.binary_location = program
    for argument in (*QUIET, f"--user-data-dir={tmp_path_factory.mktemp('profile')}"):
        options.add_argument(argument)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    chrome = webdriver.Chrome(options=options, service=webdriver.ChromeService(executable_path=driver))
    try:
        chrome.execute_cdp_cmd("Network.enable", {})
        nothing = {"offline": True, "latency": 0, "downloadThroughput": 0, "uploadThroughput": 0}
        chrome.execute_cdp_cmd("Network.emulateNetworkConditions", nothing)
        yield chrome
    finally:
        chrome.quit()


@pytest.fixture(scope="session")
def pages(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A page for each kind of run, by name."""
    folder = tmp_path_factory.mktemp("pages")
    for name, events in _single_processes().items():
        ledger = FolderLedger(folder / name, "run", rank_process(0))
        for number, event in enumerate(events):
            ledger.write(msgspec.structs.replace(event, at=number / 100))
        ledger.close()
    write_records(folder / "trainers", _trainers())
    return {part.name: _page(part) for part in sorted(folder.iterdir())}


def _page(folder: Path) -> Path:
    path = folder.with_suffix(".html")
    write_page(recorded_page(folder), path)
    return path


def _single_processes() -> dict[str, list[AnyEvent]]:
    plan = make_plan(iterations=3, max_steps=60, rows=60)
    long_plan = make_plan(rows=400, accumulation=8, steps_per_generation=8, iterations=2, max_steps=8800)
    passing, long = scripted_run(plan), scripted_run(long_plan)
    assert len(long) > LONG_RUN
    return {
        "passing": passing,
        "failing": [e for e in passing if not (isinstance(e, Update) and e.index == 10)],
        "stale": [
            msgspec.structs.replace(e, sampler_version=max(e.policy_version - 6, 0)) if isinstance(e, Rollout) else e
            for e in passing
        ],
        "hostile": _hostile(passing),
        "many updates": scripted_run(
            make_plan(iterations=300, accumulation=12, steps_per_generation=12, max_steps=600)
        ),
        "long": [e for e in long if not (isinstance(e, Update) and e.index == 6001)],
    }


def _hostile(events: list[AnyEvent]) -> list[AnyEvent]:
    """A run whose names are long and would be markup."""
    first, *rest = events
    assert isinstance(first, RunStarted)
    assert first.schedule is not None
    names: dict[str, Any] = {
        "<script>document.title = 'run'</script>": "</style><script>document.title = 'run'</script>",
        "a" * 400: "b" * 400,
        "a path": "/".join(["folder"] * 60),
        "right\u202eto left": '" onmouseover="document.title = 1',
        "a list": list(range(200)),
    }
    schedule = msgspec.structs.replace(first.schedule, settings=names, step_means="1 step = " + "x" * 120)
    return [msgspec.structs.replace(first, schedule=schedule, host="h" * 80, versions={"v" * 90: "1"}), *rest]


def _trainers() -> list[tuple[str, AnyEvent]]:
    """Two trainers with a critic, of which one skips an update."""
    critic = phase_plan(world_size=2, minibatches=(8,), rollouts=12)
    schedule = phase_plan(world_size=2, rollouts=12, critic=critic, syncs="first_and_after_updates")
    script = scripted_phases(PhaseCase(schedule=schedule))
    lost = next(
        i for i, (process, e) in enumerate(script) if process == "rank1" and isinstance(e, Update) and e.index == 9
    )
    return [*script[:lost], *script[lost + 1 :]]
