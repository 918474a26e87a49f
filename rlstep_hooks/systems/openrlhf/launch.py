"""OpenRLHF from a launch, and the way back; the formulas are in `rlstep_hooks.systems.openrlhf.plan`."""

from __future__ import annotations

import math
from fractions import Fraction
from typing import TYPE_CHECKING, Any

import msgspec

from rlstep_hooks.launch.text import LaunchError, SettingError
from rlstep_hooks.planning.reading import Conversion, Formula, Note, Reading
from rlstep_hooks.planning.refusal import PlanError
from rlstep_hooks.systems.openrlhf.plan import make_schedule
from rlstep_hooks.systems.openrlhf.releases import OpenRLHFRelease
from rlstep_hooks.systems.openrlhf.settings import ALGORITHMS, NAMES, SETTINGS, OpenRLHFSettings, flag_of

if TYPE_CHECKING:
    from collections.abc import Iterable

    from rlstep_hooks.planning.schedule import Schedule
    from rlstep_hooks.systems.declaration import Quantities
    from rlstep_hooks.systems.request import Request

LAST_FLAT = "0.10.1.post2"
"""The last release with flat flags."""
LAST_WITHOUT_RAY = "0.5.9.post1"
"""The last release with `openrlhf.cli.train_ppo`."""


def read(launch: Quantities) -> Reading:
    """The Schedule.

    Raises:
        SettingError: A flag is of another release, or its value is no number or too small.
        PlanError: OpenRLHF refuses these flags.
    """
    request = launch.request
    release, notes = release_of_flags(request)
    if request.settings.is_given("pretrain_data"):
        raise SettingError(
            "pretrain_data mixes updates on pre-training text in; that is not planned",
            request.settings.place("pretrain_data"),
        )
    settings = read_flags(launch, release)
    return reading_of(launch, settings, release, notes)


def reading_of(
    launch: Quantities, settings: OpenRLHFSettings, release: OpenRLHFRelease, notes: Iterable[Note] = ()
) -> Reading:
    """The Schedule of settings that were read from a launch.

    Args:
        launch: The launch.
        settings: Its settings.
        release: The release that it is for.
        notes: What was noted while it was read.

    Raises:
        PlanError: OpenRLHF refuses these settings.
    """
    rows = launch.request.rows(*launch.system.rows_from)
    schedule = make_schedule(settings, release, rows.count)
    if rows.count is None:
        for name in ("rows", "rows_dropped_per_epoch", "rollouts_per_epoch"):
            schedule.not_evaluated.setdefault(name, rows.source)
    return Reading(
        schedule=schedule,
        formulas=_formulas(schedule, settings, release),
        notes=(*notes, *_notes(schedule, settings, release)),
        facts=_facts(launch, schedule, settings),
    )


def read_flags(launch: Quantities, release: OpenRLHFRelease) -> OpenRLHFSettings:
    """The settings of a launch, checked one by one.

    Raises:
        SettingError: One of them is no number, or too small.
        PlanError: The estimator is unknown.
    """
    values = {name: launch[dotted] for name, dotted in NAMES.items()}
    values["estimator"] = _estimator(values["estimator"], release)
    values["kl_coef"] = float(values["kl_coef"])
    read = OpenRLHFSettings(**values)
    request = launch.request
    if request.world_size_given is None and not _without_ray(request):
        return read
    processes = request.world_size() * read.copies
    return msgspec.structs.replace(read, actor_nodes=1, actor_gpus=processes, critic_nodes=1, critic_gpus=processes)


def release_of_flags(request: Request) -> tuple[OpenRLHFRelease, list[Note]]:
    """The release that fits the flags: OpenRLHF renamed them all in 0.10.2.

    Raises:
        SettingError: Flags of both kinds are given, or dotted ones for a release without them.
    """
    release, settings = OpenRLHFRelease(request.version), request.settings
    flat = next((name for dotted in NAMES.values() for name in SETTINGS[dotted].also if settings.is_given(name)), None)
    dotted = next((name for name in NAMES.values() if settings.is_given(name)), None)
    if flat and dotted:
        raise SettingError(
            f"--{dotted} is a flag of 0.10.2 and later, --{flat} one of before: no release knows both",
            settings.place(flat),
        )
    if _without_ray(request) and release.since("0.6"):
        return OpenRLHFRelease(LAST_WITHOUT_RAY), [
            Note("assumes", f"openrlhf.cli.train_ppo ended with 0.5: read as {LAST_WITHOUT_RAY}; --version says which")
        ]
    if dotted and not release.has_dotted_names:
        raise SettingError(
            f"--{dotted} came with OpenRLHF 0.10.2; this plan is for {release.openrlhf}", settings.place(dotted)
        )
    if flat and release.has_dotted_names:
        return OpenRLHFRelease(LAST_FLAT), [
            Note(
                "assumes",
                f"--{flat} was renamed in 0.10.2: read as {LAST_FLAT}, the last with such flags; --version says which",
            )
        ]
    return release, []


