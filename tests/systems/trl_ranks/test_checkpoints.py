"""What a checkpoint of two ranks has for others, against what they hold: whole tensors that FSDP2 gathers for it, and replicas.

Those of DeepSpeed are in `test_deepspeed`.
"""

from __future__ import annotations

import msgspec
import pytest

from tests.systems.trl_ranks.launching import outcomes
from tests.systems.trl_ranks.rank_faults import OF_CHECKPOINTS
from tests.systems.trl_ranks.test_deepspeed import case_of, fault_of

OTHER_WEIGHTS = OF_CHECKPOINTS[-1]


@pytest.mark.parametrize("deployment", ["fsdp2", pytest.param("ddp", marks=pytest.mark.thorough)])
def test_a_checkpoint_of_other_weights_is_named(deployment: str, tmp_path_factory: pytest.TempPathFactory) -> None:
    healthy, faulty = (
        msgspec.structs.replace(case, sharding={}) for case in (case_of("zero2-resumed"), fault_of(OTHER_WEIGHTS, 2))
    )
    trained = outcomes(tmp_path_factory.mktemp(deployment), deployment, [healthy, faulty])
    for of in trained[healthy.name]:
        assert (of.error, of.found, of.verdict) == ("", [], "PASS")
    assert trained[healthy.name][0].rules["RLS703"][0] == "PASS"
    first, _ = trained[faulty.name]
    assert [(found.code, found.place.update) for found in first.found] == [("RLS703", 4)]
