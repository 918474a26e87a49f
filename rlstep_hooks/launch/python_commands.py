"""The commands that a Python file starts: `subprocess.run(command)`, `os.system(text)`, also where the file puts them together itself.

Lists and texts are followed through assignments, `+=`, `append` and `extend`, through conditions, and through functions of the
file that return them or hand them on. Nothing is executed: each command becomes shell text. A value that only the run knows is a
variable without a value there; a condition of that kind is the output of an unknown command, and so are words whose number only the
run knows.
"""

from __future__ import annotations

import ast
import re
import shlex
from pathlib import PurePath
from typing import TYPE_CHECKING

import msgspec

from rlstep_hooks.launch.embedded import Embedded
from rlstep_hooks.launch.python_changes import Changes
from rlstep_hooks.launch.python_file import values_of
from rlstep_hooks.launch.python_iterations import iterations
from rlstep_hooks.launch.python_source import NotLiteralError
from rlstep_hooks.launch.python_substitution import substituted
from rlstep_hooks.launch.text import LaunchError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

    from rlstep_hooks.launch.python_documents import Finder
    from rlstep_hooks.launch.python_values import Values
    from rlstep_hooks.launch.settings import Setting

_STARTERS = frozenset(
    ("os.system", "os.popen", *(f"{module}{name}" for module in ("subprocess.", "sp.", "") for name in (
        "run", "call", "check_call", "check_output", "Popen")))
)  # fmt: skip
"""Functions that start the command that they are given first."""
_REPLACES = frozenset(("os.execv", "os.execve", "os.execvp", "os.execvpe"))
"""Functions that are given a program, and its words behind it."""
_OF_WORDS = {"' '.join": False, "shlex.join": False, "shlex.split": True, "list": True, "tuple": True}
"""Functions that only turn words into a text or a text into words, and whether words are what they give back."""
_Function = ast.FunctionDef | ast.AsyncFunctionDef
_DEEPEST = 12
"""Names and functions up to which a command is followed."""


class _Shell(msgspec.Struct, frozen=True):
    """A command, or a part of one, as shell text."""

    text: str
    words: bool
    """Whether it is a list of words; else it is a text that a shell reads."""
    before: tuple[str, ...] = ()
    """What a shell does before it: conditions that only the run decides."""

    def with_more(self, more: _Shell) -> _Shell | None:
        """This with another part behind it; None where the two cannot stand in one command."""
        if self.words is not more.words:
            return None
        between = " " if self.words and self.text and more.text else ""
        before = (*self.before, *(each for each in more.before if each not in self.before))
        return _Shell(self.text + between + more.text, self.words, before)


def commands_in(
    path: Path,
    flags: Mapping[str, Setting] | None = None,
    finder: Finder | None = None,
    environment: Mapping[str, str | None] | None = None,
) -> list[Embedded]:
    """The commands that a Python file starts, in the order of their lines.

    Args:
        path: The file.
        flags: The options that it is called with.
        finder: Finds the YAML files that it opens.
        environment: The variables of its command; None for a value that only the run knows.

    Raises:
        OSError: It cannot be read.
    """
    try:
        tree, values = values_of(path, flags, finder, environment)
        return list(_Commands(tree, values).all())
    except (LaunchError, RecursionError):
        return []


