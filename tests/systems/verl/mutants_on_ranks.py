"""`python -m tests.systems.verl.mutants_on_ranks STRATEGY --number 60 --seed 1`: mistakes made by a machine in the source that two
ranks train verl's policy with: verl's workers, engine and losses, and torch's sharding.

Ray, engine and controller are left out (`train_mistaken.py`).
"""

from __future__ import annotations

import argparse
import functools
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rlstep_hooks.record.ledger import CONTROLLER
from rlstep_hooks.systems.verl.rehearse.cpu import ENVIRONMENT
from tests.cpu.verl_cpu.assets import write_model
from tests.mutants.on_ranks import Mistaken, Trainings, arguments_of, session, with_report
from tests.reports import report_of
from tests.scripted_phases import PhaseCase, phase_plan, scripted_phases, write_records
from tests.systems.trl_ranks.launching import ROOT, outcomes
from tests.systems.verl.launch import CPU_FOLDER

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from rlstep_hooks.judge.report import Report
    from tests.systems.trl_ranks.cases import Outcome

SCRIPT = Path(__file__).with_name("train_mistaken.py")
PATIENCE = 45.0
"""Seconds that a mutant may take; ranks that wait for each other do so without end."""
RANKS, ROLLOUTS = 2, 3
ROLLOUT, PROMPT, RESPONSE = 8, 4, 8
"""Samples of one rank and rollout; tokens of each."""
UPDATE = 8
"""Samples behind an update, of both ranks."""
ALL = (
    "verl.trainer.ppo.core_algos", "verl.utils.tensordict_utils", "verl.utils.torch_functional", "verl.workers.engine.base",
    "verl.workers.engine.fsdp.transformer_impl", "verl.workers.engine.utils", "verl.workers.engine_workers",
    "verl.workers.utils.losses", "verl.workers.utils.padding", "verl.utils.fsdp_utils",
)  # fmt: skip
MODULES = {
    "fsdp2": (
        "torch.distributed.fsdp._fully_shard._fsdp_collectives", "torch.distributed.fsdp._fully_shard._fsdp_param",
        "torch.distributed.fsdp._fully_shard._fsdp_param_group", "torch.distributed.fsdp._fully_shard._fsdp_state",
        "torch.distributed.fsdp._fully_shard._fully_shard",
    ),
    "fsdp": (
        "torch.distributed.fsdp._runtime_utils", "torch.distributed.fsdp._flat_param",
        "torch.distributed.fsdp.fully_sharded_data_parallel",
    ),
}  # fmt: skip
"""Beside those of both strategies."""
RUNS: dict[str, dict[str, Any]] = {
    "clipped": {
        "actor_rollout_ref.actor.optim.clip_grad": 0.05, "actor_rollout_ref.actor.optim.weight_decay": 0.1,
        "actor_rollout_ref.actor.optim.lr_warmup_steps": 2, "actor_rollout_ref.actor.ppo_epochs": 2,
    },
    "terms": {
        "actor_rollout_ref.actor.entropy_coeff": 0.01, "actor_rollout_ref.actor.clip_ratio_high": 0.28,
        "actor_rollout_ref.actor.loss_agg_mode": "seq-mean-token-mean", "actor_rollout_ref.actor.shuffle": True,
        "actor_rollout_ref.actor.data_loader_seed": 3,
    },
}  # fmt: skip
PASSES = {"clipped": 2, "terms": 1}


def judged(folder: Path, run: str) -> Report:
    """The report of a run, whose ranks left their records in a folder."""
    plan = phase_plan(
        world_size=RANKS,
        samples=RANKS * ROLLOUT,
        minibatches=(UPDATE, UPDATE),
        microbatch=4,
        reuse=PASSES[run],
        rollouts=ROLLOUTS,
        lr_clock="rollout",
    )
    lines = [line for line in scripted_phases(PhaseCase(schedule=plan)) if line[0] == CONTROLLER]
    write_records(folder, lines)
    return report_of(folder)


def train(
    strategy: str, folder: Path, wanted: Sequence[Mistaken], say: Callable[[str, list[Outcome]], None]
) -> dict[str, list[Outcome]]:
    """Train each in one launch, and judge what each recorded."""
    by_name = {of.name: of for of in wanted}
    found: dict[str, list[Outcome]] = {}

    def done(name: str, of_ranks: list[Outcome]) -> None:
        found[name] = with_report(of_ranks, lambda: judged(folder / name, by_name[name].run))
        say(name, found[name])

    if not (folder / "model").exists():
        write_model(folder / "model")
    paths = {"PYTHONPATH": os.pathsep.join((str(ROOT), str(CPU_FOLDER))), "TOKENIZERS_PARALLELISM": "false"}
    outcomes(folder, strategy, wanted, patience=PATIENCE, script=SCRIPT, environment=ENVIRONMENT | paths, say=done)
    return found


def main() -> int:
    """Exit status 0 if no survivor is without a judgement."""
    parser = argparse.ArgumentParser(prog="mutants")
    parser.add_argument("strategy", choices=list(MODULES))
    arguments = arguments_of(parser)
    strategy: str = arguments.strategy
    trainings = Trainings(f"verl, {strategy}", ALL + MODULES[strategy], tuple(RUNS), functools.partial(train, strategy))
    return session(trainings, arguments)


if __name__ == "__main__":
    sys.exit(main())
