"""Whether the first pass of the loader gives its rows in the order that is configured: drawn by the seed, or that of the data set."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from rlstep_hooks.record.events import ConfigChanged
from rlstep_hooks.systems.trl.observe.limits import own_loader

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rlstep_hooks.observe.sync_watch import EventRecorder
    from rlstep_hooks.planning.schedule import Schedule

_PROMPTS = 64
"""Prompts that are looked at: each is read from the data set once more."""
_PASSES = 4
"""Passes whose order is taken for right too: somebody may have looked at the loader's first batches before training."""


class RowOrder:
    """Compares the prompts of the first rollouts with the rows of the data set.

    TRL's sampler takes one permutation a pass, by a generator of its own with the seed of the arguments, or the rows as they stand
    (`RepeatSampler`, trainer/grpo_trainer.py 0.18.2:155, trainer/utils.py 1.0.0:767 and 1.16.0:928).

    Args:
        trainer: A GRPOTrainer or RLOOTrainer when training begins.
        schedule: Its plan.
        read: Whether its rollouts are made by TRL's own code.
    """

    def __init__(self, trainer: Any, schedule: Schedule, *, read: bool) -> None:
        self._trainer = trainer
        self._prompts = int(schedule.prompts_per_rollout)
        self._next = 0
        rows = getattr(trainer, "train_dataset", None)
        self._looks = (
            read
            and self._prompts == schedule.prompts_per_rollout
            and hasattr(
                trainer.args, "steps_per_generation"
            )  # before, a rollout is no whole chunk of the loader (0.16, 0.17)
            and hasattr(rows, "__len__")
            and "prompt" in (getattr(rows, "column_names", None) or ())
            and trainer.accelerator.num_processes == 1
            and not trainer.state.global_step
            and not getattr(trainer, "_step", 0)
            and not own_loader(trainer)
        )

    def look(self, rows: Any, samples_per_prompt: int, recorder: EventRecorder) -> None:
        """Compare the rows of the next training rollout, and record once if they are others.

        Args:
            rows: What was submitted for generation, each prompt as often as it has samples.
            samples_per_prompt: The size of a group.
            recorder: Takes the event.
        """
        if not self._looks:
            return
        place, self._next = self._next, self._next + self._prompts
        size = len(self._trainer.train_dataset)
        if self._next > min(size, max(_PROMPTS, self._prompts)) or not _are_rows(rows):
            self._looks = False
            return
        given = [row["prompt"] for row in rows[::samples_per_prompt]][:_PROMPTS]
        if len(given) != min(self._prompts, _PROMPTS):
            self._looks = False
            return
        shuffled = bool(getattr(self._trainer.args, "shuffle_dataset", True))
        seed = int(self._trainer.args.seed)
        if any(self._are(given, order[place:]) for order in _orders(size, seed if shuffled else None)):
            return
        self._looks = False
        if self._known(given):
            recorder.emit(
                ConfigChanged(
                    at=recorder.now(),
                    name="order of the training rows",
                    before=f"a permutation by seed {seed}" if shuffled else "that of the data set",
                    after="that of the data set" if self._are(given, range(place, size)) else "another one",
                    since="configuration",
                )
            )

    def _are(self, given: list[Any], places: Sequence[int]) -> bool:
        rows = self._trainer.train_dataset
        return all(rows[int(place)]["prompt"] == prompt for prompt, place in zip(given, places, strict=False))

    def _known(self, given: list[Any]) -> bool:
        """Whether all prompts are in the data set as they stand: else it says them in another way at each reading."""
        held = {str(prompt) for prompt in self._trainer.train_dataset["prompt"]}
        return all(str(prompt) in held for prompt in given)


def _are_rows(rows: Any) -> bool:
    return isinstance(rows, list) and all(isinstance(row, dict) and "prompt" in row for row in rows)


def _orders(size: int, seed: int | None) -> list[Sequence[int]]:
    """Orders that are right: of the first passes by a seed, or that of the data set."""
    if seed is None:
        return [range(size)]
    import torch

    generator = torch.Generator()
    generator.manual_seed(seed)
    return [torch.randperm(size, generator=generator).tolist() for _ in range(_PASSES)]
