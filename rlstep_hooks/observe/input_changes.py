"""How an input of a loss is changed on its way there: what a change is, and those that are known of every input.

Everything waits for the device where it must, so it is asked only of losses that are wrong. Shapes as in `loss_inputs`.
"""

from __future__ import annotations

import contextlib
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from torch import Tensor

    from rlstep_hooks.observe.loss_inputs import Input
    from rlstep_hooks.observe.losses import LossBatch

    Calculation = Callable[[Tensor, LossBatch], Tensor | None]
    """Gives what an input becomes from the documented one and the batch; None where there is nothing to change in that way."""

_NUMBER = "{}"

MOST_NAMED = 3
"""Changes that a cause names at most, where all of them give the same losses."""


@dataclass(frozen=True)
class Change:
    """A change of an input of a loss.

    Attributes:
        which: What is changed.
        what: What it is then, in words that follow "the loss is that of".
        of: Gives what it becomes.
    """

    which: Input
    what: str
    of: Calculation

    def made(self, batch: LossBatch) -> tuple[LossBatch, Tensor] | None:
        """The batch with the changed input, and where that differs, (..., B, T) or (..., B, 1); None where nothing can be changed."""
        given = self.which.read(batch)
        changed = None if given is None else self.of(given, batch)
        if given is None or changed is None:
            return None
        return self.which.put(batch, changed), changed != given


@dataclass(frozen=True)
class Family:
    """Changes that differ in one number, which is not known.

    Attributes:
        which: What is changed.
        what: Words of one with its number, as in a change.
        of: Gives what the input becomes with a number.
        numbers: Gives numbers, in ascending order, between which the one is looked for; from what counts of the input.
    """

    which: Input
    what: Callable[[str], str]
    of: Callable[[float, Tensor, LossBatch], Tensor | None]
    numbers: Callable[[Tensor], Sequence[float]]

    def member(self, number: float) -> Change:
        """The change with this number."""
        return Change(self.which, self.what(f"{number:.4g}"), partial(self.of, number))

    def among(self, told: Iterable[str]) -> Iterator[Change]:
        """The members that were told of a run before, in words that follow "the loss is"."""
        before, behind = said([Change(self.which, self.what(_NUMBER), lambda given, batch: None)]).split(_NUMBER)
        for words in told:
            if words.startswith(before) and words.endswith(behind):
                with contextlib.suppress(ValueError):  # words of several changes
                    yield self.member(float(words[len(before) : len(words) - len(behind)]))


def said(changed: Sequence[Change]) -> str:
    """What a loss is that any of these changes explains, in words that follow "the loss is"; empty without one."""
    nouns = {change.which.noun for change in changed}
    several = f"other {nouns.pop()}" if len(nouns) == 1 else "changed inputs"
    return said_of([change.what for change in changed], f"{several}: more than one known change of them gives it")


def said_of(whats: Iterable[str], many: str) -> str:
    """What a loss is that any of some mistakes explains, in words that follow "the loss is"; empty without one.

    Args:
        whats: What each makes of it, in words that follow "the loss is that of"; those with the same words are one.
        many: Said of more than can be named.
    """
    words = list(dict.fromkeys(whats))
    if len(words) <= MOST_NAMED:
        return "that of " + ", or of ".join(words) if words else ""
    return f"that of {many}"


def of_others(which: Input) -> Iterator[Change]:
    """Each sample or token with what belongs to another."""
    for words, move, fewest in (
        ("of the sample before", lambda rows: rows.roll(1, -2), 2),
        # Of two samples the other one is before and after: that is one mistake, and not three.
        ("of the sample after", lambda rows: rows.roll(-1, -2), 3),
        ("of the samples in the opposite order", lambda rows: rows.flip(-2), 3),
    ):
        yield Change(which, f"the {which.noun} {words}", partial(_of_samples, move, fewest))
        yield Change(which, f"the {which.noun} {words}", partial(_of_rows, move, fewest))
    for shift, words in ((1, "before"), (-1, "after")):
        for ends in (_turned, _filled, _kept):
            yield Change(which, f"the {which.noun} of the token {words}", partial(_of_tokens, shift, ends))
    yield Change(which, f"the mean of the {which.noun} over the tokens of each sample", _mean_of_tokens)


def _of_samples(move: Callable[[Tensor], Tensor], fewest: int, given: Tensor, batch: LossBatch) -> Tensor | None:
    """What samples have, moved as it stands."""
    return move(given) if given.shape[-2] >= fewest else None


def _of_rows(move: Callable[[Tensor], Tensor], fewest: int, given: Tensor, batch: LossBatch) -> Tensor | None:
    """The one number of each sample moved, for all of its tokens; None where tokens have their own."""
    if given.shape[-2] < fewest or given.shape[-1] == 1:
        return None
    of_each = given.gather(-1, (batch.mask != 0).int().argmax(-1, keepdim=True))
    alike = (given == of_each) | (batch.mask == 0)
    return move(of_each).expand_as(given) if bool(alike.all()) else None


def _of_tokens(
    shift: int, ends: Callable[[int, Tensor, Tensor], Tensor], given: Tensor, batch: LossBatch
) -> Tensor | None:
    return ends(shift, given.roll(shift, -1), given) if given.shape[-1] > 1 else None


def _turned(shift: int, moved: Tensor, given: Tensor) -> Tensor:
    """The token at one end has what the one at the other end had."""
    return moved


def _filled(shift: int, moved: Tensor, given: Tensor) -> Tensor:
    """The token at the end has 0."""
    return _with_end(shift, moved, torch.zeros_like(given))


def _kept(shift: int, moved: Tensor, given: Tensor) -> Tensor:
    """The token at the end keeps what it had."""
    return _with_end(shift, moved, given)


def _with_end(shift: int, moved: Tensor, ends: Tensor) -> Tensor:
    places = torch.arange(moved.shape[-1], device=moved.device)
    return torch.where(places == (0 if shift > 0 else moved.shape[-1] - 1), ends, moved)


def _mean_of_tokens(given: Tensor, batch: LossBatch) -> Tensor | None:
    if given.shape[-1] == 1:
        return None
    counted = batch.mask.to(given.dtype)
    return ((given * counted).sum(-1, keepdim=True) / counted.sum(-1, keepdim=True)).expand_as(given)
