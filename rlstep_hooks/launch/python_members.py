"""What a file's own dicts, classes and objects hold: `SIZES["batch"]`, `CFG.batch` of `class CFG`, `cfg.batch` after `cfg = Config()`.

Only what is written out counts: a class that derives from another package's may take its values from anywhere.
"""

from __future__ import annotations

import ast
import re
from typing import TYPE_CHECKING

import msgspec

from rlstep_hooks.launch.python_options import default_of_field

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from rlstep_hooks.launch.python_changes import Changes

_DEEPEST = 8
"""Names that stand for each other, and classes that derive from each other, up to which a member is looked for."""
_MODEL = "BaseModel"
"""The class of pydantic's models, whose fields have the defaults that are written, where no method of theirs changes them."""
_CHANGING = re.compile(r"validator|serializer|computed_field|^(model_post_init|__init__|__new__|__init_subclass__)$")
"""Decorators and methods by which a model may hold other values."""
_INDIRECT = frozenset(("setattr", "vars", "__dict__", "__getattr__", "__getattribute__", "__setattr__"))
"""Names by which a class gives its objects attributes that are not written out as such."""


class Pairs(msgspec.Struct, frozen=True):
    """The pairs of a mapping at the place where it is used."""

    values: dict[str, ast.expr]
    unsure: dict[str, str] = {}
    """Keys whose values only the run knows, with the reason."""
    hidden: str = ""
    """Why it may have other keys than these; empty where it has none."""
    filtered: bool = False
    """Whether keys that the callee does not take are left out."""


