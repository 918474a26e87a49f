"""The trainer of verl's recipe that samples the next rollout while it trains this one, in the copies that have it in recipe/.

Read in verl 0.5 to 0.7.0.dev, recipe/one_step_off_policy/ray_trainer.py: `fit` waits for a batch that `_async_gen_next_batch` has
begun, until none comes, where other trainers have a loop over epochs and one over batches. It is read as those two loops.
"""

from __future__ import annotations

import ast
import os.path
from copy import deepcopy
from typing import TYPE_CHECKING

from rlstep_hooks.launch.checkout import Line, dotted
from rlstep_hooks.launch.python_source import name_of
from rlstep_hooks.systems.verl.checkout.inherited import loader_of
from rlstep_hooks.systems.verl.checkout.run import Run, own_shares
from rlstep_hooks.systems.verl.checkout.trainer import Trainer
from rlstep_hooks.systems.verl.settings import ROLLOUT

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from rlstep_hooks.launch.checkout import Function, Source
    from rlstep_hooks.systems.verl.checkout.program import Program

PROGRAM = "one_step_off_policy/main_ppo.py"
_TRAINER = "OneStepOffRayTrainer"
_BEGINS = "_async_gen_next_batch"
_ITERATES = "_create_continuous_iterator"
_ROWS = (
    "for epoch in range(self.config.trainer.total_epochs):\n"
    "    iterator = iter(self.train_dataloader)\n"
    "    for batch_dict in iterator:\n"
    "        yield (epoch, batch_dict)"
)
_BEGINNING = frozenset(
    (
        "next", "print", "from_single_dict", "pop", "append", "repeat", "sync_rollout_weights", "async_generate_sequences",
        "GenerationBatchFuture", "union", "remote", "keys", "get", "_get_gen_batch", "generate_sequences_sync", "update",
        "sleep_replicas", "wake_up_replicas",
    )
)  # fmt: skip
"""What `_async_gen_next_batch` calls in the releases: nothing that leaves rows out."""
_OF_POLICY = ("ActorRolloutRefWorker", "AsyncActorRolloutRefWorker")
_SYNCS = frozenset(
    (
        "_get_actor_params",
        "_get_actor_params_generator",
        "create_weight_sync_group",
        "get_actor_weights_info",
        "set_actor_weights_info",
        "sync_rollout_weights",
        "update_weights",
    )
)
"""Methods of the recipe's workers that train the policy: they send weights, and nothing else is theirs."""


def run_one_step_off(program: Program, values: Mapping[str, object]) -> Run | None:
    """What the recipe's program runs; None where its trainer is not here, or has another form.

    Args:
        program: The program.
        values: The settings that are known.
    """
    folder = os.path.dirname(program.name)
    source = program.checkout.source(f"{folder}/ray_trainer.py") if program.name.endswith(PROGRAM) else None
    fits = source.methods("fit", of=_TRAINER) if source is not None else []
    fit = _as_epochs(fits[0], source) if source is not None and fits else None
    if source is None or fit is None:
        return None
    loader = loader_of(Trainer(_TRAINER, f"{folder}/ray_trainer.py"), program.source_at) or (source, _TRAINER)
    parts = (*_of_workers(program, folder), *own_shares(program, values))
    return Run(source, _TRAINER, fit, loader, is_common=False, own_parts=parts)


def _as_epochs(fit: Function, source: Source) -> Function | None:
    """The method with a loop over epochs and one over batches in the place of that which waits for batches."""
    fit = deepcopy(fit)
    loops = [node for node in fit.body if isinstance(node, ast.While)]
    name = _awaited(loops[0].test) if len(loops) == 1 else ""
    if not name or not _is_made(fit, name) or not _iterates(source) or not _begins(source):
        return None
    loop = loops[0]
    if not any(isinstance(node, ast.Return) for node in ast.walk(loop)):
        return None  # in its last rollout it begins no other, and would wait for the same one again
    _Taken(name).generic_visit(loop)
    over = ast.parse(
        "for epoch in range(self.config.trainer.total_epochs):\n for batch_dict in self.train_dataloader:\n  pass"
    )
    epochs = over.body[0]
    if not isinstance(epochs, ast.For) or not isinstance(epochs.body[0], ast.For):
        return None
    for node in ast.walk(epochs):
        if hasattr(node, "lineno"):
            ast.copy_location(node, loop)
    epochs.body[0].body = loop.body
    fit.body[fit.body.index(loop)] = epochs
    return fit


