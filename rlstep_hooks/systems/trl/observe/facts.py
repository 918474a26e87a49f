"""What is read from a live trainer once, when training begins: facts that explain a finding."""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Any

from rlstep_hooks.observe.rates import rate_schedule
from rlstep_hooks.observe.seeds import seed_facts
from rlstep_hooks.observe.versions import versions_of

if TYPE_CHECKING:
    from collections.abc import Iterable


def live_facts(trainer: Any) -> dict[str, Any]:
    """Facts of a GRPOTrainer or RLOOTrainer: those of any trainer, and TRL's own counters."""
    return seeded_trainer_facts(trainer) | {
        "micro_steps_at_begin": int(getattr(trainer, "_step", 0)),
        "buffer_at_begin": bool(getattr(trainer, "_buffered_inputs", None))
        and any(slot is not None for slot in trainer._buffered_inputs),
        "max_steps": max(int(trainer.state.max_steps), 0),  # transformers multiplies a negative number of passes out
        "layers_drop_cache": layers_drop_cache(trainer.model),
    }


def seeded_trainer_facts(trainer: Any) -> dict[str, Any]:
    """Facts of a trainer whose `__init__` calls that of transformers' Trainer.

    transformers/trainer.py `Trainer.__init__` (4.51 to 5.23): set_seed, or enable_full_determinism, which calls it.
    """
    return trainer_facts(trainer) | seed_facts(trainer.args.seed)


def trainer_facts(trainer: Any) -> dict[str, Any]:
    """Precision, dropout and scheduler."""
    scheduler = trainer.lr_scheduler
    horizon = scheduler_keyword(scheduler, "num_training_steps")
    facts: dict[str, Any] = {
        "trainer": type(trainer).__name__,
        "compute_dtype": compute_dtype(trainer),
        "dropout_modules": active_dropout(trainer.model.modules()),
        "embedding_noise": embedding_noise(trainer),
        "lr_scheduler": str(getattr(trainer.args.lr_scheduler_type, "value", trainer.args.lr_scheduler_type)),
    }
    if horizon is not None:
        facts["lr_horizon"] = horizon
    warmup = scheduler_keyword(scheduler, "num_warmup_steps")
    if warmup is not None:
        facts["lr_warmup"] = warmup
    schedule = rate_schedule(scheduler, facts["lr_scheduler"])
    if schedule is not None:
        facts["lr_schedule"] = schedule
    if facts["lr_scheduler"] in ("constant", "constant_with_warmup"):
        facts["lr_constant"] = True
    return facts


def scheduler_keyword(scheduler: Any, name: str) -> int | None:
    """A number of ticks that a scheduler of transformers was built with: its lambda keeps it; None where it keeps none."""
    for function in getattr(scheduler, "lr_lambdas", ()):
        value = getattr(function, "keywords", {}).get(name)
        if isinstance(value, int):
            return value
    return None


def compute_dtype(trainer: Any) -> str:
    """The dtype in which forwards compute: autocast's if on, else that of the weights; "tf32" where matmuls use it.

    Autocast is read from the accelerator, which takes it from the environment too, and not from `bf16` and `fp16` alone.
    """
    import torch

    autocast = {"bf16": "bfloat16", "fp16": "float16", "fp8": "float8"}.get(str(trainer.accelerator.mixed_precision))
    if autocast is not None:
        return autocast
    dtype = str(next(trainer.model.parameters()).dtype).removeprefix("torch.")
    if dtype == "float32" and trainer.args.device.type == "cuda" and torch.backends.cuda.matmul.allow_tf32:
        return "tf32"
    return dtype


def active_dropout(modules: Iterable[Any]) -> int:
    """How many of these modules drop something in training mode: dropout layers, and attention with a dropout probability."""
    import torch

    count = 0
    for module in modules:
        layer = isinstance(module, torch.nn.modules.dropout._DropoutNd) and module.p > 0
        attention = getattr(module, "attention_dropout", 0.0)
        count += layer or (isinstance(attention, float) and attention > 0)
    return count


def embedding_noise(trainer: Any) -> float | None:
    """The strength of the noise that NEFTune adds to embeddings in training mode; None where it adds none.

    transformers' Trainer keeps it when it is built and hooks the embeddings when training begins (trainer.py 5.23.0:572, 1537).
    """
    alpha = getattr(trainer, "neftune_noise_alpha", None)
    return float(alpha) if alpha else None


def forward_noise(trainer: Any) -> str:
    """What makes two forwards of the same weights differ in training mode; empty where nothing does."""
    if active_dropout(trainer.model.modules()):
        return "dropout"
    return "NEFTune" if embedding_noise(trainer) else ""


def layers_drop_cache(model: Any) -> bool:
    """Whether layers drop the cache of keys and values in training mode, so that each forward sees nothing but its own tokens.

    From 4.53 transformers' layers do so while gradient checkpointing is on (modeling_layers.py, GradientCheckpointingLayer.__call__).
    """
    try:
        from transformers.modeling_layers import GradientCheckpointingLayer
    except ImportError:  # before 4.52
        return False
    return any(
        isinstance(module, GradientCheckpointingLayer) and module.gradient_checkpointing for module in model.modules()
    )


def shares_entropies(trainer: Any) -> bool:
    """Whether only tokens are trained whose entropy is among the highest of all processes (`top_entropy_quantile`)."""
    return trainer.accelerator.num_processes > 1 and getattr(trainer, "top_entropy_quantile", 1.0) < 1.0


@cache
def package_versions() -> dict[str, str]:
    """Releases of the packages involved."""
    return versions_of("trl", "transformers", "accelerate", "torch", "vllm", "peft", "deepspeed", "ms-swift")
