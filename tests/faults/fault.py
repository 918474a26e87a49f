"""What a fault of the corpus is, the settings that faults share, and the ways in which users and wrappers reach into a trainer."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch
from transformers import TrainerCallback

from rlstep_hooks.planning.finding import Where
from rlstep_hooks.testing.trl_faults import replace_method

if TYPE_CHECKING:
    from rlstep_hooks.systems.trl.releases import TrlRelease

Apply = Callable[[Any], None]
Settings = Mapping[str, Any]

ONCE: Settings = {"rows": 12, "gradient_accumulation_steps": 2, "num_train_epochs": 1, "beta": 0.0}
"""Six rollouts, one pass over each: 12 micro-batches, 6 updates."""
REUSED: Settings = {**ONCE, "num_iterations": 2}
"""Six rollouts, two passes over each: 24 micro-batches, 12 updates."""
LARGE_ROLLOUT: Settings = {**ONCE, "rows": 24, "steps_per_generation": 4, "loss_type": "grpo"}
"""Six rollouts of sixteen samples, two updates on each: 24 micro-batches, 12 updates. Not with the default loss of 0.22 to
1.9, which is wrong by itself where a rollout is larger than an update (trl PR#6024)."""
FALLING_RATE: Settings = {**REUSED, "lr_scheduler_type": "linear"}
WARMED_UP: Settings = {**FALLING_RATE, "warmup_steps": 2}
TWO_EPOCHS: Settings = {**REUSED, "num_train_epochs": 2}
WITH_REFERENCE: Settings = {**REUSED, "beta": 0.04}
EVALUATED: Settings = {**REUSED, "evaluation_rows": 4, "eval_strategy": "steps", "eval_steps": 3}
"""Evaluates after updates 3, 6, 9 and 12; the first time in the middle of a rollout's use."""

WHOLE_RUN = Where()
"""The place of a finding about the run as a whole."""


def unchanged(trainer: Any) -> None:
    """Leave the trainer as it was built."""


@dataclass(frozen=True)
class Fault:
    """One mistake, and where it must be found."""

    apply: Apply
    """Makes it. Its name is the fault's, and its docstring says what is broken."""
    code: str
    """The rule that names it."""
    where: Where
    """Place of the first event that is wrong; numbers left out are not compared, `WHOLE_RUN` is compared as it is."""
    report: str
    """The report it reproduces."""
    where_016: Where | None = None
    """The place in TRL 0.16, which counts rollouts of one micro-batch each; as above where None."""
    cause: str = ""
    """What the finding must say of it."""
    headline: str = ""
    """The rule of the headline, where another one sees the cause itself; empty where it is `code`."""
    beside: tuple[str, ...] = ()
    """Rules that see the same mistake where the headline's rule does not, or something else of it."""
    doubtful: bool = False
    """Whether it may also be meant, or be noise of a kernel, so that it is a warning and the run passes."""
    settings: Settings = field(default_factory=lambda: REUSED)
    prepare: Apply = unchanged
    """What the run without the fault needs as well."""
    since: str = "0.16"
    """First release of TRL in which the mistake can be made in this way."""
    before: str = "2"
    """First release that was read in which it can no longer."""
    absent: tuple[str, ...] = ()
    """Minor releases between them in which it cannot."""

    @property
    def name(self) -> str:
        """What it is called."""
        return self.apply.__name__

    def expressible(self, release: TrlRelease) -> bool:
        """Whether the mistake can be made in a release."""
        return release.since(self.since) and not release.since(self.before) and not release.trl.startswith(self.absent)

    def place(self, release: TrlRelease) -> Where:
        """Where it must be found in a release."""
        return self.where_016 if self.where_016 is not None and not release.since("0.17") else self.where


def made(name: str, what: str, apply: Apply) -> Apply:
    """A mistake of one expression: its name, what is broken, and how."""
    apply.__name__, apply.__doc__ = name, what
    return apply


def way(how: Callable[..., None], *given: Any, by: Callable[..., Any], **more: Any) -> Apply:
    """A mistake that reaches into the trainer in a way that others take too.

    Args:
        how: The way, for example `replace_method`.
        given: What it takes between the trainer and the function.
        by: The function, which gets the trainer first. Its name is the mistake's, and its docstring says what is broken.
        more: What the way takes besides.
    """

    @functools.wraps(by)
    def apply(trainer: Any) -> None:
        how(trainer, *given, functools.partial(by, trainer), **more)

    return apply


# How users and wrappers reach into a trainer


def whole(model: Any, *, written: bool = False) -> AbstractContextManager[Any]:
    """A context in which a model's weights are whole, as users of ZeRO-3 write it; elsewhere they always are.

    Args:
        model: The model.
        written: Whether what rank 0 writes to them there stays.
    """
    parameters = [of for of in model.parameters() if hasattr(of, "ds_id")]
    if not parameters:
        return nullcontext()
    import deepspeed

    gathered: AbstractContextManager[Any] = deepspeed.zero.GatheredParameters(
        parameters, modifier_rank=0 if written else None
    )
    return gathered


def on(trainer: Any, event: str, act: Callable[..., None]) -> None:
    """Add a callback that acts on one of transformers' events, called as `act(state, **kwargs)`."""
    callback = TrainerCallback()

    def handle(args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        act(state, **kwargs)

    setattr(callback, event, handle)
    trainer.add_callback(callback)


def after_update(trainer: Any, updates: int, act: Callable[[], None]) -> None:
    """Act once, when that many updates are made."""

    def once(state: Any, **kwargs: Any) -> None:
        if state.global_step == updates:
            act()

    on(trainer, "on_step_end", once)


def alter_rollouts(trainer: Any, alter: Callable[[dict[str, Any]], dict[str, Any]], *, after: int) -> None:
    """Change what a generation phase returns, from the one after that many updates on."""

    def generate(original: Callable[..., Any], rows: Any) -> Any:
        output = original(rows)
        return alter(output) if trainer.state.global_step >= after else output

    replace_method(trainer, "_generate_and_score_completions", generate)


def take(batch: dict[str, Any], samples: int) -> dict[str, Any]:
    """The first samples of a batch."""
    size = batch["completion_ids"].shape[0]
    return {
        name: value[:samples] if isinstance(value, torch.Tensor) and value.dim() and value.shape[0] == size else value
        for name, value in batch.items()
    }
