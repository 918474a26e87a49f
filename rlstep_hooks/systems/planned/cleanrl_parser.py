"""The sizes of a file with CleanRL's loops: those of its own `argparse`, as CleanRL had it before mid-2023, and those that it changes.

A file with a parser says its defaults itself: those of the commit that was read are another file's, whatever name the two share.
"""

from __future__ import annotations

import ast
from typing import TYPE_CHECKING, Any

from rlstep_hooks.launch.python_options import options_of
from rlstep_hooks.launch.python_source import name_of
from rlstep_hooks.launch.text import LaunchError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from rlstep_hooks.launch.checkout import Source
    from rlstep_hooks.launch.python_options import Option
    from rlstep_hooks.launch.settings import Setting

_NEEDED = ("num_envs", "num_steps", "num_minibatches", "update_epochs", "total_timesteps")
_MORE = ("target_kl", "anneal_lr", "norm_adv")
_NUMBERS = ("int", "float")
_CHANGES = ("set_defaults", "setattr")
"""Calls that change what the parser gives."""
_CHANGED = "changed behind the parser"
_ROLLOUTS = "args.total_timesteps // args.batch_size"
_COMPUTED = {
    "args.batch_size": "args.num_envs * args.num_steps",
    "args.minibatch_size": "args.batch_size // args.num_minibatches",
    "args.num_iterations": _ROLLOUTS,
    "num_iterations": _ROLLOUTS,
    "num_updates": _ROLLOUTS,
}
"""What all of CleanRL's files compute, and how (fe8d8a0: cleanrl/ppo*.py and rpo_continuous_action.py)."""
_PARSED = "args"
"""What its files call the settings that were parsed; its loops read them so."""
_OF_ITS_OWN = frozenset(("args.num_envs = args.local_num_envs * args.world_size",))
"""What ppo_atari_multigpu.py has of it, which is read."""


def own_defaults(source: Source, given: Mapping[str, Setting]) -> dict[str, Any] | None:
    """The defaults of a file's own parser; None where it parses no flag of CleanRL's by `argparse`.

    Args:
        source: The file.
        given: What the launch sets.

    Raises:
        LaunchError: A size is none that the file says, or the file changes one, whatever parses its flags.
    """
    try:
        tree = ast.parse(source.text)
    except SyntaxError:
        return None
    options = options_of(tree, source.shown, ())
    for says, line in _changed(tree, options, given):
        raise LaunchError(f"{source.shown}:{line}: {says}, which is not followed")
    if not any(option is not None and option.keywords for name, option in options.items() if name in _NEEDED):
        return None
    if not any(isinstance(node, ast.Call) and name_of(node.func) == "ArgumentParser" for node in ast.walk(tree)):
        return None
    defaults = {name: _default(options.get(name)) for name in (*_NEEDED, *_MORE) if name in options}
    for name in _NEEDED:
        if name not in given and not isinstance(defaults.get(name), int):
            raise LaunchError(f"{source.shown} does not say {name}: give it in the command")
    return {name: value for name, value in defaults.items() if value is not ...}


def _default(option: Option | None) -> Any:
    """What an option is without its flag; an ellipsis where that is not plain."""
    node = option.keywords.get("default", ast.Constant(None)) if option is not None else ast.Constant(...)
    try:
        match node:
            case ast.Call(func=ast.Name(id=kind), args=[number], keywords=[]) if kind in _NUMBERS:
                value = ast.literal_eval(number)
            case _:
                value = ast.literal_eval(node)
    except (ValueError, TypeError, SyntaxError):
        return ...
    # `default=1e6` stays a float there, and counts as one.
    return int(value) if isinstance(value, float) and value.is_integer() else value


def _changed(
    tree: ast.Module, options: Mapping[str, Option | None], given: Mapping[str, Setting]
) -> Iterator[tuple[str, int]]:
    """What the file does to its sizes itself, with the line."""
    own: set[int] = set()
    silent = {name for name, option in options.items() if _default(option) is False}
    silent |= {
        ast.unparse(field.target) for field in _fields(tree) if ast.unparse(field.value or field.target) == "False"
    }
    for node in _followed(tree, silent - set(given)):
        if isinstance(node, ast.Assign) and ast.unparse(node) in _OF_ITS_OWN:
            own.update(id(target) for target in node.targets)
        elif id(node) in own:
            continue
        elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store) and node.attr in _NEEDED:
            if ast.unparse(node.value) == _PARSED:  # `envs.num_envs = args.num_envs` changes none
                yield f"{node.attr} is {_CHANGED}", node.lineno
        elif isinstance(node, ast.Assign) and (named := ast.unparse(node.targets[0])) in _COMPUTED:
            if _without_int(node.value) != _COMPUTED[named]:
                yield f"{named} is computed otherwise than in CleanRL's files", node.lineno
        elif isinstance(node, ast.Call) and name_of(node.func) in _CHANGES:
            words = {each.value for each in ast.walk(node) if isinstance(each, ast.Constant)}
            words |= {word.arg for word in node.keywords}
            yield from ((f"{name} is {_CHANGED}", node.lineno) for name in _NEEDED if name in words)


def _without_int(value: ast.expr) -> str:
    match value:
        case ast.Call(func=ast.Name(id="int"), args=[inner], keywords=[]):
            return ast.unparse(inner)
    return ast.unparse(value)


def _fields(tree: ast.Module) -> Iterator[ast.AnnAssign]:
    """The fields of the dataclass that `tyro` makes flags of."""
    for node in tree.body:
        if isinstance(node, ast.ClassDef) and node.name == "Args":
            yield from (each for each in node.body if isinstance(each, ast.AnnAssign))


def _followed(node: ast.AST, silent: set[str]) -> Iterator[ast.AST]:
    """All of a file but what stands below a flag that is off."""
    for child in ast.iter_child_nodes(node):
        match child:
            case ast.If(test=ast.Attribute(value=ast.Name(), attr=flag), body=_, orelse=[]) if flag in silent:
                continue
        yield child
        yield from _followed(child, silent)
