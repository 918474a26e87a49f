"""Audits LLaMA-Factory's PPO: TRL's `step()` as `StepAuditPPO` sees it, with the whole run planned."""

from __future__ import annotations

import os
from contextlib import ExitStack
from importlib.metadata import version
from typing import Any

import msgspec

from rlstep_hooks.observe.patches import Patches
from rlstep_hooks.observe.sharding.zero import wrapped_optimizer
from rlstep_hooks.observe.versions import versions_of
from rlstep_hooks.record.describe import describe
from rlstep_hooks.record.logger import not_evaluated
from rlstep_hooks.systems.engine import index, reader
from rlstep_hooks.systems.llamafactory.system import PACKAGE, SYSTEM
from rlstep_hooks.systems.own_loop.loop import LoopAudit
from rlstep_hooks.systems.trl_ppo_step.observe.audit import StepAuditPPO

_patches = Patches()


class LlamaFactoryAudit(StepAuditPPO):
    """The audit of one CustomPPOTrainer. Its loop calls `step()` once for each batch of its loader (`ppo_train`, 0.9.3 and 0.9.5)."""

    def _planned(self) -> LoopAudit:
        trainer = self._trainer
        # Each process audits itself, so all sizes are those of one process, and its loader has its share of the rows.
        alone = trainer.accelerator.num_processes == 1
        rows = len(trainer.dataset) if alone else len(trainer.dataloader) * trainer.config.batch_size
        reading = reader.read_config(
            SYSTEM,
            {"stage": "ppo"} | _settings(trainer),
            rows=rows,
            world_size=1,
            version=version(PACKAGE),
            checked=True,
        )
        # The reference model's log-probs and the end of a pass are not observed here.
        schedule = msgspec.structs.replace(reading.schedule, reference_source="none", epoch_ends_between_rollouts=False)
        # All its forwards are under an autocast of the device's own type.
        dtype = str(trainer.amp_context.fast_dtype).removeprefix("torch.")
        facts = reading.facts | index.link_facts("llamafactory") | {"compute_dtype": dtype}
        return LoopAudit(
            schedule,
            optimizer=wrapped_optimizer(trainer),
            session=self._session,
            facts=facts,
            versions=versions_of("trl", "transformers", "accelerate", "torch", PACKAGE),
        )


def _settings(trainer: Any) -> dict[str, Any]:
    """The live settings that the formulas name."""
    found = {}
    for name in SYSTEM.settings:
        for owner in (trainer.args, trainer.finetuning_args):
            if hasattr(owner, name):
                value = getattr(owner, name)
                found[name] = getattr(value, "value", value)
    return found


def audit_ppo(module: Any) -> None:
    """`CustomPPOTrainer` (llamafactory/train/ppo/trainer.py, 0.9.3): its whole training is one call of `ppo_train`."""
    # A patch and no hook: the audit learns with which error training ends.
    _patches.wrap(module.CustomPPOTrainer, "ppo_train", _around_training)


def detach() -> list[str]:
    """Leave the class as it was; names that somebody else has wrapped since are returned."""
    return _patches.restore()


def _around_training(wrapped: Any, trainer: Any, args: Any, kwargs: Any) -> Any:
    with ExitStack() as audits:
        if os.environ.get("RLSTEP_DIR"):
            try:
                audits.enter_context(LlamaFactoryAudit(trainer))
            except Exception as error:  # noqa: BLE001 - an audit that cannot begin must not keep training from it
                not_evaluated(f"the audit could not begin: {describe(error)}")
        return wrapped(*args, **kwargs)
