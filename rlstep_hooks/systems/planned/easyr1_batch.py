"""What is trained in a checkout of EasyR1: whether it is a whole rollout of `rollout.n` samples of each prompt, once, in mini-batches.

Forks change this without a setting of another name: they sample some prompts with another factor, join batches, or train a part.
"""

from __future__ import annotations

import ast
import re
from typing import TYPE_CHECKING

from rlstep_hooks.launch.batches import keeps_whole
from rlstep_hooks.launch.loops import calls

if TYPE_CHECKING:
    from collections.abc import Iterator

    from rlstep_hooks.launch.checkout import Checkout, Function, Source
    from rlstep_hooks.systems.planned.easyr1_trainer import Method, Trainer

_GROUP = "self.config.worker.rollout.n"
_FULL = re.compile(rf"batch\[:(?:self\.config\.data\.)?rollout_batch_size \* {re.escape(_GROUP)}\]")
"""All prompts of a rollout, each with all of its samples: what the filter of a rollout leaves beyond them is not trained."""
_MAKES = "_make_batch_data"
_UPDATES = ("update_actor",)
_PASSES = re.compile(r"^[ \t]*for \w+ in range\(self\.config\.ppo_epochs\)", re.MULTILINE)
_CUTS = re.compile(r"\.split\(self\.config\.global_batch_size_per_device\)")
_LOADER = "trainer/data_loader.py"
"""Where releases that have such a file make the loader of rows; before them, the trainer made it."""
_ROLLOUT = re.compile(r"(?:self\.)?(?:config\.)?(?:data\.)?(?:rollout_batch_size|mini_rollout_batch_size)")
_ESTIMATOR = re.compile(r"^class AdvantageEstimator\(.*?\):\n(.*?)(?=^\S)", re.MULTILINE | re.DOTALL)
_MEMBER = re.compile(r"^[ \t]+(\w+) = [\"'](\w+)[\"']", re.MULTILINE)


_CHOSEN = re.compile(r"self\.config\.algorithm\.adv_estimator == AdvantageEstimator\.(\w+)")
"""What only launches with one estimator come to."""


def read_batch(fit: Method, trainer: Trainer, checkout: Checkout, estimator: str = "") -> list[str]:
    """What is not known of what is trained; empty where it is as in the releases.

    Args:
        fit: The trainer's loop.
        trainer: The trainer.
        checkout: The package.
        estimator: The advantage estimator of the launch; empty where it is not known.
    """
    unknown: list[str] = []
    maker = fit
    if calls(fit.function, (_MAKES,)):
        makes = trainer.method(_MAKES)
        if makes is None:
            return [f"self.{_MAKES} was not found ({fit.source.shown})"]
        maker = makes
        unknown += _returned(maker.function, maker.source)
    unknown += _repeated(maker.function, maker.source)
    trains = calls(fit.function, _UPDATES)
    loops = [node for node in ast.walk(fit.function) if isinstance(node, ast.For | ast.While) and calls(node, _UPDATES)]
    if trains != 1 or len(loops) > (2 if isinstance(loops[0], ast.For) else 1):
        unknown.append(f"a rollout is not trained once ({fit.source.at(fit.function.lineno)})")
    unknown += _parts(fit.function, fit.source, _of_others(fit.function, checkout, estimator))
    unknown += _loaded(checkout)
    return unknown + _minibatches(checkout)


def _loaded(checkout: Checkout) -> Iterator[str]:
    """What is not known of the loader of the rows that are trained: a rollout takes as many rows as it has prompts.

    The run has as many steps as the loader has batches, and a fork may make several prompts of a row.
    """
    source = checkout.source(_LOADER)
    tree = source.tree() if source is not None else None
    if source is None or tree is None:
        return
    sizes = {
        target.id: value
        for node in ast.walk(tree)
        if isinstance(node, ast.Assign) and _ROLLOUT.fullmatch(value := ast.unparse(node.value))
        for target in _targets(node.targets[0])
    }
    for node in ast.walk(tree):
        if not isinstance(node, ast.Call) or not ast.unparse(node.func).endswith("DataLoader"):
            continue
        given = {word.arg: ast.unparse(word.value) for word in node.keywords}
        rows, size = given.get("dataset", ""), given.get("batch_size", "")
        if "train" in rows and size not in sizes and not _ROLLOUT.fullmatch(size):
            yield f"a loader of {rows} takes {size or 'a number of'} rows at a time ({source.at(node.lineno)})"


