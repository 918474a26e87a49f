"""OAT's PPO, GRPO and Dr. GRPO: mini-batches in samples, a buffer of fixed length, gradients that DeepSpeed carries.

Read at sail-sg/oat c1a074c (2025-10-31): oat/args.py (defaults), oat/interface.py `get_program` (processes), oat/learners/base.py
`_init` and `run`, oat/algorithms/ppo.py `learn` and `learning_step`, oat/utils/deepspeed.py; and at sail-sg/understand-r1-zero
dfca49d: train_zero_math.py and examples/.
"""

from __future__ import annotations

import math
from fractions import Fraction
from typing import TYPE_CHECKING, Any

import msgspec

from rlstep_hooks.launch.text import LaunchError, SettingError
from rlstep_hooks.planning.phases import Passes, schedule_in_phases
from rlstep_hooks.planning.reading import Formula, Note, Reading, multiples, nearest
from rlstep_hooks.planning.refusal import PlanError
from rlstep_hooks.planning.schedule import lag_pattern
from rlstep_hooks.systems.reader import Reader, Request

if TYPE_CHECKING:
    from collections.abc import Mapping

    from rlstep_hooks.launch.settings import Settings
    from rlstep_hooks.planning.schedule import Schedule

_LEARNER = "OAT c1a074c oat/learners/base.py"
_PPO = "OAT c1a074c oat/algorithms/ppo.py"

DEFAULTS: dict[str, Any] = {
    "gpus": 8,
    "num_groups": 1,
    "collocate": False,
    "asynchronous": False,
    "critic_type": "drgrpo",
    "rollout_batch_size": 128,
    "rollout_batch_size_per_device": 16,
    "pi_buffer_maxlen_per_device": 16,
    "train_batch_size": 128,
    "train_batch_size_per_device": 1,
    "num_samples": 2,
    "num_ppo_epochs": 1,
    "max_epochs": 1,
    "num_prompt_epoch": 1,
    "max_train": 50000,
    "max_queries": -1,
    "sync_params_every": 1,
    "buffer_clear_every": None,
    "max_step_adjustment": 1,
    "critic_max_step_adjustment": 1,
    "beta": 0.1,
    "kl_penalty_coef": 0,
    "lr_scheduler": "cosine_with_min_lr",
    "lr_warmup_ratio": 0.03,
    "save_steps": -1,
    "eval_steps": 20,
}

_ALGORITHMS = {"ppo": "PPO", "grpo": "GRPO", "drgrpo": "Dr. GRPO"}


class _Sizes(msgspec.Struct, frozen=True, kw_only=True):
    """What follows from the sizes alone."""

    processes: int
    interval: int
    """Batches of the loader that make one rollout."""
    generated: int
    """Samples of a rollout on one process."""
    trained: int
    """Samples of the buffer on one process when it is trained, once it is full."""
    accumulation: int
    """Micro-batches behind an update."""
    microbatch: int
    """Samples of a micro-batch on one process."""


