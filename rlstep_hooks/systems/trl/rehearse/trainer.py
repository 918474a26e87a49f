"""TRL's GRPOTrainer and RLOOTrainer in small: the schedule is kept, the sizes and the length are not.

A configuration is made small when it is built (`__post_init__`, before the framework's own checks and before it looks for a device),
and the run is made short when the trainer is built, because only then the rows are known. What the script sets between the two counts
as its own. Read in TRL 0.16 to 1.16.
"""

from __future__ import annotations

import copy
import dataclasses
import inspect
import math
import zlib
from fractions import Fraction
from pathlib import Path
from typing import Any

import msgspec

from rlstep_hooks.observe.patches import Patches
from rlstep_hooks.planning.refusal import PlanError
from rlstep_hooks.rehearse import data
from rlstep_hooks.rehearse.aside import save_aside
from rlstep_hooks.rehearse.messages import CannotRehearseError, say, say_once, settings
from rlstep_hooks.rehearse.rate import zero_from
from rlstep_hooks.rehearse.rewards import completions_may_have, sum_up
from rlstep_hooks.systems.trl.rehearse.rewards import watch
from rlstep_hooks.systems.trl.rehearse.sizes import Shrunk, Sizes, rows_for, shrink
from rlstep_hooks.systems.trl.rehearse.tools import probe

_patches = Patches()

COMPLETION = 16
"""Tokens of a completion."""

_HOST: dict[str, Any] = {
    "bf16": False, "fp16": False, "bf16_full_eval": False, "fp16_full_eval": False, "tf32": None, "gradient_checkpointing": False,
    "torch_compile": False, "dataloader_num_workers": 0,
    "dataloader_pin_memory": False, "dataloader_persistent_workers": False, "dataloader_prefetch_factor": None, "report_to": "none",
    "push_to_hub": False, "hub_model_id": None, "disable_tqdm": True, "logging_steps": 1, "logging_strategy": "steps",
    "log_completions": False, "log_completions_hub_repo": None, "resume_from_checkpoint": None, "use_vllm": False,
    "use_liger_kernel": False, "use_liger_loss": False, "use_transformers_paged": False, "use_transformers_continuous_batching": False,
    "parallelism_config": None, "run_name": None, "load_best_model_at_end": False, "save_total_limit": None, "ddp_timeout": 1800,
}  # fmt: skip
"""Settings about devices, engines, trackers and hubs, as this machine needs them."""

_DEFAULT = ("deepspeed", "fsdp", "fsdp_config")
"""Settings that go back to their defaults, which differ between releases of transformers."""

_SAID = {
    "use_vllm": "vLLM: rollouts are the framework's own generation",
    "deepspeed": "DeepSpeed: one process without it",
    "fsdp": "FSDP: one process without it",
    "push_to_hub": "pushing to the hub: left out",
    "use_liger_kernel": "Liger kernels: left out",
    "use_liger_loss": "Liger's loss: the trainer's own loss",
    "load_best_model_at_end": "load_best_model_at_end: left out",
    "resume_from_checkpoint": "the checkpoint that the launch resumes from: the run begins anew, and resumes from one of its own",
}

_OF_GPUS = ("8bit", "4bit", "paged", "fused", "apex", "bnb", "npu")
"""Parts of the names of optimizers that need a GPU."""

_FIELDS = "_rlstep_rehearsed"
"""On a configuration: name of a setting -> (the user's value, the value here)."""


def small_config(module: Any) -> None:
    """GRPOConfig and RLOOConfig, in the module that defines them."""
    for name in ("GRPOConfig", "RLOOConfig"):
        kind = getattr(module, name, None)
        if kind is not None and kind.__module__ == module.__name__:
            _patches.wrap(kind, "__post_init__", _around_post_init)


def small_trainer(module: Any) -> None:
    """GRPOTrainer and RLOOTrainer, in the module that defines them."""
    for name in ("GRPOTrainer", "RLOOTrainer"):
        kind = getattr(module, name, None)
        if kind is not None and kind.__module__ == module.__name__:
            _patches.wrap(kind, "__init__", _around_init)


