"""What decides the length of a run in OpenRLHF's trainer: episodes over the prompts, one training on each rollout, no other end.

Only what is known is taken for known. What may end a rollout, leave it out, or train it otherwise is named: the plan then asks.
"""

from __future__ import annotations

import ast
import re
from typing import TYPE_CHECKING

from rlstep_hooks.launch.checkout import UNKNOWN, Line, value_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from rlstep_hooks.launch.checkout import Source

_EPISODES = re.compile(r"range\((?:\w+, )?(?:self\.)?(?:strategy\.)?args\.(?:train\.)?num_episodes\)")
_PASSES = re.compile(r"range\((?:self\.|self\.args\.|args\.)(?:train\.)?max_epochs\)")
_TRAINS = ("ppo_train", "train_step")
_OF_BUFFER = ("append", "normalize", "clear", "setup_dynamic_batch")
"""Methods of the replay buffer that leave nothing out."""
_EXHAUSTED = ("is_exhausted", "exhausted", "not rollout_samples")
"""Conditions of an end that the loader has no more prompts (0.11: a rollout without samples is none)."""
_FILTERING = "dynamic_filtering"
"""The setting whose rollouts no plan counts (`Depends` of the declaration)."""


def read_fit(fit: ast.FunctionDef, source: Source, values: Mapping[str, object]) -> list[Line]:
    """What in a trainer's `fit` is not known; empty where it is as in the releases.

    Args:
        fit: The method.
        source: Its file.
        values: The settings of the launch, where they are known.
    """
    reader = _Reader(source, values)
    reader.episodes(fit)
    return reader.unknown


def read_passes(train: ast.FunctionDef, source: Source, values: Mapping[str, object]) -> list[Line]:
    """What in `ppo_train`, the passes over a rollout, is not known; as `read_fit`."""
    reader = _Reader(source, values)
    reader.passes(train)
    return reader.unknown


class _Reader:
    def __init__(self, source: Source, values: Mapping[str, object]) -> None:
        self.unknown: list[Line] = []
        self._source = source
        self._values = values

    def episodes(self, fit: ast.FunctionDef) -> None:
        outer = self._loops(fit.body)
        if len(outer) != 1 or not isinstance(outer[0], ast.For) or not _EPISODES.fullmatch(ast.unparse(outer[0].iter)):
            over = f"the run goes over {ast.unparse(outer[0].iter)}" if outer and isinstance(outer[0], ast.For) else ""
            self._ask(outer[0] if outer else fit, over or "there is no loop over num_episodes")
            return
        self._exits(outer[0].body, "an episode")
        inner = [loop for loop in self._loops(outer[0].body) if _calls(loop, _TRAINS)]
        if len(inner) != 1 or not _draws(inner[0]):
            self._ask(inner[0] if inner else outer[0], "an episode is no loop over the loader of prompts")
            return
        self._rollout(inner[0].body)

    def _rollout(self, body: Sequence[ast.stmt]) -> None:
        """One rollout: it is trained once, whatever comes, and nothing leaves it out."""
        self._exits(body, "a rollout")
        trained = [
            node for node in body if not isinstance(node, ast.For | ast.While | ast.If) and _calls(node, _TRAINS)
        ]
        if len(trained) != 1 or sum(_calls(node, _TRAINS) for node in body) != 1:
            self._ask(body[0], "a rollout is not trained once, in each case")
        for loop in self._loops(body):
            if _calls(loop, ("append",)):
                self._exits(loop.body, "the samples of a rollout")
        self._buffer(body)

    def passes(self, train: ast.FunctionDef) -> None:
        outer = [loop for loop in self._loops(train.body) if _calls(loop, ("training_step",))]
        over = ast.unparse(outer[0].iter) if outer and isinstance(outer[0], ast.For) else ""
        if len(outer) != 1 or not _PASSES.fullmatch(over):
            self._ask(outer[0] if outer else train, "a rollout is not passed over max_epochs times")
            return
        self._exits(outer[0].body, "a pass")
        inner = [loop for loop in self._loops(outer[0].body) if _calls(loop, ("training_step",))]
        if len(inner) != 1 or _calls(outer[0], ("training_step",)) != 1:
            self._ask(outer[0], "a micro-batch is not trained once in a pass")
            return
        self._exits(inner[0].body, "a micro-batch")
        loaders = [
            node for node in ast.walk(train) if isinstance(node, ast.Call) and ast.unparse(node.func) == "DataLoader"
        ]
        for loader in loaders:
            given = {word.arg: ast.unparse(word.value) for word in loader.keywords}
            if given.get("drop_last") != "True" or given.get("batch_size") != "self.replay_buffer.sample_batch_size":
                self._ask(loader, "the buffer's loader is another one")
        if not loaders:
            self._ask(train, "no loader is made of the buffer")
        self._buffer(train.body)

    # Statements.

    def _flat(self, body: Iterable[ast.stmt]) -> Iterator[tuple[ast.stmt, str]]:
        """The statements that the launch may come to, outside of loops, each with the innermost condition that is not known."""
        for node in body:
            yield node, ""
            if isinstance(node, ast.If):
                holds = value_of(node.test, self._values)
                taken = [node.body, node.orelse] if holds is UNKNOWN else [node.body if holds else node.orelse]
                test = ast.unparse(node.test) if holds is UNKNOWN or _FILTERING in ast.unparse(node.test) else ""
                for branch in taken:
                    yield from (
                        (inner, test if _FILTERING in test else under or test) for inner, under in self._flat(branch)
                    )
            elif isinstance(node, ast.With):
                yield from self._flat(node.body)
            elif isinstance(node, ast.Try):
                yield from self._flat((*node.body, *node.orelse, *node.finalbody))

    def _loops(self, body: Iterable[ast.stmt]) -> list[ast.For | ast.While]:
        return [node for node, _ in self._flat(body) if isinstance(node, ast.For | ast.While)]

    def _exits(self, body: Iterable[ast.stmt], where: str) -> None:
        for node, under in self._flat(body):
            if isinstance(node, ast.Break | ast.Continue | ast.Return) and not (
                under in _EXHAUSTED or _FILTERING in under
            ):
                self._ask(node, f"{ast.unparse(node)} within {where}" + (f", if {under}" if under else ""))

    def _buffer(self, body: Iterable[ast.stmt]) -> None:
        for node in (inner for statement in body for inner in ast.walk(statement)):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
                holder = ast.unparse(node.func.value)
                if holder.endswith("replay_buffer") and node.func.attr not in _OF_BUFFER:
                    self._ask(node, f"the buffer's {node.func.attr} may leave samples out")

    def _ask(self, node: ast.AST, says: str) -> None:
        self.unknown.append(Line(says, self._source.at(getattr(node, "lineno", 1))))


def _calls(node: ast.AST, names: Sequence[str]) -> int:
    """How often methods of these names are called in a node."""
    calls = (inner for inner in ast.walk(node) if isinstance(inner, ast.Call))
    return sum(isinstance(call.func, ast.Attribute) and call.func.attr in names for call in calls)


def _draws(loop: ast.For | ast.While) -> bool:
    """Whether a loop goes over the prompts: the loader itself, or until nothing is left of it."""
    if isinstance(loop, ast.For):
        return bool(re.fullmatch(r"(?:enumerate\()?self\.prompts_dataloader\)?", ast.unparse(loop.iter)))
    return ast.unparse(loop.test) == "True" and bool(_calls(loop, ("generate_samples",)))
