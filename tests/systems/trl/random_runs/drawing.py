"""Draws random runs: a few of the fields that can vary, and of what surrounds them."""

from __future__ import annotations

import random
from functools import cache
from typing import Any

from tests.systems.trl.random_runs import around, fields
from tests.systems.trl.random_runs.draws import Draw

VARIED_AT_ONCE = (3, 6, 10, 16, 24, 40)
"""Numbers of fields that a draw sets: few show a field alone, many show what fields do to each other."""
AROUND_AT_ONCE = (0, 1, 2, 4, 6)


WORKERS: dict[str, list[Any]] = {"dataloader_num_workers": [1]}
COMPANIONS: dict[str, dict[str, dict[str, list[Any]]]] = {
    "dataloader_prefetch_factor": {"2": WORKERS},
    "dataloader_persistent_workers": {"True": WORKERS},
    "dataloader_multiprocessing_context": {"fork": WORKERS},
    "load_best_model_at_end": {"True": {"eval_strategy": ["epoch"], "save_strategy": ["epoch"]}},
    "generation_batch_size": {
        str(size): {"per_device_train_batch_size": [1, 2], "num_generations": [2]} for size in (4, 6, 8, 12)
    },
    "lr_scheduler_kwargs": {
        "{'num_cycles': 2}": {"lr_scheduler_type": ["cosine", "cosine_with_restarts"]},
        "{'min_lr': 1e-07}": {"lr_scheduler_type": ["cosine_with_min_lr", "cosine_warmup_with_min_lr"]},
        "{'min_lr_rate': 0.1}": {"lr_scheduler_type": ["cosine_with_min_lr", "cosine_warmup_with_min_lr"]},
        "{'power': 2.0}": {"lr_scheduler_type": ["polynomial"]},
        "{'num_decay_steps': 2}": {"lr_scheduler_type": ["warmup_stable_decay"]},
    },
    "lr_scheduler_type": {
        kind: {"lr_scheduler_kwargs": [{"min_lr_rate": 0.1}, {"min_lr": 1e-7}]}
        for kind in ("cosine_with_min_lr", "cosine_warmup_with_min_lr")
    },
    "loss_type": {"luspo": {"importance_sampling_level": ["sequence"]}},
    "sync_ref_model": {"True": {"beta": [0.04, 0.5]}},
    "use_adaptive_entropy": {"True": {"entropy_coef": [0.001, 0.01], "entropy_target": [1.0, 4.0]}},
}
"""What a value is refused without, so that it is drawn at all."""


@cache
def space(algorithm: str) -> tuple[dict[str, list[Any]], dict[str, int]]:
    """The fields of an algorithm's configuration with their values, and how often each is drawn: TRL's own more than those that all
    trainers have, and those of an engine that is not here less."""
    import transformers
    import trl

    kind = getattr(trl, f"{algorithm}Config")
    values = fields.varied(kind)
    common = transformers.TrainingArguments.__dataclass_fields__
    weights = {name: 1 if name in common or name.startswith("vllm") else 3 for name in values}
    return values, weights


def algorithms() -> list[str]:
    """Algorithms of this release that are drawn; GRPO more often."""
    import trl

    return ["GRPO", "GRPO", *(["RLOO"] if "num_iterations" in _fields_of(trl.RLOOConfig) else [])]


def _fields_of(kind: Any) -> Any:
    return getattr(kind, "__dataclass_fields__", {})


def draw(seed: int, number: int, attempt: int = 0) -> Draw:
    """The draw of a seed and number; the same whenever it is asked for."""
    rng = random.Random(f"{seed}/{number}/{attempt}")
    while True:
        drawn = _drawn(rng)
        if around.possible(drawn):
            return drawn


def _drawn(rng: random.Random) -> Draw:
    algorithm = rng.choice(algorithms())
    values, weights = space(algorithm)
    names = _sample(rng, weights, rng.choice(VARIED_AT_ONCE))
    settings = {name: rng.choice(values[name]) for name in names}
    settings = {
        name: value for name, value in settings.items() if name not in fields.BASE or value != fields.BASE[name]
    }
    chosen = {
        name: rng.choice(around.CHOICES[name])
        for name in rng.sample(sorted(around.CHOICES), rng.choice(AROUND_AT_ONCE))
    }
    for name, wanted in list(settings.items()):
        for other, values_of_other in COMPANIONS.get(name, {}).get(str(wanted), {}).items():
            if other in values:
                settings[other] = rng.choice(values_of_other)
    if settings.get("eval_strategy", "no") != "no" or settings.get("eval_on_start"):
        chosen["evaluation_rows"] = rng.choice([4, 7])
    if not around.has_peft():
        chosen.pop("adapter", None)
    if chosen.get("rewards") in ("two", "partly_none") and rng.random() < 0.5:
        settings["reward_weights"] = [1.0, 0.25]
    elif "reward_weights" in settings:
        settings["reward_weights"] = [0.5, 2.0] if chosen.get("rewards") in ("two", "partly_none") else [0.5]
    return Draw(algorithm, settings, {name: value for name, value in chosen.items() if value != around.PLAIN[name]})


def _sample(rng: random.Random, weights: dict[str, int], count: int) -> list[str]:
    """Different names, each with its weight."""
    keyed = sorted(weights, key=lambda name: rng.random() ** (1 / weights[name]), reverse=True)
    return sorted(keyed[:count])
