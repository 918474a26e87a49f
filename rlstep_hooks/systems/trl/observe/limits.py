"""What cannot be observed of a live trainer, with the reasons. Reads attributes; nothing here emits or patches."""

from __future__ import annotations

import inspect
from typing import TYPE_CHECKING, Any

from rlstep_hooks.systems.trl.observe.facts import shares_entropies
from rlstep_hooks.systems.trl.observe.loss_inputs import COVERED
from rlstep_hooks.systems.trl.releases import TrlRelease

if TYPE_CHECKING:
    from rlstep_hooks.planning.schedule import Schedule

_LOSSES = ("compute_loss", "_compute_loss")

_HIDES = {
    "_generate_and_score_completions": "refresh",
    "_get_per_token_logps": "refresh",
    "_get_per_token_logps_and_entropies": "refresh",
    "training_step": "samples",
    "prediction_step": "samples",
}
"""The topic that an override of a method hides, by the name of the method: nobody knows what the override does. Overrides of the
loss hide its formula (`uncovered_loss`)."""

_READ = {
    "DPPOTrainer": ("_generate_and_score_completions",),
    "GFPOTrainer": ("_generate_and_score_completions",),
    "GRPOWithReplayBufferTrainer": ("_generate_and_score_completions",),
}
"""Trainers of trl.experimental whose overrides were read: they give what is observed as GRPOTrainer does (1.0.0; GFPO 0.24.0), but
for what the plan and the observer know of them."""


READ = ("trl", "transformers")
"""Packages whose trainers were read; `trl.experimental`'s one by one (`_READ`)."""


def unobservable(
    trainer: Any, schedule: Schedule, read: tuple[str, ...] = READ, covered: tuple[str, ...] = COVERED
) -> list[tuple[str, str]]:
    """Topics (`rlstep_hooks.record.events.TOPICS`) that this trainer's configuration hides, each with the reason.

    Args:
        trainer: The live trainer.
        schedule: The plan of the run.
        read: Packages whose overrides are known.
        covered: Loss types whose formula is known.
    """
    found: list[tuple[str, str]] = []
    if getattr(trainer, "use_liger_loss", False) or (
        hasattr(trainer, "compute_liger_loss") and getattr(trainer, "use_liger_kernel", False)
    ):
        reason = "the liger loss computes log-probs inside its kernel"
        found += [("log_ratio", reason), ("loss", reason), ("formula", reason)]
    if is_compiled(trainer):
        found.append(("sampler", "torch.compile: a forward hook would compile the model anew"))
    found += _overrides(type(trainer), read)
    uncovered = uncovered_loss(trainer, schedule, read, covered)
    if uncovered:
        found.append(("formula", f"the documented formula is not evaluated with {uncovered}"))
    if trainer.accelerator.dataloader_config.dispatch_batches:
        reason = "dispatch_batches: rank 0 loads all rows and hands them out, so groups and identities move"
        found.append(("samples", reason))
    if trainer.accelerator.dataloader_config.split_batches and trainer.accelerator.num_processes > 1:
        # accelerate data_loader.py 1.15.0:1127. TRL's sampler is written for whole batches on each process: of some settings half of
        # the prompts are never trained.
        reason = "split_batches: each process gets a part of a batch, so rollouts are smaller than configured, and the plan has others"
        found += [("order", reason), ("samples", reason)]
    return found


def is_compiled(trainer: Any) -> bool:
    """Whether torch compiles the model: as configured, by accelerate's settings, or by the script itself.

    transformers 4.51 writes `torch_compile` of one trainer into the environment, where accelerate reads it for all later trainers of
    the process, whatever these have configured (4.51.3 training_args.py 1793-1798).
    """
    plugin = getattr(getattr(trainer.accelerator, "state", None), "dynamo_plugin", None)
    backend = str(getattr(getattr(plugin, "backend", "NO"), "value", "NO"))
    own = getattr(trainer.model, "_compiled_call_impl", None) is not None or hasattr(trainer.model, "_orig_mod")
    return bool(getattr(trainer.args, "torch_compile", False)) or backend != "NO" or own


def _overrides(kind: type, read: tuple[str, ...]) -> list[tuple[str, str]]:
    found: dict[str, list[str]] = {}
    for name, topic in _HIDES.items():
        owner = _overriding(kind, name, read)
        if owner is not None and name not in _READ.get(owner.__name__, ()):
            found.setdefault(topic, []).append(name)
    return [
        (topic, f"{kind.__name__} overrides {', '.join(names)}; what its version does with log-probs is not known")
        for topic, names in found.items()
    ]


def own_loss(trainer: Any, read: tuple[str, ...] = READ) -> str:
    """What a trainer calls its own loss, where a subclass defines one; empty where it has GRPOTrainer's or RLOOTrainer's."""
    owners = [_overriding(type(trainer), name, read) for name in _LOSSES]
    return next((f"the loss of {owner.__name__}" for owner in owners if owner is not None), "")


def own_construction(trainer: Any, read: tuple[str, ...] = READ) -> bool:
    """Whether a subclass builds the trainer in a way that was not read, so that its settings may mean something else."""
    return _overriding(type(trainer), "__init__", read) is not None


def own_loader(trainer: Any, read: tuple[str, ...] = READ) -> bool:
    """Whether somebody's own code decides which rows the loader gives in which order."""
    return _defines(trainer, ("get_train_dataloader", "_get_train_sampler"), read)


