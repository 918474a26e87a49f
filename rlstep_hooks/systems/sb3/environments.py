"""How many environments a Python file trains in: what the algorithm is given is followed to where the file makes it.

Stable-Baselines3 makes a vector of one of any other environment (common/base_class.py `_wrap_env`), and a vector of several has as many
as functions are handed to it (common/vec_env/dummy_vec_env.py, subproc_vec_env.py). Parsed, never imported.
"""

from __future__ import annotations

import ast
from typing import TYPE_CHECKING

from rlstep_hooks.launch.classes import class_named
from rlstep_hooks.launch.python_scopes import Scopes
from rlstep_hooks.launch.python_source import name_of, parse

if TYPE_CHECKING:
    from pathlib import Path

ONE = "one"
"""Stands for a single environment."""
BY_NUMBER = ("make_vec_env", "make_atari_env")
"""What makes a vector of as many environments as it is told."""
BY_LIST = ("DummyVecEnv", "SubprocVecEnv")
"""What makes a vector of one environment for each function of a list."""
_LIBRARIES = frozenset(("stable_baselines3", "sb3_contrib", "gymnasium", "gym"))
_ENVIRONMENTS = frozenset(("gymnasium.Env", "gym.Env"))
_PLACE = 1
"""The place among an algorithm's arguments at which it takes the environment: `PPO(policy, env)`."""
_FURTHEST = 12
_BRANCHES = ast.If | ast.For | ast.While | ast.Try


def made_by(path: Path, current: str | None, algorithm: str) -> str:
    """What makes the environment that a file's algorithm is given: `ONE`, one of `BY_NUMBER` or `BY_LIST`; else empty.

    Args:
        path: The file.
        current: The folder in which the launch is at that point, if that is known.
        algorithm: The class that trains, for example "PPO".
    """
    trace = _Trace(path, current)
    calls = (node for node in ast.walk(trace.tree) if isinstance(node, ast.Call) and name_of(node.func) == algorithm)
    given = [
        one
        for call in calls
        for one in (*(word.value for word in call.keywords if word.arg == "env"), *call.args[_PLACE : _PLACE + 1])
    ]
    found = {trace.follow(one, 0) for one in given}
    return found.pop() if len(found) == 1 else ""


class _Trace:
    def __init__(self, path: Path, current: str | None) -> None:
        self.tree = parse(path)
        self._path = path
        self._current = current
        self._above = {child: node for node in ast.walk(self.tree) for child in ast.iter_child_nodes(node)}
        self._scopes = Scopes(self.tree, self._above)

    def follow(self, node: ast.expr, depth: int) -> str:
        """What makes an environment; empty where that cannot be told."""
        if depth > _FURTHEST:
            return ""
        match node:
            case ast.Constant(value=str()):
                return ONE
            case ast.Name() | ast.Attribute():
                bound = self._bound(node)
                return self.follow(bound, depth + 1) if bound is not None else ""
            case ast.Call():
                return self._of_call(node, depth)
        return ""

    def _of_call(self, call: ast.Call, depth: int) -> str:
        name = name_of(call.func)
        if name in (*BY_NUMBER, *BY_LIST):
            return name
        inner = next(iter((*call.args, *(word.value for word in call.keywords if word.arg in ("env", "venv")))), None)
        if name == "make" and isinstance(call.func, ast.Attribute):
            return ONE
        result = self._returned(name)
        if result is not None:
            return self.follow(result, depth + 1)
        of = class_named(name, self._path, self._current, _LIBRARIES)
        outside = of.outside if of is not None else frozenset[str]()
        if not outside.isdisjoint(_ENVIRONMENTS):
            return ONE
        wraps = any(each.partition(".")[0] in _LIBRARIES for each in outside) or "wrappers" in ast.unparse(call.func)
        return self.follow(inner, depth + 1) if wraps and inner is not None else ""

    def _returned(self, name: str) -> ast.expr | None:
        """What the only `return` of a function of the file gives back."""
        functions = [node for node in ast.walk(self.tree) if isinstance(node, ast.FunctionDef) and node.name == name]
        inner = [node for function in functions for node in ast.walk(function) if isinstance(node, ast.Return)]
        return inner[0].value if len(functions) == len(inner) == 1 else None

    def _bound(self, name: ast.Name | ast.Attribute) -> ast.expr | None:
        """What a name stands for: the last assignment before it that runs in any case, else what the only call hands in."""
        before = [
            node
            for node in ast.walk(self.tree)
            if isinstance(node, ast.Assign)
            and ast.unparse(node.targets[0]) == ast.unparse(name)
            and (node.lineno < name.lineno or isinstance(name, ast.Attribute))
        ]
        if not before:
            return self._scopes.value_of(name) if isinstance(name, ast.Name) else None
        if isinstance(name, ast.Attribute) and len(before) > 1:
            return None
        last = max(before, key=lambda node: node.lineno)
        return last.value if self._branches(last) <= self._branches(name) or self._is_main(last) else None

    def _branches(self, node: ast.AST) -> set[ast.AST]:
        """The branches and loops that a node stands in."""
        found: set[ast.AST] = set()
        above = self._above.get(node)
        while above is not None:
            found |= {above} if isinstance(above, _BRANCHES) else set()
            above = self._above.get(above)
        return found

    def _is_main(self, node: ast.AST) -> bool:
        return all("__name__" in ast.unparse(getattr(each, "test", each)) for each in self._branches(node))
