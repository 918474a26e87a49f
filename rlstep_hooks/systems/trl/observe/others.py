"""TRL's trainers that are not audited, and why: said before training begins."""

from __future__ import annotations

_NO_ROLLOUTS = frozenset(
    {
        "BCOTrainer", "CPOTrainer", "DPOTrainer", "IterativeSFTTrainer", "KTOTrainer", "ORPOTrainer", "PRMTrainer", "RewardTrainer",
        "SFTTrainer", "TPOTrainer",
    }
)  # fmt: skip
"""Trainers that learn from a data set alone."""

_ENGINE = "its rollouts come from a worker process of its own"
_PAIRS = "it generates pairs of completions in every training step and learns from preferences, without old log-probs or a ratio"
_DISTILLATION = "it learns from a teacher's logits on generated text, without rewards, old log-probs or a ratio"
_OWN_CYCLE = "it generates with methods of its own that this release of the audit does not observe"

_REASONS = {
    "A2POTrainer": "it generates and trains in one step with methods of its own (no buffer, no old log-probs)",
    "AsyncDistillationTrainer": _ENGINE,
    "BaseSelfDistillationTrainer": _OWN_CYCLE,
    "DistillationTrainer": _DISTILLATION,
    "GKDTrainer": _DISTILLATION,
    "GOLDTrainer": _DISTILLATION,
    "IWOPDTrainer": _DISTILLATION,
    "MiniLLMTrainer": _DISTILLATION,
    "NashMDTrainer": _PAIRS,
    "OnlineDPOTrainer": _PAIRS,
    "PPOTrainer": "this PPOTrainer is not the one of trl.trainer that is audited (0.16 to 0.24); one whose step() a script calls is "
    "audited by `with StepAuditPPO(trainer):`, and LLaMA-Factory's by `rlstep run -- llamafactory-cli train ...`",
    "RLOOTrainer": "RLOOTrainer up to 0.21 has a training loop of its own; the one of 0.22 and later is audited",
    "SDFTTrainer": _OWN_CYCLE,
    "SDPOTrainer": _OWN_CYCLE,
    "SSDTrainer": _OWN_CYCLE,
    "ServerDistillationTrainer": _DISTILLATION,
    "XPOTrainer": _PAIRS,
}
"""What keeps a trainer from being audited, by the name of its class. Read in TRL 0.16.1, 0.18.2, 0.24.0, 1.0.0 and 1.16.0."""

AUDITED = "GRPOTrainer, RLOOTrainer, their subclasses, PPOTrainer, and AsyncGRPOTrainer of 1.16"


_AUDITED_KINDS = frozenset({"GRPOTrainer", "PPOTrainer", "AsyncGRPOTrainer"})
"""Trainers with a hook of their own, which refuses what it does not audit itself. RLOOTrainer is one from 0.22 on."""


def is_other(kind: type) -> bool:
    """Whether a class is a trainer of TRL's, or a subclass of one, that no hook looks at."""
    own = {base.__name__ for base in kind.__mro__ if base.__module__.split(".")[0] == "trl"}
    followed = own & _AUDITED_KINDS or ("RLOOTrainer" in own and hasattr(kind, "_generate_and_score_completions"))
    return any(name.endswith("Trainer") for name in own) and not followed


def why_not(trainer: type) -> str:
    """Why a trainer of this class, which is none of the audited kinds, is not audited."""
    name = trainer.__name__
    for kind in trainer.__mro__:  # what a subclass is, its nearest known ancestor says
        if kind.__module__.split(".")[0] != "trl":
            continue
        if kind.__name__ in _REASONS:
            return f"{name} is not audited: {_REASONS[kind.__name__]} (audited are {AUDITED})"
        if kind.__name__ in _NO_ROLLOUTS:
            return f"{name} makes no rollouts, so there is nothing to audit"
    return f"{name} is not known (audited are {AUDITED})"
