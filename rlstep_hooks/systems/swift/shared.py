"""What GRPO of ms-swift reads alike on transformers' Trainer and on Megatron."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rlstep_hooks.launch import processes
from rlstep_hooks.systems.engine.declaration import (
    Demand,
    Note,
    count,
    flag,
    number,
    text,
)
from rlstep_hooks.systems.engine.parts import Limited

if TYPE_CHECKING:
    from collections.abc import Callable

    from rlstep_hooks.launch.command import Command
    from rlstep_hooks.systems.engine.request import Request

BUILT = "when the configuration is built"
SETTINGS = {
    "rlhf_type": text("dpo"),
    "sequence_parallel_size": count(1),
    "num_generations": count(8),
    "num_iterations": count(1),
    "steps_per_generation": count(None),
    "generation_batch_size": count(None),
    "max_epochs": text(),
    "beta": number(0.04),
    "dynamic_sample": flag(False),
    "async_generate": flag(False),
    "split_dataset_ratio": number(None),
    "val_dataset": text(),
    "streaming": flag(False),
    "interleave_prob": text(),
    "train.gpus": text(),
}
# 4.0.4 has train_type for scripts of ms-swift 3 (swift/arguments/base_args/base_args.py, swift/megatron/arguments), 4.1.0 does not, and
# 3.12.6 does not have tuner_type; what no argument takes ends the run (swift/pipelines/base.py `_parse_args`).
LIMITED = {
    name: Limited(
        words=f"ValueError: remaining_argv: ['--{name}', ...]",
        remedy=f"write --{instead}",
        since=since,
        until=until,
        newest=newest,
        unless="ignore_args_error",
    )
    for name, instead, since, until, newest in (
        ("train_type", "tuner_type", "", "4.1.0", "4.0.4"),
        ("tuner_type", "train_type", "4.0", "", ""),
    )
}
# swift/arguments/base_args/data_args.py 4.6.0: the default was 0.01 before 3.6, and a validation set of its own makes it 0.
LEFT_FOR_VALIDATION = "(0 if release >= (3, 6) else 1 / 100) if split_dataset_ratio is None else split_dataset_ratio"
# A set for validation is taken out of the sampled rows; a stream has no length, and interleaved sets end with one of them.
ROWS = (
    "rows if known(rows) or streaming or given(interleave_prob) or (left_for_validation > 0 and not given(val_dataset)) "
    "or sampled_rows(launch) is None else sampled_rows(launch)"
)
IS_READ = (
    Demand(
        "given(rlhf_type) or not no_program",
        "this file does not say rlhf_type, without which `swift rlhf` trains by DPO: give the command that reads it, "
        "such as `swift rlhf --rlhf_type grpo --config FILE`",
    ),
    Demand("rlhf_type == 'grpo'", "rlhf_type = {rlhf_type}: only grpo is read", about="rlhf_type"),
    Demand("not given(train.gpus)", "a configuration for Ray (train.gpus) is not read", about="train.gpus"),
    Demand("sequence_parallel_size == 1", "sequence_parallel_size above 1 is not read", about="sequence_parallel_size"),
)
SAMPLING_NOTES = (
    Note("assumes", "max_epochs may end the run before this", "given(max_epochs)"),
    Note(
        "assumes",
        "dynamic_sample generates more prompts than these, as many as are trained, and repeats if they run out",
        "dynamic_sample",
    ),
    Note("assumes", "async_generate: a rollout is sampled while the one before it is trained", "async_generate"),
    Note(
        "assumes",
        "the rows are those that are left for training: split_dataset_ratio = {left_for_validation} takes that share of the set for "
        "validation, because no val_dataset is given",
        "left_for_validation > 0 and not given(val_dataset) and known(rows)",
    ),
)


def started_processes(launch: Request) -> int:
    """NPROC_PER_NODE x NNODES, as swift/cli/main.py starts torchrun; one process where neither is set."""
    if launch.command.processes is not None:
        return launch.world_size()
    return launch.world_size(processes.of_environment(launch.command, without=1))


def sampled_rows(launch: Request) -> int | None:
    """The rows of data sets that are all named with a number, as `set#1000`; None where one is not.

    4.6.0 swift/dataset/dataset_syntax.py:69, dataset_meta.py:149-153 `post_process`: so many rows are drawn, again from the first
    where the set has fewer. 3.9.3 swift/llm/dataset does the same.
    """
    counts = [name.rpartition("#")[2] for name in launch.settings.files("dataset") if "#" in name]
    if (
        not counts
        or len(counts) < len(launch.settings.files("dataset"))
        or not all(each.isdecimal() for each in counts)
    ):
        return None
    return sum(map(int, counts))


def runs_on_megatron(command: Command, is_given: Callable[[str], bool]) -> bool:
    """Whether a launch trains on Megatron.

    Args:
        command: The launch.
        is_given: Whether it sets a name.
    """
    if command.program.kind == "config":  # the names that Megatron has for its batches
        return is_given("micro_batch_size") or is_given("global_batch_size")
    return command.program.name.startswith("megatron") or "_megatron" in command.program.name