class _Commands:
    def __init__(self, tree: ast.Module, values: Values) -> None:
        self._tree = tree
        self._values = values
        self._above = {child: node for node in ast.walk(tree) for child in ast.iter_child_nodes(node)}
        self._changes = Changes(tree, self._above)
        self._turn: dict[str, ast.expr] = {}
        """What the names of the loops around a statement stand for in the turn that is being read."""
        self._functions: dict[str, list[_Function]] = {}
        self._calls: dict[str, list[ast.Call]] = {}
        for node in ast.walk(tree):
            if isinstance(node, _Function):
                self._functions.setdefault(node.name, []).append(node)
            elif isinstance(node, ast.Call):
                self._calls.setdefault(ast.unparse(node.func), []).append(node)

    def all(self) -> Iterator[Embedded]:
        """Each command, behind as many empty lines as give it the line that it has in the file."""
        started = [(call, call.args[0]) for name in _STARTERS for call in self._calls.get(name, ()) if call.args]
        started += [
            (call, call.args[1]) for name in _REPLACES for call in self._calls.get(name, ()) if len(call.args) > 1
        ]
        found = {
            (command.lineno, "; ".join((*shell.before, shell.text)))
            for call, given in started
            if not self._left_out(call)
            for command, shell in self._followed(given, 0)
            if shell.text
        }
        for line, text in sorted(found):
            yield Embedded("\n" * (line - 1) + text)

    def _left_out(self, node: ast.AST) -> bool:
        """Whether a statement stands in a branch that this launch does not come to."""
        above = self._above.get(node)
        while above is not None:
            if isinstance(above, ast.If) and node is not above.test:
                known, decided = self._decided(above.test)
                if known and decided is (node in above.orelse):
                    return True
            node, above = above, self._above.get(above)
        return False

    def _followed(self, node: ast.expr, depth: int) -> Iterator[tuple[ast.expr, _Shell]]:
        """The commands that an expression stands for; where it is a parameter, those that the calls of its function hand in."""
        shell = self._shell(node, depth)
        if shell is not None:
            yield node, shell
            return
        function = self._function_of(node)
        if isinstance(node, ast.Call) and len(node.args) == 1 and (turns := ast.unparse(node.func)) in _OF_WORDS:
            for given, shell in self._followed(node.args[0], depth + 1):
                yield given, msgspec.structs.replace(shell, words=_OF_WORDS[turns])
        if not isinstance(node, ast.Name) or function is None or depth > _DEEPEST:
            return
        places = [each.arg for each in (*function.args.posonlyargs, *function.args.args)]
        if node.id not in places or len(self._functions[function.name]) != 1 or self._stored(function, node.id):
            return
        at = places.index(node.id)
        for call in self._calls.get(function.name, ()):
            named = next((word.value for word in call.keywords if word.arg == node.id), None)
            handed = named or (call.args[at] if at < len(call.args) else None)
            if handed is not None and not any(isinstance(each, ast.Starred) for each in call.args[: at + 1]):
                yield from self._followed(handed, depth + 1)

    # Expressions.

    def _shell(self, node: ast.expr, depth: int) -> _Shell | None:
        """An expression as shell text; None if it is no command that is put together here."""
        if depth > _DEEPEST:
            return None
        node = substituted(node, self._turn)
        match node:
            case ast.Name():
                return self._named(node, depth)
            case ast.ListComp() | ast.GeneratorExp():
                return self._of_turns(node.generators, node.elt, depth)
            case ast.BinOp(op=ast.Add()):
                left, right = self._shell(node.left, depth + 1), self._shell(node.right, depth + 1)
                if left is None:
                    return None
                return left.with_more(right if right is not None else _unsure(node.right, words=left.words))
            case ast.List() | ast.Tuple():
                whole: _Shell | None = _Shell("", words=True)
                for each in node.elts:
                    whole = whole.with_more(self._element(each, depth)) if whole is not None else None
                return whole
            case ast.IfExp():
                known, decided = self._decided(node.test)
                return self._shell(node.body if decided else node.orelse, depth + 1) if known else None
            case ast.Call(args=[given]) if ast.unparse(node.func) in _OF_WORDS:
                inner = self._shell(given, depth + 1)
                words = _OF_WORDS[ast.unparse(node.func)]
                return msgspec.structs.replace(inner, words=words) if inner is not None else None
            case ast.Call(func=ast.Attribute(value=of, attr="split"), args=[], keywords=[]):
                inner = self._shell(of, depth + 1)
                return msgspec.structs.replace(inner, words=True) if inner is not None else None
            case ast.Call(func=ast.Name(id=name)):
                return self._returned(name, depth)
            case ast.Constant(value=str()) | ast.JoinedStr():
                return _Shell(self._text(node), words=False)
        return None

    def _returned(self, name: str, depth: int) -> _Shell | None:
        """What the only `return` of a function of the file gives back."""
        result = self._only_result(name)
        return self._shell(result, depth + 1) if result is not None else None

    def _only_result(self, name: str) -> ast.expr | None:
        """The expression of the only `return` of a function of the file."""
        functions = self._functions.get(name, [])
        if len(functions) != 1 or functions[0].decorator_list:
            return None
        results = [each for each in ast.walk(functions[0]) if isinstance(each, ast.Return)]
        return results[0].value if len(results) == 1 and results[0] in functions[0].body else None

    def _of_turns(self, loops: list[ast.comprehension], each: ast.expr, depth: int) -> _Shell | None:
        """The words that a comprehension makes: `[f"{key}={value}" for key, value in settings.items()]`."""
        if not loops:
            return self._element(each, depth)
        turns = iterations(substituted(loops[0].iter, self._turn), loops[0].target, self._values)
        whole: _Shell | None = _Shell("", words=True) if turns is not None else None
        for turn in turns or ():
            before = self._turn
            self._turn = {**before, **turn}
            try:
                decided = [self._decided(test) for test in loops[0].ifs]
                if not all(known for known, _ in decided):
                    return None
                if all(holds for _, holds in decided):
                    more = self._of_turns(loops[1:], each, depth)
                    whole = whole.with_more(more) if whole is not None and more is not None else None
            finally:
                self._turn = before
        return whole

    def _element(self, node: ast.expr, depth: int) -> _Shell:
        """One element of a list of words; with a star, all those of another list."""
        if isinstance(node, ast.Starred):
            inner = self._shell(node.value, depth + 1)
            return inner if inner is not None and inner.words else _unsure(node.value, words=True)
        return _Shell(self._word(node), words=True)

    def _word(self, node: ast.expr) -> str:
        """A word as a shell reads it."""
        node = substituted(node, self._turn)
        if ast.unparse(node) == "sys.executable":
            return "python"
        value = self._value(node)
        if value is not None:
            return shlex.quote(value)
        while isinstance(node, ast.Call) and ast.unparse(node.func) == "str" and len(node.args) == 1:
            node = node.args[0]
        return f'"{self._text(node)}"' if isinstance(node, ast.JoinedStr) else f'"{_variable(node)}"'

    def _text(self, node: ast.expr) -> str:
        """A text, with variables of the shell for what only the run knows."""
        node = substituted(node, self._turn)
        if isinstance(node, ast.Constant):
            return str(node.value)
        if isinstance(node, ast.JoinedStr):
            return "".join(self._text(part) for part in node.values)
        if isinstance(node, ast.FormattedValue):
            plain = node.format_spec is None and node.conversion == -1
            value = self._value(node.value) if plain else None
            return _variable(node.value) if value is None else value
        return _variable(node)

    def _value(self, node: ast.expr) -> str | None:
        """What Python writes for a value in a text; None where only the run knows it, or where it is no single value."""
        node = substituted(node, self._turn)
        if isinstance(node, ast.JoinedStr):
            parts = [self._text(part) for part in node.values]
            return None if any("${" in part for part in parts) else "".join(parts)
        try:
            value = self._values.literal(node)
        except NotLiteralError:
            pass
        else:
            return str(value) if value is None or isinstance(value, str | int | float | PurePath) else None
        match node:
            case ast.Call(func=ast.Name(id="str"), args=[inner], keywords=[]):
                return self._value(inner)
        return None

    def _decided(self, test: ast.expr) -> tuple[bool, bool]:
        """Whether it is known if a condition holds, and whether it does."""
        try:
            return True, bool(self._values.literal(substituted(test, self._turn)))
        except NotLiteralError:
            return False, False

    # Names.

    def _named(self, name: ast.Name, depth: int) -> _Shell | None:
        """What a name stands for where it is used: all that its function, else the file, has done to it up to there."""
        function = self._function_of(name)
        while function is not None and not self._stored(function, name.id):
            if name.id in {each.arg for each in ast.walk(function.args) if isinstance(each, ast.arg)}:
                return None
            function = self._function_of(function)
        body = self._tree.body if function is None else function.body
        return self._after(body, name.id, name, None, depth + 1)

    def _stored(self, function: _Function, name: str) -> bool:
        return any(
            isinstance(each, ast.Name) and each.id == name and isinstance(each.ctx, ast.Store)
            for each in ast.walk(function)
            if self._function_of(each) is function
        )

    def _after(self, body: list[ast.stmt], name: str, use: ast.AST, before: _Shell | None, depth: int) -> _Shell | None:
        """What a name stands for behind some statements, or at the one of them that holds its use."""
        state = before
        for statement in body:
            inside = any(each is use for each in ast.walk(statement))
            if isinstance(statement, ast.With | ast.AsyncWith | ast.Try):
                state = self._after(statement.body, name, use, state, depth)
            elif isinstance(statement, ast.If):
                state = self._behind_condition(statement, name, use, state, depth, inside=inside)
            elif isinstance(statement, ast.For) and not inside and self._touches(statement, name):
                state = self._behind_loop(statement, name, use, state, depth)
            elif isinstance(statement, ast.For | ast.AsyncFor | ast.While | ast.Match) and self._touches(
                statement, name
            ):
                body_of = getattr(statement, "body", [])
                state = self._after(body_of, name, use, state, depth) if inside else self._more(state, statement)
            elif not inside and not isinstance(statement, _Function | ast.ClassDef):
                state = self._done(statement, name, state, depth)
            if inside:
                return state
        return state

    def _behind_loop(self, loop: ast.For, name: str, use: ast.AST, state: _Shell | None, depth: int) -> _Shell | None:
        """What a name stands for behind a loop, all turns of which the file says."""
        turns = iterations(substituted(loop.iter, self._turn), loop.target, self._values)
        leaves = any(isinstance(each, ast.Break | ast.Continue | ast.Return) for each in ast.walk(loop))
        moved = {each.id for each in ast.walk(loop) if isinstance(each, ast.Name) and isinstance(each.ctx, ast.Store)}
        moved -= {each.id for each in ast.walk(loop.target) if isinstance(each, ast.Name)}
        # A name that each turn gives another value has none that the expressions of the file could be worked out with.
        if turns is None or leaves or loop.orelse or not moved <= {name}:
            return self._more(state, loop)
        before = self._turn
        for turn in turns:
            self._turn = {**before, **turn}
            state = self._after(loop.body, name, use, state, depth)
        self._turn = before
        return state

    def _behind_condition(
        self, statement: ast.If, name: str, use: ast.AST, state: _Shell | None, depth: int, *, inside: bool
    ) -> _Shell | None:
        if inside:
            holds = any(each is use for part in statement.body for each in ast.walk(part))
            return self._after(statement.body if holds else statement.orelse, name, use, state, depth)
        if not self._touches(statement, name):
            return state
        known, decided = self._decided(statement.test)
        if known:
            return self._after(statement.body if decided else statement.orelse, name, use, state, depth)
        ways = [self._after(part, name, use, state, depth) for part in (statement.body, statement.orelse)]
        if ways[0] == ways[1]:
            return ways[0]
        return self._either(state, ways, statement)

    def _either(self, state: _Shell | None, ways: list[_Shell | None], statement: ast.If) -> _Shell | None:
        """A command with the words behind it that one branch or the other of a condition adds, which only the run decides."""
        if state is None:
            return None
        added: list[str] = []
        before = list(state.before)
        for way in ways:
            if way is None or not way.text.startswith(state.text):
                return None
            more = way.text[len(state.text) :]
            if more and not more[0].isspace():
                return self._more(state, statement.test)
            added.append(more.strip())
            before += [each for each in way.before if each not in before]
        holds, name = _unsure(statement.test, words=True).text, f"words_of_line_{statement.lineno}"
        before.append(f'if [ "{holds}" ]; then {name}=({added[0]}); else {name}=({added[1]}); fi')
        return _Shell(f'{state.text} "${{{name}[@]}}"', state.words, tuple(before))

    def _more(self, state: _Shell | None, node: ast.AST) -> _Shell | None:
        """A command with words behind it that only the run knows."""
        return None if state is None else state.with_more(_unsure(node, words=state.words))

    def _touches(self, statement: ast.stmt, name: str) -> bool:
        """Whether a statement may give a name another value, or change what it holds."""
        within = {id(each) for each in ast.walk(statement)}
        stores = (
            isinstance(each, ast.Name) and each.id == name and isinstance(each.ctx, ast.Store)
            for each in ast.walk(statement)
        )
        return any(stores) or any(id(change.node) in within for change in self._changes.of(name))

    def _done(self, statement: ast.stmt, name: str, state: _Shell | None, depth: int) -> _Shell | None:
        """What a name stands for behind one simple statement."""
        match statement:
            case ast.Assign(targets=[ast.Name(id=target)], value=value) if target == name:
                return self._shell(value, depth)
            case ast.AnnAssign(target=ast.Name(id=target), value=ast.expr() as value) if target == name:
                return self._shell(value, depth)
            case ast.Assign(targets=[ast.Tuple(elts=targets)], value=value) if self._place(targets, name) is not None:
                parts, at = self._parts(value), self._place(targets, name)
                if at == 1 and _leaves_rest(value):
                    return _Shell("", words=True) if self._values.takes_all() else None
                return self._shell(parts[at], depth) if at is not None and len(parts) == len(targets) else None
            case ast.AugAssign(target=ast.Name(id=target), op=ast.Add(), value=value) if target == name:
                if state is None:
                    return None
                more = self._shell(value, depth)
                return state.with_more(more if more is not None else _unsure(value, words=state.words))
            case ast.Expr(
                value=ast.Call(func=ast.Attribute(value=ast.Name(id=of), attr="append"), args=[word], keywords=[])
            ) if of == name:
                return state.with_more(_Shell(self._word(word), words=True)) if state is not None else None
            case ast.Expr(
                value=ast.Call(func=ast.Attribute(value=ast.Name(id=of), attr="extend"), args=[words], keywords=[])
            ) if of == name:
                more = self._shell(words, depth)
                return (
                    None if state is None else state.with_more(more if more is not None else _unsure(words, words=True))
                )
        return None if self._touches(statement, name) else state

    def _place(self, targets: list[ast.expr], name: str) -> int | None:
        """At which place of several targets a name stands; None where it is none, or where a star moves the places."""
        if any(isinstance(each, ast.Starred) for each in targets):
            return None
        return next((at for at, each in enumerate(targets) if isinstance(each, ast.Name) and each.id == name), None)

    def _parts(self, value: ast.expr) -> list[ast.expr]:
        """The parts of a tuple, or of the one that the only `return` of a function gives back; none of anything else."""
        if isinstance(value, ast.Call) and isinstance(value.func, ast.Name):
            value = self._only_result(value.func.id) or value
        parts = value.elts if isinstance(value, ast.Tuple) else []
        return [] if any(isinstance(each, ast.Starred) for each in parts) else parts

    def _function_of(self, node: ast.AST) -> _Function | None:
        """The function that a node stands in; None at the top of the file."""
        above = self._above.get(node)
        while above is not None and not isinstance(above, _Function):
            above = self._above.get(above)
        return above


def _leaves_rest(value: ast.expr) -> bool:
    """Whether a call gives back what a parser does not take of a command, as its second part."""
    return (
        isinstance(value, ast.Call) and isinstance(value.func, ast.Attribute) and value.func.attr == "parse_known_args"
    )


def _unsure(node: ast.AST, *, words: bool) -> _Shell:
    """Words that only the run knows: the output of an unknown command, of which there may be any number."""
    shown = re.sub(r"\W+", "_", ast.unparse(node).partition("\n")[0])[:60].strip("_") or "_"
    return _Shell(f"$({shown})" if words else f" $({shown})", words)


def _variable(node: ast.expr) -> str:
    return "${" + (re.sub(r"\W+", "_", ast.unparse(node)).strip("_") or "_") + "}"
