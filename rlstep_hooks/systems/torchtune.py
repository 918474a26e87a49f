"""torchtune, PPO and GRPO (dev): `num_steps` counts samples in one recipe and rollouts in the other, every batch divides.

Read at commit bd2a0fc (2026-04-23): recipes/ppo_full_finetune_single_device.py, recipes/dev/grpo_full_finetune_distributed.py, and the
configurations in recipes/configs that run them.
"""

from __future__ import annotations

from fractions import Fraction
from typing import TYPE_CHECKING, Any

from rlstep_hooks.launch.settings import MISSING, Settings
from rlstep_hooks.launch.text import LaunchError
from rlstep_hooks.planning.phases import Passes, equal_minibatches, schedule_in_phases
from rlstep_hooks.planning.reading import Formula, Note, Reading, nearest
from rlstep_hooks.planning.refusal import PlanError
from rlstep_hooks.systems.reader import Reader, Request

if TYPE_CHECKING:
    from collections.abc import Mapping

_COMMIT = "torchtune bd2a0fc"
_PPO = f"{_COMMIT} recipes/ppo_full_finetune_single_device.py"
_GRPO = f"{_COMMIT} recipes/dev/grpo_full_finetune_distributed.py"
_START_UP = "at start-up, when the parameters are set up"

DEFAULTS: dict[str, Any] = {
    **dict.fromkeys(("batch_size", "ppo_epochs", "num_steps", "forward_batch_size"), MISSING),
    # PPO.
    "ppo_batch_size": MISSING,
    "gradient_accumulation_steps": MISSING,
    "optimizer_in_bwd": False,
    # GRPO.
    "grpo_samples": MISSING,
    "epochs": MISSING,
    # Both.
    "shuffle": MISSING,
}
"""The recipes take nothing for granted."""

SHIPPED: dict[str, dict[str, Any]] = {
    "mistral/7B_full_ppo_low_memory": {
        "batch_size": 128,
        "ppo_batch_size": 128,
        "ppo_epochs": 1,
        "num_steps": 10_000,
        "forward_batch_size": 128,
        "gradient_accumulation_steps": 1,
        "optimizer_in_bwd": True,
        "shuffle": True,
        "lr_scheduler._component_": "torchtune.training.lr_schedulers.get_cosine_schedule_with_warmup",
        "lr_scheduler.num_warmup_steps": 100,
    },
    "llama2/1B_full_ppo_low_memory_single_device": {
        "batch_size": 16,
        "ppo_batch_size": 16,
        "ppo_epochs": 1,
        "num_steps": 1000,
        "forward_batch_size": 16,
        "gradient_accumulation_steps": 1,
        "optimizer_in_bwd": True,
        "shuffle": True,
    },
    "dev/3B_full_grpo": {
        "batch_size": 1,
        "grpo_samples": 16,
        "ppo_epochs": 1,
        "num_steps": 200,
        "epochs": 10,
        "forward_batch_size": 1,
        "shuffle": False,
        "lr_scheduler._component_": "torchtune.training.lr_schedulers.get_cosine_schedule_with_warmup",
        "lr_scheduler.num_warmup_steps": 50,
    },
}
"""Configurations that come with torchtune and are named without a file."""


class Torchtune(Reader):
    """torchtune's PPO recipe and its GRPO recipe under dev."""

    name = "torchtune"
    title = "torchtune"
    version = "bd2a0fc"
    overrides = True

    def defaults(self, version: str) -> Mapping[str, Any]:
        """What the recipes demand; a configuration that comes with torchtune gives it."""
        return DEFAULTS

    def read(self, request: Request) -> Reading:
        """The Schedule; see the module for its sources."""
        settings = _with_shipped(request.settings)
        program = request.command.program.name
        if "async_grpo" in program:
            raise LaunchError("async_grpo_full_finetune_distributed is another recipe, which is not known here")
        if "grpo" in program or ("ppo" not in program and settings.is_given("grpo_samples")):
            return _grpo(self, request, settings)
        return _ppo(self, request, settings)


