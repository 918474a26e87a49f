"""prime-rl: one update for each batch of the orchestrator, samples of a bounded age, the sampler's own log-probs in the ratio.

Read at commit 559b447 (2026-08-21): packages/prime-rl-configs/src/prime_rl/configs (orchestrator.py, trainer.py, rl.py),
src/prime_rl/orchestrator/train_sink.py `TrainSink`, src/prime_rl/trainer/rl/train.py `train`, src/prime_rl/trainer/rl/loss.py.
"""

from __future__ import annotations

from fractions import Fraction
from typing import TYPE_CHECKING, Any

from rlstep_hooks.launch.text import SettingError
from rlstep_hooks.planning.phases import Passes, schedule_in_phases
from rlstep_hooks.planning.reading import Formula, Note, Reading, multiples
from rlstep_hooks.planning.refusal import PlanError
from rlstep_hooks.systems.reader import Reader, Request

if TYPE_CHECKING:
    from collections.abc import Mapping

    from rlstep_hooks.launch.settings import Settings

_COMMIT = "prime-rl 559b447"
_CONFIGS = f"{_COMMIT} packages/prime-rl-configs/src/prime_rl/configs"
_START_UP = "at start-up, when the configuration is read"

DEFAULTS: dict[str, Any] = {
    "orchestrator.batch_size": 128,
    "orchestrator.group_size": 1,
    "orchestrator.max_off_policy_steps": 8,
    "max_steps": None,
    "trainer.scheduler.type": "constant",
    "trainer.scheduler.warmup_steps": 10,
    "trainer.scheduler.decay_steps": 10,
    "trainer.model.cp": 1,
    "deployment.type": "single_node",
    "deployment.num_train_gpus": 1,
    "deployment.gpus_per_node": 8,
}

# The standalone orchestrator has the same settings without the part in front.
_BATCH = ("orchestrator.batch_size", "batch_size")
_TOKENS = ("orchestrator.token_batch_size", "token_batch_size")
_GROUP = ("orchestrator.group_size", "group_size")
_AGE = ("orchestrator.max_off_policy_steps", "max_off_policy_steps")
_OLDER_GROUP = ("orchestrator.rollouts_per_example", "rollouts_per_example")

FORMULAS = (
    Formula(
        "samples_per_rollout",
        "orchestrator.batch_size",
        f"{_COMMIT} src/prime_rl/orchestrator/train_sink.py process_batch",
    ),
    Formula(
        "prompts_per_rollout",
        "orchestrator.batch_size / orchestrator.group_size",
        f"{_CONFIGS}/orchestrator.py OrchestratorConfig.resolve_batching",
    ),
    Formula("updates_per_rollout", "1", f"{_COMMIT} src/prime_rl/trainer/rl/train.py train"),
    Formula("rollouts", "max_steps", f"{_COMMIT} src/prime_rl/trainer/rl/train.py train"),
    Formula("lr_ticks", "updates", f"{_COMMIT} src/prime_rl/trainer/rl/train.py train"),
    Formula(
        "max_age",
        "orchestrator.max_off_policy_steps",
        f"{_COMMIT} src/prime_rl/orchestrator/utils.py min_fresh_version",
    ),
)


class PrimeRL(Reader):
    """prime-rl's `rl` and `orchestrator`."""

    name = "prime_rl"
    title = "prime-rl"
    version = "559b447"

    def defaults(self, version: str) -> Mapping[str, Any]:
        """The defaults of prime_rl.configs."""
        return DEFAULTS

    def read(self, request: Request) -> Reading:
        """The Schedule; see the module for its sources."""
        settings = request.settings
        _check_files(settings)
        group = _group(settings)
        batch = _batch(settings, group)
        steps = _steps(settings)
        constant, warmup = _rate(settings, steps)
        world_size = request.world_size(_processes(settings))
        written = settings.written(*DEFAULTS)
        written |= {
            "orchestrator.batch_size": batch,
            "orchestrator.group_size": group,
            "orchestrator.max_off_policy_steps": settings.count(*_AGE, least=0),
            "max_steps": steps,
        }
        schedule = schedule_in_phases(
            framework=self.title,
            version=request.version,
            algorithm="GRPO",
            passes=_passes(request, steps),
            prompts_per_rollout=Fraction(batch, group),
            samples_per_prompt=group,
            samples_per_rollout=batch,
            minibatches=(batch,),
            world_size=world_size,
            rows_bound="data_dependent",
            max_age=settings.count(*_AGE, least=0),
            syncs="first_and_after_updates",
            old_logprob_source="engine",
            settings=written,
            formulas=FORMULAS,
        )
        notes = [
            Note(
                "unit",
                "batch_size counts samples; one that branches is several rows for the trainer, all in the same update",
            ),
            Note("drops", "samples older than max_off_policy_steps are dropped, and replaced by newer ones"),
        ]
        if settings.is_given(*_OLDER_GROUP):
            notes.append(
                Note("assumes", f"rollouts_per_example is group_size of {_COMMIT}, which does not take the older name")
            )
        if steps is None:
            notes.append(Note("assumes", "without max_steps the run has no end"))
        return Reading(
            schedule=schedule,
            formulas=FORMULAS,
            notes=tuple(notes),
            facts={
                "lr_constant": constant,
                "lr_warmup": warmup,
                "save_every": settings.optional_count("ckpt.interval", "trainer.ckpt.interval"),
                "eval_every": settings.optional_count("orchestrator.eval.interval", "eval.interval"),
            },
        )


def _check_files(settings: Settings) -> None:
    """A file for one section (`--orchestrator @ file`) is not read here, and the defaults would be wrong.

    Raises:
        SettingError: There is one.
    """
    for section in ("orchestrator", "trainer"):
        if settings.is_given(section) and "@" in settings.files(section):
            raise SettingError(
                f"--{section} @ FILE is not read here; put its settings into one file, below [{section}]",
                settings.place(section),
            )