def estimators(checkout: Checkout) -> tuple[str, ...]:
    """The advantage estimators that the checkout knows; empty where they are not a list of names."""
    return tuple(value for value, _ in _members(checkout))


def _members(checkout: Checkout) -> tuple[tuple[str, str], ...]:
    """The values of the checkout's list of estimators, each with its name there."""
    for name in ("trainer/core_algos.py", "trainer/ray_trainer.py"):
        source = checkout.source(name)
        listed = _ESTIMATOR.search(source.text) if source is not None else None
        if listed is not None:
            return tuple((value, member) for member, value in _MEMBER.findall(listed[1]))
    return ()


def _returned(maker: Function, source: Source) -> Iterator[str]:
    """Whatever is given back is a whole rollout."""
    for node in ast.walk(maker):
        if isinstance(node, ast.Return) and (node.value is None or not _FULL.fullmatch(ast.unparse(node.value))):
            said = ast.unparse(node.value)[:120] if node.value is not None else "nothing"
            yield f"a rollout is `{said}` ({source.at(node.lineno)})"


def _repeated(maker: Function, source: Source) -> Iterator[str]:
    found = False
    for node in ast.walk(maker):
        if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Attribute) or node.func.attr != "repeat":
            continue
        times = next((word.value for word in node.keywords if word.arg == "repeat_times"), None)
        if times is None:
            continue  # numpy's
        found = True
        if ast.unparse(times) != _GROUP:
            yield f"prompts are repeated {ast.unparse(times)} times ({source.at(node.lineno)})"
    if not found:
        yield f"nothing repeats a prompt worker.rollout.n times ({source.at(maker.lineno)})"


def _of_others(fit: Function, checkout: Checkout, estimator: str) -> frozenset[ast.AST]:
    """The statements that only launches with another advantage estimator come to."""
    names = {name: value for value, name in _members(checkout)}
    found: set[ast.AST] = set()
    for node in ast.walk(fit):
        asked = _CHOSEN.fullmatch(ast.unparse(node.test)) if isinstance(node, ast.If) else None
        if isinstance(node, ast.If) and asked is not None and estimator and names.get(asked[1], estimator) != estimator:
            found.update(inner for statement in node.body for inner in ast.walk(statement))
    return frozenset(found)


def _parts(fit: Function, source: Source, aside: frozenset[ast.AST]) -> Iterator[str]:
    """Assignments within the loop that may leave a part of the trained batch out, or add to it, but for those that are set aside."""
    updates = [node for node in ast.walk(fit) if isinstance(node, ast.Call) and calls(node, _UPDATES)]
    trained = {argument.id for call in updates for argument in call.args if isinstance(argument, ast.Name)}
    for node in ast.walk(fit):
        if not isinstance(node, ast.Assign) or node in aside:
            continue
        names = {inner.id for target in node.targets for inner in _targets(target)}
        if names & trained and not keeps_whole(node.value, (_MAKES,)):
            yield f"`{ast.unparse(node)[:60]}` may train a part of a rollout ({source.at(node.lineno)})"


def _targets(target: ast.expr) -> Iterator[ast.Name]:
    for part in target.elts if isinstance(target, ast.Tuple) else [target]:
        if isinstance(part, ast.Name):
            yield part


def _minibatches(checkout: Checkout) -> list[str]:
    """How the policy's worker cuts a rollout: `ppo_epochs` passes over mini-batches of the global batch size."""
    actor = checkout.source("workers/actor/dp_actor.py")
    if actor is None:
        return ["the policy's worker was not found (workers/actor/dp_actor.py)"]
    if not _PASSES.search(actor.text):
        return [f"a rollout is not passed over ppo_epochs times ({actor.shown})"]
    if not _CUTS.search(actor.text):
        return [f"mini-batches are not of the global batch size ({actor.shown})"]
    return []
