"""`python -m tests.systems.trl_ranks.mutants DEPLOYMENT --number 60 --seed 1`: mistakes made by a machine in the source that several
ranks train with, each in force on both of two ranks.

The lines are those that the healthy runs execute, of TRL's trainer and of what spreads it over ranks: accelerate's, torch's and
DeepSpeed's. A mistake is real where a rank ends with other weights than in the healthy run.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections import defaultdict
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_args

import msgspec

from tests.mutants.__main__ import read
from tests.mutants.drawing import drawn
from tests.mutants.operators import Mutation, mutations
from tests.mutants.outcomes import Outcome as Tried
from tests.mutants.outcomes import Table, judgements
from tests.mutants.sources import source_of
from tests.systems.trl_ranks.cases import Case, Deployment, Outcome
from tests.systems.trl_ranks.corpus import RANKS, SHARDING
from tests.systems.trl_ranks.launching import outcomes

if TYPE_CHECKING:
    from collections.abc import Sequence

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


def unmutated(folder: Path, deployment: Deployment, modules: Sequence[str]) -> dict[str, list[Outcome]]:
    """The outcomes of the healthy runs, each trained twice: once it writes the lines that it executes.

    Raises:
        RuntimeError: One is accused, or does not train the same again.
    """
    sharding = SHARDING.get(deployment, {})
    plain = [Case(name=name, settings=settings, sharding=sharding) for name, settings in RUNS.items()]
    lines = [msgspec.structs.replace(case, name=f"{case.name} with lines", traced=tuple(modules)) for case in plain]
    found = outcomes(folder, deployment, plain + lines, ranks=RANKS)
    for case in plain:
        of, again = found[case.name], found[f"{case.name} with lines"]
        if of[0].error or of[0].verdict != "PASS" or of[0].found:
            raise RuntimeError(f"the unmutated run {case.name} is accused or raised: {of[0]}")
        if [rank.trained for rank in of] != [rank.trained for rank in again]:
            raise RuntimeError(f"the run {case.name} does not train the same again: {again[0].error}")
    return {case.name: found[case.name] for case in plain}


def executed_lines(folder: Path) -> dict[str, dict[str, list[int]]]:
    """The lines that any rank executes, by run and module."""
    found: dict[str, dict[str, list[int]]] = {}
    for name in RUNS:
        lines: defaultdict[str, set[int]] = defaultdict(set)
        for written in sorted((folder / f"{name} with lines").glob("lines*.json")):
            for module, of in msgspec.json.decode(written.read_bytes(), type=dict[str, list[int]]).items():
                lines[module].update(of)
        found[name] = {module: sorted(of) for module, of in lines.items()}
    return found


def tried(mutation: Mutation, run: str, of_ranks: Sequence[Outcome], healthy: Sequence[Outcome]) -> Tried:
    """What became of a mutant."""
    error = next((rank.error for rank in of_ranks if rank.error), "")
    if error:
        what = "hung" if "hung" in error else "none" if "NoMutantError" in error else "raised"
        return Tried(mutation, run, what, error.splitlines()[0])
    differ = [
        index for index, (of, clean) in enumerate(zip(of_ranks, healthy, strict=True)) if of.trained != clean.trained
    ]
    found = {f"{f.code} {f.place}": f for rank in of_ranks for f in rank.found}
    return Tried(
        mutation,
        run,
        "changed" if differ else "equivalent",
        f"weights of ranks {differ}" if differ else "",
        of_ranks[0].verdict,
        tuple(
            {"code": f.code, "severity": f.severity, "title": "", "text": f"{f.place}: {f.text}"}
            for f in found.values()
        ),
    )


def main() -> int:
    """Exit status 0 if no survivor is without a judgement."""
    parser = argparse.ArgumentParser(prog="mutants")
    parser.add_argument("deployment", choices=[name for name in get_args(Deployment) if name in MODULES])
    parser.add_argument("--number", type=int, default=60, help="mutants to train")
    parser.add_argument("--seed", type=int, default=0, help="of the draw")
    parser.add_argument("--results", type=Path, help="a file that gets an outcome a line")
    parser.add_argument("--again", type=Path, metavar="RESULTS", help="try the survivors of an earlier session again")
    arguments = parser.parse_args()
    deployment: Deployment = arguments.deployment
    modules = ALL + MODULES[deployment]
    folder = Path(tempfile.mkdtemp(prefix="mutants-"))
    print(folder, flush=True)
    healthy = unmutated(folder, deployment, modules)
    if arguments.again is not None:
        wanted = [(entry.mutation, entry.run) for entry in read(arguments.again) if entry.survived]
    else:
        made = [found for module in modules for found in mutations(module, source_of(module))]
        wanted = drawn(made, executed_lines(folder), arguments.number, arguments.seed)
    by_name = {f"{index:04d}": pair for index, pair in enumerate(wanted)}
    table = Table([], judgements())

    def say(name: str, of_ranks: list[Outcome]) -> None:
        mutation, run = by_name[name]
        entry = tried(mutation, run, of_ranks, healthy[run])
        table.outcomes.append(entry)
        print(
            f"{name} {entry.what:<10} {' '.join(entry.codes) or entry.verdict:<12} {run}: {entry.mutation}", flush=True
        )
        if arguments.results is not None:
            with arguments.results.open("a") as stream:
                stream.write(entry.to_json() + "\n")

    cases = [
        Case(name=name, settings=RUNS[run], sharding=SHARDING.get(deployment, {}), mutation=asdict(mutation))
        for name, (mutation, run) in by_name.items()
    ]
    outcomes(folder, deployment, cases, ranks=RANKS, patience=PATIENCE, say=say)
    print(f"\n{deployment}, seed {arguments.seed}\n{table.text()}")
    return int(any(table.kind(entry) == "not judged" for entry in table.outcomes if entry.survived))


if __name__ == "__main__":
    sys.exit(main())
