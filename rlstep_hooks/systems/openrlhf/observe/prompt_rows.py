"""The prompts and labels that OpenRLHF makes of the rows of a file, beside the rows themselves.

Source: OpenRLHF 0.11.2, datasets/prompts_dataset.py `preprocess_data`: a row's text, put into a template of the configuration or a chat
template, and its label. Rows with images are left out.
"""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

from rlstep_hooks.observe.hooks import Hooks, LateRecorder

if TYPE_CHECKING:
    from rlstep_hooks.observe.hooks import Call
    from rlstep_hooks.observe.patches import Patches

ROWS = 256
"""Rows of a set that are read again, evenly spaced: a chat template takes a millisecond for each."""

_rows: WeakKeyDictionary[Any, Any] = WeakKeyDictionary()
"""The rows that each set of prompts was made of."""


def place_hooks(patches: Patches, module: Any) -> None:
    """Put the hook into `openrlhf.datasets.prompts_dataset`."""
    # prompts_dataset.py:49: built in the process that draws prompts, from the rows of the file.
    Hooks(LateRecorder(lambda: None), patches).wrap(module.PromptDataset, "__init__", after=_built, topics=("rows",))


def _built(call: Call) -> None:
    """Note the rows of a set. Those that are not known are not compared."""
    _rows[call.owner] = call.argument("dataset", 0)


def differing(dataset: Any) -> tuple[int, int, int]:
    """How many rows were read again, and how many of these have another prompt, and another label; none where they cannot be read.

    Args:
        dataset: OpenRLHF's `PromptDataset`.
    """
    try:
        return _differing(dataset)
    except Exception:  # noqa: BLE001 - rows of a class of somebody's own, which the rest of the audit does not depend on
        return 0, 0, 0


def _differing(dataset: Any) -> tuple[int, int, int]:
    rows = _rows.get(dataset) if type(dataset).__weakrefoffset__ else None
    if rows is None or len(rows) != len(dataset.prompts):
        return 0, 0, 0
    compared = prompts = labels = 0
    for place in range(0, len(rows), max(len(rows) // ROWS, 1)):
        expected = _documented(dataset, rows[place])
        if expected is None:
            continue
        prompt, label = expected
        compared += 1
        prompts += dataset.prompts[place] != prompt
        labels += dataset.prompts[place] == prompt and dataset.labels[place] != label
    return compared, prompts, labels


def _documented(dataset: Any, row: Any) -> tuple[str, Any] | None:
    """Prompt and label of one row; None where it has images, or none of the configured keys."""
    settings = dataset.strategy.args.data
    text, label_key = row.get(settings.input_key), getattr(settings, "label_key", None)
    label = "" if label_key is None else row.get(label_key)
    if text is None or "<image>" in str(text) or row.get(dataset.image_key):
        return None
    if getattr(settings, "apply_chat_template", False):
        messages = copy.deepcopy(text) if isinstance(text, list) else [{"role": "user", "content": text}]
        prompt = dataset.tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
        return prompt, label
    return (dataset.input_template.format(text) if dataset.input_template else text), label
