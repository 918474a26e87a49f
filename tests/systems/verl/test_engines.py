"""verl's own training workers on two ranks (gloo, CPU), without Ray: healthy reductions are silent in each deployment, and each way to
share gradients otherwise is found with its rank and update.

One launch trains all cases, one after another in one process group. What a controller does is not part of it: test_faults has the same
faults in whole runs.
"""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

from rlstep_hooks.systems.verl.rehearse.cpu import ENVIRONMENT
from tests.reports import unproved
from tests.systems.torchrun import torchrun
from tests.systems.verl.launch import CPU_FOLDER

if TYPE_CHECKING:
    from rlstep_hooks.systems.engine.links import Deployment
    from tests.systems.verl.launch import Assets

SCRIPT = Path(__file__).with_name("train_engines.py")
ROOT = Path(__file__).parents[3]
pytestmark = pytest.mark.thorough

LIMIT = 900
"""Seconds for the launch."""

HEALTHY = (
    "fsdp2",
    "fsdp2-eachsynced",
    "fsdp2-plain",
    "fsdp2-bf16",
    "fsdp2-bf16-reducedbf16",
    "fsdp2-dynamic",
    "fsdp2-offload",
    "fsdp2-policy",
    "fsdp2-lora",
    "fsdp2-lora-dynamic-offload",
    "fsdp2-critic",
    "fsdp2-whole",
    "fsdp1",
    "fsdp1-orig",
    "fsdp1-offload",
    "fsdp1-dynamic",
    "fsdp1-bf16",
    "fsdp1-critic",
)
"""Settings: each micro-batch synchronised; no gradient checkpointing; bfloat16, and reduced in it; micro-batches by tokens; offload
between updates, and FSDP2's own; adapters; the critic; the whole model on each rank; FSDP1, also with the original parameters."""

SHARED = ("fsdp2-ulysses", "fsdp2-ulysses-dynamic", "fsdp1-ulysses")
"""Settings where two ranks share each sequence (`tests.systems.verl.packed_attention`)."""

DEPLOYMENTS: dict[str, Deployment] = {"fsdp1": "FSDP1", "offload": "offload", "policy": "offload", "lora": "LoRA"}
"""By word of a case."""

_LOST = ("RLS811", 1, 0, "the gradient of rank 1 is missing")
FOUND: dict[str, tuple[str, int | None, int, str]] = {
    "fsdp2-gradients_of_a_rank_zeroed": _LOST,
    "fsdp2-lora-gradients_of_a_rank_zeroed": _LOST,
    "fsdp2-offload-gradients_of_a_rank_zeroed": _LOST,
    "fsdp2-critic-gradients_of_the_critic_of_a_rank_zeroed": _LOST,
    "fsdp1-gradients_of_a_rank_zeroed": _LOST,
    "fsdp2-gradients_of_a_rank_tripled": ("RLS811", 1, 0, "the gradient of rank 1 counts 3 times"),
    "fsdp2-first_micro_batch_of_a_rank_lost": (
        "RLS811",
        1,
        0,
        "the gradient of micro-batch 0 of 3 of rank 1 is missing",
    ),
    "fsdp1-first_micro_batch_of_a_rank_lost": (
        "RLS811",
        1,
        0,
        "the gradient of micro-batch 0 of 3 of rank 1 is missing",
    ),
    "fsdp2-gradients_of_a_rank_stale": (
        "RLS811",
        1,
        1,
        "the gradient of rank 1 is the one that it had in the update before",
    ),
    "fsdp2-last_micro_batch_not_synced": (
        "RLS811",
        None,
        0,
        "the gradients of micro-batch 2 of 3 are missing, of all ranks",
    ),
    "fsdp2-nothing_synced": (
        "RLS811",
        None,
        0,
        "the ranks that hold it have no gradient after the reduction, in all",
    ),
    "fsdp2-gradients_summed": ("RLS811", None, 0, "the sum over the ranks: 2 times the mean"),
    "fsdp2-clip_by_the_own_norm": ("RLS812", None, 0, "the factor "),
    "fsdp2-gradients_of_a_rank_written": ("RLS812", 1, 0, "other than 0 times the reduced gradient in model."),
    "fsdp2-buffer_of_a_rank_written": ("RLS419", 1, 0, "rank 1 holds others in 1 of 2 tensors: model.rotary_emb"),
}
"""Fault -> the rule that finds it, the rank that it names, the first update, and the beginning of what it says."""