def _with_shipped(settings: Settings) -> Settings:
    """The settings over those of the configuration that comes with torchtune, if one is named."""
    shipped = SHIPPED.get((settings.text("config") or "").removesuffix(".yaml"))
    if shipped is None:
        return settings
    settings.is_given(*DEFAULTS, *shipped)  # they count as read in the launch's own settings
    given = {setting.name: setting for setting in (*settings.used, *settings.unused)}
    return Settings(given, {**DEFAULTS, **shipped})


def _ppo(reader: Torchtune, request: Request, settings: Settings) -> Reading:
    """The recipe `ppo_full_finetune_single_device`."""
    batch = settings.count("batch_size")
    size = settings.count("ppo_batch_size")
    accumulation = settings.count("gradient_accumulation_steps")
    epochs = settings.count("ppo_epochs")
    samples = settings.count("num_steps")
    _check_ppo(settings, batch, size, accumulation, samples)
    rollouts = samples // batch
    rows = request.rows()
    if rows.count is None:
        passes = Passes.dropping(None, batch, epochs=1, limit=rollouts, why=rows.source)
    else:
        per_epoch = rows.count // batch
        passes = Passes.dropping(rows.count, batch, epochs=-(-rollouts // max(per_epoch, 1)), limit=rollouts)
    formulas = (
        Formula("samples_per_rollout", "batch_size", f"{_PPO} train"),
        Formula("samples_per_update", "ppo_batch_size", f"{_PPO} train"),
        Formula("updates_per_rollout", "ppo_epochs * batch_size / ppo_batch_size", f"{_PPO} train"),
        *(
            [Formula("rollouts", "floor(num_steps / batch_size)", f"{_PPO} _setup_training_hyperparameters")]
            if passes.rollouts
            else []
        ),
        Formula("rollouts_per_epoch", "floor(rows / batch_size)", f"{_PPO} _setup_data (drop_last)"),
        Formula(
            "lr_horizon",
            "floor(num_steps / batch_size) * ppo_epochs * floor(batch_size / ppo_batch_size)",
            f"{_PPO} setup",
        ),
    )
    schedule = schedule_in_phases(
        framework=reader.title,
        version=request.version,
        algorithm="PPO",
        passes=passes,
        prompts_per_rollout=batch,
        samples_per_prompt=1,
        minibatches=equal_minibatches(batch, batch // size),
        reuse_epochs=epochs,
        samples_per_microbatch=size // accumulation,
        rows_reshuffled=settings.flag("shuffle"),
        old_logprob_source="at_rollout",
        reference_source="at_rollout",
        lr_horizon=rollouts * epochs * (batch // size),
        step_unit="update",
        step_means="1 step of the logs = 1 update; num_steps counts samples",
        settings=settings.written(
            "batch_size", "ppo_batch_size", "gradient_accumulation_steps", "ppo_epochs", "num_steps"
        ),
        formulas=formulas,
    )
    notes = [
        Note("unit", f"num_steps counts samples: {samples} are {rollouts} rollouts of {batch}"),
        Note("unit", "policy and value model share one optimizer, and so their updates"),
    ]
    if samples % batch:
        notes.append(Note("drops", f"{samples % batch} of num_steps = {samples} samples do not fill a rollout"))
    return Reading(schedule=schedule, formulas=formulas, notes=tuple(notes), facts=_rate(settings))


def _check_ppo(settings: Settings, batch: int, size: int, accumulation: int, samples: int) -> None:
    """The conditions of `_setup_training_hyperparameters`.

    Raises:
        PlanError: One of them does not hold.
    """
    forward = settings.count("forward_batch_size")
    message = fix = ""
    if batch % forward:
        message = f"batch_size ({batch}) must be exactly divisible by forward_batch_size ({forward})."
        fix = f"forward_batch_size = {nearest(forward, lambda v: batch % v == 0)}"
    elif batch % size:
        message = f"batch_size ({batch}) must be exactly divisible by ppo_batch_size ({size})."
        fix = f"ppo_batch_size = {nearest(size, lambda v: batch % v == 0)}"
    elif size % accumulation:
        message = f"ppo_batch_size ({size}) must be exactly divisible by gradient_accumulation_steps ({accumulation})."
        fix = f"gradient_accumulation_steps = {nearest(accumulation, lambda v: size % v == 0)}"
    elif accumulation > 1 and settings.flag("optimizer_in_bwd"):
        message = "Gradient accumulation is not supported with optimizer in bwd."
        fix = "gradient_accumulation_steps = 1, or optimizer_in_bwd = False"
    elif samples < batch:
        message = f"num_steps {samples} must be greater than the batch size {batch}."
        fix = f"num_steps = {batch} or more; it counts samples"
    if message:
        raise PlanError(message, when=_START_UP, fix=fix, source=f"{_PPO} _setup_training_hyperparameters")


def _grpo(reader: Torchtune, request: Request, settings: Settings) -> Reading:
    """The recipe `dev/grpo_full_finetune_distributed`."""
    batch = settings.count("batch_size")
    group = settings.count("grpo_samples")
    reuse = settings.count("ppo_epochs")
    epochs = settings.count("epochs")
    limit = settings.count("num_steps")
    world_size = request.world_size(None)
    prompts = batch * world_size
    rows = request.rows()
    horizon = None
    repeated = 0
    if rows.count is None:
        passes = Passes.dropping(None, prompts, epochs=epochs, limit=limit, why=rows.source)
    else:
        # Each process gets as many rows, some of them twice; its last batch is dropped when it is not full.
        share = -(-rows.count // world_size)
        per_epoch = share // batch
        rollouts = min(per_epoch * epochs, limit)
        horizon = epochs * per_epoch
        repeated = max(per_epoch * prompts - rows.count, 0)
        passes = Passes(
            rows=rows.count,
            rollouts=rollouts,
            per_epoch=per_epoch,
            dropped=max(rows.count - per_epoch * prompts, 0),
            consumed=Fraction(rollouts * prompts),
        )
    per_epoch_text = "floor(ceil(rows / world_size) / batch_size)"
    formulas = [
        Formula("samples_per_rollout", "batch_size * world_size * grpo_samples", f"{_GRPO} generate_trajectory"),
        Formula("updates_per_rollout", "ppo_epochs", f"{_GRPO} train"),
        Formula("lr_ticks", "rollouts * ppo_epochs", f"{_GRPO} train"),
    ]
    if rows.count is not None:
        formulas += [
            Formula(
                "rollouts_per_epoch", per_epoch_text, f"{_GRPO} _setup_data (StatefulDistributedSampler, drop_last)"
            ),
            Formula("rollouts", f"min(epochs * {per_epoch_text}, num_steps)", f"{_GRPO} train"),
            Formula("lr_horizon", f"epochs * {per_epoch_text}", f"{_GRPO} setup (without ppo_epochs and num_steps)"),
        ]
    samples = prompts * group
    schedule = schedule_in_phases(
        framework=reader.title,
        version=request.version,
        algorithm="GRPO",
        passes=passes,
        prompts_per_rollout=prompts,
        samples_per_prompt=group,
        minibatches=(samples,),
        world_size=world_size,
        reuse_epochs=reuse,
        samples_per_microbatch=samples,
        rows_reshuffled=settings.flag("shuffle"),
        old_logprob_source="at_rollout",
        reference_source="at_rollout",
        lr_horizon=horizon,
        step_unit="update",
        step_means="1 step of the logs = 1 update; num_steps counts rollouts",
        settings=settings.written("batch_size", "grpo_samples", "ppo_epochs", "epochs", "num_steps"),
        formulas=tuple(formulas),
    )
    notes = [
        Note("unit", f"num_steps counts rollouts, batch_size counts prompts of each of the {world_size} processes")
    ]
    if repeated:
        notes.append(Note("pads", f"{repeated} rows of each pass are drawn twice so that the processes get as many"))
    if passes.rows is None:
        notes.append(Note("assumes", f"the rows last for num_steps = {limit} rollouts; give --rows"))
    return Reading(schedule=schedule, formulas=tuple(formulas), notes=tuple(notes), facts=_rate(settings))


def _rate(settings: Settings) -> dict[str, Any]:
    """The schedule of the rate; there is none unless one is named."""
    if settings.text("lr_scheduler._component_") is None:
        return {"lr_constant": True, "lr_warmup": 0}
    return {"lr_constant": False, "lr_warmup": settings.optional_count("lr_scheduler.num_warmup_steps", least=0)}


READER = Torchtune()
