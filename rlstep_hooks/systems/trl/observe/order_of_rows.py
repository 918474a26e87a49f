"""Whether the first pass of the loader gives its rows in the order that is configured: drawn by the seed, or that of the data set."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from rlstep_hooks.record.events import ROW_ORDER, ConfigChanged
from rlstep_hooks.systems.trl.observe.limits import own_loader

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rlstep_hooks.observe.sync_watch import EventRecorder
    from rlstep_hooks.planning.schedule import Schedule

_PROMPTS = 64
"""Prompts that are looked at: each is read from the data set once more."""
_ROWS = 200_000
"""Rows of the largest set whose order is looked at."""
_AS_IT_STANDS = "that of the data set"
_PASSES = 4
"""Passes whose order is taken for right too: somebody may have looked at the loader's first batches before training."""


class RowOrder:
    """Compares the prompts of the first rollouts with the rows of the data set.

    TRL's sampler takes one permutation a pass, by a generator of its own with the seed of the arguments, or the rows as they stand
    (`RepeatSampler`, trainer/grpo_trainer.py 0.18.2:155, trainer/utils.py 1.0.0:767 and 1.16.0:928).

    Args:
        trainer: A GRPOTrainer or RLOOTrainer when training begins.
        schedule: The plan of the run.
        read: Whether its rollouts are made by TRL's own code.
    """

    def __init__(self, trainer: Any, schedule: Schedule, *, read: bool) -> None:
        self._trainer = trainer
        self._prompts = int(schedule.prompts_per_rollout)
        self._given: list[list[Any]] = []
        """Prompts of the rollouts so far."""
        rows: Any = getattr(trainer, "train_dataset", None)
        self._seed = int(trainer.args.seed) if getattr(trainer.args, "shuffle_dataset", True) else None
        self._looks = (
            read
            and self._prompts == schedule.prompts_per_rollout
            and hasattr(
                trainer.args, "steps_per_generation"
            )  # before, a rollout is no whole chunk of the loader (0.16, 0.17)
            and hasattr(rows, "__len__")
            and len(rows) <= _ROWS
            and "prompt" in (getattr(rows, "column_names", None) or ())
            and trainer.accelerator.num_processes == 1
            and not trainer.state.global_step
            and not getattr(trainer, "_step", 0)
            and not own_loader(trainer)
        )

    def look(self, rows: Any, samples_per_prompt: int, recorder: EventRecorder) -> None:
        """Compare the rows of the next training rollout, and record once if they are others.

        Rollouts that come again or are left out are the business of other rules: each must have a chunk of the right order, and none
        that lies before an earlier one's.

        Args:
            rows: What was submitted for generation, each prompt as often as it has samples.
            samples_per_prompt: The size of a group.
            recorder: Takes the event.
        """
        if not self._looks:
            return
        place, size = self._prompts * len(self._given), len(self._trainer.train_dataset)
        given = [row["prompt"] for row in rows[::samples_per_prompt]] if _are_rows(rows) else []
        if len(given) != self._prompts or place + self._prompts > min(size, max(_PROMPTS, self._prompts)):
            self._looks = False
            return
        self._given.append(given[:_PROMPTS])
        if self._are(self._given[-1], self._orders()[0][place:]):
            return
        held = [str(prompt) for prompt in self._trainer.train_dataset["prompt"]]
        if not {str(prompt) for prompt in given} <= set(held):  # the set says them in another way at each reading
            self._looks = False
        elif not any(self._follows(order, held) for order in self._orders()):
            self._looks = False
            self._tell(held, recorder)

    def _tell(self, held: list[str], recorder: EventRecorder) -> None:
        shuffled = self._seed is not None
        recorder.emit(
            ConfigChanged(
                at=recorder.now(),
                name=ROW_ORDER,
                before=f"a permutation by seed {self._seed}" if shuffled else _AS_IT_STANDS,
                after=_AS_IT_STANDS if shuffled and self._follows(range(len(held)), held) else "another one",
                since="configuration",
            )
        )

    def _orders(self) -> list[Sequence[int]]:
        """Orders that are right: of the first passes by a seed, or that of the data set."""
        size = len(self._trainer.train_dataset)
        if self._seed is None:
            return [range(size)]
        import torch

        generator = torch.Generator()
        generator.manual_seed(self._seed)
        return [torch.randperm(size, generator=generator).tolist() for _ in range(_PASSES)]

    def _are(self, given: list[Any], places: Sequence[int]) -> bool:
        rows = self._trainer.train_dataset
        return all(rows[int(place)]["prompt"] == prompt for prompt, place in zip(given, places, strict=False))

    def _follows(self, order: Sequence[int], held: list[str]) -> bool:
        """Whether each rollout so far has a chunk of an order, none before an earlier one's."""
        chunk = 0
        for given in self._given:
            prompts = [str(prompt) for prompt in given]
            while [held[place] for place in order[chunk : chunk + len(prompts)]] != prompts:
                chunk += self._prompts
                if chunk >= len(order):
                    return False
        return True


def _are_rows(rows: Any) -> bool:
    return isinstance(rows, list) and all(isinstance(row, dict) and "prompt" in row for row in rows)
