"""The trainer of verl 0.9 and later (`trainer/ppo/v1`) in a copy of verl: whether its loop is that of the release."""

from __future__ import annotations

import ast
import re
import textwrap
from typing import TYPE_CHECKING

from rlstep_hooks.launch.checkout import Line

if TYPE_CHECKING:
    from collections.abc import Iterator

    from rlstep_hooks.launch.checkout import Checkout, Source

_FILE = "trainer/ppo/v1/trainer_base.py"
_GOES_ON = "current_epoch < self.config.trainer.total_epochs and self.global_steps <= self.total_training_steps"
"""verl 0.9.1 trainer/ppo/v1/trainer_base.py:467, and the copies of 0.9.0.dev and 0.10.0.dev that were looked at."""
_LOOP = re.compile(
    r"^(?P<margin>[ ]+)while [^\n]*total_epochs[^\n]*\n(?:(?P=margin)[ ]+[^\n]*\n|[ ]*\n)+", re.MULTILINE
)
"""The loop with all that stands in it."""
_LAST = "self.global_steps >= self.total_training_steps"


def read_v1(checkout: Checkout) -> list[Line]:
    """What in the loop of such a trainer is not known; empty where it is the release's, or where the copy has no such file."""
    source = checkout.source(_FILE)
    if source is None:
        return []
    loops = list(_LOOP.finditer(source.text))
    if len(loops) != 1:
        return [Line("its loop over steps was not found", source.at(1))]
    # The file has two thousand lines, of which these decide: all others are not parsed.
    first = source.text.count("\n", 0, loops[0].start())
    try:
        loop = ast.increment_lineno(ast.parse(textwrap.dedent(loops[0][0])), first).body[0]
    except SyntaxError:
        return [Line("its loop over steps is not Python", source.at(first + 1))]
    return list(_unknown(loop, source)) if isinstance(loop, ast.While) else []


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
