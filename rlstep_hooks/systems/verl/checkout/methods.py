"""What a method of a trainer, or a function that it calls, does in a launch: whether a batch that it is given keeps its rows.

Settings may let it return with the batch that it was given, and do nothing to it.
"""

from __future__ import annotations

import ast
import re
from typing import TYPE_CHECKING

from rlstep_hooks.launch.batches import leaves_whole
from rlstep_hooks.launch.checkout import UNKNOWN, value_of
from rlstep_hooks.systems.verl.checkout.conditions import with_settings
from rlstep_hooks.systems.verl.checkout.trainer import imported

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from rlstep_hooks.launch.checkout import Function, Source

_LOADS = re.compile(r"resum|load|checkpoint|restor")
"""Parts of the names of methods by which a run goes on from a checkpoint."""

_TAKE_PART = ("select_idxs", "slice", "sample_level_repeat")
"""Methods of verl's DataProto that give some of its rows, or each another number of times (0.7 verl/protocol.py)."""


def reached(method: Function, source: Source, values: Mapping[str, object]) -> list[ast.stmt]:
    """The statements of a method as far as the first at which the settings end it.

    Args:
        method: The method.
        source: The file of the trainer.
        values: The settings that are known.
    """
    return list(_until_return(with_settings(method, source, values).body, values))


def _until_return(body: Sequence[ast.stmt], values: Mapping[str, object]) -> Iterator[ast.stmt]:
    for node in body:
        holds = value_of(node.test, values) if isinstance(node, ast.If) else UNKNOWN
        if not isinstance(node, ast.If) or holds is UNKNOWN:
            yield node
            if isinstance(node, ast.Return):
                return
            continue
        branch = list(_until_return(node.body if holds else node.orelse, values))
        yield from branch
        if branch and isinstance(branch[-1], ast.Return):
            return


class Methods:
    """The trainer's own methods, and the functions that its file has or imports from the repository, as a `fit` calls them.

    Args:
        source: The file of the trainer.
        values: The settings that are known.
        source_at: The file of a path, as imports have it; None where it is not here.
    """

    def __init__(
        self, source: Source, values: Mapping[str, object], source_at: Callable[[str], Source | None] | None = None
    ) -> None:
        self._source = source
        self._values = values
        self._source_at = source_at

    def gives_back(self, value: ast.expr) -> bool:
        """Whether an expression is a call that gives a batch, or several things, back with all their rows, as it was given them.

        Args:
            value: The right side of an assignment.
        """
        called = self._called(value)
        if called is None:
            return False
        call, method, source = called
        statements = reached(method, source, self._values)
        match statements[-1:]:
            case [ast.Return(value=ast.Name() as back)]:
                given = [back]
            case [ast.Return(value=ast.Tuple(elts=[_, *_] as backs))]:
                given = [each for each in backs if isinstance(each, ast.Name)]
                if len(given) < len(backs):
                    return False
            case _:
                return False
        return all(
            isinstance(_given(call, method, each.id), ast.Name)
            and all(_keeps(node, each.id) for node in statements[:-1])
            for each in given
        )

    def leaves_arguments(self, value: ast.expr) -> bool:
        """Whether an expression is a call that leaves what it is given all its rows.

        Args:
            value: The right side of an assignment.
        """
        called = self._called(value)
        if called is None:
            return False
        call, method, source = called
        parameters = [*_parameters(call, method), *(each.arg for each in method.args.kwonlyargs)]
        statements = reached(method, source, self._values)
        return all(_keeps(node, parameter, ends=True) for node in statements for parameter in parameters)

    def takes_part(self, value: ast.expr) -> bool:
        """Whether an expression is a call of a function that may give some rows of a batch back: `return batch[keep], metrics`.

        Args:
            value: The right side of an assignment.
        """
        called = self._called(value)
        if called is None:
            return False
        call, method, source = called
        parameters = _parameters(call, method)
        returned = (
            inner.value
            for node in reached(method, source, self._values)
            for inner in ast.walk(node)
            if isinstance(inner, ast.Return) and inner.value is not None
        )
        return any(
            _is_part(each, parameters)
            for back in returned
            for each in (back.elts if isinstance(back, ast.Tuple) else [back])
        )

    def holds_only_where_a_run_goes_on(self, test: ast.expr) -> bool:
        """Whether a condition is a call of a method that gives False back at once, but where a checkpoint was loaded before.

        The method asks first for an attribute that is false unless a method that loads or resumes has made it true.

        Args:
            test: The condition.
        """
        called = self._called(test)
        tree = self._source.tree()
        if called is None or called[2] is not self._source or tree is None:
            return False
        body = [node for node in called[1].body if not isinstance(getattr(node, "value", None), ast.Constant)]
        asked = _false_without(body[0]) if body else ""
        if not asked:
            return False
        functions = [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)]
        return all(
            (isinstance(value, ast.Constant) and value.value is False) or _loads(each, functions)
            for each in functions
            for value in _given_to(each, asked)
        )

    def _called(self, value: ast.expr) -> tuple[ast.Call, Function, Source] | None:
        """A call, with what it calls and the file that has it; None for any other expression, or where several have the name."""
        match value:
            case ast.Call(func=ast.Attribute(value=ast.Name(id="self"), attr=name)):
                methods, source = self._source.methods(name), self._source
            case ast.Call(func=ast.Name(id=name)):
                methods, source = self._functions(name)
            case _:
                return None
        return (value, methods[0], source) if len(methods) == 1 else None

    def _functions(self, name: str) -> tuple[list[Function], Source]:
        if functions := self._source.methods(name):
            return functions, self._source
        tree = self._source.tree() if self._source_at is not None else None
        found = imported(tree, name, self._source.shown) if tree is not None else None
        source = self._source_at(found.path) if self._source_at is not None and found is not None else None
        return (source.methods(found.name), source) if source is not None and found is not None else ([], self._source)


