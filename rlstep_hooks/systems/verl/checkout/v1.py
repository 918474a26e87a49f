"""The trainer of verl 0.9 and later (`trainer/ppo/v1`) in a copy of verl: whether its loop is that of the release."""

from __future__ import annotations

import ast
from typing import TYPE_CHECKING

from rlstep_hooks.launch.checkout import Line

if TYPE_CHECKING:
    from collections.abc import Iterator

    from rlstep_hooks.launch.checkout import Checkout, Source

_FILE = "trainer/ppo/v1/trainer_base.py"
_GOES_ON = "current_epoch < self.config.trainer.total_epochs and self.global_steps <= self.total_training_steps"
"""verl 0.9.1 trainer/ppo/v1/trainer_base.py:467, and the copies of 0.9.0.dev and 0.10.0.dev that were looked at."""
_LAST = "self.global_steps >= self.total_training_steps"


def read_v1(checkout: Checkout) -> list[Line]:
    """What in the loop of such a trainer is not known; empty where it is the release's, or where the copy has no such file."""
    source = checkout.source(_FILE)
    tree = source.tree() if source is not None else None
    if source is None or tree is None:
        return []
    loops = [
        node for node in ast.walk(tree) if isinstance(node, ast.While) and "total_epochs" in ast.unparse(node.test)
    ]
    if len(loops) != 1:
        return [Line("its loop over steps was not found", source.at(1))]
    return list(_unknown(loops[0], source))


def _unknown(loop: ast.While, source: Source) -> Iterator[Line]:
    if ast.unparse(loop.test) != _GOES_ON:
        yield Line(f"the run goes on while `{ast.unparse(loop.test)}`", source.at(loop.lineno))
    above = {child: node for node in ast.walk(loop) for child in ast.iter_child_nodes(node)}
    steps = [node for node in ast.walk(loop) if isinstance(node, ast.Call) and ast.unparse(node.func) == "self.step"]
    if len(steps) != 1:
        yield Line(f"a step is made in {len(steps)} places", source.at(loop.lineno))
    for node in ast.walk(loop):
        match node:
            case ast.Return() | ast.Break() | ast.Continue():
                within = above.get(node)
                if not isinstance(within, ast.If) or ast.unparse(within.test) != "is_last_step":
                    yield Line(f"{type(node).__name__.lower()} within a step", source.at(node.lineno))
            case ast.Assign(targets=[ast.Name(id="is_last_step")], value=value) if ast.unparse(value) != _LAST:
                yield Line(f"the last step is `{ast.unparse(value)}`", source.at(node.lineno))
            case ast.AugAssign(target=target, value=value) if ast.unparse(target) == "self.global_steps":
                if ast.unparse(value) != "1":
                    yield Line(f"a step counts {ast.unparse(value)}", source.at(node.lineno))
