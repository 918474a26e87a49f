"""Whether the rows that verl's data set leaves out are those that it documents: prompts that are longer than `data.max_prompt_length`.

A set filters the rows of its files when it is made (utils/dataset/rl_dataset.py 0.9.1:197), and what it keeps are places in the
table of all of them. Some of the others are encoded again.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from rlstep_hooks.record.events import ConfigChanged

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rlstep_hooks.observe.sync_watch import EventRecorder

ROWS = 16
"""Rows that are encoded again, evenly spaced among those that are left out: a chat template takes a millisecond for each."""
_NAME = "data.filter_overlong_prompts"
_METHODS = ("_read_files_and_tokenize", "maybe_filter_out_long_prompts")


def look(trainer: Any, recorder: EventRecorder) -> None:
    """Record that the training set has left out rows which it should have, where that is so.

    Args:
        trainer: verl's, when its data sets are there.
        recorder: Takes what is found.
    """
    try:
        changed = _changed(trainer.train_dataset)
    except Exception:  # noqa: BLE001 - a set of another form, which the rest of the audit does not depend on
        return
    if changed is not None:
        before, after = changed
        at = recorder.now()
        recorder.emit(ConfigChanged(at=at, name=_NAME, before=before, after=after, since="configuration"))


def _changed(rows: Any) -> tuple[str, str] | None:
    """What is configured and what was done where rows are missing that should be there."""
    places = _left_out(rows) if _is_read(rows) else ()
    if not places:
        return None
    filters, longest = bool(rows.filter_overlong_prompts), int(rows.max_prompt_length)
    chosen = places[:: max(len(places) // ROWS, 1)][:ROWS]
    short = sum(_tokens(rows, place) <= longest for place in chosen) if filters else len(chosen)
    if not short:
        return None
    left_out = f"{len(places)} rows are left out"
    if not filters:
        return "False", left_out
    found = f"{left_out}, and {short} of {len(chosen)} that were looked at have no more"
    return f"True, which leaves prompts of more than {longest} tokens out", found


def _is_read(rows: Any) -> bool:
    """Whether a data set chooses its rows as verl's does, by the length of their text alone."""
    kind = type(rows)
    own = any(_holder(kind, name).partition(".")[0] != "verl" for name in _METHODS)
    return not own and rows.processor is None and not rows.tool_schemas and int(rows.max_samples) <= 0


def _holder(kind: type, method: str) -> str:
    """The module of the class that has a method; empty where none has."""
    return next((of.__module__ for of in kind.__mro__ if method in vars(of)), "")


def _left_out(rows: Any) -> Sequence[int]:
    """Places of the rows that were left out, in the table of all; none where the set does not say what it keeps."""
    frame = rows.dataframe
    kept, table = getattr(frame, "_indices", None), getattr(frame, "_data", None)
    if kept is None or table is None or table.num_rows <= len(frame):
        return ()
    import numpy as np

    found: list[int] = np.setdiff1d(np.arange(table.num_rows), kept.column(0).to_numpy()).tolist()
    return found


def _tokens(rows: Any, place: int) -> int:
    """Tokens of the prompt of a row in the table of all; more than any where it has none, as verl takes it."""
    (row,) = rows.dataframe._data.fast_slice(place, 1).to_pylist()
    given = dict(rows.apply_chat_template_kwargs or {})
    for name in ("tokenize", "return_dict", "return_tensors"):
        given.pop(name, None)
    try:
        tokens = rows.tokenizer.apply_chat_template(
            row[rows.prompt_key], add_generation_prompt=True, tokenize=True, return_dict=False, **given
        )
    except Exception:  # noqa: BLE001 - verl leaves such a row out too (rl_dataset.py:263)
        return 1 << 62
    return len(tokens)