def own_evaluation_loader(trainer: Any, read: tuple[str, ...] = READ) -> bool:
    """Whether somebody's own code decides which rows the loader of an evaluation gives, and how often."""
    return _defines(trainer, ("get_eval_dataloader", "_get_eval_sampler"), read)


def own_generation(trainer: Any, read: tuple[str, ...] = READ) -> bool:
    """Whether something else than TRL's tokenizer makes completions of tokens: an override, a processor, a function of rollouts, tools
    or an environment."""
    from transformers import PreTrainedTokenizerBase

    given = ("rollout_func", "tools", "environment_factories", "environments")
    if not isinstance(trainer.processing_class, PreTrainedTokenizerBase) or any(
        getattr(trainer, name, None) for name in given
    ):
        return True
    return _defines(trainer, ("_generate", "_generate_single_turn", "_generate_and_score_completions"), read)


def writes_tokens(trainer: Any) -> bool:
    """Whether a trainer's own class may encode prompts in its own way, or keep less of what `generate` gave than TRL keeps."""
    names = ("_tokenize_prompts", "_generate", "_generate_single_turn", "_generate_and_score_completions")
    return any(_overriding(type(trainer), name, READ) is not None for name in names)


def own_evaluation(trainer: Any) -> bool:
    """Whether somebody's own code may decide when the trainer evaluates: an override, or a callback at the end of an update."""
    by_trainer = _defines(trainer, ("evaluate", "_maybe_log_save_evaluate", "_evaluate"), READ)
    known = (*READ, "rlstep_hooks")
    by_callback = any(
        _overriding(type(callback), "on_step_end", known) is not None or "on_step_end" in vars(callback)
        for callback in trainer.callback_handler.callbacks
    )
    return by_trainer or by_callback


def own_flow(trainer: Any) -> bool:
    """Whether somebody's own code may tell the loop what comes next: another class of trainer, or a callback."""
    from transformers import TrainerCallback

    known = (*READ, "rlstep_hooks")
    kinds = [type(trainer), *map(type, trainer.callback_handler.callbacks)]
    methods = vars(TrainerCallback).keys()
    replaced = any(methods & vars(callback).keys() for callback in trainer.callback_handler.callbacks)
    return replaced or any(kind.__module__.partition(".")[0] not in known for kind in kinds)


def own_advantages(trainer: Any, read: tuple[str, ...] = READ) -> str:
    """Why the advantages of a trainer need not be those of TRL's documentation; empty where they are."""
    names = ("_generate_and_score_completions", "_calculate_rewards")
    owners = [owner for name in names if (owner := _overriding(type(trainer), name, read)) is not None]
    return f"{owners[0].__name__} computes rewards and advantages of its own" if owners else ""


def uncovered_loss(
    trainer: Any, schedule: Schedule, read: tuple[str, ...] = READ, covered: tuple[str, ...] = COVERED
) -> str:
    """What keeps the documented formula from covering this trainer's loss; empty where it does."""
    loss_type, sequences = getattr(trainer, "loss_type", "bnpo"), _level(trainer) == "sequence"
    plain = {
        # Its mean over samples was one over tokens in some releases, unless each sample has one number (1.0.0, 1.16.0).
        "luspo with numbers of tokens": loss_type != "luspo" or (sequences and trainer.beta == 0.0),
        "an adaptive entropy bonus": not getattr(trainer, "use_adaptive_entropy", False),
    }
    found = [unknown_masks(trainer, schedule, read, covered), *(name for name, holds in plain.items() if not holds)]
    return ", ".join(name for name in found if name)


def unknown_masks(
    trainer: Any, schedule: Schedule, read: tuple[str, ...] = READ, covered: tuple[str, ...] = COVERED
) -> str:
    """What keeps anybody from saying which tokens of a rollout this trainer's loss trains; empty where `trained_tokens` says it."""
    unshared = shares_entropies(trainer) and not hasattr(trainer, "get_high_entropy_mask")
    plain = {
        own_loss(trainer, read): not own_loss(trainer, read),
        "a loss type of its own": schedule.algorithm == "RLOO" or getattr(trainer, "loss_type", "bnpo") in covered,
        "a ratio of another level": _level(trainer) in ("token", "sequence"),
        "an entropy mask over several processes whose calculation cannot be seen": not unshared,
        "an off-policy mask of an engine's log-probs, or of a release before 1.16": (
            getattr(trainer, "off_policy_mask_threshold", None) is None
            or (not getattr(trainer, "use_vllm", False) and TrlRelease(schedule.version, "").since("1.16"))
        ),
    }
    return ", ".join(name for name, holds in plain.items() if not holds)


def _level(trainer: Any) -> str:
    return str(getattr(trainer, "importance_sampling_level", "token"))


def _defines(trainer: Any, names: tuple[str, ...], read: tuple[str, ...]) -> bool:
    """Whether the trainer itself, or a class that nobody here read, defines one of these methods anew."""
    return any(name in vars(trainer) or _overriding(type(trainer), name, read) is not None for name in names)


def _overriding(kind: type, name: str, read: tuple[str, ...]) -> type | None:
    """The subclass, outside trl.trainer and the packages that were read, that defines this method anew; None where there is none."""
    for base in kind.__mro__:
        if name in vars(base):
            module = inspect.getmodule(base)
            root = (module.__name__ if module else base.__module__).split(".")
            own = root[0] not in read or root[:2] == ["trl", "experimental"]
            return base if own else None
    return None
