"""Reports of deviations for other projects: the script of each, and what it prints."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from typing import TYPE_CHECKING

import msgspec

from tests.contributions.ready import DRAFTS

if TYPE_CHECKING:
    from pathlib import Path

HUB_MODEL = "trl-internal-testing/tiny-Qwen2ForCausalLM-2.5"
LIMIT = 300.0
"""Seconds."""
OF_FRAMEWORKS = ("{'train_runtime'", "DeepSpeed deepspeed.ops", "[20")
"""Beginnings of lines that a framework prints by itself: transformers' figures when training ends, what DeepSpeed says of an operation
that it has built, and its log, whose lines begin with the date."""


class DraftReport(msgspec.Struct, frozen=True):
    """One report."""

    name: str
    environment: str
    """The session of nox that has its framework."""
    script: str
    printed: tuple[str, ...]

    @classmethod
    def read(cls, path: Path) -> DraftReport:
        """Take a report apart.

        Raises:
            ValueError: It has no environment, or not one script and one output.
        """
        text = path.read_text(encoding="utf-8")
        environment = re.match(r"<!-- environment: ([\w-]+) -->\n", text)
        scripts = re.findall(r"^```python\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
        outputs = re.findall(r"^outputs:\n\n```text\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
        if environment is None or len(scripts) != 1 or len(outputs) != 1:
            raise ValueError(f"{path} is no report")
        return cls(str(path.relative_to(DRAFTS)), environment[1], scripts[0], tuple(outputs[0].splitlines()))


def reports(environment: str | None = None) -> list[DraftReport]:
    """All reports, or those whose framework an environment has."""
    found = [DraftReport.read(path) for path in sorted((DRAFTS / "reports").rglob("*.md"))]
    return [one for one in found if environment in (None, one.environment)]


def printed_by(report: DraftReport, folder: Path, model: str = "") -> tuple[str, ...]:
    """Run a report's script; the lines that it prints, without those of `OF_FRAMEWORKS`.

    Args:
        report: The report.
        folder: Where to run it.
        model: A folder in the place of the tiny model of the hub.
    """
    script = folder / "script.py"
    script.write_text(report.script.replace(HUB_MODEL, model) if model else report.script)
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("RLSTEP_", "PYTEST_"))}
    done = subprocess.run(
        [sys.executable, str(script)], cwd=folder, env=environment, capture_output=True, text=True, timeout=LIMIT,
        check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-2000:]
    return tuple(line for line in done.stdout.splitlines() if line and not line.startswith(OF_FRAMEWORKS))
