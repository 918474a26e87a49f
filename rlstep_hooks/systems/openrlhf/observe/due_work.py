"""Whether evaluations and checkpoints come when `eval.steps` and `ckpt.save_steps` ask for them, and what an evaluation asks for.

The synchronous loop saves within `save_logs_and_checkpoints` and evaluates behind it, by the number of the rollout (ppo_trainer.py
0.11.2:392, 562). An evaluation draws all rows of its set with `eval.temperature` and `eval.n_samples_per_prompt`.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from rlstep_hooks.observe.configured import OtherThanConfigured
from rlstep_hooks.record.events import DUE_CHECKPOINTS, DUE_EVALUATIONS, EVALUATED_ROWS

if TYPE_CHECKING:
    from rlstep_hooks.observe.hooks import Call, Hooks
    from rlstep_hooks.observe.sync_watch import EventRecorder

_TOPICS = ("settings",)
_ASKED = {"temperature": "eval.temperature", "n_samples_per_prompt": "eval.n_samples_per_prompt"}
"""What a request of an evaluation asks for -> the argument that it comes from."""


class DueWork:
    """Follows one trainer's evaluations and checkpoints, and records once of each kind what is not as configured.

    After the last rollout no evaluation is looked for: the audit is over before it begins.

    Args:
        trainer: OpenRLHF's, when training begins.
        args: A copy of its arguments, which nobody changes.
        recorder: Takes what is found.
    """

    def __init__(self, trainer: Any, args: Any, recorder: EventRecorder) -> None:
        self._trainer = trainer
        self._otherwise = OtherThanConfigured(recorder)
        evaluates = bool(getattr(args.eval, "dataset", None)) and not args.train.async_enable
        self._evaluates_every = _steps(args.eval.steps) if evaluates else 0
        self._saves_every = _steps(args.ckpt.save_steps)
        self._asked = {name: getattr(args.eval, of.removeprefix("eval.")) for name, of in _ASKED.items()}
        loader = getattr(trainer, "eval_dataloader", None)
        self._rows = len(loader.dataset) if loader is not None else 0
        """Rows of the set; 0 where there is none."""
        self._due = 0
        """The rollout behind which an evaluation is due and has not come; 0 for none."""
        self._saved = False
        self._drawn: int | None = None
        """Rows that the evaluation that goes on has drawn; None where none goes on."""

    def place(self, hooks: Hooks) -> None:
        """Put the hooks on the trainer."""
        trainer = self._trainer
        hooks.wrap(trainer, "save_logs_and_checkpoints", before=self._turn_ends, after=self._saves, topics=_TOPICS)
        hooks.wrap(trainer.actor_model_group, "async_run_method", before=self._called, topics=_TOPICS)
        if self._evaluates_every:
            generator = trainer.samples_generator
            hooks.wrap(trainer, "train_step", before=self._next_rollout, topics=_TOPICS)
            hooks.wrap(
                generator, "generate_eval_samples", before=self._begins, after=self._has_evaluated, topics=_TOPICS
            )
            hooks.wrap(generator, "_dispatch_prompts_to_vllm", before=self._draws, topics=_TOPICS)

    # Checkpoints

    def _turn_ends(self, call: Call) -> None:
        self._saved = False

    def _called(self, call: Call) -> None:
        if call.argument("method_name", 0, "") == "save_checkpoint":
            self._saved = True

    def _saves(self, call: Call) -> None:
        rollout = int(call.argument("global_step", 0))
        if self._saves_every and rollout % self._saves_every == 0 and not self._saved:
            self._missing(DUE_CHECKPOINTS, self._saves_every, "ckpt.save_steps", rollout)
        if self._evaluates_every and rollout % self._evaluates_every == 0:
            self._due = rollout

    # Evaluations

    def _next_rollout(self, call: Call) -> None:
        due, self._due = self._due, 0
        if due:
            self._missing(DUE_EVALUATIONS, self._evaluates_every, "eval.steps", due)

    def _begins(self, call: Call) -> None:
        self._due, self._drawn = 0, 0

    def _draws(self, call: Call) -> None:
        if self._drawn is None:
            return
        self._drawn += len(call.argument("prompts", 0))
        for name, right in self._asked.items():
            asked = call.kwargs.get(name, right)
            if asked != right:
                self._otherwise.tell(_ASKED[name], right, asked)

    def _has_evaluated(self, call: Call) -> None:
        drawn, self._drawn = self._drawn, None
        if drawn is not None and drawn < self._rows:
            self._otherwise.tell(EVALUATED_ROWS, f"all {self._rows}", f"{drawn} of them")

    def _missing(self, name: str, every: int, argument: str, rollout: int) -> None:
        rollouts = "each rollout" if every == 1 else f"every {every} rollouts"
        self._otherwise.tell(name, f"one after {rollouts} ({argument})", f"none after rollout {rollout}")


def _steps(argument: Any) -> int:
    """After how many rollouts something comes; 0 for never, which OpenRLHF says as infinity or -1."""
    return int(argument) if argument and math.isfinite(argument) and argument > 0 else 0
