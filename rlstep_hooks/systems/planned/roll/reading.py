"""What a ROLL launch says between its settings: kinds of environments, filters, masks, devices; functions that expressions call."""

from __future__ import annotations

import ast
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rlstep_hooks.systems.engine.request import Request


SCRIPTS = ("start_rlvr_pipeline.py", "start_rlvr_vl_pipeline.py", "start_agentic_pipeline.py")
"""The programs of ROLL whose pipelines were read. Others, such as `start_rlvr_vlmath_pipeline.py` of older ones, end in another way."""


def _named(launch: Request, ending: str) -> list[str]:
    """The values that the user gave to settings whose names end with this text."""
    settings = launch.settings
    return [str(each.value) for each in (*settings.used, *settings.unused) if each.name.endswith(ending)]


def turn_by_turn(launch: Request) -> bool:
    """Whether each turn of a trajectory is a sample of its own."""
    return any("step" in name.rpartition(".")[2].lower() for name in _named(launch, "env_manager_cls"))


def filters(launch: Request) -> bool:
    """Whether prompts are filtered by how their samples score."""
    return any(name != "no_filter" for name in _named(launch, "query_filter_config.type"))


def masks(launch: Request) -> bool:
    """Whether tokens are masked out of the loss because engine and trainer differ too much on them."""
    filters = launch.settings.value("train_infer_correction.filters")
    return isinstance(filters, list) and any(isinstance(each, dict) and each.get("enabled") for each in filters)


def devices(mapping: str | None) -> int | None:
    """Devices of a `device_mapping`, a list or Python text such as "list(range(0,8)) + [9]"; None for anything else."""
    try:
        return _length(ast.parse((mapping or "").strip(), mode="eval").body)
    except (SyntaxError, ValueError, TypeError, OverflowError, RecursionError):
        return None


def _length(node: ast.expr) -> int:
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
        return _length(node.left) + _length(node.right)
    if isinstance(node, ast.List | ast.Tuple):
        return len(node.elts)
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and not node.keywords:
        if node.func.id == "list" and len(node.args) == 1:
            return _length(node.args[0])
        if node.func.id == "range":
            return len(range(*(int(ast.literal_eval(argument)) for argument in node.args)))
    raise ValueError("no list")


def adjusted(samples: int, unit: int, mode: str) -> int:
    """Samples of a rollout after `adjust_batch` of the agentic pipeline, which copies or removes samples until all sizes divide them.

    Args:
        samples: Samples before.
        unit: A number that has to divide them.
        mode: `batch_adjust_mode`.
    """
    rest = samples % unit
    if rest == 0:
        return samples
    if mode == "copy" or samples < unit or (mode == "auto" and 2 * rest >= samples):
        return samples + unit - rest
    return unit if mode == "random_sample" else samples - rest


def other_pipeline(launch: Request) -> str:
    """The pipeline that a launch runs, where it is neither that of RLVR nor that of agents: by its script, or by what only it has."""
    script = launch.command.program.name.rpartition("/")[2]
    if script.startswith("start_") and script.endswith("pipeline.py"):
        return "" if script in SCRIPTS else script
    if launch.settings.is_given("student_train.training_args.per_device_train_batch_size"):
        return "on-policy distillation (student_train)"
    return "DPO (chosen_key)" if launch.settings.is_given("chosen_key") else ""