LAST_FLAT = "0.10.1.post2"
"""The last release with flat flags."""
LAST_WITHOUT_RAY = "0.5.9.post1"
"""The last release with `openrlhf.cli.train_ppo`."""


def _without_ray(request: Request) -> bool:
    return request.command.program.name.rpartition("/")[2] in ("openrlhf.cli.train_ppo", "train_ppo.py")


def _estimator(name: str, release: OpenRLHFRelease) -> str:
    if name not in ALGORITHMS:
        raise PlanError(
            f"argument --{flag_of('estimator', release)}: invalid choice: {name!r} (choose from {', '.join(ALGORITHMS)})",
            when="at the start",
            fix=f"GRPO is {flag_of('estimator', release)} = group_norm, REINFORCE++ is reinforce",
            source=f"OpenRLHF {release.openrlhf} cli/train_ppo_ray.py",
        )
    return name


def _formulas(schedule: Schedule, settings: OpenRLHFSettings, release: OpenRLHFRelease) -> tuple[Formula, ...]:
    """The formulas of a release, in the words of its settings."""
    sources = schedule.sources
    group, batch, epochs = "rollout.n_samples_per_prompt", "train.batch_size", "train.max_epochs"
    prompts = "rollout.batch_size"
    if release.ranks_generate:
        prompts = f"floor({prompts} / world_size) * world_size"
    elif release.loader_gives_generate_batch and settings.generate_prompts and not settings.dynamic_filtering:
        prompts = "rollout.vllm_generate_batch_size"
    elif release.buffers_generate_batch and settings.generate_prompts:
        prompts = f"min({prompts}, rollout.vllm_generate_batch_size)"
    per_pass = "samples_per_rollout / train.batch_size"
    update = batch
    if settings.dynamic_batch:
        update = f"floor({batch} / world_size) * world_size"
        per_pass = (
            f"min(floor(rollout.batch_size * {group} / {batch}), "
            f"floor(floor(samples_per_rollout / world_size) / floor({batch} / world_size)))"
        )
    elif schedule.samples_dropped_per_rollout:
        per_pass = "floor(samples_per_rollout / (world_size * train.micro_batch_size)) / microbatches_per_update"
    formulas = [
        Formula("samples_per_rollout", f"{prompts} * {group}", sources["samples_per_rollout"]),
        Formula("samples_per_update", update, sources["samples_per_update"]),
        Formula("updates_per_rollout", f"{epochs} * {per_pass}", sources["updates_per_rollout"]),
    ]
    if not settings.dynamic_batch:
        accumulation = f"{batch} / (train.micro_batch_size * world_size)"
        formulas.append(Formula("microbatches_per_update", accumulation, sources["microbatches_per_update"]))
    if schedule.samples_dropped_per_rollout:
        trained = (
            f"updates_per_rollout / {epochs} * samples_per_update"
            if settings.dynamic_batch
            else f"microbatches_per_rollout / {epochs} * train.micro_batch_size * world_size"
        )
        text = f"samples_per_rollout - {trained}"
        formulas.append(Formula("samples_dropped_per_rollout", text, sources["samples_dropped_per_rollout"]))
    rollouts = "floor(floor(rows / world_size) * world_size / prompts_per_rollout)"
    if not release.ranks_generate:
        whole = "ceil" if release.trains_partial_rollout(asynchronous=settings.asynchronous) else "floor"
        rollouts = f"{whole}(rows / prompts_per_rollout)"
    horizon = f"floor(rows * {group} / {batch}) * train.num_episodes * {epochs}"
    formulas += [
        Formula("rollouts_per_epoch", rollouts, sources["rollouts_per_epoch"]),
        Formula("rollouts", "rollouts_per_epoch * train.num_episodes", sources["rollouts_per_epoch"]),
        Formula("lr_horizon", horizon, sources["lr_horizon"]),
    ]
    if schedule.frozen_rollouts:
        more = " + 1" if release.counts_steps_from_zero else ""
        formulas.append(Formula("frozen_rollouts", f"critic.freezing_steps{more}", sources["frozen_rollouts"]))
    if settings.asynchronous and settings.generated <= settings.prompts:
        formulas.append(Formula("max_age", "train.async_queue_size", sources["max_age"]))
    return tuple(formulas)


