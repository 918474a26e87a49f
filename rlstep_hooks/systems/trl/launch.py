"""Functions that TRL's formulas call, and the conversion of a Schedule to a launch of `trl grpo`."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Literal

from rlstep_hooks.launch.accelerate import processes_with
from rlstep_hooks.launch.files import find_file
from rlstep_hooks.launch.text import LaunchError
from rlstep_hooks.planning.counting import divisors
from rlstep_hooks.planning.reading import Conversion
from rlstep_hooks.systems.deepspeed_engine.launch import config_in, faults_of_launch
from rlstep_hooks.systems.engine.request import release_of
from rlstep_hooks.systems.trl.releases import TrlRelease

if TYPE_CHECKING:
    from rlstep_hooks.planning.schedule import Schedule
    from rlstep_hooks.systems.engine.request import Request

Algorithm = Literal["GRPO", "RLOO"]

CYCLE_SETTINGS = (
    "per_device_train_batch_size",
    "gradient_accumulation_steps",
    "num_generations",
    "steps_per_generation",
    "generation_batch_size",
    "num_iterations",
)
"""Settings that fix the order and the sizes of events; watched while training."""

PLAN_SETTINGS = (
    *CYCLE_SETTINGS,
    "max_steps",
    "num_train_epochs",
    "beta",
    "loss_type",
    "shuffle_dataset",
    "learning_rate",
    "lr_scheduler_type",
    "use_vllm",
    "num_remains_in_group",
    "divergence_type",
)
"""Settings that appear in a plan."""


# The transformers release of that time decides only whether updates are rounded down.
_TRANSFORMERS = (("0.17", "4.51.3"), ("1.0", "4.57.6"), ("99", "5.23.0"))


def release_named(version: str) -> TrlRelease:
    """The TRL release of a version, with the transformers release of that time."""
    known = (transformers for below, transformers in _TRANSFORMERS if release_of(version) < release_of(below))
    return TrlRelease(version, next(known, _TRANSFORMERS[-1][1]))


def algorithm_of(launch: Request) -> Algorithm:
    """The algorithm of a launch: GRPO or RLOO."""
    name = launch.command.program.name
    called = any(launch.settings.is_given(f"RLOOConfig.{key}") for key in ("output_dir", *PLAN_SETTINGS))
    return "RLOO" if "rloo" in name.lower().rpartition("/")[2] or called else "GRPO"


def processes_of(launch: Request) -> int | None:
    """Processes of `trl grpo`, which hands what is not its own on to `accelerate launch`, also from its YAML; None if it is not said.

    Since 0.29 (trl/cli/commands/training.py); from 0.22 to 0.28 trl/cli.py drops them. TRL ships configurations of accelerate under
    names (trl/accelerate_configs): with `single_gpu` one process trains, with the others 8.
    """
    program, settings = launch.command.program, launch.settings
    if program.kind == "executable" and release_of(launch.version) < (0, 29):
        return None
    if program.kind not in ("executable", "config"):
        return None
    count = settings.optional_count("num_processes")
    named = settings.text("accelerate_config") or settings.text("config_file")
    if named is None:
        return count
    if named in SHIPPED:
        return SHIPPED[named] if count is None or SHIPPED[named] == 1 else count
    file = find_file(named, launch.folder, launch.command.folder)
    return count if file is None else processes_with(file, count)


SHIPPED = {"single_gpu": 1, "multi_gpu": 8, "fsdp1": 8, "fsdp2": 8, "zero1": 8, "zero2": 8, "zero3": 8}
"""Configurations of accelerate that TRL ships, with the processes that train with each."""


def engine_faults(launch: Request, accumulation: int) -> list[dict[str, str]] | None:
    """Known faults of the DeepSpeed that is installed here, of the kind that this launch shows; None where there are none.

    Weights are in 16 bits with bf16 or fp16; since 0.19 bf16 is the default (`GRPOConfig.bf16`: None stands for True without fp16).

    Args:
        launch: The launch.
        accumulation: Micro-batches of an update.
    """
    config = config_in(launch)
    if config is None:
        return None
    settings = launch.settings
    half = settings.is_given("fp16") and settings.flag("fp16")
    brain = settings.flag("bf16") if settings.is_given("bf16") else release_of(launch.version) >= (0, 19)
    return faults_of_launch(config, reduced=half or brain, microbatches=accumulation)


def rounds_down(version: str, transformers: str) -> bool:
    """Whether max_steps is rounded down: `TrlRelease.updates_rounded_down`."""
    return TrlRelease(version, transformers).updates_rounded_down


def valid_groups(samples: int) -> tuple[int, ...]:
    """Group sizes that divide the samples, as TRL lists them."""
    return tuple(divisors(samples)[1:])


def write(schedule: Schedule) -> Conversion:
    """A schedule as a launch of `trl grpo`.

    Raises:
        LaunchError: A quantity cannot be kept.
    """
    from rlstep_hooks.planning.writing import Target

    target = Target(schedule, "TRL")
    target.equal_updates()
    if schedule.samples_per_prompt < 2:
        raise LaunchError("samples_per_prompt = 1 cannot be kept: TRL's GRPO compares at least 2 samples of a prompt")
    batch = target.microbatch_per_process(of=math.gcd(schedule.samples_per_rollout, target.samples_per_update))
    each = batch * schedule.world_size
    accumulation, per_generation = target.samples_per_update // each, schedule.samples_per_rollout // each
    command = [
        "accelerate", "launch", "--num_processes", str(schedule.world_size), "-m", "trl.scripts.grpo",
        "--per_device_train_batch_size", str(batch),
        "--gradient_accumulation_steps", str(accumulation),
        "--steps_per_generation", str(per_generation),
        "--num_generations", str(schedule.samples_per_prompt),
        "--num_iterations", str(schedule.reuse_epochs),
        *(["--max_steps", str(schedule.updates)] if schedule.updates else []),
    ]  # fmt: skip
    detached = accumulation % (per_generation * schedule.reuse_epochs) == 0
    target.keeps(lr_clock="update", source="detach" if detached else "at_rollout", critic=False, loader="drops")
    return Conversion(tuple(command), target.lost())
