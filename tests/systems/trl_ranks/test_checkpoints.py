"""What a checkpoint of two ranks has for others, against what they hold: whole tensors that FSDP2 gathers for it, and replicas.

Those of DeepSpeed are in `test_deepspeed`.
"""

from __future__ import annotations

import msgspec
import pytest

from tests.systems.trl_ranks.launching import outcomes
from tests.systems.trl_ranks.rank_faults import OF_CHECKPOINTS, OF_PARTS
from tests.systems.trl_ranks.test_deepspeed import assert_named, case_of, fault_of

OTHER_WEIGHTS = OF_CHECKPOINTS[-1]
OTHER_MOMENTS = OF_CHECKPOINTS[0]
FORMS = {"whole": {}, "parts": {"state_dict_type": "SHARDED_STATE_DICT"}}
"""How accelerate lets FSDP2 save what a resume loads."""


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


@pytest.mark.parametrize("form", FORMS)
def test_what_fsdp2_saves_for_a_resume_is_compared(form: str, tmp_path_factory: pytest.TempPathFactory) -> None:
    healthy = case_of("zero2-resumed-elsewhere")
    # A file with whole tensors is compared by the process that writes it.
    faults = OF_PARTS if form == "parts" else OF_PARTS[:1]
    faulty = [*(fault_of(fault, 2) for fault in faults), fault_of(OTHER_MOMENTS, 2, records_elsewhere=True)]
    cases = [msgspec.structs.replace(case, sharding=FORMS[form]) for case in (healthy, *faulty)]
    trained = outcomes(tmp_path_factory.mktemp(form), "fsdp2", cases)
    for of in trained[healthy.name]:
        assert (of.error, of.found, of.verdict) == ("", [], "PASS")
        assert of.rules["RLS702"][0] == "PASS"
    for case, fault in zip(faulty, (*faults, OTHER_MOMENTS), strict=True):
        assert_named(fault, trained[case.name][0])
