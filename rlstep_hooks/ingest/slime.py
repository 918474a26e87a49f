"""slime's and miles' debug rollout data: `--save-debug-rollout-data`, a torch file for each rollout.

Written by `save_debug_rollout_data` (slime, commit 624b824a898a, slime/observability/rollout_data_utils.py:140; miles, commit
31f1ca961a94, miles/ray/rollout/debug_data.py:103): `rollout_id`, and `samples`, each `Sample.to_dict()` (slime/utils/types.py:95).
Token ids of prompt and response stand together; the mask and the engine's log-probs are those of the response.

It is read with `weights_only=True`, so that nothing in it is executed. Advantages are computed later, and are not in it.
"""

from __future__ import annotations

import pickle
import re
from typing import TYPE_CHECKING, Any

from rlstep_hooks.ingest.export import Asked, Export, ExportError, Sample
from rlstep_hooks.ingest.lines import converted
from rlstep_hooks.planning.words import printable

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

TITLE = "slime's or miles' debug rollout data (torch)"
_NUMBER = re.compile(r"(\d+)(?!.*\d)")


def recognises(path: Path) -> bool:
    """Whether a file may be one: only its name tells before it is loaded."""
    return path.suffix == ".pt"


def number(path: Path) -> int | None:
    """The rollout of a file, by the last number in its name; None for that of an evaluation."""
    found = _NUMBER.search(path.stem)
    return int(found[1]) if found is not None and "eval" not in path.stem else None


def opened(paths: Sequence[Path], asked: Asked) -> Export:
    """Open the files of a run."""
    return Export(
        title=TITLE,
        framework="slime",
        samples=_samples(paths),
        absent={
            "versions": "debug rollout data say which weights drew a sample, and not which trained on it",
            "advantages": "debug rollout data are written before advantages are computed",
        },
        numbers="each",
    )


def _samples(paths: Sequence[Path]) -> Iterator[Sample]:
    for path in paths:
        loaded = _loaded(path)
        for at, sample in enumerate(loaded["samples"]):
            yield _sample(sample, loaded["rollout_id"], f"{printable(str(path))}, sample {at}")


def _loaded(path: Path) -> dict[str, Any]:
    place = printable(str(path))
    try:
        import torch
    except ImportError:
        raise ExportError(f"{place}: torch files are read with torch (`pip install torch`)") from None
    try:
        loaded = torch.load(path, map_location="cpu", weights_only=True)
    except pickle.UnpicklingError as error:
        raise ExportError(
            f"{place}: it holds more than numbers, texts and tensors, and is not loaded ({_short(error)})"
        ) from None
    # Whatever a damaged file leads to in torch: it has no error of its own for one.
    except Exception as error:  # noqa: BLE001
        raise ExportError(f"{place}: no whole torch file ({_short(error)})") from None
    if not isinstance(loaded, dict) or not isinstance(loaded.get("samples"), list):
        raise ExportError(f"{place}: field `samples`: expected a list of samples, and there is none")
    if type(loaded.get("rollout_id")) is not int:
        raise ExportError(f"{place}: field `rollout_id`: expected a whole number, and there is none")
    return loaded


def _sample(given: Any, rollout: int, place: str) -> Sample:
    if not isinstance(given, dict):
        raise ExportError(f"{place}: expected a dictionary, got {type(given).__name__}")
    plain = {name: value.tolist() if hasattr(value, "tolist") else value for name, value in given.items()}
    tokens, length = plain.get("tokens") or [], plain.get("response_length") or 0
    if not isinstance(tokens, list) or type(length) is not int or not 0 <= length <= len(tokens):
        raise ExportError(
            f"{place}: field `response_length`: expected a number up to that of the tokens, got {length!r}"
        )
    reward = plain.get("reward")
    cut = len(tokens) - length
    # Parts of one session carry its name: the plan counts sessions, and groups cannot be counted then.
    part = plain.get("rollout_id") is not None
    fields = {
        "rollout": rollout,
        "group": None if part else plain.get("group_index"),
        "prompt_ids": None if part else tokens[:cut],
        "completion_ids": tokens[cut:],
        "mask": plain.get("loss_mask"),
        "engine_log_probs": plain.get("rollout_log_probs"),
        "reward": reward if isinstance(reward, int | float) else None,
    }
    return converted(fields, Sample, place)


def _short(error: Exception) -> str:
    return printable(str(error).partition("\n")[0])[:120]
