"""Whether each pass of the loader gives its rows in the order that is configured: drawn by the seed, or that of the data set."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Any

from rlstep_hooks.observe.row_orders import AS_IT_STANDS, LARGEST, PROMPTS, TOLERATED, Orders, chance_of, follows
from rlstep_hooks.record.events import ROW_ORDER, ConfigChanged, FactsRead
from rlstep_hooks.systems.verl.observe.rows import FIELDS, text

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from rlstep_hooks.observe.sync_watch import EventRecorder

Row = tuple[str, ...]
"""A row of the data set, by the text of its `FIELDS`."""

_CERTAIN = 1e-6
"""Chance below which no permutation is taken to have left the rows as they stand."""

_METHODS = (
    "_init_dataloader",
    "_fetch_one_gen_batch",
    "_next_train_batch",
    "_submit_batch_to_rollout",
    "_create_dataloader",
)
"""What builds the loader and takes rows from it, of one trainer or the other (V1 trainer_base.py 0.9.1:708, 1466, 1479, 1496; V0
ray_trainer.py:374)."""


class RowOrder:
    """Compares the rows of the first batches of each pass with those of the data set.

    verl's sampler takes one permutation a pass, by a generator of its own with `data.seed`, or the rows as they stand
    (`create_rl_sampler`, trainer/ppo/utils.py 0.9.1:140). A batch of the loader has as many rows as a fetch.

    Args:
        trainer: verl's, or one that stands on it, when its checkpoint has been loaded.
        known: Whether the rows of the data set can be told from each other.
        own_fit: Whether the trainer has a loop of its own.
        recorder: Takes what is found.
    """

    def __init__(self, trainer: Any, recorder: EventRecorder, *, known: bool, own_fit: bool) -> None:
        self._trainer = trainer
        self._recorder = recorder
        data = trainer.config.data
        self._length = int(data.get("gen_batch_size", None) or data.train_batch_size)
        self._shuffled = bool(data.shuffle)
        seed = data.get("seed")
        self._seed = int(seed) if self._shuffled and seed is not None else None
        self._why_not = _why_not(trainer, own_fit=own_fit) if known else "the rows of the data set cannot be counted"
        self._why_any = _why_any(trainer) if self._shuffled else ""
        """Why any order but that of the data set may be right; empty where one is configured."""
        if why := self._why_not or self._why_any:
            self._cannot(why)
        self._size = 0 if self._why_not else len(trainer.train_dataset)
        self._orders = Orders(self._size, self._seed)
        self._next = [*range(TOLERATED)]
        """Numbers of the orders that this pass may have, in rising order."""
        self._before: int | None = None
        """Number of the order that the pass before had."""
        self._begun: deque[bool] = deque()
        """For each fetch whose rows were not looked at yet: whether it is the first of a later pass."""
        self._given: list[list[Row]] = []
        """Rows of the fetches of this pass so far."""
        self._table: Any = None
        self._read: dict[int, Row] = {}
        """Rows of the data set that were read, by their number."""

    def fetched(self, *, later_pass: bool) -> None:
        """A batch came from the loader.

        Args:
            later_pass: Whether the loader began anew for it.
        """
        if not self._why_not:
            self._begun.append(later_pass)

    def look(self, rows: Iterable[Row]) -> None:
        """Compare the rows that are generated for, in the order in which they were fetched, and record once if they are others."""
        if self._why_not:
            return
        given, begun = list(rows), list(self._begun)
        self._begun.clear()
        if len(given) != self._length * len(begun) or len(self._trainer.train_dataset) != self._size:
            self._stop("a rollout was generated for other rows than those of the loader's next batches")
            return
        for number, first_of_pass in enumerate(begun):
            if first_of_pass:
                self._pass_ended()
            if not self._why_not:
                self._look_at(given[number * self._length : (number + 1) * self._length])

    def _pass_ended(self) -> None:
        self._given.clear()
        self._before = self._next[0]
        self._next = [*range(self._next[0] + 1, self._next[0] + 1 + TOLERATED)]
        if not self._why_any:
            self._orders.forget(self._next[0])

    def _look_at(self, rows: list[Row]) -> None:
        if self._length * (len(self._given) + 1) > min(self._size, max(PROMPTS, self._length)):
            return
        self._given.append(rows[:PROMPTS])
        if self._why_any:
            self._look_for_the_table()
            return
        standing = [number for number in self._next if self._stands(self._orders.of(number))]
        if standing:
            self._next = standing
            return
        held = self._all_rows()
        if not {row for rows in self._given for row in rows} <= set(held):
            self._stop("the data set says its rows in another way than its table")
            return
        fitting = [number for number in self._next if self._follows(self._orders.of(number), held)]
        if fitting:
            self._next = fitting
        else:
            self._tell(self._name(held))

    def _look_for_the_table(self) -> None:
        """Rows that are to be shuffled and come as they stand, though nobody can say in which order they are to come."""
        as_they_stand = range(self._size)
        if self._stands(as_they_stand):
            held = self._all_rows()
            if chance_of(as_they_stand, held, self._length * (len(self._given) - 1) + len(self._given[-1])) < _CERTAIN:
                self._tell(AS_IT_STANDS)

    def _name(self, held: list[Row]) -> str:
        """The order that the rows have where it is not the right one."""
        if self._shuffled and self._follows(range(self._size), held):
            return AS_IT_STANDS
        earlier = self._shuffled and self._before is not None and self._follows(self._orders.again(self._before), held)
        return "that of the pass before" if earlier else "another one"

    def _tell(self, after: str) -> None:
        drawn = "a permutation" if self._seed is None else f"a permutation by seed {self._seed}"
        before = drawn if self._shuffled else AS_IT_STANDS
        self._recorder.emit(
            ConfigChanged(at=self._recorder.now(), name=ROW_ORDER, before=before, after=after, since="configuration")
        )
        self._why_not = "another order was found"

    def _stop(self, why: str) -> None:
        self._why_not = why
        self._cannot(why)

    def _cannot(self, why: str) -> None:
        self._recorder.emit(FactsRead(at=self._recorder.now(), facts={"row_order_unknown": why}))

    def _stands(self, order: Sequence[int]) -> bool:
        """Whether each fetch of this pass so far is just the batch of an order that it should be."""
        return all(
            self._row(order[self._length * number + at]) == row
            for number, rows in enumerate(self._given)
            for at, row in enumerate(rows)
        )

    def _follows(self, order: Sequence[int], held: list[Row]) -> bool:
        """Whether each fetch of this pass so far has a batch of an order, none before an earlier one's."""
        return follows(self._given, range(len(self._given[0])), self._length, order, held)

    def _row(self, number: int) -> Row:
        if number not in self._read:
            if len(self._read) >= PROMPTS * TOLERATED:
                self._read.clear()
            self._read[number] = _row_of(self._fields()[number])
        return self._read[number]

    def _all_rows(self) -> list[Row]:
        return [_row_of(row) for row in self._fields()]

    def _fields(self) -> Any:
        """What the table says of each row besides its prompt."""
        if self._table is None:
            self._table = self._trainer.train_dataset.dataframe.select_columns(list(FIELDS))
        return self._table