def short_training(module: Any) -> None:
    """`transformers.trainer`: `train` with its resume, and the learning rate of the whole run."""
    save_aside(module.Trainer, "save_model", "output_dir")
    _patches.wrap(module.Trainer, "train", _around_train)
    _patches.wrap(module.Trainer, "create_scheduler", _around_scheduler)
    for name in ("push_to_hub", "create_model_card"):
        _patches.wrap(module.Trainer, name, lambda wrapped, trainer, args, kwargs: None)


# The configuration.


def _around_post_init(wrapped: Any, config: Any, args: Any, kwargs: Any) -> None:
    if hasattr(config, _FIELDS):
        wrapped(*args, **kwargs)
        return
    real = {field.name: getattr(config, field.name, None) for field in dataclasses.fields(config)}
    if settings().refuse:
        _set(
            config,
            real,
            {name: value for name, value in _HOST.items() if name not in ("load_best_model_at_end",)} | _device(),
        )
        _as_many_processes(type(config))
        wrapped(*args, **kwargs)
        say("accepted")
        return
    small = _small_sizes(config)
    values = {**_HOST, **_device(), **_small_settings(config, small.sizes), "output_dir": _output(real["output_dir"])}
    _set(config, real, values)
    try:
        wrapped(*args, **kwargs)
    except ValueError as error:
        say("refused", str(error))
        raise
    after = {name: (real[name], getattr(config, name)) for name in values if name in real}
    object.__setattr__(config, _FIELDS, after)
    object.__setattr__(config, "_rlstep_small", small)


def _device() -> dict[str, Any]:
    return {} if settings().cuda else {"use_cpu": True, "no_cuda": True}


def _set(config: Any, real: dict[str, Any], values: dict[str, Any]) -> None:
    defaults = {field.name: field.default for field in dataclasses.fields(config) if field.name in _DEFAULT}
    for name, value in {**values, **defaults}.items():
        if name in real and value is not dataclasses.MISSING:
            if name in _SAID and real[name] not in (None, False, "", [], "no"):
                say_once("left out", _SAID[name], "replaced")
            setattr(config, name, value)


def _as_many_processes(kind: Any) -> None:
    """Have a configuration count the processes of the real launch; for the framework's own refusal alone."""
    kind.world_size = property(lambda config: settings().processes)


def _output(asked: Any) -> str:
    part = "resumed" if settings().checkpoint else "first"
    return str(Path(settings().folder, "output", part, Path(str(asked or "output")).name or "output"))


