"""`python -m tests.systems.trl_ranks.mutants DEPLOYMENT --number 60 --seed 1`: mistakes made by a machine in the source that several
ranks train TRL with: TRL's trainer, and what spreads it over ranks, accelerate's, torch's and DeepSpeed's.
"""

from __future__ import annotations

import argparse
import functools
import sys
from typing import TYPE_CHECKING, Any, get_args

from tests.mutants.on_ranks import Mistaken, Trainings, arguments_of, session
from tests.systems.trl_ranks.cases import Case, Deployment, Outcome
from tests.systems.trl_ranks.corpus import RANKS, SHARDING
from tests.systems.trl_ranks.launching import outcomes

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

PATIENCE = 60.0
"""Seconds that a mutant may take; ranks that wait for each other do so without end."""
ALL = (
    "accelerate.accelerator", "accelerate.optimizer", "accelerate.scheduler", "accelerate.data_loader", "accelerate.state",
    "accelerate.utils.operations", "transformers.trainer", "trl.trainer.grpo_trainer", "trl.trainer.utils",
)  # fmt: skip
MODULES: dict[Deployment, tuple[str, ...]] = {
    "ddp": ("torch.nn.parallel.distributed",),
    "fsdp2": (
        "accelerate.utils.fsdp_utils", "torch.distributed.fsdp._fully_shard._fsdp_collectives",
        "torch.distributed.fsdp._fully_shard._fsdp_param", "torch.distributed.fsdp._fully_shard._fsdp_param_group",
        "torch.distributed.fsdp._fully_shard._fsdp_state", "torch.distributed.fsdp._fully_shard._fully_shard",
    ),
    "zero2": (
        "accelerate.utils.deepspeed", "deepspeed.runtime.engine", "deepspeed.runtime.zero.stage_1_and_2", "deepspeed.runtime.utils",
        "deepspeed.runtime.lr_schedules", "transformers.integrations.deepspeed",
    ),
    "zero3": (
        "accelerate.utils.deepspeed", "deepspeed.runtime.engine", "deepspeed.runtime.zero.stage3",
        "deepspeed.runtime.zero.partition_parameters", "deepspeed.runtime.zero.partitioned_param_coordinator",
        "transformers.integrations.deepspeed",
    ),
}  # fmt: skip
"""Beside those of all deployments."""
RUNS: dict[str, dict[str, Any]] = {
    "reused": {
        "rows": 12, "gradient_accumulation_steps": 2, "num_iterations": 2, "max_steps": 8, "beta": 0.04, "weight_decay": 0.1,
        "lr_scheduler_type": "linear", "warmup_steps": 2, "max_grad_norm": 0.5,
    },
    "large rollouts": {
        "rows": 24, "gradient_accumulation_steps": 3, "steps_per_generation": 6, "max_steps": 8, "loss_type": "dapo",
        "epsilon_high": 0.28, "scale_rewards": "batch", "bf16": True, "gradient_checkpointing": True, "max_grad_norm": 0.0,
        "adam_beta2": 0.95,
    },
}  # fmt: skip


def train(
    deployment: Deployment, folder: Path, wanted: Sequence[Mistaken], say: Callable[[str, list[Outcome]], None]
) -> dict[str, list[Outcome]]:
    """Train each in one launch."""
    sharding = SHARDING.get(deployment, {})
    cases = [
        Case(name=of.name, settings=RUNS[of.run], sharding=sharding, mutation=of.mutation, traced=of.traced)
        for of in wanted
    ]
    return outcomes(folder, deployment, cases, ranks=RANKS, patience=PATIENCE, say=say)


def main() -> int:
    """Exit status 0 if no survivor is without a judgement."""
    parser = argparse.ArgumentParser(prog="mutants")
    parser.add_argument("deployment", choices=[name for name in get_args(Deployment) if name in MODULES])
    arguments = arguments_of(parser)
    deployment: Deployment = arguments.deployment
    trainings = Trainings(deployment, ALL + MODULES[deployment], tuple(RUNS), functools.partial(train, deployment))
    return session(trainings, arguments)


if __name__ == "__main__":
    sys.exit(main())