def _row_of(fields: Any) -> Row:
    return tuple(text(fields[name]) for name in FIELDS)


def _why_any(trainer: Any) -> str:
    """Why no certain order is configured where rows are shuffled; empty where there is one."""
    if trainer.config.data.get("seed") is None:
        return "data.seed is null, so any order but that of the data set is right"
    if int(trainer.global_steps):
        return (
            "the run goes on from an earlier one, whose order it goes on with: only that of the data set would be wrong"
        )
    return ""


def _why_not(trainer: Any, *, own_fit: bool) -> str:
    """Why the order of a run's rows cannot be compared; empty where it can."""
    data, rows, loader = trainer.config.data, trainer.train_dataset, trainer.train_dataloader
    if own_fit or any(not _is_verls(type(trainer), name) for name in _METHODS):
        return "code that is not verl's makes the rollouts"
    if (data.get("sampler") or {}).get("class_path") is not None or not _is_known(getattr(loader, "sampler", None)):
        return "the loader has a sampler of somebody's own"
    if not _is_verls(type(rows), "__getitem__") or hasattr(rows, "on_batch_end"):
        return "the data set is of somebody's own, and may give its rows in a way of its own"
    if ((trainer.config.get("skip") or {}).get("rollout_tq") or {}).get("enable"):
        return "rollouts are read from files (skip.rollout_tq)"
    return f"the data set has more than {LARGEST} rows" if len(rows) > LARGEST else ""


def _is_known(sampler: Any) -> bool:
    return type(sampler).__module__.partition(".")[0] in ("torch", "torchdata")


def _is_verls(kind: type, method: str) -> bool:
    """Whether a method, where a class has it, is one of verl's own."""
    holder = next((of for of in kind.__mro__ if method in vars(of)), None)
    return holder is None or holder.__module__.partition(".")[0] == "verl"