class Members:
    """The members of one file's own containers.

    Args:
        classes: The classes of the file whose names nothing else binds.
        bound: What a name stands for where it is used; None where that cannot be told.
        pairs: The pairs of a mapping where it is used; None where they are not written out.
        changes: What the file changes of its containers.
        stored: The attributes that the file assigns to anything but `self` in this launch: an object may have another name there.
        owner: The class of the method whose `self` a name is; None for any other name.
    """

    def __init__(
        self,
        classes: Mapping[str, ast.ClassDef],
        bound: Callable[[ast.Name], ast.expr | None],
        pairs: Callable[[ast.expr], Pairs | None],
        changes: Changes,
        stored: Callable[[], frozenset[str]],
        owner: Callable[[ast.Name], ast.ClassDef | None],
    ) -> None:
        self._classes = classes
        self._bound = bound
        self.pairs = pairs
        self._changes = changes
        self._stored = stored
        self._owner = owner
        self._own_values: dict[tuple[ast.ClassDef, str], ast.expr | None] = {}
        self._plain: dict[tuple[ast.ClassDef, int], bool] = {}

    def value_of(self, node: ast.expr) -> ast.expr | None:
        """The expression that a member of a container is; None where that cannot be told."""
        match node:
            case ast.Subscript(value=of, slice=ast.Constant(value=key)):
                return self._entry(of, str(key), None)
            case ast.Call(func=ast.Attribute(value=of, attr="get"), args=[ast.Constant(value=key), *more]):
                return self._entry(of, str(key), more[0] if more else ast.copy_location(ast.Constant(None), node))
            case ast.Attribute(value=of, attr=attribute):
                return self._attribute(of, attribute, 0)
        return None

    def _entry(self, of: ast.expr, key: str, default: ast.expr | None) -> ast.expr | None:
        """What a dict holds under a key, after all changes of it."""
        pairs = self.pairs(of if isinstance(of, ast.Name) else self.value_of(of) or of)
        if pairs is None or pairs.hidden or key in pairs.unsure:
            return None
        return pairs.values.get(key, default)

    def of_self(self, node: ast.Attribute) -> ast.expr | None:
        """What a method's object was given for an attribute when it was made; None for an attribute of anything else."""
        owner = self._owner(node.value) if isinstance(node.value, ast.Name) else None
        return self._of_self(owner, node.attr) if owner is not None else None

    def _attribute(self, of: ast.expr, attribute: str, depth: int) -> ast.expr | None:
        """What a class, or an object that the file makes of one, has as an attribute."""
        if depth > _DEEPEST or attribute in self._stored():
            return None
        if isinstance(of, ast.Name) and (owner := self._owner(of)) is not None:
            return self._of_self(owner, attribute)
        if isinstance(of, ast.Name) and self._is_changed(of.id, attribute):
            return None
        match of:
            case ast.Name(id=name) if name in self._classes:
                return self._of_class(self._classes[name], attribute, depth)
            case ast.Name() if (made := self._bound(of)) is not None and isinstance(made, ast.Name | ast.Call):
                return self._attribute(made, attribute, depth + 1)
            case ast.Call(func=ast.Name(id=name), args=[]) if name in self._classes:
                if self._is_changed(name, attribute):
                    return None
                return self._of_object(self._classes[name], of, attribute, depth)
            case ast.Attribute() if (held := self.value_of(of)) is not None:
                if isinstance(held, ast.Name | ast.Attribute):  # `self.config` is what `__init__` was given
                    return ast.copy_location(ast.Attribute(held, attribute, ast.Load()), held)
                made = _made_by(held)
                return self._attribute(made, attribute, depth + 1) if made is not None else None
            case ast.Subscript() if isinstance(made := self.value_of(of), ast.Name | ast.Call):
                return self._attribute(made, attribute, depth + 1)
        return None

    def _is_changed(self, name: str, attribute: str) -> bool:
        owner = self._classes.get(name)
        return any(
            change.key in (None, attribute, "__dict__")
            for change in self._changes.of(name)
            if owner is None or not _only_makes(owner, change.node)
        )

    def _of_object(self, owner: ast.ClassDef, made: ast.Call, attribute: str, depth: int) -> ast.expr | None:
        """An attribute of an object: what its class is given, or what its `__init__` assigns, else that of the class."""
        if not self._is_plain(owner, 0):
            return None
        assigned = [value for name, value in _assigned(owner) if name == attribute]
        starts = next(
            (each for each in owner.body if isinstance(each, ast.FunctionDef) and each.name == "__init__"), None
        )
        if starts is not None:
            directly = [value for name, value in _stores(starts.body) if name == attribute]
            if made.keywords or len(assigned) != len(directly) or len(directly) > 1:
                return None
            return directly[0] if directly else self._of_class(owner, attribute, depth)
        if assigned:
            return None
        given = {word.arg: word.value for word in made.keywords if word.arg}
        for word in made.keywords:
            if word.arg is None:  # `Sizes(**settings)`
                pairs = self.pairs(word.value)
                if pairs is None or pairs.hidden or pairs.filtered or attribute in pairs.unsure:
                    return None
                given |= pairs.values
        return given.get(attribute) or self._of_class(owner, attribute, depth)

    def _of_self(self, owner: ast.ClassDef, attribute: str) -> ast.expr | None:
        """What the `__init__` of a class of the file gives an attribute that no other method and no class below it assigns."""
        if (owner, attribute) not in self._own_values:
            self._own_values[owner, attribute] = self._given_by_start(owner, attribute)
        return self._own_values[owner, attribute]

    def _given_by_start(self, owner: ast.ClassDef, attribute: str) -> ast.expr | None:
        derived = any(
            isinstance(base, ast.Name) and base.id == owner.name
            for each in self._classes.values()
            for base in each.bases
        )
        starts = [each for each in owner.body if isinstance(each, ast.FunctionDef) and each.name == "__init__"]
        if derived or len(starts) != 1 or self._classes.get(owner.name) is not owner or not self._is_plain(owner, 0):
            return None
        values = [value for name, value in _stores(starts[0].body) if name == attribute]
        if len(values) != 1 or sum(name == attribute for name, _ in _assigned(owner)) != 1:
            return None
        changed = (change for change in self._changes.of("self") if change.key in (None, attribute, "__dict__"))
        return values[0] if all(getattr(change.node, "value", None) is values[0] for change in changed) else None

    def _of_class(self, owner: ast.ClassDef, attribute: str, depth: int) -> ast.expr | None:
        """What the body of a class, or of one of the file that it derives from, assigns to an attribute."""
        if depth > _DEEPEST or not self._is_plain(owner, 0):
            return None
        values = [value for name, value in _fields(owner.body) if name == attribute]
        if values:
            return default_of_field(values[0]) if len(values) == 1 else None
        bases = [base.id for base in owner.bases if isinstance(base, ast.Name) and base.id not in ("object", _MODEL)]
        if len(bases) != 1 or bases[0] not in self._classes:
            return None
        return self._of_class(self._classes[bases[0]], attribute, depth + 1)

    def _is_plain(self, owner: ast.ClassDef, depth: int) -> bool:
        """Whether a class gives its attributes only values that are written in it, and derives from such classes of the file alone."""
        if (owner, depth) not in self._plain:
            self._plain[owner, depth] = self._is_written_out(owner, depth)
        return self._plain[owner, depth]

    def _is_written_out(self, owner: ast.ClassDef, depth: int) -> bool:
        decorators = {ast.unparse(each).partition("(")[0].rpartition(".")[2] for each in owner.decorator_list}
        names = {node.id for node in ast.walk(owner) if isinstance(node, ast.Name)}
        names |= {node.attr for node in ast.walk(owner) if isinstance(node, ast.Attribute)}
        names |= {node.name for node in ast.walk(owner) if isinstance(node, ast.FunctionDef)}
        bases = [base.id if isinstance(base, ast.Name) else "" for base in owner.bases]
        return (
            depth <= _DEEPEST
            and decorators <= {"dataclass"}
            and names.isdisjoint(_INDIRECT)
            and not owner.keywords
            and all(
                base == "object"
                or (base == _MODEL and base not in self._classes and _is_plain_model(owner))
                or (base in self._classes and self._is_plain(self._classes[base], depth + 1))
                for base in bases
            )
        )


