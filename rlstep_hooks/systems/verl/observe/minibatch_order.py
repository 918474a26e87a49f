"""Whether the samples of a rollout go into mini-batches in the order that is configured: as they came, or shuffled by the seed.

The policy's samples are read by torch's own loader, once in each pass, with `data_loader_seed` and the number of the rank
(utils/tensordict_utils.py 0.9.1 `make_iterator`, workers/engine_workers.py 0.9.1:262). The same loader says here which they should be.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch.utils.data import DataLoader

from rlstep_hooks.record.events import MINIBATCH_ORDER, ConfigChanged

if TYPE_CHECKING:
    from collections.abc import Iterable

    from rlstep_hooks.observe.sync_watch import EventRecorder
    from rlstep_hooks.systems.verl.observe.samples import Key

_AS_THEY_CAME = "the samples as they came"


class MiniBatchOrder:
    """Follows the updates of one rollout at a time, on the samples of one process."""

    def __init__(self) -> None:
        self._keys: list[Key] = []
        self._updates: list[set[Key]] = []
        self._open: set[Key] = set()
        """The samples of the update that is being made."""
        self._told = False

    def begin(self, keys: list[Key] | None) -> None:
        """The policy is about to train.

        Args:
            keys: The samples of this process, in order; None where they are not known, or not looked at.
        """
        self._keys, self._updates, self._open = keys or [], [], set()

    def sees(self, keys: list[Key] | None) -> None:
        """A micro-batch is trained."""
        if self._keys and not self._told:
            self._open.update(keys or ())

    def update_ends(self) -> None:
        """The micro-batches of an update are over."""
        if self._keys and not self._told:
            self._updates.append(self._open)
            self._open = set()

    def end(self, config: Any, ranks: int, rank: int, recorder: EventRecorder) -> None:
        """The rollout is trained: record once if its mini-batches are others than configured, although each pass has all samples.

        Passes that have not are the business of other rules.

        Args:
            config: What the worker was given, `actor_rollout_ref`.
            ranks: Processes that share the samples.
            rank: The number of this one.
            recorder: Takes what is found.
        """
        keys, updates = self._keys, self._updates
        self.begin(None)
        size, actor = int(config.actor.ppo_mini_batch_size) * int(config.rollout.n) // ranks, config.actor
        passes = _passes(keys, updates, size)
        if self._told or passes != int(actor.ppo_epochs):
            return
        seed = int(actor.data_loader_seed) + rank if actor.shuffle else None
        if updates == _mini_batches(keys, size, passes, seed):
            return
        self._told = True
        recorder.emit(
            ConfigChanged(
                at=recorder.now(),
                name=MINIBATCH_ORDER,
                before=_AS_THEY_CAME if seed is None else f"shuffled by seed {actor.data_loader_seed}",
                after=_AS_THEY_CAME if updates == _mini_batches(keys, size, passes, None) else "another one",
                since="configuration",
            )
        )


def _passes(keys: list[Key], updates: list[set[Key]], size: int) -> int:
    """How often all samples were trained once, in mini-batches of a size; 0 where they were not."""
    a_pass = len(keys) // size if size and not len(keys) % size else 0
    if not a_pass or len(set(keys)) < len(keys) or len(updates) % a_pass or any(len(of) != size for of in updates):
        return 0
    begins = range(0, len(updates), a_pass)
    return len(begins) if all(set().union(*updates[of : of + a_pass]) == set(keys) for of in begins) else 0


def _mini_batches(keys: list[Key], size: int, passes: int, seed: int | None) -> list[set[Key]]:
    """The samples of each mini-batch by torch's loader.

    Args:
        keys: The samples.
        size: Of a mini-batch.
        passes: Through all samples.
        seed: Of their order in each pass; None where they are not shuffled.
    """
    generator = None if seed is None else torch.Generator().manual_seed(seed)
    places: Iterable[list[int]] = DataLoader(
        range(len(keys)),
        batch_size=size,
        shuffle=seed is not None,
        generator=generator
        or torch.Generator(),  # one of its own: without one the loader draws a number of the whole process
        collate_fn=list,
    )
    return [{keys[place] for place in batch} for _ in range(passes) for batch in places]