def _group(settings: Settings) -> int:
    """Samples of one prompt; a source may have a number of its own.

    Raises:
        SettingError: Sources have several.
    """
    names = _OLDER_GROUP if settings.is_given(*_OLDER_GROUP) else _GROUP
    common = settings.count(*names)
    sources = settings.value("orchestrator.train.source")
    if not isinstance(sources, list):
        return common
    sizes = {source.get("group_size", common) for source in sources if isinstance(source, dict)} or {common}
    place = settings.place("orchestrator.train.source")
    if not all(isinstance(size, int) and size > 0 for size in sizes):
        raise SettingError("group_size of a source is not a whole number of at least 1", place)
    if len(sizes) > 1:
        raise SettingError(
            f"the sources have several group sizes ({', '.join(map(str, sorted(sizes)))}): samples for each prompt are not one "
            "number",
            place,
        )
    return int(sizes.pop())


def _batch(settings: Settings, group: int) -> int:
    """Samples of one batch.

    Raises:
        SettingError: Tokens are counted, not samples.
        PlanError: prime-rl refuses the size.
    """
    source = f"{_CONFIGS}/orchestrator.py OrchestratorConfig.resolve_batching"
    if settings.is_given(*_TOKENS):
        if settings.is_given(*_BATCH):
            raise PlanError(
                "Set exactly one of batch_size or token_batch_size",
                when=_START_UP,
                fix="no token_batch_size",
                source=source,
            )
        raise SettingError(
            "token_batch_size counts tokens: the samples of an update depend on their lengths; give batch_size for a plan",
            settings.place(*_TOKENS),
        )
    batch = settings.count(*_BATCH)
    common = settings.count(*(_OLDER_GROUP if settings.is_given(*_OLDER_GROUP) else _GROUP))
    if batch % common:
        raise PlanError(
            f"Batch size must be divisible by the number of samples per problem ({batch} % {common})",
            when=_START_UP,
            fix=f"orchestrator.batch_size = {multiples(batch, group)}",
            source=source,
        )
    return batch


def _steps(settings: Settings) -> int | None:
    """Updates of the run.

    Raises:
        PlanError: The trainer and the orchestrator have different numbers.
    """
    shared = settings.optional_count("max_steps")
    if shared is not None:
        return shared
    trainer = settings.optional_count("trainer.max_steps")
    orchestrator = settings.optional_count("orchestrator.max_steps")
    if trainer != orchestrator and settings.is_given("trainer.max_steps"):
        raise PlanError(
            f"Trainer max steps ({trainer}) and orchestrator max steps ({orchestrator}) are not the same. Please specify the same "
            "max steps for both.",
            when=_START_UP,
            fix=f"max_steps = {trainer} for both",
            source=f"{_COMMIT} packages/prime-rl-configs/src/prime_rl/utils/validation.py validate_shared_max_steps",
        )
    return orchestrator


def _rate(settings: Settings, steps: int | None) -> tuple[bool, int]:
    """Whether the rate is constant, and the ticks of its warm-up.

    Raises:
        PlanError: The schedule does not fit into the run.
    """
    kind = settings.text("trainer.scheduler.type")
    if kind == "constant":
        return True, 0
    warmup = settings.count("trainer.scheduler.warmup_steps", least=0)
    decay = settings.count("trainer.scheduler.decay_steps", least=0) if kind == "linear" else None
    if decay == 0 and warmup == 0:
        message, fix = (
            "Linear scheduler requires warmup_steps > 0 or decay_steps > 0 (use the constant scheduler instead)",
            "trainer.scheduler.type = constant",
        )
    elif decay == 0:
        return True, warmup
    elif steps is None:
        message = (
            "Must specify max_steps when using a cosine scheduler"
            if decay is None
            else "Must specify max_steps when using a linear scheduler with decay_steps > 0"
        )
        fix = "max_steps = N"
    elif decay is None and warmup >= steps:
        message = f"warmup_steps ({warmup}) must be less than max_steps ({steps})"
        fix = f"trainer.scheduler.warmup_steps = {steps - 1} or less"
    elif decay is not None and warmup + decay > steps:
        message = f"warmup_steps ({warmup}) + decay_steps ({decay}) must not exceed max_steps ({steps})"
        fix = f"max_steps = {warmup + decay} or more"
    else:
        return False, warmup
    raise PlanError(message, when=_START_UP, fix=fix, source=f"{_CONFIGS}/trainer.py validate_scheduler")


def _processes(settings: Settings) -> int | None:
    """Data-parallel processes of the trainer; None for the orchestrator on its own, where they are not said."""
    context = settings.count("trainer.model.cp")
    if settings.text("deployment.type") == "multi_node":
        gpus = settings.count("deployment.num_train_nodes") * settings.count("deployment.gpus_per_node")
    else:
        gpus = settings.count("deployment.num_train_gpus")
    return max(gpus // context, 1)


def _passes(request: Request, steps: int | None) -> Passes:
    rows = request.rows()
    reason = "samples are dropped and replaced as the run goes"
    unknown = dict.fromkeys(("data_epochs", "loader_epochs"), reason)
    if steps is None:
        unknown |= dict.fromkeys(("rollouts", "updates", "lr_ticks"), "the run has no end")
    if rows.count is None:
        unknown |= dict.fromkeys(("rows", "rows_dropped_per_epoch", "rollouts_per_epoch"), rows.source)
    return Passes(rows=rows.count, rollouts=steps, dropped=None if rows.count is None else 0, unknown=unknown)


READER = PrimeRL()
