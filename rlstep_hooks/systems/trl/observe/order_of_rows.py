"""Whether each pass of the loader gives its rows in the order that is configured: drawn by the seed, or that of the data set."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from rlstep_hooks.observe.row_orders import AS_IT_STANDS, LARGEST, PROMPTS, TOLERATED, Orders, follows
from rlstep_hooks.record.events import ROW_ORDER, ConfigChanged, FactsRead
from rlstep_hooks.systems.trl.observe.limits import own_loader

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rlstep_hooks.observe.sync_watch import EventRecorder
    from rlstep_hooks.planning.schedule import Schedule

_KEPT = 1024
"""Prompts that are kept, so that a small set is read once and not in each pass."""


class RowOrder:
    """Compares the prompts of the first rollouts of each pass with the rows of the data set.

    TRL's sampler takes one permutation a pass, by a generator of its own with the seed of the arguments, or the rows as they stand
    (`RepeatSampler`, trainer/grpo_trainer.py 0.18.2:155, trainer/utils.py 1.0.0:767 and 1.16.0:930). Of several processes each takes
    the next part of a rollout's rows (accelerate 1.15.0 data_loader.py `BatchSamplerShard`), and is compared with its own.

    Args:
        trainer: A GRPOTrainer or RLOOTrainer when training begins.
        schedule: The plan of the run.
        read: Whether its rollouts are made by TRL's own code.
    """

    def __init__(self, trainer: Any, schedule: Schedule, *, read: bool) -> None:
        self._trainer = trainer
        self._prompts = int(schedule.prompts_per_rollout)
        self._given: list[list[Any]] = []
        """Prompts of the rollouts of this pass so far."""
        self._places: list[int] = []
        """Where, among the prompts of a rollout, each of them stands."""
        self._seed = int(trainer.args.seed) if getattr(trainer.args, "shuffle_dataset", True) else None
        self.why_not = _why_not(trainer, schedule, read=read)
        """Why the order is not compared; empty where it is."""
        self._orders = Orders(0 if self.why_not else len(trainer.train_dataset), self._seed)
        self._next = [*range(TOLERATED)]
        """Numbers of the orders that this pass may have, in rising order."""
        self._before: int | None = None
        """Number of the order that the pass before had."""
        self._read: dict[int, Any] = {}
        """Row -> its prompt, of rows that were read."""

    def pass_ended(self) -> None:
        """A pass of the loader ended: the next one has a later order."""
        if self.why_not:
            return
        self._given.clear()
        self._before = self._next[0]
        self._next = [*range(self._next[0] + 1, self._next[0] + 1 + TOLERATED)]
        self._orders.forget(self._next[0])

    def look(self, rows: Any, samples_per_prompt: int, recorder: EventRecorder) -> None:
        """Compare the rows of the next training rollout, and record once if they are others.

        Rollouts that come again or are left out are the business of other rules: each must have a chunk of the right order, and none
        that lies before an earlier one's.

        Args:
            rows: What was submitted for generation in this process, each prompt as often as it has samples.
            samples_per_prompt: The size of a group.
            recorder: Takes the event.
        """
        if self.why_not:
            return
        place, processes = self._prompts * len(self._given), self._trainer.accelerator.num_processes
        if not _are_rows(rows) or len(rows) * processes != self._prompts * samples_per_prompt:
            self._stop("a rollout was generated for other rows than those of the loader's next part", recorder)
            return
        if place + self._prompts > min(self._orders.size, max(PROMPTS, self._prompts)):
            return
        before = self._trainer.accelerator.process_index * len(rows)
        firsts = [at for at in range(len(rows)) if not at or not (before + at) % samples_per_prompt][:PROMPTS]
        self._places = [(before + at) // samples_per_prompt for at in firsts]
        self._given.append([rows[at]["prompt"] for at in firsts])
        if self._are(self._given[-1], self._orders.of(self._next[0]), place):
            return
        held = [str(prompt) for prompt in self._trainer.train_dataset["prompt"]]
        if not {str(prompt) for prompt in self._given[-1]} <= set(held):
            self._stop("the data set says its prompts in another way at each reading", recorder)
            return
        fitting = [number for number in self._next if self._follows(self._orders.of(number), held)]
        if fitting:
            self._next = fitting
        else:
            self._tell(held, recorder)
            self.why_not = "another order was found"

    def _stop(self, why: str, recorder: EventRecorder) -> None:
        self.why_not = why
        recorder.emit(FactsRead(at=recorder.now(), facts={"row_order_unknown": why}))

    def _tell(self, held: list[str], recorder: EventRecorder) -> None:
        shuffled = self._seed is not None
        as_it_stands = shuffled and self._follows([*range(len(held))], held)
        earlier = shuffled and self._before is not None and self._follows(self._orders.again(self._before), held)
        recorder.emit(
            ConfigChanged(
                at=recorder.now(),
                name=ROW_ORDER,
                before=f"a permutation by seed {self._seed}" if shuffled else AS_IT_STANDS,
                after=AS_IT_STANDS if as_it_stands else "that of the pass before" if earlier else "another one",
                since="configuration",
            )
        )

    def _are(self, given: list[Any], order: Sequence[int], place: int) -> bool:
        return all(self._prompt(order[place + at]) == prompt for prompt, at in zip(given, self._places, strict=True))

    def _prompt(self, row: int) -> Any:
        """The prompt of a row, which a data set takes long to read: those of earlier passes are kept."""
        if row not in self._read:
            if len(self._read) >= _KEPT:
                self._read.clear()
            self._read[row] = self._trainer.train_dataset[row]["prompt"]
        return self._read[row]

    def _follows(self, order: Sequence[int], held: list[str]) -> bool:
        """Whether each rollout of this pass so far has a chunk of an order, none before an earlier one's."""
        given = [[str(prompt) for prompt in prompts] for prompts in self._given]
        return follows(given, self._places, self._prompts, order, held)


def _why_not(trainer: Any, schedule: Schedule, *, read: bool) -> str:
    """Why the order of a run's rows cannot be compared; empty where it can."""
    rows: Any = getattr(trainer, "train_dataset", None)
    accelerator = trainer.accelerator
    if not read:
        return "code that is not TRL's makes the rollouts"
    if own_loader(trainer):
        return "the trainer has a loader or a sampler of somebody's own"
    if int(schedule.prompts_per_rollout) != schedule.prompts_per_rollout:
        return "a rollout is no whole number of prompts"
    if not hasattr(trainer.args, "steps_per_generation"):  # 0.16, 0.17
        return "before TRL 0.18 a rollout is no whole chunk of the loader"
    if not hasattr(rows, "__len__") or "prompt" not in (getattr(rows, "column_names", None) or ()):
        return "the data set has no length, or no column of prompts"
    if len(rows) > LARGEST:
        return f"the data set has more than {LARGEST} rows"
    if trainer.state.global_step or getattr(trainer, "_step", 0):
        return "the run goes on from an earlier one"
    split = getattr(accelerator, "split_batches", False) or getattr(accelerator, "dispatch_batches", False)
    if accelerator.num_processes > 1 and (split or getattr(accelerator, "parallelism_config", None) is not None):
        return "the processes share the rows of a batch in another way than one after the other"
    return ""


def _are_rows(rows: Any) -> bool:
    return isinstance(rows, list) and all(isinstance(row, dict) and "prompt" in row for row in rows)