@pytest.fixture(scope="module")
def told(tmp_path_factory: pytest.TempPathFactory, assets: Assets) -> dict[str, Any]:
    """What rank 0 tells of all cases."""
    folder = tmp_path_factory.mktemp("engines")
    paths = {"PYTHONPATH": os.pathsep.join((str(ROOT), str(CPU_FOLDER)))}
    usual = {"OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false"}
    done = subprocess.run(
        torchrun(2, str(SCRIPT), str(folder), str(assets.model), *HEALTHY, *SHARED, *FOUND),
        env=os.environ | ENVIRONMENT | usual | paths,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=LIMIT,
    )
    written = folder / "rank0.json"
    assert written.is_file(), done.stdout[-3000:]
    results: dict[str, Any] = json.loads(written.read_text())
    return results


@pytest.mark.parametrize("case", HEALTHY)
def test_a_healthy_reduction_is_silent(told: dict[str, Any], case: str) -> None:
    of = told[case]
    assert "error" not in of, of["error"]
    assert of["findings"] == []
    assert {code: (verdict, missed) for code, (verdict, _, missed, _) in of["rules"].items()} == {
        "RLS811": ("PASS", 0),
        "RLS812": ("PASS", 0),
        "RLS419": ("PASS", 0),
    }
    assert of["rules"]["RLS811"][1] > 200
    _check_steps(of["steps"], ranks=2)
    for word in {*case.split("-")} & DEPLOYMENTS.keys():
        assert unproved({*of["rules"], *OF_STEPS}, "verl", DEPLOYMENTS[word]) == set()
    assert not {"reduction", "replicas", "order", "weights", "optimizer"} & of["not_observed"].keys()


OF_STEPS = ("RLS803", "RLS806", "RLS807", "RLS808", "RLS810")
"""The rules that look at these numbers of steps."""


@pytest.mark.parametrize("case", SHARED)
def test_where_ranks_share_sequences_steps_are_compared_and_the_reduction_is_not(
    told: dict[str, Any], case: str
) -> None:
    from rlstep_hooks.systems.verl.observe.ranks import SEQUENCES

    of = told[case]
    assert "error" not in of, of["error"]
    assert of["findings"] == []
    assert {verdict for verdict, *_ in of["rules"].values()} == {"NOT_EVALUATED"}
    assert of["not_observed"]["reduction"] == SEQUENCES
    _check_steps(of["steps"], ranks=1)  # of the one that keeps a record


def _check_steps(steps: list[dict[str, Any]], *, ranks: int) -> None:
    """Each step of each recorded rank was replayed and compared, and is as documented."""
    assert sorted(step["index"] for step in steps) == sorted([0, 1, 2, 3] * ranks)
    for step in steps:
        assert step["left_over"] == step["moved_before"] == 0
        assert max(step["optimizer_off"], step["moments_off"], step["gradient_off"]) < 1
        assert 0 < step["gradient_norm"] <= 0.05
        if step["index"]:
            assert step["moments_lost"] == step["steps_lost"] == step["tensors_moved"] == 0


@pytest.mark.parametrize("case", FOUND)
def test_a_fault_is_found_with_its_rank_and_update(told: dict[str, Any], case: str) -> None:
    of = told[case]
    assert "error" not in of, of["error"]
    code, rank, update, words = FOUND[case]
    (finding,) = [finding for finding in of["findings"] if finding[0] == code]
    assert finding[1] == ("warning" if code == "RLS419" else "error")
    assert finding[2:4] == [rank, update]
    assert finding[4].startswith(words)


def test_ranks_that_share_sequences_are_not_joined() -> None:
    from rlstep_hooks.systems.verl.observe.ranks import SEQUENCES, ranks_of, reduction_of

    engine: Any = SimpleNamespace(get_data_parallel_size=lambda: 1, ulysses_sequence_parallel_size=2)
    assert ranks_of(engine) == 2
    assert reduction_of(engine).hidden == SEQUENCES
