"""What a name of a Python file stands for where it is used: an assignment of its own function, or what the only call hands in.

A name counts where one statement binds it; one that is bound again, in a loop, or under a condition is known only in the run.
"""

from __future__ import annotations

import ast
from typing import TYPE_CHECKING

from rlstep_hooks.launch import python_click

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator, Mapping

    from rlstep_hooks.launch.python_members import Pairs

_Function = ast.FunctionDef | ast.AsyncFunctionDef
_BRANCHES = ast.If | ast.For | ast.AsyncFor | ast.While | ast.Try | ast.Match
_COMMANDS = ("fire.Fire", "Fire", "typer.run", "tyro.cli")
"""Functions that call the function that they are given with the flags of the command: `--size 4` is its parameter `size`."""
UNNAMED = ""
"""Stands among the flags of a command for arguments that have no name: which parameters they are, is not followed."""
_OPTIONS = ("typer.Option", "Option")
"""Calls that a parameter's default stands in, as the first that they are given."""


class Scopes:
    """The functions of one file, with the names that they bind.

    Args:
        tree: The file.
        above: Each node with the one that it stands in.
        flags: What the command gives a function that a library hands its flags to.
        pairs: The pairs of a mapping where it is used; None where they are not written out.
        handed: What another file, which is started, gives the parameters of a function of this one; None where it does not call it.
            Without it, this file is the one that is started.
    """

    def __init__(
        self,
        tree: ast.Module,
        above: Mapping[ast.AST, ast.AST],
        flags: Mapping[str, str | None] | None = None,
        pairs: Callable[[ast.expr], Pairs | None] = lambda _: None,
        handed: Callable[[_Function], Mapping[str, ast.expr | None] | None] | None = None,
    ) -> None:
        self._pairs = pairs
        self._handed = handed
        self._tree = tree
        self._above = above
        self._flags = flags or {}
        self._moved = {
            name for node in ast.walk(tree) if isinstance(node, ast.Global | ast.Nonlocal) for name in node.names
        }
        self._uses: dict[str, list[ast.Name]] = {}
        self._stores: dict[str, list[ast.AST]] = {}
        self._functions: dict[str, list[_Function]] = {}
        for node in ast.walk(tree):
            match node:
                case ast.Name(ctx=ast.Load()):
                    self._uses.setdefault(node.id, []).append(node)
                case ast.Name():
                    self._stores.setdefault(node.id, []).append(node)
                case ast.alias():
                    self._stores.setdefault((node.asname or node.name).partition(".")[0], []).append(node)
                case ast.FunctionDef() | ast.AsyncFunctionDef():
                    self._functions.setdefault(node.name, []).append(node)
                    self._stores.setdefault(node.name, []).append(node)
                case ast.ClassDef():
                    self._stores.setdefault(node.name, []).append(node)

    def value_of(self, name: ast.Name) -> ast.expr | None:
        """The expression that a name stands for where it is used; None where that cannot be told."""
        if name.id in self._moved:
            return None
        scope = self.scope(name)
        while scope is not None:
            stores = [node for node in self._stores.get(name.id, []) if self.scope(node) is scope]
            is_parameter = _is_parameter(scope, name.id)
            if stores and is_parameter:
                return None
            if is_parameter:
                return self._handed_in(scope, name.id) if isinstance(scope, _Function) else None
            if stores:
                return self._assigned(stores[0]) if len(stores) == 1 else None
            scope = self._around(scope)
        return None

    def all_values_of(self, name: ast.Name) -> list[ast.expr]:
        """All that the statements of its own function assign to a name, under whatever conditions; empty where others bind it too."""
        scope = self.scope(name)
        if name.id in self._moved or scope is None or _is_parameter(scope, name.id):
            return []
        return self._values_in(scope, name.id)

    def latest(self, name: ast.Name, runs: Callable[[ast.AST], bool | None]) -> ast.expr | None:
        """What the last statement before a use assigns to a name, in the innermost scope that binds it.

        Args:
            name: The use.
            runs: Whether a statement runs when its function does; None where only the run knows.
        """
        own, scope = self.scope(name), self.binder(name, name.id)
        if scope is None or name.id in self._moved or isinstance(scope, ast.Lambda):
            return None
        choices = self._values_in(scope, name.id)
        before = [each for each in choices if each.lineno < name.lineno]
        # What is assigned later may have happened before: in the turn before of a loop, or before the call of a function.
        if not before or (len(before) < len(choices) and (scope is not own or self._is_in_loop(name))):
            return None
        is_parameter = isinstance(scope, _Function) and _is_parameter(scope, name.id)
        found = self._handed_in(scope, name.id) if is_parameter and isinstance(scope, _Function) else None
        for each in sorted(before, key=lambda value: value.lineno):
            held = runs(each)
            if held is None:
                return None
            found = each if held else found
        return found

    def settled(self, name: ast.Name) -> ast.expr | None:
        """What the only assignment of a name gives it that always runs before the use: one earlier in a block that holds the use."""
        scope = self.scope(name)
        choices = self._values_in(scope, name.id) if scope is not None and name.id not in self._moved else []
        if len(choices) != 1 or scope is None or _is_parameter(scope, name.id):
            return None
        statement = self._above[choices[0]]
        block, part = self._above[statement], self._above[name]
        while part is not block and (above := self._above.get(part)) is not None and above is not block:
            part = above
        for field in ("body", "orelse", "finalbody"):
            statements = getattr(block, field, None)
            if isinstance(statements, list) and statement in statements and part in statements:
                return choices[0] if statements.index(statement) < statements.index(part) else None
        return None

    def owner_of_self(self, name: ast.Name) -> ast.ClassDef | None:
        """The class of the method whose first parameter a name is; None for any other name."""
        function = self.scope(name)
        owner = self._above.get(function) if isinstance(function, ast.FunctionDef) else None
        if not isinstance(owner, ast.ClassDef) or not isinstance(function, ast.FunctionDef) or function.decorator_list:
            return None
        places = [each.arg for each in (*function.args.posonlyargs, *function.args.args)]
        return owner if places[:1] == [name.id] and not self.rebinds(function, [name.id]) else None

    def binder(self, node: ast.AST, name: str) -> ast.AST | None:
        """The scope whose name a node means; None where none of the file binds it."""
        scope = self.scope(node)
        while scope is not None and not self._binds(scope, name):
            scope = self._around(scope)
        return scope

    def rebinds(self, function: _Function, names: Collection[str]) -> bool:
        """Whether a function binds one of these names itself."""
        return any(self.scope(node) is function for name in names for node in self._stores.get(name, []))

    def _binds(self, scope: ast.AST, name: str) -> bool:
        return _is_parameter(scope, name) or any(self.scope(node) is scope for node in self._stores.get(name, []))

    def _is_in_loop(self, node: ast.AST) -> bool:
        above = self._above.get(node)
        while above is not None and not isinstance(above, _Function | ast.Lambda):
            if isinstance(above, ast.For | ast.AsyncFor | ast.While):
                return True
            above = self._above.get(above)
        return False

    def _values_in(self, scope: ast.AST, name: str) -> list[ast.expr]:
        """All that the statements of a scope assign to a name; empty where anything else binds it there."""
        stores = [node for node in self._stores.get(name, []) if self.scope(node) is scope]
        found: list[ast.expr] = []
        for store in stores:
            statement = self._above.get(store)
            if not isinstance(statement, ast.Assign | ast.AnnAssign) or store not in _targets(statement):
                return []
            if statement.value is None:
                return []
            found.append(statement.value)
        return found

    def _around(self, scope: ast.AST) -> ast.AST | None:
        """The next scope outwards whose names are seen within a scope: not those of a class."""
        outer = self.scope(scope) if scope is not self._tree else None
        while isinstance(outer, ast.ClassDef):
            outer = self.scope(outer)
        return outer

    def scope(self, node: ast.AST) -> ast.AST | None:
        """The function, comprehension or file whose names a node uses."""
        above = self._above.get(node)
        while above is not None and not isinstance(
            above, _Function | ast.Lambda | ast.ClassDef | ast.ListComp | ast.SetComp | ast.DictComp | ast.GeneratorExp
        ):
            above = self._above.get(above)
        return self._tree if above is None and node is not self._tree else above

    def _assigned(self, store: ast.AST) -> ast.expr | None:
        """What the statement around a name assigns to it, if it runs under no condition."""
        statement = self._above.get(store)
        if not isinstance(statement, ast.Assign | ast.AnnAssign) or store not in _targets(statement):
            return None
        above = self._above.get(statement)
        while above is not None and not isinstance(above, _Function | ast.Lambda):
            if isinstance(above, _BRANCHES) and "__name__" not in ast.unparse(getattr(above, "test", above)):
                return None
            above = self._above.get(above)
        return statement.value

    def _handed_in(self, function: _Function, parameter: str) -> ast.expr | None:
        """What the only call of a function gives a parameter, or its default; None where other code may call it too."""
        owner = self._above.get(function)
        if (option := python_click.option_of(function, parameter)) is not None:
            # A call with words of its own gives others than those of the command.
            calls = [self._above.get(use) for use in self._uses.get(function.name, [])]
            bare = all(isinstance(call, ast.Call) and not call.args and not call.keywords for call in calls)
            return python_click.value_of(option, self._flags) if bare and UNNAMED not in self._flags else None
        if function.name == "__init__" and isinstance(owner, ast.ClassDef):
            return self._handed_to_object(owner, function, parameter)
        uses = self._uses.get(function.name, [])
        if self._handed is not None:
            uses = [use for use in uses if not self._is_under_main(use)]
            if not uses and len(self._stores.get(function.name, [])) == 1 and not function.decorator_list:
                found = self._handed(function)
                if found is None or parameter in found:
                    return found[parameter] if found is not None else None
                return dict(_defaults(function.args)).get(parameter)
        if len(uses) != 1 or len(self._stores.get(function.name, [])) != 1 or function.decorator_list:
            return None
        call = self._above.get(uses[0])
        if isinstance(call, ast.Call) and call.args[:1] == uses and ast.unparse(call.func) in _COMMANDS:
            return self._of_command(function, parameter)
        if not isinstance(call, ast.Call) or call.func is not uses[0]:
            return None
        return self._of_call(call, function, parameter, bound=0)

    def _handed_to_object(self, owner: ast.ClassDef, function: _Function, parameter: str) -> ast.expr | None:
        """What the only place that makes an object of a class gives a parameter of its `__init__`."""
        uses = [use for use in self._uses.get(owner.name, []) if not self._is_annotation(use)]
        call = self._above.get(uses[0]) if len(uses) == 1 else None
        once = len(self._stores.get(owner.name, [])) == 1 and not owner.decorator_list and not function.decorator_list
        if self._handed is not None or not once or not isinstance(call, ast.Call) or call.func is not uses[0]:
            return None
        return self._of_call(call, function, parameter, bound=1)

    def _is_annotation(self, use: ast.AST) -> bool:
        """Whether a name only says the type of something."""
        inner, above = use, self._above.get(use)
        while isinstance(above, ast.expr):
            if isinstance(above, ast.Call):
                return False
            inner, above = above, self._above.get(above)
        return isinstance(above, ast.arg) or inner in (
            getattr(above, "returns", None),
            getattr(above, "annotation", None),
        )

    def _of_call(self, call: ast.Call, function: _Function, parameter: str, *, bound: int) -> ast.expr | None:
        """What a call gives a parameter, or its default; the first `bound` parameters are given in another way."""
        if any(isinstance(each, ast.Starred) for each in call.args):
            return None
        given = {word.arg: word.value for word in call.keywords if word.arg}
        for word in call.keywords:
            if word.arg is None:
                pairs = self._pairs(word.value)
                if pairs is None or pairs.hidden or pairs.filtered or parameter in pairs.unsure:
                    return None
                if pairs.unsure and function.args.kwarg is not None and parameter == function.args.kwarg.arg:
                    return None
                given |= pairs.values
        arguments = function.args
        places = [each.arg for each in (*arguments.posonlyargs, *arguments.args)]
        given |= dict(zip(places[bound:], call.args, strict=False))
        if (
            arguments.kwarg is not None and parameter == arguments.kwarg.arg
        ):  # all keywords that no other parameter takes
            named = {each.arg for each in (*arguments.args, *arguments.kwonlyargs)}
            others = {name: value for name, value in given.items() if name not in named}
            return ast.copy_location(ast.Dict([*map(ast.Constant, others)], [*others.values()]), call)
        if arguments.vararg is not None and parameter == arguments.vararg.arg:
            return None
        return given.get(parameter) or dict(_defaults(arguments)).get(parameter)

    def _is_under_main(self, node: ast.AST) -> bool:
        """Whether a node stands under `if __name__ == "__main__":`, which another file that imports this one does not run."""
        above = self._above.get(node)
        while above is not None:
            if isinstance(above, ast.If) and "__name__" in ast.unparse(above.test):
                return True
            above = self._above.get(above)
        return False

    def _of_command(self, function: _Function, parameter: str) -> ast.expr | None:
        """What a parameter is where a library hands the flags of the command to the function: its flag, else its default."""
        default = dict(_defaults(function.args)).get(parameter)
        if UNNAMED in self._flags:
            return None
        if parameter not in self._flags:
            is_option = isinstance(default, ast.Call) and ast.unparse(default.func) in _OPTIONS
            return default.args[0] if is_option and isinstance(default, ast.Call) and default.args else default
        given = self._flags[parameter]
        if given is None or default is None:
            return None
        try:
            return ast.copy_location(ast.Constant(ast.literal_eval(given)), default)
        except (ValueError, SyntaxError):
            return ast.copy_location(ast.Constant(given), default)


def _targets(statement: ast.Assign | ast.AnnAssign) -> list[ast.expr]:
    return statement.targets if isinstance(statement, ast.Assign) else [statement.target]


def _is_parameter(scope: ast.AST, name: str) -> bool:
    return isinstance(scope, ast.Lambda | _Function) and name in _parameters(scope)


def _parameters(function: ast.Lambda | _Function) -> set[str]:
    own = function.args
    several = [each for each in (own.vararg, own.kwarg) if each is not None]
    return {each.arg for each in (*own.posonlyargs, *own.args, *own.kwonlyargs, *several)}


def _defaults(arguments: ast.arguments) -> Iterator[tuple[str, ast.expr]]:
    """The parameters that have a default, with it."""
    placed = [each.arg for each in (*arguments.posonlyargs, *arguments.args)]
    yield from zip(placed[len(placed) - len(arguments.defaults) :], arguments.defaults, strict=True)
    named = zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True)
    yield from ((each.arg, default) for each, default in named if default is not None)