def _is_plain_model(owner: ast.ClassDef) -> bool:
    """Whether a model of pydantic has nothing by which its fields may get other values than those that are written."""
    methods = [node for node in owner.body if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)]
    names = [*(each.name for each in methods), *(ast.unparse(one) for each in methods for one in each.decorator_list)]
    return not any(map(_CHANGING.search, names))


def _only_makes(owner: ast.ClassDef, call: ast.AST) -> bool:
    """Whether a call is one of a function of a class that leaves the class as it is: `Sizes.from_file(path)`."""
    match call:
        case ast.Call(func=ast.Attribute(attr=name)):
            found = [each for each in owner.body if isinstance(each, ast.FunctionDef) and each.name == name]
        case _:
            return False
    kinds = [ast.unparse(one) for each in found for one in each.decorator_list]
    stores = (node for each in found for node in ast.walk(each) if isinstance(node, ast.Attribute | ast.Subscript))
    return kinds in (["classmethod"], ["staticmethod"]) and all(isinstance(node.ctx, ast.Load) for node in stores)


def _made_by(value: ast.expr | None) -> ast.Call | None:
    """The call that makes an object that is a part of another one: `Sizes()`, also as `field(default_factory=Sizes)`."""
    if not isinstance(value, ast.Call):
        return None
    factory = next((word.value for word in value.keywords if word.arg == "default_factory"), None)
    return ast.copy_location(ast.Call(factory, [], []), value) if isinstance(factory, ast.Name) else value


def _fields(body: list[ast.stmt]) -> Iterator[tuple[str, ast.expr]]:
    """The names that the statements of a class bind, with their values; those within branches too, so that they are no single ones."""
    for statement in body:
        for node in ast.walk(statement) if not isinstance(statement, ast.FunctionDef | ast.AsyncFunctionDef) else ():
            if isinstance(node, ast.Assign | ast.AnnAssign) and node.value is not None:
                targets = node.targets if isinstance(node, ast.Assign) else [node.target]
                for target in targets:
                    if isinstance(target, ast.Name):
                        yield target.id, node.value if node is statement else ast.Name("in a branch")


def _assigned(owner: ast.ClassDef) -> Iterator[tuple[str, ast.expr]]:
    """The attributes that the methods of a class assign to their objects."""
    for node in ast.walk(owner):
        if isinstance(node, ast.stmt):
            yield from _stores([node])


def _stores(body: list[ast.stmt]) -> Iterator[tuple[str, ast.expr]]:
    """`self.batch = 4` among statements, not within those that hold others."""
    for statement in body:
        if isinstance(statement, ast.Assign | ast.AnnAssign | ast.AugAssign) and statement.value is not None:
            for target in statement.targets if isinstance(statement, ast.Assign) else [statement.target]:
                match target:
                    case ast.Attribute(value=ast.Name(id="self"), attr=name):
                        yield name, statement.value
