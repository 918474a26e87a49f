"""The release of OpenRLHF that the flags of a launch fit, and a Schedule written as a launch of 0.11."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import msgspec

from rlstep_hooks.launch.text import LaunchError, SettingError
from rlstep_hooks.planning.reading import Conversion, Note
from rlstep_hooks.systems.deepspeed_engine.launch import EngineConfig, faults_of_launch
from rlstep_hooks.systems.engine.request import release_of
from rlstep_hooks.systems.openrlhf.deviations import known_before
from rlstep_hooks.systems.openrlhf.settings import ALGORITHMS, FLAT_NAMES_END, OF_SCHEDULE, SETTINGS

if TYPE_CHECKING:
    from rlstep_hooks.planning.schedule import Schedule
    from rlstep_hooks.systems.engine.request import Request

LAST_FLAT = "0.10.1.post2"
"""The last release with flat flags."""
LAST_WITHOUT_RAY = "0.5.9.post1"
"""The last release with `openrlhf.cli.train_ppo`."""


def release_of_flags(launch: Request) -> tuple[str, tuple[Note, ...]]:
    """The release that fits the flags, with a note where it is another one than asked for.

    Raises:
        SettingError: Flags of both kinds are given, or dotted ones for a release without them.
    """
    release, settings = release_of(launch.version), launch.settings
    flat = next((name for dotted in OF_SCHEDULE for name in SETTINGS[dotted].also if settings.is_given(name)), None)
    dotted = next((name for name in OF_SCHEDULE if settings.is_given(name)), None)
    if flat and dotted:
        raise SettingError(
            f"--{dotted} is a flag of 0.10.2 and later, --{flat} one of before: no release knows both",
            settings.place(flat),
        )
    if without_ray(launch) and release >= (0, 6):
        why = f"openrlhf.cli.train_ppo ended with 0.5: read as {LAST_WITHOUT_RAY}; --version says which"
        return LAST_WITHOUT_RAY, (Note("assumes", why),)
    if dotted and release < FLAT_NAMES_END:
        raise SettingError(
            f"--{dotted} came with OpenRLHF 0.10.2; this plan is for {launch.version}", settings.place(dotted)
        )
    if flat and release >= FLAT_NAMES_END:
        why = f"--{flat} was renamed in 0.10.2: read as {LAST_FLAT}, the last with such flags; --version says which"
        return LAST_FLAT, (Note("assumes", why),)
    return launch.version, ()


def without_ray(launch: Request) -> bool:
    """Whether a launcher of torch starts the trainers: `openrlhf.cli.train_ppo` of 0.5."""
    return launch.command.program.name.rpartition("/")[2] in ("openrlhf.cli.train_ppo", "train_ppo.py")


def started_processes(launch: Request) -> int | None:
    """Data-parallel processes as the user or a launcher gives them; None if the flags give them."""
    return launch.world_size() if launch.world_size_given is not None or without_ray(launch) else None


def engine_faults(launch: Request, accumulation: int) -> list[dict[str, str]] | None:
    """Known faults of the DeepSpeed that is installed here, and of OpenRLHF, of the kind that this launch shows; None where there are
    none.

    OpenRLHF makes DeepSpeed's configuration of its own flags (utils/deepspeed/deepspeed_utils.py 0.11.2:6-58): stage 2 without a flag,
    weights in bf16 or fp16. Flat flags had a switch for bf16 (cli/train_ppo_ray.py 0.9.0:275); without it weights were in float32.

    Args:
        launch: The launch.
        accumulation: Micro-batches after which the engine steps.
    """
    settings = launch.settings
    try:
        stage = settings.optional_count("ds.zero_stage", "zero_stage", least=0)
        offload = settings.flag("ds.adam_offload", "adam_offload")
        averages = settings.flag("train.enable_ema", "enable_ema")
        reduced = release_of(launch.version) >= FLAT_NAMES_END or settings.flag("bf16")
    except LaunchError:  # a value that only the shell knows, or that OpenRLHF refuses itself
        return None
    stage = 2 if stage is None else stage
    of_engine = faults_of_launch(EngineConfig(stage, offload), reduced=reduced, microbatches=accumulation) or []
    return of_engine + known_before(launch.version, stage=stage, averages=averages) or None


def write(schedule: Schedule) -> Conversion:
    """A schedule as a launch of OpenRLHF 0.11.

    Raises:
        LaunchError: A quantity cannot be kept.
    """
    from rlstep_hooks.planning.writing import Target

    title = "OpenRLHF"
    target = Target(schedule, title)
    target.equal_updates()
    size = target.samples_per_update
    if schedule.loop == "phases" and schedule.remainder != "carry":
        target.divides_evenly()
    if schedule.samples_dropped_per_rollout:
        raise LaunchError(
            f"samples_dropped_per_rollout = {schedule.samples_dropped_per_rollout} cannot be kept: {title} trains all"
        )
    each = target.microbatch_per_process(of=math.gcd(schedule.samples_per_rollout, size))
    estimator = _estimator_for(schedule)
    critic = schedule.critic is not None
    command = [
        "python", "-m", "openrlhf.cli.train_ppo_ray",
        "--actor.num_gpus_per_node", str(schedule.world_size),
        *(["--critic.num_gpus_per_node", str(schedule.critic.world_size)] if schedule.critic is not None else []),
        "--vllm.num_engines", "1",
        "--rollout.batch_size", str(target.whole_prompts()),
        "--rollout.n_samples_per_prompt", str(schedule.samples_per_prompt),
        "--rollout.micro_batch_size", str(each),
        "--train.batch_size", str(size),
        "--train.micro_batch_size", str(each),
        "--train.max_epochs", str(schedule.reuse_epochs),
        "--algo.advantage.estimator", estimator,
        *(["--algo.kl.init_coef", "0"] if schedule.reference_source == "none" else []),
        *_length(schedule, title),
    ]  # fmt: skip
    kept = schedule
    if schedule.max_age:
        command += ["--train.async_enable", "--train.async_queue_size", str(schedule.max_age)]
        kept = msgspec.structs.replace(kept, max_age=0)
    if schedule.frozen_samples_kept:
        command += ["--critic.freezing_steps", str(schedule.frozen_rollouts - 1)]
        kept = msgspec.structs.replace(kept, frozen_rollouts=0)
    target.schedule = kept
    target.keeps(lr_clock="update", source="recompute", critic=critic, loader="keeps")
    return Conversion(tuple(command), (*target.lost(), *_also_lost(schedule, estimator)))


def _estimator_for(schedule: Schedule) -> str:
    if schedule.critic is not None:
        return "gae"
    known = {algorithm.upper(): name for name, algorithm in ALGORITHMS.items() if name != "gae"}
    name = known.get(schedule.algorithm.upper(), "group_norm")
    return name if schedule.samples_per_prompt > 1 else "reinforce"


def _length(schedule: Schedule, title: str) -> list[str]:
    """The run's length in whole episodes.

    Raises:
        LaunchError: Whole episodes cannot give it.
    """
    rollouts = schedule.rollouts
    if rollouts is None:
        return []
    if not schedule.rows:
        raise LaunchError(
            f"rollouts = {rollouts} cannot be kept: {title} counts passes over the rows, which are not known"
        )
    rows = schedule.rows if schedule.samples_of_last_rollout else schedule.rows - (schedule.rows_dropped_per_epoch or 0)
    per_episode = math.ceil(rows / schedule.prompts_per_rollout)
    whole = schedule.samples_of_last_rollout or rows % schedule.prompts_per_rollout == 0
    if not per_episode or rollouts % per_episode or not whole:
        raise LaunchError(
            f"rollouts = {rollouts} cannot be kept: {title} ends after whole passes over the rows, of {per_episode} rollouts each"
        )
    trained = rollouts * schedule.samples_per_rollout
    if schedule.samples_of_last_rollout:
        trained -= rollouts // per_episode * (schedule.samples_per_rollout - schedule.samples_of_last_rollout)
    updates = schedule.reuse_epochs * trained // (schedule.samples_per_update or 1)
    if not schedule.frozen_rollouts and schedule.updates is not None and schedule.updates != updates:
        raise LaunchError(
            f"updates = {schedule.updates} cannot be kept: {title} carries gradients over the end of a pass and makes {updates}"
        )
    length = ["--train.num_episodes", str(rollouts // per_episode)]
    return length if rows == schedule.rows else [*length, "--data.max_samples", str(rows)]


def _also_lost(schedule: Schedule, estimator: str) -> list[str]:
    lost = []
    if ALGORITHMS[estimator].upper() != schedule.algorithm.upper():
        lost.append(f"algorithm: {schedule.algorithm}, here {ALGORITHMS[estimator]}")
    if schedule.rows_dropped_per_epoch and schedule.rollouts:
        lost.append(
            f"rows_dropped_per_epoch: {schedule.rows_dropped_per_epoch} of each pass, here the same ones in every pass"
        )
    critic = schedule.critic
    if critic is not None and critic.samples_per_update != schedule.samples_per_update:
        lost.append(f"critic.samples_per_update: {critic.samples_per_update}, here {schedule.samples_per_update}")
    if critic is not None and critic.reuse_epochs != schedule.reuse_epochs:
        lost.append(f"critic.reuse_epochs: {critic.reuse_epochs}, here {schedule.reuse_epochs}")
    return lost
