"""A variable of the environment that a Python file reads: `os.environ.get("BATCH_SIZE", "4")`.

Where nothing sets it, the file's own default holds, as that of `${BATCH_SIZE:-4}` does in a shell script.
"""

from __future__ import annotations

import ast

_READS = frozenset(("os.environ.get", "os.getenv", "environ.get", "getenv"))
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


def default_of(node: ast.expr) -> tuple[str, ast.expr] | None:
    """The variable that an expression reads, with the file's own default; None where it reads none, or has no default.

    A variable that a launcher sets has a value in the run, whatever the file's default is.
    """
    match node:
        case ast.Call(func=function, args=[ast.Constant(value=str(name)), default], keywords=[]):
            if ast.unparse(function) in _READS and not name.startswith(_BY_LAUNCHERS):
                return name, default
    return None
