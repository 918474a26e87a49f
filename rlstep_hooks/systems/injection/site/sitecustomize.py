"""Loaded by every Python process of an audited command, before its own code. Imports the `sitecustomize` that would have run, then
registers hooks on the import of the supported frameworks. Nothing here may raise, and nothing heavy is imported."""

import sys
from importlib.machinery import PathFinder
from importlib.util import module_from_spec
from pathlib import Path


def _run_shadowed() -> None:
    """Run the `sitecustomize` that this one hides, if there is one."""
    here = Path(__file__).parent
    others = [entry for entry in sys.path if entry and Path(entry) != here]
    spec = PathFinder.find_spec("sitecustomize", others)
    if spec is None or spec.loader is None:
        return
    module = module_from_spec(spec)
    sys.modules["sitecustomize"] = module
    spec.loader.exec_module(module)


def _register() -> None:
    """Register the hooks if this package and wrapt can be imported; another environment of the command may have neither."""
    try:
        from rlstep_hooks.systems.injection.frames import install
        from rlstep_hooks.systems.injection.hooks import register
    except ImportError:
        return
    register()
    install()


_register()
_run_shadowed()
