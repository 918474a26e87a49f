"""Prompts of V1's trainers between their submission and their training: TransferQueue, as the controller and its replay buffer use it.

Prompts have a name each, their `uid`. They are submitted by the controller, taken or evicted by the replay buffer, and both know
them by name (trainer_base.py `_submit_batch_to_rollout`, replay_buffer.py `_evict_terminal_groups`, verl 0.9.1).
"""

from __future__ import annotations

from collections import Counter, OrderedDict
from typing import TYPE_CHECKING, Any

from rlstep_hooks.record.events import Queued
from rlstep_hooks.systems.verl.observe.rollouts import PARTITION, prompt_of

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping

REMEMBERED = 65_536
"""Names of prompts that were taken, and are kept to know them again."""

REASONS = ("too old", "no signal in the group", "a session failed")
"""Why the replay buffer evicts prompts, in the order of its own sets (replay_buffer.py `_evict_terminal_groups`)."""


class Queue:
    """Follows the prompts of one trainer by name.

    Args:
        restored: Prompts that a resumed run brings along.
    """

    def __init__(self, restored: Iterable[str] = ()) -> None:
        self._under_way: set[str] = set(restored)
        self._taken: OrderedDict[str, None] = OrderedDict()
        self._again = self._unasked = 0
        self._looked: set[str] = set()
        """Samples in the queue whose weights were looked at."""
        self._behind = 0
        self._chosen: set[str] = set()
        """Prompts that were chosen for training since samples were taken last."""
        self._lost: set[str] = set()
        self._dropped: Counter[str] = Counter()

    def submit(self, prompts: Iterable[str]) -> None:
        """Prompts go into the queue."""
        self._under_way.update(prompts)

    def drop(self, reasons: Iterable[Collection[str]]) -> None:
        """Prompts are evicted: a set for each of `REASONS`. A prompt that is in several counts under the first."""
        for why, prompts in zip(REASONS, reasons, strict=False):
            for prompt in prompts:
                if prompt in self._under_way:
                    self._under_way.discard(prompt)
                    self._dropped[why] += 1

    def discard(self, prompts: Iterable[str]) -> None:
        """Prompts are cleared away; those that were evicted for a reason are gone already."""
        for prompt in set(prompts) & self._under_way:
            self._under_way.discard(prompt)
            self._dropped["more than a rollout needed"] += 1

    def choose(self, prompts: Iterable[str]) -> None:
        """Prompts are chosen for training, with all samples that came of them."""
        self._chosen.update(prompts)

    def look(self, stored: Mapping[str, Mapping[str, Any]]) -> None:
        """Look at the weights behind the samples in the queue, by key and tag: old ones are then seen before they are taken."""
        fresh = stored.keys() - self._looked
        self._behind += sum(_is_behind(stored[key]) for key in fresh)
        self._looked = set(stored)

    def take(self, samples: Iterable[str], there: Collection[str]) -> None:
        """Samples are taken for training.

        Args:
            samples: The keys of the samples, without padding.
            there: Prompts in the queue when they were taken, these among them.
        """
        seen: set[str] = set()
        prompts: set[str] = set()
        for key in samples:
            prompt = prompt_of(key)
            if key in seen or (prompt not in prompts and prompt in self._taken):
                self._again += 1
            elif prompt not in prompts and prompt not in self._under_way:
                self._unasked += 1
            else:
                prompts.add(prompt)
            seen.add(key)
        empty = (self._chosen & self._under_way) - prompts
        if empty:
            self._dropped["no sample came of it"] += len(empty)
        self._under_way -= prompts | empty
        self._chosen = set()
        for prompt in prompts:
            self._taken[prompt] = None
            if len(self._taken) > REMEMBERED:
                self._taken.popitem(last=False)
        lost = {prompt for prompt in self._under_way if prompt not in there}
        self._under_way -= lost
        self._lost |= lost

    def since(self) -> Queued:
        """What happened since the last call."""
        queued = Queued(
            waiting=len(self._under_way),
            lost=len(self._lost),
            again=self._again,
            unasked=self._unasked,
            behind=self._behind,
            dropped=tuple(sorted(self._dropped.items())),
        )
        self._again = self._unasked = self._behind = 0
        self._lost, self._dropped = set(), Counter()
        return queued


def _is_behind(tag: Mapping[str, Any]) -> bool:
    """Whether a sample's oldest weights are older than those synced before its prompt was submitted.

    A prompt that was submitted in step g follows the sync of step g - 1, whose number the engines then have (trainer_base.py 0.9.1:
    `_next_train_batch` and `on_step_end`).
    """
    oldest, submitted = tag.get("min_global_steps"), tag.get("global_steps")
    return oldest is not None and submitted is not None and int(oldest) < int(submitted) - 1


def restored_prompts(trainer: Any) -> list[str]:
    """Prompts that a resumed run brings along in the queue."""
    if not getattr(trainer, "_restored_tq_prompt_count", 0):
        return []
    import transfer_queue

    found = transfer_queue.kv_list(PARTITION) or {}
    return [key for key, tag in found.get(PARTITION, {}).items() if tag.get("is_prompt", False)]
