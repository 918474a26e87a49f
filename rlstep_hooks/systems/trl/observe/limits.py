"""What cannot be observed of a live trainer, with the reasons. Reads attributes; nothing here emits or patches."""

from __future__ import annotations

import inspect
from typing import TYPE_CHECKING, Any

from rlstep_hooks.systems.trl.observe.loss import COVERED

if TYPE_CHECKING:
    from rlstep_hooks.planning.schedule import Schedule

HOOKED = (
    "training_step",
    "prediction_step",
    "compute_loss",
    "_compute_loss",
    "_generate_and_score_completions",
    "_get_per_token_logps",
    "_get_per_token_logps_and_entropies",
)
"""Methods whose override in a subclass makes parts of the observation uncertain."""


def unobservable(trainer: Any, schedule: Schedule) -> list[tuple[str, str]]:
    """Topics (`rlstep_hooks.record.events.TOPICS`) that this trainer's configuration hides, each with the reason."""
    found: list[tuple[str, str]] = []
    if getattr(trainer, "use_liger_loss", False) or (
        hasattr(trainer, "compute_liger_loss") and getattr(trainer, "use_liger_kernel", False)
    ):
        reason = "the liger loss computes log-probs inside its kernel"
        found += [("log_ratio", reason), ("loss", reason)]
    if getattr(trainer.args, "torch_compile", False):
        found.append(("sampler", "torch.compile: a forward hook would compile the model anew"))
    found += _overrides(type(trainer))
    uncovered = uncovered_loss(trainer, schedule)
    if uncovered:
        found.append(("loss", f"the documented formula is not evaluated with {uncovered}"))
    if trainer.accelerator.dataloader_config.dispatch_batches:
        reason = "dispatch_batches: rank 0 loads all rows and hands them out, so groups and identities move"
        found.append(("samples", reason))
    return found


def _overrides(kind: type) -> list[tuple[str, str]]:
    overridden = [name for name in HOOKED if _is_overridden(kind, name)]
    why = f"{kind.__name__} overrides {', '.join(overridden)}; what its version does with log-probs is not known"
    topics = []
    if any("loss" in name for name in overridden):
        topics.append("loss")
    if any("log" in name or "generate" in name for name in overridden):
        topics.append("refresh")
    if "training_step" in overridden or "prediction_step" in overridden:
        topics.append("samples")
    return [(topic, why) for topic in topics]


def uncovered_loss(trainer: Any, schedule: Schedule) -> str:
    """What keeps the documented formula from covering this trainer's loss; empty where it does."""
    args = trainer.args
    if schedule.algorithm != "GRPO":
        return f"the loss of {schedule.algorithm}"
    plain = {
        "a loss of the subclass's own": not any(
            _is_overridden(type(trainer), name) for name in ("compute_loss", "_compute_loss")
        ),
        "a KL term whose reference is computed in the loss": schedule.reference_source != "in_loss",
        "a loss type without this clip": getattr(trainer, "loss_type", "bnpo") in COVERED,
        "a sequence-level ratio": getattr(trainer, "importance_sampling_level", "token") == "token",
        "a two-sided clip": getattr(args, "delta", None) is None,
        "an entropy mask": getattr(trainer, "top_entropy_quantile", 1.0) == 1.0,
        "an entropy bonus": not getattr(trainer, "_entropy_bonus_enabled", False),
        "an off-policy mask": getattr(trainer, "off_policy_mask_threshold", None) is None,
        "an auxiliary loss": not getattr(trainer, "aux_loss_enabled", False),
        "an engine correction": not (
            getattr(trainer, "use_vllm", False) and getattr(trainer, "vllm_importance_sampling_correction", False)
        ),
    }
    return ", ".join(name for name, holds in plain.items() if not holds)


def _is_overridden(kind: type, name: str) -> bool:
    """Whether a subclass outside TRL and transformers defines this method anew."""
    for base in kind.__mro__:
        if name in vars(base):
            module = inspect.getmodule(base)
            root = (module.__name__ if module else base.__module__).split(".")
            return root[0] not in ("trl", "transformers") or root[:2] == ["trl", "experimental"]
    return False
