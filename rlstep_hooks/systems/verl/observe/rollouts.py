"""What verl's own records say of a rollout: how many samples were asked for, which sessions failed, which weights generated."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

PARTITION = "train"
"""TransferQueue's partition of samples for training."""


def prompt_of(key: str) -> str:
    """The `uid` of a sample's prompt. Keys are `{uid}_{session}_{output}` (agent_loop_tq.py 0.9.1:214)."""
    return key.split("_", 1)[0]


def samples_due(
    keys: Iterable[str], buffer: Any, *, prompts: int, group: int, asked: Mapping[str, int], own_loop: bool
) -> int | None:
    """The samples that a rollout should hold by what V1 itself recorded; None where that is prompts x samples of the plan.

    A session that raises gives no sample, and its prompt is trained with those it has (replay_buffer.py 0.9.1, "failure"). The
    data may ask for another number of sessions of a prompt (`__rollout_n__`, agent_loop_tq.py 0.9.1:113). An agent loop may give
    several samples for a session, or none: then all that were stored are due.

    Args:
        keys: Samples of the rollout, without padding.
        buffer: verl's replay buffer, right after it gave the rollout.
        prompts: Prompts of a rollout.
        group: Sessions of a prompt, where the data ask for no other number.
        asked: Sessions that the data ask for, by prompt.
        own_loop: Whether an agent loop that verl does not ship generates.
    """
    stored = buffer.partitions[PARTITION]
    uids = {prompt_of(key) for key in keys}
    if own_loop:
        return sum(prompt_of(key) in uids for key in stored)
    failed = set(buffer.failure_keys[PARTITION])
    if not failed and not asked:
        return None
    sessions: dict[str, set[str]] = {uid: set() for uid in failed}
    for key in stored:
        if prompt_of(key) in sessions:
            sessions[prompt_of(key)].add(key.rsplit("_", 1)[0])
    uids |= failed
    missing = sum(asked.get(uid, group) - len(found) for uid, found in sessions.items())
    return sum(asked.get(uid, group) for uid in uids) + group * (prompts - len(uids)) - missing


def counted(labels: Iterable[Any]) -> tuple[tuple[int, int], ...]:
    """How many samples carry each label of weights; those without one are left out."""
    counts: dict[int, int] = {}
    for label in labels:
        if label is not None:
            counts[int(label)] = counts.get(int(label), 0) + 1
    return tuple(sorted(counts.items()))
