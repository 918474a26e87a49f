"""Two processes under torchrun (gloo, CPU): each records, rank 0 reports for both."""

from __future__ import annotations

import json
import os
import subprocess
import time
from pathlib import Path
from typing import Any

from packaging.version import Version

from tests.reports import OF_REFERENCES, claimed, report_of, unproved
from tests.systems.tensorboard import points, split
from tests.systems.torchrun import torchrun
from tests.systems.trl.conftest import RELEASE

SCRIPT = Path(__file__).with_name("train_two_ranks.py")
ROOT = Path(__file__).parents[3]
LIMIT = 120
OF_ALL_RANKS = Version("0.24") <= RELEASE
"""Whether the script trains with a loss that is divided by the tokens of all ranks."""


def run(folder: Path, case: str) -> dict[int, dict[str, Any]]:
    """Train on two ranks; what each rank wrote at its end.

    Neither the exit status nor a slow exit counts: torch aborts or hangs now and then when the interpreter of a rank exits,
    after all is done.
    """
    environment = os.environ | {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}
    process = subprocess.Popen(
        torchrun(2, str(SCRIPT), str(folder), case),
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    deadline = time.monotonic() + LIMIT
    while process.poll() is None and time.monotonic() < deadline and len(list(folder.glob("rank*.json"))) < 2:
        time.sleep(0.2)
    try:
        output, _ = process.communicate(timeout=20)
    except subprocess.TimeoutExpired:
        process.terminate()
        output, _ = process.communicate(timeout=30)
    results = {int(path.stem[4:]): json.loads(path.read_text()) for path in folder.glob("rank*.json")}
    assert len(results) == 2, output[-3000:]
    return results


def test_a_healthy_run(tmp_path: Path) -> None:
    results = run(tmp_path, "healthy")
    assert results[0]["verdict"] == results[1]["verdict"] == "PASS", results
    assert results[0]["processes"] == 2
    assert results[0]["rules"]["RLS901"] == results[0]["rules"]["RLS902"] == results[0]["rules"]["RLS523"] == "PASS"
    # The losses of dapo are divided by the tokens of both ranks.
    assert results[0]["rules"]["RLS820"] == ("PASS" if OF_ALL_RANKS else "NOT_EVALUATED")
    again = report_of(tmp_path / "log")
    assert (again.verdict, again.processes, again.counts.samples) == ("PASS", 2, results[0]["samples"])
    assert claimed(again, "trl") == set()
    if Version("0.20") <= RELEASE:
        assert (
            unproved({code for code, verdict in results[0]["rules"].items() if verdict == "PASS"}, "trl", "DDP")
            == OF_REFERENCES  # it has none
        )


def test_ranks_that_disagree_are_a_finding(tmp_path: Path) -> None:
    results = run(tmp_path, "skip")
    assert results[0]["verdict"] == "FAIL"
    rollout = 3 if Version("0.17") > RELEASE else 1  # 0.16 generates for each micro-batch
    assert ["RLS902", 1, rollout] in results[0]["findings"]
    assert ["RLS210", 1, rollout] in results[0]["findings"], "what rank 1 found is in rank 0's report"
    divided = [["RLS820", 1, 1]] if OF_ALL_RANKS else []
    assert [finding for finding in results[0]["findings"] if finding[0] == "RLS820"] == divided
    assert results[0]["updates"] == 6
    shown, _ = split(points(tmp_path / "out"), "train/rlstep/")  # written by rank 0 alone
    assert [value for _, value in shown["verdict"]] == [1] * 6 + [0], (
        "what rank 1 did is compared when training is over"
    )
    assert shown["findings"][-1][1] >= 2


def test_all_ranks_stop_together(tmp_path: Path) -> None:
    results = run(tmp_path, "stop")
    assert results[0]["updates"] == results[1]["updates"] == 4
    assert results[0]["verdict"] == "FAIL"
    assert ["RLS523", 1, 0] in results[0]["findings"], "one seed on both ranks"


def test_a_rank_without_an_audit_is_a_finding_and_blocks_nothing(tmp_path: Path) -> None:
    results = run(tmp_path, "alone")
    assert results[0]["findings"] == [["RLS901", 1, None]]
    assert results[0]["updates"] == results[1]["updates"] == 6