def real_sizes(config: Any) -> Sizes:
    """The user's sizes, over all processes of the real launch."""
    microbatch = int(config.per_device_train_batch_size) * settings().processes
    accumulation = int(config.gradient_accumulation_steps)
    slots = getattr(config, "steps_per_generation", None)
    whole = getattr(config, "generation_batch_size", None)
    if not hasattr(config, "steps_per_generation"):
        slots = accumulation if hasattr(config, "shuffle_dataset") else 1  # TRL 0.17 and 0.16
    elif slots is None:
        slots = max(1, int(whole) // microbatch) if whole else accumulation
    passes = int(getattr(config, "num_iterations", 1))
    return Sizes(
        microbatch=microbatch,
        group=int(config.num_generations),
        accumulation=accumulation,
        slots=int(slots),
        passes=passes,
    )


def _small_sizes(config: Any) -> Shrunk:
    """Sizes that fit half of the budget; the other half is for the two starts."""
    return shrink(real_sizes(config), seconds=settings().budget / 2, rollouts=settings().rollouts)


def _small_settings(config: Any, small: Sizes) -> dict[str, Any]:
    values: dict[str, Any] = {
        "per_device_train_batch_size": small.microbatch,
        "num_generations": small.group,
        "max_completion_length": min(int(config.max_completion_length or COMPLETION), COMPLETION),
    }
    if getattr(config, "generation_batch_size", None) or getattr(config, "steps_per_generation", None):
        values |= {"generation_batch_size": None, "steps_per_generation": small.slots}
    group = getattr(config, "num_generations_eval", None)
    if group:
        group = values["num_generations_eval"] = max(1, group * small.group // int(config.num_generations))
    groups = getattr(config, "num_generations_eval", None) or int(config.num_generations)
    rest = int(config.per_device_eval_batch_size) * settings().processes % groups
    values["per_device_eval_batch_size"] = (group or small.group) + (1 if rest else 0)
    optimizer = str(getattr(config.optim, "value", config.optim))
    if not settings().cuda and any(word in optimizer for word in _OF_GPUS):
        if optimizer != "adamw_torch_fused":  # transformers' default
            say_once("left out", f"the optimizer {optimizer}: AdamW of torch", "replaced")
        values["optim"] = "adamw_torch"
    return values


# The trainer.


class _Length(msgspec.Struct, frozen=True, kw_only=True):
    """How long the small run is."""

    rows: int | None
    epochs: float
    max_steps: int
    updates: int
    save: int


def _around_init(wrapped: Any, trainer: Any, args: Any, kwargs: Any) -> None:
    bound = inspect.signature(wrapped).bind(*args, **kwargs)
    given = bound.arguments
    config = given.get("args")
    if settings().refuse:
        wrapped(*args, **kwargs)
        say("accepted")
        raise SystemExit(0)
    if config is None:
        config = _default_config(trainer, given.get("model"))
        given["args"] = config
    if hasattr(config, _FIELDS):
        real = _real_config(config)
        if real.config.max_completion_length:
            completions_may_have(int(real.config.max_completion_length))
        given["train_dataset"], given["eval_dataset"] = _shorten(
            config, real, given.get("train_dataset"), given.get("eval_dataset")
        )
    functions = given.get("reward_funcs")
    if functions is not None:

        def tokens_of(text: str) -> list[int]:
            tokenizer = getattr(trainer.processing_class, "tokenizer", trainer.processing_class)
            found: list[int] = tokenizer(text=text, add_special_tokens=False)["input_ids"]
            return found

        several = isinstance(functions, list)
        watched = [watch(function, tokens_of) for function in (functions if several else [functions])]
        given["reward_funcs"] = watched if several else watched[0]
    wrapped(*bound.args, **bound.kwargs)
    trainer._rlstep_small = True
    probe(given.get("tools") or ())
    if hasattr(trainer, "_generate_and_score_completions"):
        _patches.wrap(trainer, "_generate_and_score_completions", _around_rollout)
    trainer._rlstep_real = real if hasattr(config, _FIELDS) else None


def _around_rollout(wrapped: Any, trainer: Any, args: Any, kwargs: Any) -> Any:
    """Say which rows a rollout draws, to compare the resumed run with the first."""
    rows = args[0] if args else kwargs.get("inputs")
    if isinstance(rows, list) and trainer.model.training:
        # Not `hash`: that of a text differs between processes.
        say("drawn", rows=sorted({zlib.crc32(repr(sorted(row.items())).encode()) for row in rows}))
    return wrapped(*args, **kwargs)


def _default_config(trainer: Any, model: Any) -> Any:
    import trl

    kind = trl.RLOOConfig if any(each.__name__ == "RLOOTrainer" for each in type(trainer).__mro__) else trl.GRPOConfig
    return kind(output_dir=f"{model if isinstance(model, str) else 'model'}".rpartition("/")[2])


class Real:
    """The user's own configuration, as far as it decides the schedule, and what was found about it."""

    def __init__(self, config: Any) -> None:
        self.config = config
        self.updates: int | None = None


def _real_config(config: Any) -> Real:
    """A configuration with the user's values, those that the script set after it was built included."""
    real = copy.copy(config)
    for name, (before, here) in getattr(config, _FIELDS).items():
        current = getattr(config, name)
        if current != here:  # the script's own assignment
            before = current
            setattr(config, name, here)
        object.__setattr__(real, name, before)
    sizes = real_sizes(real)
    object.__setattr__(real, "steps_per_generation", sizes.slots)
    object.__setattr__(real, "generation_batch_size", sizes.samples)
    return Real(real)


def _rows(dataset: Any) -> int | None:
    """Rows of the user's set: as said, or counted; None for a made set and a stream."""
    if settings().rows:
        return settings().rows
    if data.made or not hasattr(dataset, "__len__"):
        return None
    count = len(dataset)
    return data.real_rows.get(count, None if data.real_rows else count)


def _shorten(config: Any, real: Real, dataset: Any, evaluation: Any) -> tuple[Any, Any]:
    """Make the run short, and say what the real one is."""
    from rlstep_hooks.record.wire import to_json
    from rlstep_hooks.systems.trl.plan import plan_config

    small: Shrunk = config._rlstep_small
    sizes = real_sizes(real.config)
    rows = _rows(dataset)
    schedule = None
    try:
        schedule = plan_config(real.config, rows=rows, world_size=settings().processes)
        real.updates = schedule.updates
        say("schedule", schedule=to_json(schedule).decode())
    except PlanError as refusal:
        say("schedule", f"{refusal.message} ({refusal.when}); {refusal.fix}", level="problem")
    left = len(dataset) if hasattr(dataset, "__len__") else None
    if data.made and left is not None and left < small.sizes.prompts:
        text = f"the script leaves {left} of the rows that were made, too few for a rollout: give its files or --online"
        say("rows", text, level="impossible")
        raise CannotRehearseError(text)
    if rows is not None and rows < sizes.prompts:
        say("rows", f"{rows} rows do not fill one rollout of {sizes.prompts} prompts", level="problem")
    length = _length(real, schedule, small, rows, available=len(dataset) if hasattr(dataset, "__len__") else None)
    config.num_train_epochs, config.max_steps = length.epochs, length.max_steps
    _intervals(config, real, length)
    say(
        "sizes",
        factor=small.factor,
        processes=settings().processes,
        group=small.sizes.group,
        real_group=sizes.group,
        samples=small.sizes.samples,
        real_samples=sizes.samples,
        rows=length.rows,
        rollouts=small.rollouts,
        rollouts_per_epoch=(length.rows or 0) // max(small.sizes.prompts, 1),
        updates=length.updates,
        real_updates=real.updates,
        limits=f"completions of {COMPLETION} tokens at most; float32",
    )
    taken = _take(dataset, length.rows)
    if hasattr(taken, "__len__"):
        say("set", rows=zlib.crc32("".join(repr(sorted(row.items())) for row in taken).encode()))
    return taken, _evaluation(evaluation, config)


def _length(real: Real, schedule: Any, small: Shrunk, rows: int | None, *, available: int | None) -> _Length:
    sizes = small.sizes
    real_prompts = real_sizes(real.config).prompts
    remainder = rows % real_prompts if rows is not None and sizes.whole else 0
    max_steps, epochs = int(real.config.max_steps), float(real.config.num_train_epochs)
    several = (
        (schedule is None or schedule.data_epochs is None or schedule.data_epochs > 1) if max_steps > 0 else epochs > 1
    )
    # An epoch that ends before the run does, and after the checkpoint, which is half-way.
    each = max(1, 3 * small.rollouts // 4) if several else small.rollouts
    if max_steps <= 0 and epochs < 1:
        each = math.ceil(small.rollouts / epochs)
    wanted = rows_for(sizes, rollouts_per_epoch=each, remainder=remainder, real=real_sizes(real.config))
    if rows is not None and rows < real_prompts:
        wanted = min(rows, max(1, sizes.prompts - 1))
    if available is not None:
        wanted = min(wanted, available)
        each = wanted // max(sizes.prompts, 1)
    per_rollout = Fraction(sizes.slots * sizes.passes, sizes.accumulation)
    passes = min(epochs, max(1.0, small.rollouts / max(each, 1)))
    if max_steps > 0:
        updates = min(max_steps, math.ceil(small.rollouts * per_rollout))
    else:
        updates = math.ceil(round(math.ceil(each * per_rollout) * passes, 6))
    save = max(1, updates // 2)
    return _Length(rows=wanted, epochs=passes, max_steps=updates if max_steps > 0 else -1, updates=updates, save=save)


def _intervals(config: Any, real: Real, length: _Length) -> None:
    """Checkpoints, evaluations and the warm-up in the short run, where the long one has them."""
    kind = type(config.save_strategy)
    if str(getattr(config.save_strategy, "value", config.save_strategy)) != "no":
        config.save_strategy, config.save_steps = kind("steps"), length.save
    if str(getattr(config.eval_strategy, "value", config.eval_strategy)) != "no":
        config.eval_strategy, config.eval_steps = type(config.eval_strategy)("steps"), length.save
        config.eval_delay = 0
    warmup = config.warmup_steps or 0
    if warmup >= 1:
        of = real.updates or max(10 * warmup, 1)
        config.warmup_steps = min(math.ceil(warmup * length.updates / of), max(length.updates - 1, 0))


def _take(dataset: Any, rows: int | None) -> Any:
    if dataset is None or rows is None:
        return dataset
    return dataset.select(range(min(rows, len(dataset)))) if hasattr(dataset, "select") else dataset.take(rows)


def _evaluation(dataset: Any, config: Any) -> Any:
    if dataset is None:
        return None
    prompts = max(
        1,
        2
        * config.per_device_eval_batch_size
        // (getattr(config, "num_generations_eval", None) or config.num_generations),
    )
    if isinstance(dataset, dict):
        return type(dataset)({name: _take(each, prompts) for name, each in dataset.items()})
    return _take(dataset, prompts)


# Training.


def _around_train(wrapped: Any, trainer: Any, args: Any, kwargs: Any) -> Any:
    if not hasattr(trainer, "_rlstep_small"):
        return wrapped(*args, **kwargs)
    if args:
        args = args[1:]
    checkpoint = settings().checkpoint
    kwargs = {**kwargs, "resume_from_checkpoint": checkpoint or None}
    say("training", resumed=bool(checkpoint))
    found = wrapped(*args, **kwargs)
    sum_up()
    config = trainer.args
    saves = str(getattr(config.save_strategy, "value", config.save_strategy)) != "no"
    evaluates = str(getattr(config.eval_strategy, "value", config.eval_strategy)) != "no"
    say(
        "trained",
        updates=trainer.state.global_step,
        epoch=trainer.state.epoch,
        output=config.output_dir,
        saves=saves,
        evaluates=evaluates,
        evaluations=sum("eval_loss" in entry or "eval_reward" in entry for entry in trainer.state.log_history),
        rates=[entry["learning_rate"] for entry in trainer.state.log_history if "learning_rate" in entry],
    )
    return found


def _around_scheduler(wrapped: Any, trainer: Any, args: Any, kwargs: Any) -> Any:
    own = getattr(trainer, "lr_scheduler", None) is not None
    found = wrapped(*args, **kwargs)
    real = getattr(trainer, "_rlstep_real", None)
    if real is not None:
        _look_at_rate(trainer, real, own)
    return found


def _look_at_rate(trainer: Any, real: Real, own: bool) -> None:
    """The learning rate over the updates of the real run, without making them."""
    updates, known = real.updates, real.updates is not None
    if updates is None:
        if own or (real.config.warmup_steps or 0) >= 1:
            say("learning rate", "the real number of updates is not known: give --rows", own=own)
            return
        updates = 1000  # all that the framework builds is in proportion to the run
    rates = _own_rates(trainer.lr_scheduler, updates) if own else _built_rates(real.config, updates)
    if rates is None:
        say("learning rate", f"{type(trainer.lr_scheduler).__name__} is not a schedule that can be read ahead", own=own)
        return
    first = zero_from(rates)
    share = 0.0 if first is None else (updates - first) / updates
    if first is not None and updates - first > 1 and share > 0.02:
        text = f"it is zero from update {first + 1:,} to {updates:,}, {share:.0%} of the run"
        say("learning rate", text, level="problem", own=own)
    else:
        last = f"the last of {updates:,} updates" if known else "the last update, however many there are"
        text = f"{max(rates):.3g} at its highest, {rates[-1]:.3g} at {last}"
        say("learning rate", text, own=own)


def _own_rates(scheduler: Any, updates: int) -> list[float] | None:
    lambdas = getattr(scheduler, "lr_lambdas", None)
    if not lambdas:
        return None
    return [scheduler.base_lrs[0] * float(lambdas[0](tick)) for tick in range(updates)]


def _built_rates(config: Any, updates: int) -> list[float] | None:
    import torch
    from transformers import get_scheduler

    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=config.learning_rate)
    scheduler = get_scheduler(
        config.lr_scheduler_type,
        optimizer,
        num_warmup_steps=config.get_warmup_steps(updates),
        num_training_steps=updates,
        scheduler_specific_kwargs=config.lr_scheduler_kwargs or {},
    )
    return _own_rates(scheduler, updates)
