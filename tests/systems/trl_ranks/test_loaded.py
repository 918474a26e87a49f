"""A policy that the trainer loads from a path, on two ranks, against its files (RLS423)."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING

import pytest

pytest.importorskip("transformers", minversion="5.23")  # the lines that are changed are those of this release

from tests.mutants.operators import mutations
from tests.mutants.sources import source_of
from tests.systems.trl_ranks.cases import Case
from tests.systems.trl_ranks.launching import outcomes

if TYPE_CHECKING:
    from typing import Any

SETTINGS: dict[str, Any] = {"rows": 12, "gradient_accumulation_steps": 2, "max_steps": 2, "beta": 0.04}
"""With a reference, for which the model has to be on the disk."""
INITIALISED_AGAIN = ("transformers.core_model_loading", "param_value._is_hf_initialized = True", "pass")
"""Weights that were loaded are drawn anew."""
OTHER_NAMES = (
    "transformers.integrations.deepspeed",
    "f'{prefix_model}.{k}' if meta_model_state_dict.get(f'{prefix_model}.{k}') is not None else k",
    "f'{prefix_model}.{k}' if True else k",
)
"""With ZeRO-3: no tensor of the files has the name of one of the model's."""
PLACES = {"ddp": INITIALISED_AGAIN, "fsdp2": INITIALISED_AGAIN, "zero2": INITIALISED_AGAIN, "zero3": OTHER_NAMES}


def mutation(module: str, before: str, after: str) -> dict[str, Any]:
    """A change of transformers' source."""
    return asdict(next(of for of in mutations(module, source_of(module)) if (of.before, of.after) == (before, after)))


@pytest.mark.parametrize(
    "deployment", ["ddp", "zero3", *(pytest.param(of, marks=pytest.mark.thorough) for of in ("fsdp2", "zero2"))]
)
def test_weights_that_were_not_loaded_are_named(deployment: Any, tmp_path_factory: pytest.TempPathFactory) -> None:
    cases = [
        Case(name="healthy", settings=SETTINGS),
        Case(name="faulty", settings=SETTINGS, mutation=mutation(*PLACES[deployment])),
    ]
    trained = outcomes(tmp_path_factory.mktemp(deployment), deployment, cases)
    for of in trained["healthy"]:
        assert (of.error, of.found, of.verdict) == ("", [], "PASS")
    assert trained["healthy"][0].rules["RLS423"][0] == "PASS"
    assert [found.code for found in trained["faulty"][0].found] == ["RLS423"]
