"""Which samples a trainer sees, from the data that verl hands it: identity, tokens and old log-probs, row by row.

verl's data carry who each sample is: the prompt's `uid` and, with V1, the `session_id` of the completion. All of this is
looked at while it is still on the CPU, before verl moves a micro-batch to its device.
"""

from __future__ import annotations

from typing import Any

from rlstep_hooks.observe.identity import checksum_of

Key = tuple[str, str, int]
"""A sample: prompt, completion, and a checksum of its tokens. The first two are its name."""


def keys_of(data: Any) -> list[Key] | None:
    """The samples of a TensorDict in order; None where it does not say who they are, or where they are on a device."""
    responses = rows_of(data, "responses")
    prompts = names_of(data, "uid")
    if responses is None or prompts is None or len(prompts) != len(responses):
        return None
    sessions = names_of(data, "session_id") or [""] * len(prompts)
    # The model reads `input_ids`, prompt and completion, and takes no token from `responses`.
    whole = rows_of(data, "input_ids") if _is_nested(data, "input_ids") else None
    return [
        (prompt, session, checksum_of(row, checksum_of(sequence)) if sequence is not None else checksum_of(row))
        for prompt, session, row, sequence in zip(
            prompts, sessions, responses, whole or [None] * len(responses), strict=True
        )
    ]


def _is_nested(data: Any, name: str) -> bool:
    return name in data.keys() and data[name].is_nested  # noqa: SIM118 - a TensorDict iterates over its rows


def rows_of(data: Any, name: str) -> list[Any] | None:
    """A field's rows over the completion, without padding; None where there is no such field, or it is on a device.

    V1 keeps rows of their own length, V0 pads them to the right (`attention_mask` says how far).
    """
    if name not in data.keys():  # noqa: SIM118 - a TensorDict iterates over its rows
        return None
    field = data[name]
    if field.device.type != "cpu":
        return None
    rows = unbound(field)
    if field.is_nested:
        return rows
    if "attention_mask" not in data.keys():  # noqa: SIM118
        return None
    lengths = data["attention_mask"][:, data["prompts"].shape[1] :].sum(1).tolist()
    return [row[:length] for row, length in zip(rows, lengths, strict=True)]


def completion_rows(values: Any, lengths: list[int]) -> list[Any]:
    """Per-token output of a model over whole sequences, cut to the completions and shifted onto their tokens.

    Args:
        values: Rows of prompt + completion, one number a position (verl 0.9.1 workers/utils/padding.py:194).
        lengths: Tokens of each completion.
    """
    return [row[-length - 1 : -1] for row, length in zip(unbound(values), lengths, strict=True)]


def unbound(field: Any) -> list[Any]:
    """The rows of a field, views of it."""
    # Nested tensors of jagged layout alone have offsets; to ask one for its layout takes ten times as long.
    if hasattr(field, "offsets") and field.dim() == 2 and field.lengths() is None:
        # What `unbind` gives, in half the time: samples are looked at in every rollout, all of them.
        return list(field.values().split(field.offsets().diff().tolist()))
    return list(field.unbind())


def names_of(data: Any, name: str) -> list[str] | None:
    """A field of plain values, as text."""
    if name not in data.keys():  # noqa: SIM118 - a TensorDict iterates over its rows
        return None
    field = data[name]
    values = field.tolist() if hasattr(field, "tolist") else list(field)
    return [str(value) for value in values]
