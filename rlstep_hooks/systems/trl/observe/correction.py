"""TRL's importance weights between the trainer's log-probs and those of vLLM, against its documentation. B samples, T tokens.

Source: TRL 1.16.0 trainer/grpo_config.py (`vllm_importance_sampling_*`), trainer/grpo_trainer.py 2659-2707; read in 0.23.0, 0.24.0,
0.26.0, 0.29.0, 1.0.0, 1.5.0 and 1.9.0 too. Releases before 0.26 have no mode and cut off what is above `vllm_importance_sampling_cap`;
1.9 calls that `vllm_importance_sampling_clip_max` and has a lower bound.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from torch import Tensor

from rlstep_hooks.observe.importance import Comparison, Correction, compare

if TYPE_CHECKING:
    from collections.abc import Mapping


def read_correction(args: Any) -> Correction | None:
    """How the configuration documents the weights; None for a mode that was not read."""
    mode = getattr(args, "vllm_importance_sampling_mode", "token_truncate")
    level, _, beyond = str(mode).partition("_")
    if level not in ("token", "sequence") or beyond not in ("truncate", "mask"):
        return None
    upper = getattr(args, "vllm_importance_sampling_clip_max", getattr(args, "vllm_importance_sampling_cap", None))
    lower = getattr(args, "vllm_importance_sampling_clip_min", None)
    return Correction(
        "token" if level == "token" else "sequence",
        math.inf if upper is None else float(upper),
        -math.inf if lower is None else float(lower),
        "cut off" if beyond == "truncate" else "0",
    )


def weighed(args: Any, part: Mapping[str, Any], mask: Tensor) -> Comparison | None:
    """Compare the weights of a rollout; None where it has none, or not what they are made of.

    Args:
        args: The live configuration.
        part: What generation returned, by TRL's names.
        mask: 1 on the tokens that count, (B, T).
    """
    names = ("importance_sampling_ratio", "old_per_token_logps", "sampling_per_token_logps")
    weights, own, engine = (part.get(name) for name in names)
    correction = read_correction(args)
    if correction is None or not all(isinstance(of, Tensor) for of in (weights, own, engine)):
        return None
    return compare(correction, weights, own, engine, mask)