class OAT(Reader):
    """OAT's learners that generate and train in turn."""

    name = "oat"
    title = "OAT"
    version = "c1a074c"

    def defaults(self, version: str) -> Mapping[str, Any]:
        """The defaults of oat/args.py and oat/algorithms/ppo.py."""
        return DEFAULTS

    def read(self, request: Request) -> Reading:
        """The Schedule; see the module for its sources."""
        settings = request.settings
        _refuse_other_algorithms(request)
        kind = settings.text("critic_type") or "drgrpo"
        if kind not in _ALGORITHMS:
            raise SettingError(
                f"critic_type = {kind!r} is none of {', '.join(_ALGORITHMS)}", settings.place("critic_type")
            )
        sizes = _sizes(settings, request.world_size(_processes(settings)))
        prompts, group = settings.count("rollout_batch_size"), settings.count("num_samples")
        epochs = settings.count("num_ppo_epochs")
        rows = request.rows("prompt_data")
        passes = _passes(settings, sizes, rows.count, rows.source)
        per_pass = sizes.trained // sizes.microbatch
        per_rollout = Fraction(epochs * per_pass, sizes.accumulation)
        size = settings.count("train_batch_size")
        grows = sizes.trained > sizes.generated
        pattern = lag_pattern(epochs * per_pass, sizes.accumulation, 1, epochs)
        horizons = _horizons(settings, passes.rows)
        common: dict[str, Any] = {
            "framework": self.title,
            "version": request.version,
            "algorithm": _ALGORITHMS[kind],
            "passes": passes,
            "prompts_per_rollout": prompts,
            "samples_per_prompt": group,
            "world_size": sizes.processes,
            "reuse_epochs": epochs,
            "samples_per_microbatch": sizes.microbatch * sizes.processes,
            "microbatches_per_update": sizes.accumulation,
            "minibatches": (size,) * (per_pass // sizes.accumulation) if per_pass % sizes.accumulation == 0 else (),
            "updates_per_rollout": per_rollout,
            "updates_bound": "upper" if grows else "exact",
            "remainder": "carry",
            "samples_dropped": max(sizes.generated - sizes.trained, 0) * sizes.processes,
            # DeepSpeed applies what fills an update, whatever rollout it came from.
            "updates": None if passes.rollouts is None else math.floor(passes.rollouts * per_rollout),
        }
        critic = None
        if kind == "ppo":
            critic = schedule_in_phases(**common, lags=(), ratio_one_updates=(), lr_horizon=horizons[1])
        every = settings.count("sync_params_every")
        asynchronous = settings.flag("asynchronous")
        formulas = _formulas(sizes, with_horizon=horizons[0] is not None and passes.rows is not None)
        schedule = schedule_in_phases(
            **common,
            lags=tuple(sorted({lag for window in pattern for lag in window})) or (0,),
            ratio_one_updates=tuple(number for number, lags in enumerate(pattern, 1) if not any(lags)),
            reference_source="at_rollout"
            if settings.number("beta") > 0 or settings.number("kl_penalty_coef") > 0
            else "none",
            syncs="after_updates" if every == 1 else "unseen",
            max_age=every - 1 + asynchronous,
            lr_horizon=horizons[0],
            step_means=_step_means(sizes, per_rollout),
            critic=critic,
            settings={name: value for name, value in settings.written(*DEFAULTS).items() if value is not None},
            formulas=formulas,
            not_evaluated=(
                {}
                if every == 1
                else {"syncs": f"weights go to the engine after every {every}th rollout only (sync_params_every)"}
            ),
        )
        schedule = msgspec.structs.replace(
            schedule, samples_per_update=size, microbatches_per_rollout=epochs * per_pass
        )
        return Reading(
            schedule=schedule,
            formulas=formulas,
            notes=_notes(schedule, settings, sizes),
            facts=_facts(settings, schedule, sizes, passes.rows),
        )


def _refuse_other_algorithms(request: Request) -> None:
    """`algo` is set by the PPO programs themselves."""
    program = request.command.program.name
    algorithm = request.settings.text("algo")
    if program.endswith("oat.experiment.main") or (algorithm is not None and algorithm.upper() != "PPO"):
        raise LaunchError(
            f"{program} learns from preferences; PPO, GRPO and Dr. GRPO (oat.experiment.run_math_rl, train_zero_math.py) are read",
            request.command.place,
        )


def _processes(settings: Settings) -> int:
    """Learners: all GPUs where actors share them, else half of them (oat/interface.py get_program)."""
    gpus = settings.count("gpus")
    learners = gpus if settings.flag("collocate") else gpus - gpus // 2
    return learners * settings.count("num_groups")


def _sizes(settings: Settings, processes: int) -> _Sizes:
    """The sizes, checked as OAT, DeepSpeed and PyTorch check them.

    Raises:
        PlanError: One of them refuses.
    """
    prompts, each = settings.count("rollout_batch_size"), settings.count("rollout_batch_size_per_device")
    if settings.flag("asynchronous") and settings.flag("collocate"):
        raise PlanError(
            "AssertionError: async training needs to disable collocation",
            when="at the start",
            fix="leave asynchronous or collocate out",
            source="OAT c1a074c oat/args.py default_args_validation",
        )
    if prompts % (processes * each):
        raise PlanError(
            "AssertionError: rollout_batch_size must be divisible by the number of actors and the number of GPUs per actor",
            when="when the learners are built",
            fix=f"rollout_batch_size = {multiples(prompts, processes * each)} ({processes} learners x rollout_batch_size_per_device "
            f"{each}), or rollout_batch_size_per_device = {nearest(each, lambda v: prompts % (processes * v) == 0)}",
            source=f"{_LEARNER} _init",
        )
    size, microbatch = settings.count("train_batch_size"), settings.count("train_batch_size_per_device")
    accumulation = size // microbatch // processes
    if accumulation == 0 or size != microbatch * accumulation * processes:
        raise PlanError(
            f"AssertionError: Gradient accumulation steps: {accumulation} has to be greater than 0"
            if accumulation == 0
            else "AssertionError: Check batch related parameters. train_batch_size is not equal to micro_batch_per_gpu * "
            f"gradient_acc_step * world_size {size} != {microbatch} * {accumulation} * {processes}",
            when="when the learners are built",
            fix=f"train_batch_size = {multiples(size, microbatch * processes)}",
            source="DeepSpeed runtime/config.py _batch_assertion",
        )
    generated = prompts // processes * settings.count("num_samples")
    longest = settings.count("pi_buffer_maxlen_per_device")
    cleared = settings.optional_number("buffer_clear_every")
    # A deque that is never emptied keeps older rollouts up to its length.
    trained = min(generated, longest) if cleared == 1 else longest
    if settings.count("max_epochs") and trained % microbatch:
        raise PlanError(
            f"IndexError: index {trained} is out of bounds for dimension 0 with size {trained}",
            when="after the first rollout, where old log-probs are computed",
            fix=f"train_batch_size_per_device = {nearest(microbatch, lambda v: trained % v == 0)}",
            source=f"{_PPO} learning_step: torch.arange(i, i + train_batch_size_per_device)",
        )
    return _Sizes(
        processes=processes,
        interval=prompts // (processes * each),
        generated=generated,
        trained=trained,
        accumulation=accumulation,
        microbatch=microbatch,
    )


def _passes(settings: Settings, sizes: _Sizes, rows: int | None, why: str) -> Passes:
    """Rollouts: one for every `interval` batches of the loader, counted through the passes over the rows.

    Training ends with the first batch that makes more samples than max_queries, which is max_train unless it is set.
    """
    prompts = settings.count("rollout_batch_size")
    limit = settings.count("max_train")
    if rows is None:
        return Passes.dropping(None, prompts, epochs=1, why=why)
    rows = min(rows, limit)
    batch = prompts // sizes.interval
    per_pass = rows // sizes.processes // (batch // sizes.processes)
    batches = per_pass * settings.count("num_prompt_epoch")
    queries = settings.count("max_queries", least=-1)
    most = min(queries, limit) if queries > 0 else limit
    # The asynchronous collector gives nothing back the first time.
    given = max(batches - settings.flag("asynchronous"), 0)
    given = min(given, most // (batch * settings.count("num_samples")) + 1)
    rollouts = given // sizes.interval
    unknown: dict[str, str] = {}
    per_epoch: int | None = per_pass // sizes.interval
    if per_pass % sizes.interval or settings.flag("asynchronous"):
        per_epoch = None
        unknown["rollouts_per_epoch"] = f"a pass of {per_pass} batches ends within a rollout of {sizes.interval}"
        unknown["loader_epochs"] = unknown["rollouts_per_epoch"]
    return Passes(
        rows=rows,
        rollouts=rollouts,
        per_epoch=per_epoch,
        dropped=rows - per_pass * batch,
        consumed=Fraction(rollouts * prompts),
        unknown=unknown,
    )


def _horizons(settings: Settings, rows: int | None) -> tuple[int | None, int | None]:
    """Length of the learning-rate schedule of policy and critic: rows / train_batch_size, without num_samples and num_ppo_epochs."""
    if rows is None:
        return None, None
    steps = settings.count("num_prompt_epoch") * (
        rows * settings.count("max_epochs") // settings.count("train_batch_size")
    )
    policy, critic = settings.number("max_step_adjustment"), settings.number("critic_max_step_adjustment")
    return math.ceil(steps * policy), math.ceil(steps * critic)


def _formulas(sizes: _Sizes, *, with_horizon: bool) -> tuple[Formula, ...]:
    trained = "samples_per_rollout"
    if sizes.trained != sizes.generated:
        kept = "min" if sizes.trained < sizes.generated else "max"
        trained = f"{kept}(samples_per_rollout, pi_buffer_maxlen_per_device * world_size)"
    formulas = [
        Formula("samples_per_rollout", "rollout_batch_size * num_samples", f"{_LEARNER} run"),
        Formula("samples_per_update", "train_batch_size", "OAT c1a074c oat/utils/deepspeed.py grad_acc_step"),
        Formula("updates_per_rollout", f"num_ppo_epochs * {trained} / train_batch_size", f"{_PPO} learning_step"),
    ]
    if sizes.trained < sizes.generated:
        formulas.append(
            Formula("samples_dropped_per_rollout", f"samples_per_rollout - {trained}", f"{_LEARNER} deque(maxlen=...)")
        )
    if with_horizon:
        text = "ceil(num_prompt_epoch * floor(rows * max_epochs / train_batch_size) * max_step_adjustment)"
        formulas.append(Formula("lr_horizon", text, f"{_LEARNER} _init"))
    return tuple(formulas)


def _step_means(sizes: _Sizes, per_rollout: Fraction) -> str:
    updates = f"{per_rollout} update{'' if per_rollout == 1 else 's'}"
    if sizes.interval == 1:
        return f"1 step = 1 rollout = {updates}"
    return f"1 step = 1 batch of the loader; {sizes.interval} steps = 1 rollout = {updates}"


def _notes(schedule: Schedule, settings: Settings, sizes: _Sizes) -> tuple[Note, ...]:
    notes = [Note("unit", "train_batch_size counts samples, rollout_batch_size counts prompts, both over all learners")]
    buffer = settings.spelled("pi_buffer_maxlen_per_device")
    if schedule.samples_dropped_per_rollout:
        notes.append(
            Note(
                "drops",
                f"{buffer} = {sizes.trained} is below the {sizes.generated} samples that a rollout gives each learner: the first "
                f"{sizes.generated - sizes.trained} of them are pushed out, {schedule.samples_dropped_per_rollout} in all",
            )
        )
    elif sizes.trained > sizes.generated:
        notes.append(
            Note(
                "grows",
                f"{buffer} = {sizes.trained} keeps samples of older rollouts beside the {sizes.generated} new ones of each learner, "
                "and all are trained; buffer_clear_every = 1 empties it",
            )
        )
    if schedule.updates_per_rollout.denominator > 1:
        notes.append(
            Note(
                "carries",
                "gradients that fill no update are applied in the next rollout, those at the end of the run never",
            )
        )
    if not settings.is_given("max_train", "max_queries"):
        notes.append(
            Note("assumes", "max_train = 50000 limits the rows, and also the samples after which training ends")
        )
    if schedule.rows_dropped_per_epoch:
        notes.append(
            Note("drops", f"{schedule.rows_dropped_per_epoch} rows of each pass fill no batch of the learners")
        )
    return tuple(notes)


def _facts(settings: Settings, schedule: Schedule, sizes: _Sizes, rows: int | None) -> dict[str, Any]:
    facts: dict[str, Any] = {
        "lr_constant": settings.text("lr_scheduler") == "constant",
        "minibatch_unit": "samples",
        "nominal_updates_per_rollout": Fraction(
            schedule.reuse_epochs * schedule.samples_per_rollout, settings.count("train_batch_size")
        ),
    }
    if rows is not None and schedule.lr_horizon is not None:
        facts["lr_warmup"] = math.ceil(schedule.lr_horizon * settings.number("lr_warmup_ratio"))
    for fact, name in (("save_every", "save_steps"), ("eval_every", "eval_steps")):
        every = settings.count(name, least=-1)
        if every > 0 and every % sizes.interval == 0:
            facts[fact] = every // sizes.interval
    return facts


READER = OAT()
