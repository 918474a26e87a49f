"""TRL's own tests with and without the audit, compared: `python -m tests.downstream CHECKOUT [FILE ...]`.

A test must end in both runs alike, every file must be collected, and every error and warning of the audit must be one that
somebody has looked at.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING
from xml.etree import ElementTree

from rlstep_hooks.judge.suite import recorded_suite
from rlstep_hooks.show.suite import rows
from rlstep_hooks.systems.engine.index import deviations_of
from tests.downstream.looked_at import LOOKED_AT

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from rlstep_hooks.judge.suite import Suite

HERE = Path(__file__).parent
FILES = (
    "tests/test_grpo_trainer.py",
    "tests/test_rloo_trainer.py",
    "tests/experimental/test_a2po_trainer.py",
    "tests/experimental/test_gmpo_trainer.py",
    "tests/experimental/test_gspo_token_trainer.py",
    "tests/experimental/test_grpo_with_replay_buffer_trainer.py",
    "tests/experimental/test_async_grpo_trainer.py",
)
"""Those that build trainers with rollouts."""
CHOSEN = ("-m", "not slow", "-k", "not VLM and not vlm", "-o", "addopts=")
"""Vision models are not made here. TRL's own options ask for plugins of pytest that the tests do not need."""
QUIET = ("-q", "-p", "local_hub", "-p", "no:cacheprovider", "-W", "ignore", "--tb=line")
NEEDED = (
    "give the folder of a TRL checkout at a release tag, such as v1.9.0: its tests and scripts are in no package"
    " (git clone --depth 1 --branch v1.9.0 https://github.com/huggingface/trl)"
)


def main() -> int:
    """Run both, print what came of them; 1 if they differ, prove nothing or have a new finding, 2 if there is no checkout."""
    parser = argparse.ArgumentParser(prog="tests.downstream", description=__doc__)
    parser.add_argument("checkout", type=Path, help="folder of a TRL checkout at a release tag")
    parser.add_argument("files", nargs="*", help="test files of it (default: those that build trainers with rollouts)")
    given = parser.parse_args()
    if not (given.checkout / "tests" / "conftest.py").is_file() or not (given.checkout / "scripts").is_dir():
        print(f"{given.checkout} has no tests and scripts of TRL: {NEEDED}", file=sys.stderr)
        return 2
    with tempfile.TemporaryDirectory() as made:
        return compare(given.checkout.absolute(), Path(made), given.files or FILES)


def compare(checkout: Path, folder: Path, files: Sequence[str]) -> int:
    """Run the files of a checkout twice in a folder, and compare.

    Args:
        checkout: TRL's source.
        folder: An empty folder. The tests are copied, so that the installed TRL is tested and not the checkout's.
        files: Test files, relative to the checkout.
    """
    shutil.copytree(checkout / "tests", folder / "tests")
    variables = {
        **os.environ,
        "HF_HOME": str(folder / "hub"),
        "HF_HUB_OFFLINE": "1",
        "PYTHONPATH": os.pathsep.join(filter(None, [str(HERE), os.environ.get("PYTHONPATH")])),
    }
    subprocess.run(
        [sys.executable, str(HERE / "local_hub.py"), str(folder / "hub"), str(checkout)], env=variables, check=True
    )
    present = [name for name in files if (folder / name).is_file()]
    for name in set(files) - set(present):
        print(f"{name} is not in this release")
    words = [sys.executable, "-m", "pytest", *QUIET, *CHOSEN, *present, "--junitxml"]
    plain = _ended(folder, [*words, "plain.xml"], variables)
    audit = [sys.executable, "-m", "rlstep_hooks", "run", "--dir", "log", "--"]
    audited = _ended(folder, [*audit, *words, "audited.xml"], variables)
    suite, _ = recorded_suite(folder / "log", deviations_of=deviations_of)
    for line in figures(plain, audited, suite):
        print(line)
    problems = [*differences(plain, audited), *empty(audited, suite), *news(suite)]
    for problem in problems:
        print(problem, file=sys.stderr)
    return 1 if problems else 0


def _ended(folder: Path, command: Sequence[str], variables: Mapping[str, str]) -> dict[str, str]:
    """Run a suite; how each of its tests ended."""
    subprocess.run(command, cwd=folder, env=dict(variables), check=False)
    report = folder / command[-1]
    return outcomes(report.read_text()) if report.is_file() else {}


def outcomes(report: str) -> dict[str, str]:
    """How each test of a JUnit report ended."""
    kinds = {"failure": "failed", "error": "error", "skipped": "skipped"}
    return {
        f"{case.get('classname')}::{case.get('name')}": next(
            (kinds[child.tag] for child in case if child.tag in kinds), "passed"
        )
        for case in ElementTree.fromstring(report).iter("testcase")
    }


def differences(plain: Mapping[str, str], audited: Mapping[str, str]) -> list[str]:
    """The tests that end otherwise with the audit."""
    return [
        f"{name}: {plain.get(name, 'absent')} without the audit, {audited.get(name, 'absent')} with it"
        for name in sorted({*plain, *audited})
        if plain.get(name) != audited.get(name)
    ]


def empty(audited: Mapping[str, str], suite: Suite) -> list[str]:
    """Why the audited run proves nothing about a file, or about anything: two runs that both fail to start are alike."""
    ended = Counter(audited.values())
    problems = [
        f"{name} was not collected" for name, how in audited.items() if how == "error" and name.startswith("::")
    ]
    if not ended["passed"]:
        problems.append("no test passed")
    if not any(test.reports for test in suite.tests):
        problems.append("no training call was audited")
    return problems


def news(suite: Suite) -> list[str]:
    """The errors and warnings that nobody has looked at."""
    return [
        f"{test.name}: {finding.severity} {finding.code} {finding.title}: observed {finding.observed}"
        for test in suite.tests
        for report in test.reports
        for finding in report.findings
        if finding.severity != "info" and (finding.code, bare(test.name)) not in LOOKED_AT
    ]


def bare(name: str) -> str:
    """The name of a test's function."""
    return name.partition("[")[0].rpartition("::")[2]


def figures(plain: Mapping[str, str], audited: Mapping[str, str], suite: Suite) -> Iterable[str]:
    """The runs in numbers, as a table in Markdown."""
    made = rows(suite)
    yield "| | without | with the audit |"
    yield "|---|---|---|"
    before, after = Counter(plain.values()), Counter(audited.values())
    for outcome in ("passed", "skipped", "failed", "error"):
        yield f"| {outcome} | {before[outcome]} | {after[outcome]} |"
    yield ""
    verdicts = Counter(row.verdict for row in made)
    yield f"{sum(len(test.reports) for test in suite.tests)} training calls in {len(made)} tests; " + ", ".join(
        f"{count} {verdict}" for verdict, count in sorted(verdicts.items())
    )
    found = Counter(code for row in made for code in row.findings)
    yield "findings: " + ", ".join(f"{code} in {count}" for code, count in sorted(found.items()))
    for reason, count in Counter(str(reason) for row in made for reason in row.reasons).most_common():
        yield f"- {count}: {reason}"


if __name__ == "__main__":
    sys.exit(main())