def _notes(schedule: Schedule, settings: OpenRLHFSettings, release: OpenRLHFRelease) -> list[Note]:
    """What OpenRLHF does without a message."""
    batch, prompts = flag_of("batch", release), flag_of("prompts", release)
    notes = [Note("unit", f"{prompts} counts prompts, {batch} counts samples over all processes")]
    # Samples of all passes together, since accumulation goes on from pass to pass.
    trained = schedule.reuse_epochs * (schedule.samples_per_rollout - schedule.samples_dropped_per_rollout)
    last = schedule.reuse_epochs * schedule.samples_of_last_rollout
    each = schedule.samples_per_update or 1
    if schedule.remainder == "carry" and trained % each:
        notes.append(
            Note(
                "carries",
                f"{trained} samples of a rollout are {schedule.updates_per_rollout} updates of {each}: gradients that fill none are "
                "applied in the next rollout, with new weights, and those at the end of the run never",
            )
        )
    elif schedule.remainder == "carry" and last % each:
        notes.append(
            Note(
                "carries",
                f"the last rollout of an episode has {schedule.samples_of_last_rollout} samples: {last % each} of {each} wait for the "
                "next episode's first update, or are never applied",
            )
        )
    if schedule.samples_dropped_per_rollout:
        notes.append(
            Note(
                "drops", f"{schedule.samples_dropped_per_rollout} samples of each rollout fill no micro-batch or update"
            )
        )
    if schedule.rows_dropped_per_epoch:
        wasted = " after they were generated" if release.wastes_partial_rollout else ""
        notes.append(
            Note(
                "drops",
                f"{schedule.rows_dropped_per_epoch} rows of each episode fill no rollout and are dropped{wasted}",
            )
        )
    if schedule.prompts_per_rollout < settings.prompts:
        notes.append(_smaller_rollouts(schedule, settings, release))
    elif schedule.prompts_per_rollout > settings.prompts:
        notes.append(
            Note(
                "grows",
                f"a rollout has all {settings.generated} prompts of {flag_of('generate_prompts', release)}, not {settings.prompts}",
            )
        )
    if schedule.frozen_samples_kept:
        notes.append(
            Note(
                "grows",
                f"{schedule.frozen_rollouts} rollouts are frozen, and their samples stay in the buffer: the first that is trained is "
                f"trained with them, {(schedule.frozen_rollouts + 1) * schedule.samples_per_rollout} samples at once",
            )
        )
    if not settings.engines and not release.ranks_generate:
        name = flag_of("engines", release)
        notes.append(Note("assumes", f"{name} is not given: without an engine there is nothing to generate with"))
    return notes


def _smaller_rollouts(schedule: Schedule, settings: OpenRLHFSettings, release: OpenRLHFRelease) -> Note:
    prompts = schedule.prompts_per_rollout
    if release.ranks_generate:
        return Note(
            "drops", f"each of {schedule.world_size} processes draws whole prompts: {prompts} of {settings.prompts}"
        )
    return Note(
        "shrinks",
        f"{flag_of('generate_prompts', release)} = {settings.generated} is below {flag_of('prompts', release)} = {settings.prompts}: a "
        f"rollout has {prompts} prompts",
    )


def _facts(launch: Quantities, schedule: Schedule, settings: OpenRLHFSettings) -> dict[str, Any]:
    facts: dict[str, Any] = {
        "lr_constant": (launch["actor.lr_scheduler"] or "").startswith("constant"),
        "minibatch_unit": "samples",
        "nominal_updates_per_rollout": Fraction(schedule.reuse_epochs * schedule.samples_per_rollout, settings.batch),
    }
    if schedule.lr_horizon is not None:
        facts["lr_warmup"] = math.ceil(schedule.lr_horizon * launch["actor.lr_warmup_ratio"])
    for fact, name in (("save_every", "ckpt.save_steps"), ("eval_every", "eval.steps")):
        if launch[name] > 0:
            facts[fact] = launch[name]
    return facts


def write(schedule: Schedule) -> Conversion:
    """The same schedule as a launch of OpenRLHF 0.11.

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
        LaunchError: It cannot be said in episodes.
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
