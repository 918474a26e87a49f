"""What a process trains by, and must be the same on all data-parallel processes: settings, the sampler's seed, and the data set's rows.

accelerate gives each process its part of the batches of one sampler, and takes it that all processes have the same sampler over the
same rows (1.15.0 data_loader.py `BatchSamplerShard`). Each process is compared with its own configuration; only the records of all
say whether these are one.
"""

from __future__ import annotations

import zlib
from typing import TYPE_CHECKING, Any

from rlstep_hooks.record.events import ENTROPY_SHARE, ROWS_OF_DATA_SET, SAME_ON_RANKS
from rlstep_hooks.systems.trl.observe.facts import shares_entropies
from rlstep_hooks.systems.trl.observe.settings import SETTINGS_OF_TRAINING

if TYPE_CHECKING:
    from collections.abc import Iterator

_ROWS = 32
"""Rows of a data set whose prompts are read, at even distances."""

_ALSO = (
    "adam_beta1", "adam_beta2", "adam_epsilon", "bf16", "data_seed", "dataloader_drop_last", "fp16", "learning_rate",
    "lr_scheduler_type", "max_steps", "min_p", "num_train_epochs", "optim", "ref_model_mixup_alpha", "ref_model_sync_steps",
    "repetition_penalty", "reward_weights", "seed", "sync_ref_model", "top_k", "top_p", "warmup_ratio", "warmup_steps", "weight_decay",
)  # fmt: skip
"""Arguments that decide what is sampled and trained, beside those that are followed while training goes on."""

_PLAIN = (bool, int, float, str, type(None))


def facts_of_ranks(trainer: Any) -> dict[str, Any]:
    """What the records of several processes are joined by; nothing of one alone."""
    if trainer.accelerator.num_processes == 1:
        return {}
    shared = {ENTROPY_SHARE: float(trainer.top_entropy_quantile)} if shares_entropies(trainer) else {}
    return shared | {SAME_ON_RANKS: same_on_ranks(trainer)}


def same_on_ranks(trainer: Any) -> dict[str, Any]:
    """What this process trains by, by its name; plain values only."""
    found = dict(_settings(trainer.args))
    seed = _sampler_seed(trainer)
    if seed is not None:
        found["seed of the sampler"] = seed
    rows = _rows(getattr(trainer, "train_dataset", None))
    if rows is not None:
        found[ROWS_OF_DATA_SET] = rows
    return found


def _settings(args: Any) -> Iterator[tuple[str, Any]]:
    for name in sorted({*SETTINGS_OF_TRAINING, *_ALSO}):
        value = getattr(args, name, None)
        value = getattr(value, "value", value)  # of an enumeration
        if isinstance(value, (list, tuple)):
            value = str(list(value))
        if isinstance(value, _PLAIN):
            yield name, value


def _sampler_seed(trainer: Any) -> int | None:
    """The seed of the generator by which the sampler of the training loader shuffles; None where it has none of its own."""
    sampler: Any = getattr(trainer.callback_handler, "train_dataloader", None)
    for name in (
        "batch_sampler",
        "batch_sampler",
        "sampler",
    ):  # accelerate's part, torch's batches, and the rows of all
        sampler = getattr(sampler, name, sampler)
    generator: Any = getattr(sampler, "generator", None)
    return int(generator.initial_seed()) if hasattr(generator, "initial_seed") else None


def _rows(rows: Any) -> str | None:
    """The number of rows and a checksum of some prompts; None where the set has none, or says them in another way at each reading."""
    if not hasattr(rows, "__len__") or "prompt" not in (getattr(rows, "column_names", None) or ()) or not len(rows):
        return None
    places = range(0, len(rows), max(len(rows) // _ROWS, 1))
    try:
        prompts = rows.select_columns("prompt")
        first, again = (zlib.crc32(str([prompts[at]["prompt"] for at in places]).encode()) for _ in range(2))
    except Exception:  # noqa: BLE001 - a transform of somebody's own may need the other columns
        return None
    return f"{len(rows)} rows, checksum {first:08x}" if first == again else None
