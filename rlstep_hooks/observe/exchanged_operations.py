"""Mistakes in a documented formula itself: one of its operations exchanged for another, whatever framework's formula it is.

A formula is computed once to see its operations, and once more for each exchange: torch hands over every operation before it is done,
so that no formula needs alternatives of its own for an operator, a side that is left out, or bounds that are exchanged.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, replace
from functools import partial
from itertools import accumulate
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

from rlstep_hooks.observe.losses import aggregated
from rlstep_hooks.observe.other_operations import AGGREGATES, LEFT_OUT, Operation, keeps_finite, operation, others

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from rlstep_hooks.observe.losses import Formula, LossBatch

_SAME = frozenset({
    "detach", "double", "float", "to", "type_as", "bool", "expand", "expand_as", "unsqueeze", "squeeze", "view", "reshape", "clone",
    "contiguous", "__getitem__",
})  # fmt: skip
"""Operations that leave numbers what they are."""

_SHORT = 64
"""Letters of an operand that is written out."""

_NUMBER = "#"
"""Stands in the place of a number where operations of several micro-batches are compared: each may have its own."""


@dataclass(frozen=True)
class Exchange:
    """An operation of a formula that is exchanged for another.

    Attributes:
        what: What the loss is then, in words that follow "the loss is that of".
        before: The operation, with its numbers left open.
        after: Which of the others of that operation is taken; below 0 one of its operands is detached, -1 for the first.
        place: Which of the operations that are written so is exchanged, counted from 0; None for all of them.
        upstream: The operations by which its operands are computed, and itself, in the same form.
    """

    what: str
    before: str
    after: int
    place: int | None
    upstream: frozenset[str]


_LONG = 256
"""Letters from which on what is compared is told by its hash."""


@dataclass(frozen=True)
class _Text:
    """How a tensor is written.

    Attributes:
        shown: To be read.
        compared: With its numbers left open.
        sources: The tensors of the batch that it is computed from.
        upstream: The operations that it is computed by, with their numbers left open.
    """

    shown: str
    compared: str
    sources: frozenset[str] = frozenset()
    upstream: frozenset[str] = frozenset()


_UNKNOWN = _Text("...", "...")


class _Operations(TorchFunctionMode):  # type: ignore[misc] # without torch's own types it is Any
    """Follows the operations of a formula, and exchanges some.

    Args:
        batch: What the formula is computed from.
        wanted: What is exchanged; None for nothing.
    """

    def __init__(self, batch: LossBatch, wanted: Exchange | None = None) -> None:
        super().__init__()
        self._wanted = wanted
        self._texts: dict[int, _Text] = {}
        self._kept: list[Tensor] = []  # what is kept has an id of its own
        self._seen: Counter[str] = Counter()
        self.found: dict[str, list[tuple[int, str]]] = {}
        self.upstream: dict[str, frozenset[str]] = {}
        self.exchanged = 0
        for name, tensor in batch.tensors.items():
            self.name(tensor, name)
        self.name(batch.mask, "mask")

    @property
    def places(self) -> Counter[str]:
        """How often each operation was seen."""
        return self._seen

    def name(self, tensor: Tensor, name: str) -> None:
        """Say how a tensor is written from now on."""
        known = self.text(tensor)
        self._set(tensor, _Text(name, name, known.sources or frozenset({name}), known.upstream))

    def _set(self, tensor: Tensor, text: _Text) -> None:
        self._kept.append(tensor)
        self._texts[id(tensor)] = text

    def text(self, of: Any) -> _Text:
        """How an operand is written."""
        if isinstance(of, Tensor):
            return self._texts.get(id(of), _UNKNOWN)
        number = f"{of:.4g}" if isinstance(of, int | float) else str(of)
        return _Text(number, _NUMBER if isinstance(of, int | float) else number)

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        options = dict(kwargs or {})
        result = func(*args, **options)
        name, operands = operation(func, args, options)
        if name in AGGREGATES and len(args) > 1:
            options["dim"] = args[1]
        if not isinstance(result, Tensor) or not operands or not name.isidentifier():
            return result
        texts = [self.text(each) for each in operands]
        if name in _SAME:
            self._set(result, texts[0])
            return result
        of = Operation(name, operands, options, tuple(_short(text.shown) for text in texts))
        compared = of.written(name, *(text.compared for text in texts))
        if len(compared) > _LONG:
            compared = f"{name} {hash(compared):x}"
        sources = frozenset[str]().union(*(text.sources for text in texts))
        upstream = frozenset({compared}).union(*(text.upstream for text in texts))
        text = _Text(of.written(), compared, sources, upstream)
        if self._is_wanted(text.compared):
            result = self._exchanged(of, result, partial(_called_again, func, args, options))
        elif self._wanted is None and text.compared not in self.found:
            self.found[text.compared] = [*self._afters(of, text.shown)]
            self.upstream[text.compared] = text.upstream
        self._set(result, _called(of, text, texts))
        return result

    def _is_wanted(self, compared: str) -> bool:
        """Whether an operation is to be exchanged."""
        place = self._seen[compared]
        self._seen[compared] += 1
        wanted = self._wanted
        return wanted is not None and wanted.before == compared and wanted.place in (None, place)

    def _afters(self, of: Operation, shown: str) -> Iterator[tuple[int, str]]:
        """What an operation may be exchanged for, and what the formula is then said to be with."""
        for after, (words, _) in enumerate(others(of)):
            yield after, f"{words} in the place of {shown}"
        for place, operand in enumerate(of.operands):
            if isinstance(operand, Tensor) and operand.requires_grad:
                yield -1 - place, f"{of.texts[place]} detached in {shown}"

    def _exchanged(self, of: Operation, result: Tensor, without_gradient_of: Callable[[Any], Tensor]) -> Tensor:
        """What another operation gives, or the same one without a gradient of an operand."""
        assert self._wanted is not None
        self.exchanged += 1
        after = self._wanted.after
        if after < 0:
            return without_gradient_of(of.operands[-1 - after])
        found: Any = [make for _, make in others(of)][after]()
        if not isinstance(found, Tensor):
            return torch.full_like(result, found)
        return found.to(result.dtype).expand(result.shape).clone()


def _called_again(function: Any, arguments: tuple[Any, ...], options: Mapping[str, Any], detached: Tensor) -> Tensor:
    """An operation, where one of its operands takes no gradient."""
    found: Tensor = function(*(of.detach() if of is detached else of for of in arguments), **options)
    return found


def _short(text: str) -> str:
    """A text, as an operand."""
    if len(text) <= _SHORT:
        return text
    name, bracket, rest = text.partition("(")
    depths = list(accumulate((letter == "(") - (letter == ")") for letter in bracket + rest))
    is_call = name.isidentifier() and depths.index(0) == len(depths) - 1
    return f"{name}{LEFT_OUT}" if is_call else LEFT_OUT


def _called(of: Operation, text: _Text, operands: list[_Text]) -> _Text:
    """How the result of an operation is written: some have names, and what keeps numbers finite is not said."""
    if of.name == "clamp" and keeps_finite(*of.operands[1:]):
        return replace(text, shown=operands[0].shown)
    if of.name == "where" and of.texts[0] == "mask" and of.texts[2] == "0":
        return replace(text, shown=operands[1].shown)
    if of.name == "exp" and text.sources in _RATIOS:
        return replace(text, shown="ratio")
    return text


_RATIOS = (frozenset({"log_probs", "old"}), frozenset({"log_ratio"}))
"""What the exponentials of are ratios."""


@dataclass(frozen=True)
class Evaluated:
    """A formula with or without an exchange.

    Attributes:
        value: The loss, () or (N,).
        parts: What its terms add up, each (..., B, T).
        of_sums: Whether what was exchanged is how terms are added up.
    """

    value: Tensor
    parts: list[Tensor]
    of_sums: bool = False


def evaluated(formula: Formula[Any], batch: LossBatch, wanted: Exchange | None = None) -> Evaluated | None:
    """A formula's value with an exchange, with a gradient where the batch has one; None where the formula has no such operation, or
    none that can be exchanged so."""
    batch = _apart(batch)
    following = _Operations(batch, wanted)
    try:
        found = _evaluated(formula, batch, following)
    except (RuntimeError, IndexError, TypeError):  # another operation may not fit the shapes that follow
        return None
    return found if wanted is None or following.exchanged else None


def exchanges(formula: Formula[Any], batch: LossBatch) -> list[Exchange]:
    """All exchanges that are known of the operations of a formula; those with the same words are variants of one mistake."""
    batch = _apart(batch)
    following = _Operations(batch)
    _evaluated(formula, batch, following)
    found = []
    for before, afters in following.found.items():
        count = following.places[before]
        places: list[int | None] = [0] if count == 1 else [None, *range(count)]
        found += [
            Exchange(f"a formula with {words}", before, after, place, following.upstream[before])
            for after, words in afters
            for place in places
        ]
    return found


def _apart(batch: LossBatch) -> LossBatch:
    """The batch with a tensor of its own for each name, so that each is known by it."""
    tensors = {name: of.view_as(of) for name, of in batch.tensors.items()}
    return replace(batch, tensors=tensors, mask=batch.mask.view_as(batch.mask))


def _evaluated(formula: Formula[Any], batch: LossBatch, following: _Operations) -> Evaluated:
    parts: list[Tensor] = []
    values: list[Tensor] = []
    of_sums = False
    with following:
        for term in formula.terms(formula.settings, batch):
            before = following.exchanged
            name = _name(formula.leaf, len(parts), following.text(term.of))
            following.name(term.of, name)
            parts.append(term.of)
            value: Tensor = aggregated(term.of, term, batch)
            following.name(value, name)
            for factor in (batch.ranks, term.weight):
                value = value if factor == 1 else value * factor
            values.append(value)
            of_sums = of_sums or following.exchanged > before
        total, before = values[0], following.exchanged
        for value in values[1:]:
            total = total + value
    return Evaluated(total, parts, of_sums or following.exchanged > before)


def _name(leaf: str, place: int, text: _Text) -> str:
    """What a term is called."""
    if place == 0:
        return "policy term" if leaf == "log_probs" else "value term"
    if text.sources == {"entropies"}:
        return "entropies"
    return "KL term" if "reference" in text.sources else f"term {place + 1}"


def altered(documented: Evaluated, found: Evaluated, mask: Tensor) -> Tensor:
    """(..., B, T), where an exchange makes another loss of a token."""
    if found.of_sums:
        return mask != 0
    changed = torch.zeros_like(mask, dtype=torch.bool)
    for before, after in zip(documented.parts, found.parts, strict=True):
        changed = changed | (before != after)
    return changed
