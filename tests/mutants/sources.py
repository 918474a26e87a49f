"""The source of a framework's modules in a process that has them imported: which lines run, and another code for one function."""

from __future__ import annotations

import gc
import importlib
import inspect
import sys
import types
from collections import defaultdict
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from tests.mutants.operators import Mutation, mutated

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator


def source_of(module: str) -> str:
    """The text of a module."""
    return inspect.getsource(importlib.import_module(module))


def executed(modules: Iterable[str], run: Callable[[], object]) -> dict[str, list[int]]:
    """The lines of some modules that a call executes."""
    files = {importlib.import_module(name).__file__: name for name in modules}
    lines: dict[str, set[int]] = {name: set() for name in files.values()}

    def local(frame: types.FrameType, event: str, argument: Any) -> Any:
        if event == "line":
            lines[files[frame.f_code.co_filename]].add(frame.f_lineno)
        return local

    def called(frame: types.FrameType, event: str, argument: Any) -> Any:
        return local if frame.f_code.co_filename in files else None

    sys.settrace(called)
    try:
        run()
    finally:
        sys.settrace(None)
    return {name: sorted(found) for name, found in lines.items()}


class NoMutantError(Exception):
    """A change that cannot be made in this process."""


class LivingFunctions:
    """The functions of some modules, wherever a reference to them is held: in decorators and closures too.

    They are looked up once, because what `gc.freeze` puts aside is not listed any more.
    """

    def __init__(self, modules: Iterable[str]) -> None:
        self._files = {name: str(importlib.import_module(name).__file__) for name in modules}
        self._found: defaultdict[tuple[str, str, int], list[types.FunctionType]] = defaultdict(list)
        files = set(self._files.values())
        gc.unfreeze()
        for function in gc.get_objects():
            # `isinstance` would ask a weak proxy for the class of what may be gone.
            if type(function) is types.FunctionType and function.__code__.co_filename in files:
                self._found[_place(function.__code__)].append(function)

    @contextmanager
    def in_force(self, mutation: Mutation) -> Iterator[None]:
        """Run with a mutation, and without it again."""
        before = [(function, function.__code__) for functions in self._found.values() for function in functions]
        self.put_in_force(mutation)
        try:
            yield
        finally:
            for function, code in before:
                function.__code__ = code

    def put_in_force(self, mutation: Mutation) -> None:
        """Give the mutated function's code to all that have the unmutated one.

        Raises:
            NoMutantError: No function with this code lives, or the change does not fit into its closure.
        """
        tree = mutated(source_of(mutation.module), mutation)
        try:
            wanted = _code(compile(tree, self._files[mutation.module], "exec"), mutation)
            functions = self._found[_place(wanted)]
            for function in functions:
                function.__code__ = wanted
        except (SyntaxError, ValueError) as error:
            raise NoMutantError(str(error)) from error
        if not functions:
            raise NoMutantError(f"no function {mutation.function} lives")


def _place(code: types.CodeType) -> tuple[str, str, int]:
    return code.co_filename, code.co_name, code.co_firstlineno


def _code(within: types.CodeType, mutation: Mutation) -> types.CodeType:
    """The code of the mutated function; of several with one name, such as a property's, that which holds the line."""
    for name in mutation.function.split("."):
        named = [code for code in within.co_consts if isinstance(code, types.CodeType) and code.co_name == name]
        before = [code for code in named if code.co_firstlineno <= mutation.line]
        if not before:
            raise ValueError(f"no function {mutation.function}")
        within = max(before, key=lambda code: code.co_firstlineno)
    return within
