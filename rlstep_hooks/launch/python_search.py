"""What is done to a thing by all the names, functions and expressions that it goes through, found by one search.

Each of these places is looked at once, however many ways lead to it: names hold each other in circles, and functions call themselves.
"""

from __future__ import annotations

import ast
from typing import TYPE_CHECKING, Literal, Protocol, TypeAlias

import msgspec

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

_MOST_NODES = 2
"""Changes of one kind that are kept of a place: whoever asks may leave out the ones of one statement, and never of two."""


class Change(msgspec.Struct, frozen=True):
    """A change of what a dict or a list contains."""

    node: ast.AST
    """The statement or call that changes it."""
    key: str | None = None
    """The key that is changed; None where it may be any."""
    value: ast.expr | None = None
    """What the key is set to; None where that is not written out."""
    keeps: bool = False
    """Whether a value that the key has already stays (`setdefault`)."""
    removes: bool = False
    """Whether the key is gone afterwards."""
    deeper: tuple[str, ...] = ()
    """The keys below `key` that lead to the one that is changed, where all that is changed is below them."""
    below: ast.expr | None = None
    """What is set there; None where that is not written out."""
    whole: ast.expr | None = None
    """The mapping all pairs of which are added (`kw.update(more)`); None for a change of another kind."""
    of_part: bool = False
    """Whether what is changed may be a part of what the thing contains: another thing that has the same part sees that."""
    guessed: bool = False
    """Whether a function that the file and those beside it do not have is given the thing, and may change it."""
    holder: str | None = None
    """The name by which the thing is changed, somewhere after `node` has made it hold the thing; empty where it has none there, and
    None where the thing is changed by its own name."""
    lasting: bool = False
    """Whether a function that `node` calls has put the thing where it may be changed at any time after."""

    @property
    def is_later(self) -> bool:
        """Whether it may happen at any time after `node`."""
        return self.lasting or self.holder is not None

    @property
    def line(self) -> int:
        """The line of the change."""
        return getattr(self.node, "lineno", 0)


class Owner(Protocol):
    """What knows what one file does at its places."""

    settled: dict[Place, tuple[Change, ...]]
    """What earlier searches have found."""

    def done_at(self, place: Place) -> Iterable[Change | Link]:
        """What is done to a thing at a place of the file, and where else to look."""
        ...


class Place(msgspec.Struct, frozen=True):
    """Where a thing goes: a name in a function, a parameter of a function, or an expression."""

    owner: Owner
    kind: Literal["name", "parameter", "expression", "object"]
    at: ast.AST | None
    """The function, None for the top of the file; the expression; or the class, for an attribute of its objects."""
    name: str = ""


class Link(msgspec.Struct, frozen=True):
    """A place to which a thing goes: what is done to it there is done to the thing."""

    place: Place
    node: ast.AST
    """The statement that brings the thing there."""
    key: str | None = None
    """The key of the thing that all of the changes are below, unless they have the `same` keys."""
    same: bool = False
    """Whether what is changed there by a key is changed in the thing by that key."""
    below: bool = False
    """Whether it is a part of the thing that goes there."""
    holder: str | None = None
    lasting: bool = False
    """Whether it stays there when the function that brings it there has ended."""
    parts_only: bool = False
    """Whether only changes of parts count there."""
    sure_only: bool = False
    """Whether what functions may do that are not here does not count."""
    only: str | None = None
    """The key by which the thing is reached there; None where it may be any."""
    besides: ast.AST | None = None
    """What puts the thing there, which is no change of it."""

    def carried(self, change: Change) -> Change | None:
        """The change of the thing that a change in the other place is; None where it is none."""
        if (
            change.node is self.besides
            or (self.parts_only and not change.of_part)
            or (self.sure_only and change.guessed)
        ):
            return None
        if self.only is not None and change.key not in (None, "__dict__", self.only):
            return None
        key, of_part = change.key if self.same else self.key, self.below or change.of_part
        return Change(
            self.node,
            key,
            of_part=of_part,
            guessed=change.guessed,
            holder=self.holder,
            lasting=self.lasting or change.lasting,
        )


_Kind: TypeAlias = tuple[str | None, bool, bool, bool]


class _Kept:
    """The changes that are kept of one place: a few of each kind."""

    def __init__(self) -> None:
        self._nodes: dict[_Kind, list[ast.AST]] = {}

    def adds(self, change: Change) -> bool:
        """Whether a change is one that has to be kept, which it is from then on."""
        nodes = self._nodes.setdefault((change.key, change.of_part, change.guessed, change.lasting), [])
        if len(nodes) >= _MOST_NODES or any(node is change.node for node in nodes):
            return False
        nodes.append(change.node)
        return True

    def changes(self) -> Iterator[Change]:
        """The kept changes, without how they are made."""
        for (key, of_part, guessed, lasting), nodes in self._nodes.items():
            yield from (Change(node, key, of_part=of_part, guessed=guessed, lasting=lasting) for node in nodes)


def settled(done: Iterable[Change | Link]) -> list[Change]:
    """All changes of a thing, in the order in which they are given; those of the places that it goes to stand where the link stands."""
    parts = list(done)
    _settle(part.place for part in parts if isinstance(part, Link))
    found: dict[Change, None] = {}
    for part in parts:
        if isinstance(part, Change):
            found[part] = None
            continue
        for change in part.place.owner.settled[part.place]:
            carried = part.carried(change)
            if carried is not None:
                found[carried] = None
    return list(found)


def _settle(places: Iterable[Place]) -> None:
    """Work out what is done at places, and at all that they lead to."""
    kept: dict[Place, _Kept] = {}
    askers: dict[Place, list[tuple[Place, Link]]] = {}
    news: list[tuple[Place, Change]] = []
    waiting = list(places)
    while waiting:
        place = waiting.pop()
        if place in kept or place in place.owner.settled:
            continue
        kept[place] = _Kept()
        for part in place.owner.done_at(place):
            if isinstance(part, Change):
                news.append((place, part))
                continue
            askers.setdefault(part.place, []).append((place, part))
            waiting.append(part.place)
            news += ((part.place, change) for change in part.place.owner.settled.get(part.place, ()))
    while news:
        place, change = news.pop()
        if place in kept and not kept[place].adds(change):
            continue
        for asker, link in askers.get(place, ()):
            carried = link.carried(change)
            if carried is not None:
                news.append((asker, carried))
    for place, changes in kept.items():
        place.owner.settled[place] = tuple(changes.changes())
