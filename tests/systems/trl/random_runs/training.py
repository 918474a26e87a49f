"""Trains one draw in this process, with or without the audit, and says what came of it."""

from __future__ import annotations

import math
import tempfile
import traceback
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from tests.systems.trl.random_runs import around, fields
from tests.systems.trl.random_runs.truths import true_findings

if TYPE_CHECKING:
    from tests.systems.trl.random_runs.draws import Draw

Ending = Literal["trained", "unhealthy", "refused", "raised", "lost"]
"""Trained; trained to numbers that are not finite; refused by the configuration itself; raised later; the process died or hung."""

MICROBATCHES = 48
"""Upper bound of the micro-batches of one run, to keep it short."""


@dataclass(frozen=True)
class Outcome:
    """What came of one run."""

    ending: Ending
    why: str = ""
    """The exception, for a run that did not end well."""
    findings: list[str] = field(default_factory=list)
    """Errors and warnings, and promises that were broken, that no condition of the configuration makes true."""
    true: list[str] = field(default_factory=list)
    """Codes of errors and warnings that a condition of the configuration makes true."""
    seconds: float = 0.0

    @property
    def codes(self) -> set[str]:
        """The first word of each finding: its code."""
        return {text.split(":")[0].split()[0] for text in self.findings}


def configuration(draw: Draw, folder: str, more: dict[str, Any] | None = None) -> Any:
    """The configuration of a draw, with `more` settings. Its length is cut if it would train more than `MICROBATCHES`."""
    import trl

    kind = getattr(trl, f"{draw.algorithm}Config")
    known = kind.__dataclass_fields__
    base = {name: value for name, value in fields.BASE.items() if name in known}
    settings = base | {"output_dir": folder} | draw.settings | (more or {})
    config = kind(**settings)
    accumulation = max(config.gradient_accumulation_steps, 1)
    # An iterable data set has no length of its own, so its run is counted in updates.
    if config.max_steps <= 0 and not draw.around.get("streamed"):
        generations = getattr(config, "steps_per_generation", None) or accumulation
        batch = getattr(config, "generation_batch_size", None) or config.per_device_train_batch_size * generations
        rows = (around.PLAIN | draw.around)["rows"]
        chunks = rows // max(batch // config.num_generations, 1)
        total = config.num_train_epochs * chunks * generations * config.num_iterations
        if total <= MICROBATCHES:
            return config
    limit = max(MICROBATCHES // accumulation, 1)
    if not 0 < config.max_steps <= limit:
        config = kind(**settings | {"max_steps": limit})
    return config


def train(draw: Draw, *, audited: bool) -> Outcome:
    """Train a draw. Nothing of it is printed; an exception is part of the outcome."""
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        try:
            config = configuration(draw, folder)
        except Exception as error:  # noqa: BLE001 - whatever the framework raises is the outcome
            return Outcome("refused", why=_first_line(error))
        try:
            return _trained(draw, config, Path(folder), audited=audited)
        except Exception as error:  # noqa: BLE001 - whatever the framework raises is the outcome
            return Outcome("raised", why=_first_line(error) + "\n" + traceback.format_exc()[-3000:])


def _trained(draw: Draw, config: Any, folder: Path, *, audited: bool) -> Outcome:
    from rlstep_hooks import StepAuditCallback

    return train_with(draw, config, folder, StepAuditCallback(log_dir=None, listeners=()) if audited else None)


def train_with(draw: Draw, config: Any, folder: Path, audit: Any) -> Outcome:
    """Train a draw.

    Args:
        draw: What surrounds the configuration.
        config: The configuration.
        folder: Where a model is saved that the trainer is to load.
        audit: The callback; None for a run without it.
    """
    import trl

    chosen = around.PLAIN | draw.around
    tokenizer = around.tokenizer_of(chosen)
    # A reference model is loaded from the policy's path.
    if config.beta and chosen["adapter"] is None:
        chosen = chosen | {"from_path": True}
    model = around.model_of(tokenizer, chosen, folder / "model")
    callbacks = around.callbacks_of(chosen)
    more: dict[str, Any] = {"peft_config": around.adapter_of(chosen)} if chosen["adapter"] else {}
    optimizers = around.optimizers_of(model, chosen)
    if optimizers[0] is not None:
        more["optimizers"] = optimizers
    trainer = getattr(trl, f"{draw.algorithm}Trainer")(
        model=model,
        reward_funcs=around.rewards_of(chosen),
        args=config,
        train_dataset=around.data_of(chosen["rows"], chosen),
        eval_dataset=around.data_of(chosen["evaluation_rows"], chosen) if chosen["evaluation_rows"] else None,
        processing_class=tokenizer,
        callbacks=[*callbacks, *([audit] if audit else [])],
        **more,
    )
    for callback in callbacks:
        callback.trainer = trainer
    trainer.train()
    if not _finite(trainer):
        return Outcome("unhealthy")
    if audit is None:
        return Outcome("trained")
    true, false = true_findings(draw, config, trainer, audit.report)
    return Outcome("trained", findings=false, true=true)


def _finite(trainer: Any) -> bool:
    """Whether weights and logged losses are numbers."""
    losses = [row["loss"] for row in trainer.state.log_history if "loss" in row]
    weights = [of.detach() for of in trainer.model.parameters()]
    local = [of.to_local() if hasattr(of, "to_local") else of for of in weights]
    return all(math.isfinite(value) for value in losses) and all(bool(of.isfinite().all()) for of in local)


def _first_line(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}".splitlines()[0][:300]
