"""Loops of one's own over megatron-core on two ranks (gloo, CPU): gradients are followed from the backward passes to its optimizers."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[3]
LIMIT = 400

HEALTHY = ("fp32", "dist", "dist-overlap", "bf16", "dist-bf16", "dist-tokens", "torch")
FAULTS = {
    "dist-unfinalized": (0, "each rank's own gradient"),
    "fp32-unfinalized": (0, "each rank's own gradient"),
    "dist-sum": (0, "the sum over the ranks: 2 times the mean"),
    "bf16-sum": (0, "the sum over the ranks: 2 times the mean"),
    "dist-dropped": (1, "the gradient of micro-batch 0 of 3 of rank 1 is missing"),
    "dist-zero": (1, "the gradient of rank 1 is missing"),
    "unsynchronised": (0, "each rank's own gradient"),
}
"""Cases, with the rank that is named and how the finding begins."""

Results = dict[str, dict[str, Any]]


def run(folder: Path, *cases: str) -> Results:
    """Train these cases, one after another, on two ranks; what the audit of the first rank says of each."""
    with socket.socket() as free:
        free.bind(("localhost", 0))
        port = str(free.getsockname()[1])
    command = [sys.executable, "-m", "tests.systems.megatron.train_megatron", str(folder), *cases]
    shared = os.environ | {
        "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", "WORLD_SIZE": "2", "MASTER_ADDR": "localhost", "MASTER_PORT": port,
    }  # fmt: skip
    processes = [
        subprocess.Popen(
            command, env=shared | {"RANK": rank}, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, cwd=ROOT
        )
        for rank in ("0", "1")
    ]
    try:
        outputs = [process.communicate(timeout=LIMIT)[0] for process in processes]
    finally:
        for process in processes:
            process.kill()
    assert (folder / "rank0.json").is_file(), "\n".join(output[-2000:] for output in outputs)
    results: Results = json.loads((folder / "rank0.json").read_text())
    return results


@pytest.fixture(scope="module")
def healthy(tmp_path_factory: pytest.TempPathFactory) -> Results:
    """One launch of all healthy cases."""
    return run(tmp_path_factory.mktemp("healthy"), *HEALTHY)


@pytest.fixture(scope="module")
def broken(tmp_path_factory: pytest.TempPathFactory) -> Results:
    """One launch of all faults."""
    return run(tmp_path_factory.mktemp("broken"), *FAULTS)


@pytest.mark.parametrize("case", HEALTHY)
def test_a_healthy_loop_is_silent(healthy: Results, case: str) -> None:
    result = healthy[case]
    assert (result["verdict"], result["findings"], result["processes"], result["updates"]) == ("PASS", [], 2, 4)
    assert result["rules"]["RLS902"] == "PASS"
    if case == "dist-tokens":  # divided by the tokens of all ranks, and not by the number of ranks: no mean is expected
        assert result["rules"]["RLS811"] == "NOT_EVALUATED"
        assert "calculate_per_token_loss" in result["not_evaluated"]["reduction"]
        return
    assert result["rules"]["RLS811"] == "PASS"
    # megatron-core's optimizer clips by itself, and says by which limit; what a loop over torch's wrapper does is its own.
    assert result["rules"]["RLS812"] == ("NOT_EVALUATED" if case == "torch" else "PASS")


@pytest.mark.parametrize("case", FAULTS)
def test_a_fault_is_found_with_its_name(broken: Results, case: str) -> None:
    rank, words = FAULTS[case]
    _, severity, where, update, observed = next(found for found in broken[case]["findings"] if found[0] == "RLS811")
    assert (severity, where or 0, update) == ("error", rank, 0)
    assert observed.startswith(words)
