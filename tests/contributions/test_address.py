"""The project's address is set in one place, and said to be unknown where it is not known."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from rlstep_hooks.version import PLACEHOLDER, REPOSITORY
from tests.contributions.ready import addressed, drafts, write

ROOT = Path(__file__).parents[2]
TEXTS = [
    *ROOT.glob("*.md"),
    *(ROOT / "docs").rglob("*.md"),
    *(ROOT / "skills").rglob("*.md"),
    ROOT / "action.yml",
    ROOT / ".pre-commit-hooks.yaml",
]


def test_every_use_of_the_address_is_the_placeholder() -> None:
    """A text that held the address itself would be a second place of it."""
    texts = [path.read_text(encoding="utf-8") for path in TEXTS] + list(drafts().values())
    named = {found for text in texts for found in re.findall(r"[\w.-]+/rlstep-hooks(?![\w/])", text)}
    assert named == {PLACEHOLDER}


def test_an_unknown_address_writes_no_draft(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="address is not known"):
        write(tmp_path, "")
    assert not list(tmp_path.iterdir())
    command = [sys.executable, "-m", "tests.contributions.ready", str(tmp_path)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, "address is not known" in done.stderr) == ((0, False) if REPOSITORY else (1, True))


def test_a_known_address_is_in_every_draft(tmp_path: Path) -> None:
    write(tmp_path, "someone/hooks")
    written = {path.relative_to(tmp_path): path.read_text() for path in tmp_path.rglob("*") if path.is_file()}
    assert written.keys() == drafts().keys()
    assert not any("OWNER" in text for path, text in written.items() if path.name != "README.md")
    assert "git+https://github.com/someone/hooks" in written[Path("nightly/audit-main.yml")]


def test_addressed_says_who_wrote_a_page() -> None:
    assert addressed("**Author:** `https://github.com/OWNER`", "a/b") == "**Author:** `https://github.com/a`"


def test_what_other_repositories_name_exists() -> None:
    """The hook and the action of the documented YAML are those of this repository."""
    hooks = {hook["id"] for hook in yaml.safe_load((ROOT / ".pre-commit-hooks.yaml").read_text())}
    inputs = set(yaml.safe_load((ROOT / "action.yml").read_text())["inputs"])
    blocks = re.findall(r"^```yaml\n(.*?)^```$", (ROOT / "docs" / "ci.md").read_text(), re.MULTILINE | re.DOTALL)
    action, commit = (yaml.safe_load(block) for block in blocks)
    (repository,) = commit["repos"]
    assert {hook["id"] for hook in repository["hooks"]} <= hooks
    steps = action["jobs"]["launches"]["steps"]
    (used,) = (step for step in steps if step.get("uses", "").startswith(PLACEHOLDER))
    assert set(used["with"]) <= inputs
