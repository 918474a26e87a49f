"""Which of verl's engines are followed, and what a trainer says of another one."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from verl.workers.engine.fsdp.transformer_impl import FSDPEngineWithLMHead

from rlstep_hooks.systems.verl.observe.engines import why_not_followed
from rlstep_hooks.systems.verl.observe.trainer import VerlTrainer


class MegatronEngine:
    """A class where verl has its engine of Megatron, which this environment cannot import."""

    __module__ = "verl.workers.engine.megatron.transformer_impl"


def test_engines_that_shard_with_fsdp_are_followed_and_others_say_that_they_are_not() -> None:
    class Derived(FSDPEngineWithLMHead):  # type: ignore[misc]
        __module__ = "verl.workers.engine.veomni.transformer_impl"

    assert why_not_followed(object.__new__(FSDPEngineWithLMHead)) == ""
    assert why_not_followed(object.__new__(Derived)) == ""
    assert why_not_followed(MegatronEngine()).startswith("MegatronEngine is not followed")


def test_an_engine_that_is_not_followed_is_left_alone() -> None:
    said: dict[str, str] = {}
    trainer: Any = SimpleNamespace(cannot=said.__setitem__)
    VerlTrainer.built(trainer, MegatronEngine())
    assert {"order", "weights", "optimizer", "gradient", "reduction", "loss", "checkpoints"} <= said.keys()
    assert set(said.values()) == {why_not_followed(MegatronEngine())}
