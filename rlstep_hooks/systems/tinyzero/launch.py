"""TinyZero: a copy of verl 0.1, whose code makes one rollout fewer than configured and one pass over each.

The formulas are those of `rlstep_hooks.systems.tinyzero.plan`, read at Jiayi-Pan/TinyZero 95df88f.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from rlstep_hooks.launch.nested import nested_config
from rlstep_hooks.systems.reader import Reader, Request
from rlstep_hooks.systems.tinyzero.plan import plan_config
from rlstep_hooks.systems.verl import forks as verl_forks

if TYPE_CHECKING:
    from collections.abc import Mapping

    from rlstep_hooks.planning.reading import Reading

_MINIBATCH = (
    "floor(actor_rollout_ref.actor.ppo_mini_batch_size / world_size) * actor_rollout_ref.rollout.n * world_size"
)


class TinyZero(Reader):
    """TinyZero's `verl.trainer.main_ppo`."""

    name = "tinyzero"
    title = "TinyZero"
    version = "95df88f"
    overrides = True
    config_settings = ()

    def defaults(self, version: str) -> Mapping[str, Any]:
        """The defaults of its ppo_trainer.yaml."""
        return verl_forks.DEFAULTS

    def read(self, request: Request) -> Reading:
        """The Schedule of what its code does."""
        return verl_forks.fork_reading(
            request,
            nested_config(request.settings, verl_forks.KINDS),
            plan_config,
            fork="tinyzero",
            rows=request.rows("data.train_files"),
            minibatch=_MINIBATCH,
            facts=verl_forks.intervals(request),
        )


READER = TinyZero()