def _awaited(test: ast.expr) -> str:
    """The name that a loop waits for: `while future is not None`."""
    match test:
        case ast.Compare(left=ast.Name(id=name), ops=[ast.IsNot()], comparators=[ast.Constant(value=None)]):
            return name
    return ""


def _is_made(fit: Function, name: str) -> bool:
    """Whether the name is only ever what the trainer's own method begins."""
    given = [
        node.value for node in ast.walk(fit) if isinstance(node, ast.Assign) and name in map(name_of, node.targets)
    ]
    return bool(given) and all(_is_begun(value) for value in given)


def _is_begun(value: ast.expr) -> bool:
    return isinstance(value, ast.Call) and ast.unparse(value.func) == f"self.{_BEGINS}"


def _iterates(source: Source) -> bool:
    """Whether the rows are those of all passes over the loader, as the releases have it."""
    return [_without_text(each) for each in source.methods(_ITERATES, of=_TRAINER)] == [_ROWS]


def _without_text(method: Function) -> str:
    body = method.body[1:] if ast.get_docstring(method) is not None else method.body
    return "\n".join(map(ast.unparse, body))


def _begins(source: Source) -> bool:
    """Whether what begins a rollout takes one batch, and repeats its prompts `rollout.n` times at most."""
    methods = source.methods(_BEGINS, of=_TRAINER)
    calls = [node for method in methods for node in ast.walk(method) if isinstance(node, ast.Call)]
    names = [name_of(call.func).rpartition(".")[2] for call in calls]
    repeated = {
        dotted(word.value)
        for call, name in zip(calls, names, strict=True)
        if name == "repeat"
        for word in call.keywords
        if word.arg == "repeat_times"
    }
    return (
        len(methods) == 1 and names.count("next") == 1 and _BEGINNING.issuperset(names) and repeated <= {f"{ROLLOUT}.n"}
    )


class _Taken(ast.NodeTransformer):
    """Writes the batch that a rollout waits for as one of the loader, and leaves out where the next is begun."""

    def __init__(self, name: str) -> None:
        self._name = name

    def visit_Assign(self, node: ast.Assign) -> ast.stmt | list[ast.stmt]:
        if _is_begun(node.value):
            return ast.copy_location(ast.Pass(), node)
        if ast.unparse(node.value) != f"{self._name}.get()" or not isinstance(node.targets[0], ast.Tuple):
            return node
        made = ast.parse(
            "batch = DataProto.from_single_dict(batch_dict)\n"
            "gen_batch_output = self.actor_rollout_wg.generate_sequences(batch)"
        ).body
        for statement in made:
            for inner in ast.walk(statement):
                if hasattr(inner, "lineno"):
                    ast.copy_location(inner, node)
        return made


def _of_workers(program: Program, folder: str) -> Iterator[Line]:
    """What the recipe's workers that train the policy have beside the sending of weights."""
    for name in ("fsdp_workers.py", "megatron_workers.py"):
        source = program.checkout.source(f"{folder}/{name}")
        tree = source.tree() if source is not None else None
        for node in tree.body if source is not None and tree is not None else ():
            if source is None or not isinstance(node, ast.ClassDef) or node.name not in _OF_POLICY:
                continue
            for inner in node.body:
                if not isinstance(inner, ast.FunctionDef | ast.AsyncFunctionDef) or inner.name in _SYNCS:
                    continue
                if inner.name != "__init__" or not _leaves_sizes(inner):
                    yield Line(f"{node.name} has a {inner.name} of its own", source.at(inner.lineno))


def _leaves_sizes(start: Function) -> bool:
    """Whether a start sets nothing of the configuration, in which the sizes are."""
    assigned = (node for node in ast.walk(start) if isinstance(node, ast.Assign | ast.AugAssign | ast.AnnAssign))
    targets = (each for node in assigned for each in (node.targets if isinstance(node, ast.Assign) else [node.target]))
    return not any("config" in ast.unparse(target) for target in targets)
