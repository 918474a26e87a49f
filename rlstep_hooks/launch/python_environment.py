"""A variable of the environment that a Python file reads: `os.environ.get("BATCH_SIZE", "4")`.

Where nothing sets it, the file's own default holds, as that of `${BATCH_SIZE:-4}` does in a shell script. One without a default is
asked for.
"""

from __future__ import annotations

import ast

_READS = frozenset(("os.environ.get", "os.getenv", "environ.get", "getenv"))
_MAPPINGS = frozenset(("os.environ", "environ"))
_SETS = frozenset(("os.environ.setdefault", "environ.setdefault", "os.putenv"))
_BY_LAUNCHERS = (
    "RANK",
    "LOCAL_",
    "WORLD_SIZE",
    "NODE_RANK",
    "MASTER_",
    "GROUP_",
    "SLURM_",
    "OMPI_",
    "PMI_",
    "CUDA_",
    "RAY_",
)
"""How the names of variables begin that a launcher or the machine sets."""


def read_by(node: ast.AST) -> tuple[str, ast.expr | None] | None:
    """The variable that an expression reads, with the file's own default if it has one; None where it reads none.

    A variable that a launcher sets has a value in the run, whatever the file's default is.
    """
    match node:
        case ast.Call(func=function, args=[ast.Constant(value=str(name)), *default], keywords=[]):
            if ast.unparse(function) in _READS and not name.startswith(_BY_LAUNCHERS):
                return name, default[0] if default else None
        case ast.Subscript(value=mapping, slice=ast.Constant(value=str(name))):
            if ast.unparse(mapping) in _MAPPINGS and not name.startswith(_BY_LAUNCHERS):
                return name, None
    return None


def set_in(tree: ast.AST) -> frozenset[str]:
    """The variables that a file sets itself, at whatever time: `os.environ["X"] = "8"`, `os.environ.setdefault("X", "8")`."""
    found: set[str] = set()
    for node in ast.walk(tree):
        match node:
            case ast.Subscript(value=mapping, slice=ast.Constant(value=str(name)), ctx=ast.Store()):
                found |= {name} if ast.unparse(mapping) in _MAPPINGS else set()
            case ast.Call(func=function, args=[ast.Constant(value=str(name)), *_]):
                found |= {name} if ast.unparse(function) in _SETS else set()
    return frozenset(found)
