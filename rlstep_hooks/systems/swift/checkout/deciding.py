"""The code of ms-swift that decides the schedule of GRPO, as a mark, which comments and texts do not change."""

from __future__ import annotations

import ast
from typing import TYPE_CHECKING

from rlstep_hooks.systems.engine.marks import mark_of_lines, plain

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

FILES = (
    "swift/rlhf_trainers/grpo_trainer.py",
    "swift/rlhf_trainers/args_mixin.py",
    "swift/trainers/rlhf_trainer/grpo_trainer.py",
    "swift/trainers/rlhf_arguments.py",
)
"""The trainer and the sizes that it computes: of ms-swift 4, and of ms-swift 3."""
ON_MEGATRON = (*FILES, "swift/megatron/trainers/grpo_trainer.py", "swift/megatron/arguments/megatron_args.py")
"""The trainer and the sizes of a launch on Megatron, whose files no other launch has."""
_MEASURING = "profil"
"""Part of the names of decorators that measure a method and leave it as it is."""

_SAMPLES = (
    "_get_train_sampler",
    "_prepare_inputs",
    "old_policy",
    "_replace_data_iterator",
    "_build_rollout_buffer",
    "get_num_iters_per_step",
)
"""Methods that hand a trainer its prompts and say when a rollout is made."""
_COMPUTED = frozenset(("steps_per_generation", "generation_batch_size", "train_iters", "old_per_token_logps"))
"""Sizes and old log-probs: where these are assigned, and by what."""


def mark_of(texts: Iterable[str]) -> str:
    """The mark of the code in some of the files.

    Args:
        texts: The texts of `FILES` or `ON_MEGATRON`, in their order; empty for a file that is not there.

    Raises:
        SyntaxError: One of them is not Python.
    """
    return mark_of_lines(line for text in texts for line in _deciding(ast.parse(text)))


def _deciding(tree: ast.Module) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef) and node.name in _SAMPLES:
            node.decorator_list = [each for each in node.decorator_list if _MEASURING not in ast.unparse(each)]
            yield plain(node)
        elif isinstance(node, ast.Assign) and _COMPUTED & set(_stored(node.targets)):
            yield ast.unparse(node)


def _stored(targets: Iterable[ast.expr]) -> Iterator[str]:
    """The attributes and keys that an assignment sets; a local variable decides nothing by itself."""
    for target in targets:
        match target:
            case ast.Attribute(attr=name) | ast.Subscript(slice=ast.Constant(value=str(name))):
                yield name