def _false_without(node: ast.stmt) -> str:
    """The attribute of the trainer without which a method gives False back at once; empty for any other statement."""
    match node:
        case ast.If(
            test=ast.UnaryOp(op=ast.Not(), operand=asked), body=[ast.Return(value=ast.Constant(value=False))], orelse=[]
        ):
            pass
        case _:
            return ""
    match asked:
        case ast.Call(
            func=ast.Name(id="getattr"),
            args=[ast.Name(id="self"), ast.Constant(value=str() as name), ast.Constant(value=False)],
        ):
            return name
        case ast.Attribute(value=ast.Name(id="self"), attr=name):
            return name
    return ""


def _loads(function: Function, functions: Sequence[Function]) -> bool:
    """Whether a method runs only where a run goes on from a checkpoint, by its name or by those of all methods that call it."""
    if _LOADS.search(function.name):
        return True
    call = f"self.{function.name}("
    callers = [each for each in functions if each is not function and call in ast.unparse(each)]
    return bool(callers) and all(_LOADS.search(each.name) for each in callers)


def _given_to(function: Function, attribute: str) -> Iterator[ast.expr | None]:
    """What a method gives an attribute of the trainer; None where that is not written out."""
    for node in ast.walk(function):
        match node:
            case ast.Attribute(value=ast.Name(id="self"), attr=name, ctx=ast.Store()) if name == attribute:
                made = [
                    each.value for each in ast.walk(function) if isinstance(each, ast.Assign) and node in each.targets
                ]
                yield made[0] if made else None
            case ast.Call(func=ast.Name(id="setattr")):
                yield None


def _is_part(value: ast.expr, parameters: Sequence[str]) -> bool:
    """Whether an expression is some rows of what a function was given."""
    match value:
        case ast.Subscript(value=ast.Name(id=name), slice=rows):
            return name in parameters and not (isinstance(rows, ast.Constant) and isinstance(rows.value, str))
        case ast.Call(func=ast.Attribute(value=ast.Name(id=name), attr=method)):
            return name in parameters and method in _TAKE_PART
    return False


def _parameters(call: ast.Call, method: Function) -> list[str]:
    """The names of what a call gives, in their order: a method is given the trainer first."""
    return [each.arg for each in method.args.args][isinstance(call.func, ast.Attribute) :]


def _given(call: ast.Call, method: Function, parameter: str) -> ast.expr | None:
    """What a call gives to a parameter."""
    for word in call.keywords:
        if word.arg == parameter:
            return word.value
    names = _parameters(call, method)
    at = names.index(parameter) if parameter in names else len(call.args)
    return call.args[at] if at < len(call.args) else None


def _keeps(node: ast.stmt, batch: str, *, ends: bool = False) -> bool:
    """Whether a statement leaves a batch all its rows: it gives the name nothing else, and cuts no rows away.

    Args:
        node: The statement.
        batch: The batch's name.
        ends: Whether it may return.
    """
    for inner in ast.walk(node):
        if isinstance(inner, ast.Return) and not ends:
            return False
        if isinstance(inner, ast.Name) and inner.id == batch and isinstance(inner.ctx, ast.Store):
            return False
        match inner:
            case ast.Assign(targets=[ast.Attribute(value=ast.Name(id=name))]) if name == batch:
                return False
            case ast.Expr(value=ast.Call(func=ast.Attribute(value=ast.Name(id=name))) as call) if name == batch:
                if not leaves_whole(call):
                    return False
    return True
