"""The coefficient of the KL penalty or term that adapts (`algo.kl.target`), beside its documented formula.

Source: OpenRLHF 0.11.2, trainer/ppo_utils/kl_controller.py `AdaptiveKLController`, trainer/ppo_trainer.py:172 and :253. The formula is
that of `rlstep_hooks.observe.kl_coefficient`.
"""

from __future__ import annotations

import math
from typing import Any

from rlstep_hooks.observe.kl_coefficient import Adaptation

NAME = "the adaptive KL coefficient"


class AdaptiveCoefficient:
    """Follows the coefficient of one run, update by update: the divergence that each is made with is taken as it came.

    Args:
        args: OpenRLHF's arguments, with a target.
    """

    def __init__(self, args: Any) -> None:
        kl, rollout = args.algo.kl, args.rollout
        self._adaptation = Adaptation(float(kl.target), float(kl.horizon))
        self._samples = int(rollout.batch_size) * int(rollout.n_samples_per_prompt)
        self._right = float(kl.init_coef)

    def updates(self, measured: float) -> None:
        """The controller updates the coefficient with a measured divergence."""
        self._right, _ = self._adaptation.following(self._right, measured, self._samples)

    def differs(self, value: float) -> float | None:
        """The documented coefficient where the one in force is another. Updates are followed from that one then: it is told once."""
        right, self._right = self._right, value
        return None if math.isclose(right, value, rel_tol=1e-9, abs_tol=1e-12) else right
