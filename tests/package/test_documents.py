"""What the documents say: their commands print what stands below them, their links lead somewhere, each system has a launch."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest

from rlstep_hooks.cli import main
from rlstep_hooks.planning.launched import Options
from rlstep_hooks.systems.engine import index
from rlstep_hooks.systems.engine.launch_search import find_launch

ROOT = next(folder for folder in Path(__file__).parents if (folder / "pyproject.toml").exists())
PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")])
LAUNCHES = {path.stem: path for path in (ROOT / "docs" / "launches").iterdir()}


def consoles(page: Path) -> list[tuple[str, str]]:
    """Commands of `rlstep` on a page, each with what is said to be printed."""
    blocks = re.findall(r"^```console\n\$ (rlstep .*?[^\\])\n(.*?)^```$", page.read_text(), re.MULTILINE | re.DOTALL)
    return [(command.replace("\\\n", " "), printed) for command, printed in blocks]


@pytest.mark.parametrize("page", [page for page in PAGES if consoles(page)], ids=lambda page: page.name)
def test_a_command_prints_what_stands_below_it(
    page: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "100")
    for command, printed in consoles(page):
        with pytest.raises(SystemExit):
            main(shlex.split(command)[1:])
        assert capsys.readouterr().out.startswith(printed)


def test_the_readme_is_short_and_has_a_plan() -> None:
    readme = ROOT / "README.md"
    assert len(readme.read_text().splitlines()) <= 150
    assert consoles(readme)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_somewhere(page: Path) -> None:
    for link in re.findall(r"\]\((?!https?:)([^)#\s]+)", page.read_text()):
        made = re.fullmatch(r"(\.\./)?(rules/RLS\d{3}|systems/\w+|changelog|contributing|benchmarks)\.md", link)
        beside = page.parent.name == "attach" and re.fullmatch(r"\w+\.md", link)  # part of the system's page
        assert made or beside or (page.parent / link).exists(), link


@pytest.mark.parametrize("name", index.names())
def test_each_system_has_a_launch(name: str) -> None:
    """docs/generate.py makes the system's page from it."""
    launch = LAUNCHES[name]
    first = shlex.split(launch.read_text().splitlines()[0].removeprefix("# plan:"))
    framework = first[first.index("--framework") + 1] if "--framework" in first else None
    assert find_launch([str(launch)], Options(framework=framework)).framework == name


def test_each_launch_is_of_a_system() -> None:
    assert set(LAUNCHES) == set(index.names())


def test_the_tests_train_with_the_releases_that_declarations_name() -> None:
    """The documentation's table of releases is made from these."""
    files = (ROOT / "noxfile.py", *(ROOT / "tests" / "systems").glob("*/requirements.txt"))
    pins = "\n".join(file.read_text() for file in files)
    trained = {name: getattr(index.system_of(name), "trained_releases", ()) for name in index.names()}
    observed = {name for name in index.names() if getattr(index.system_of(name), "attaches_by", "")}
    assert {name for name, releases in trained.items() if releases} == observed
    for name in observed:
        package = index.system_of(name).package
        for release in trained[name]:
            pinned = rf"{package}=={release}\b" + (rf"|\"{release}\"" if package == "trl" else "")
            assert re.search(pinned, pins), f"{name} {release}"
