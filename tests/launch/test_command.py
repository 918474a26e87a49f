"""Wrappers are removed, and the processes that launchers start are counted."""

from __future__ import annotations

import shlex

import pytest

from rlstep_hooks.launch.command import Command, Program
from rlstep_hooks.launch.shell.script import read_text
from rlstep_hooks.launch.text import LaunchError, Token
from rlstep_hooks.launch.wrappers import unwrap


def command(text: str) -> Command:
    tokens = tuple(Token(word) for word in shlex.split(text))
    (found,) = unwrap(tokens, {}, shell=lambda token: read_text(token.text, "text"))
    return found


MODULE = Program("module", "verl.trainer.main_ppo")
SCRIPT = Program("script", "train.py")


@pytest.mark.parametrize(
    ("text", "program", "processes"),
    [
        ("python3 -m verl.trainer.main_ppo a=1", MODULE, None),
        ("PYTHONUNBUFFERED=1 HYDRA_FULL_ERROR=1 python3 -u -m verl.trainer.main_ppo a=1", MODULE, None),
        ("env -u X A=1 nohup /usr/bin/python3.11 -m verl.trainer.main_ppo a=1", MODULE, None),
        ("ray job submit --address=http://h:8265 --runtime-env-json='{\"a\": 1}' -- python3 -m verl.trainer.main_ppo a=1",
        MODULE, None),
        ("srun --nodes=2 -N 2 --overlap uv run --isolated --extra vllm -m verl.trainer.main_ppo a=1", MODULE, None),
        ("timeout 3600 python -m verl.trainer.main_ppo a=1", MODULE, None),
        ("conda run -n env --no-capture-output python train.py a=1", SCRIPT, None),
        ("bash -c 'python train.py a=1'", SCRIPT, None),
        ("./train.py a=1", Program("script", "./train.py"), None),
        ("accelerate launch --config_file zero3.yaml --num_processes 7 train.py a=1", SCRIPT, 7),
        ("accelerate launch --num-processes=7 --mixed-precision bf16 -m verl.trainer.main_ppo a=1", MODULE, 7),
        ("accelerate launch --multi_gpu train.py a=1", SCRIPT, "machine"),
        ("torchrun --nproc_per_node=8 --nnodes 2 --rdzv-backend c10d train.py a=1", SCRIPT, 16),
        ("torchrun --nproc-per-node gpu train.py a=1", SCRIPT, "machine"),
        ("torchrun train.py a=1", SCRIPT, 1),
        ("python -m torch.distributed.run --nproc_per_node 4 -m verl.trainer.main_ppo a=1", MODULE, 4),
        ("python -m torch.distributed.launch --nproc_per_node 4 train.py a=1", SCRIPT, 4),
        ("python -m accelerate.commands.launch --num_processes 2 train.py a=1", SCRIPT, 2),
        ("deepspeed --num_gpus 4 --num_nodes 2 train.py a=1", SCRIPT, 8),
        ("deepspeed --include localhost:0,1,2 --master_port 29500 train.py a=1", SCRIPT, 3),
        ("deepspeed --module verl.trainer.main_ppo a=1", MODULE, "machine"),
        ("tune run --nproc_per_node 4 ppo_full a=1", Program("executable", "tune run ppo_full"), 4),
        ("trl grpo a=1", Program("executable", "trl grpo"), None),
        ("swift rlhf a=1", Program("executable", "swift rlhf"), None),
    ],
)  # fmt: skip
def test_wrappers(text: str, program: Program, processes: int | str | None) -> None:
    found = command(text)
    assert found.program == program
    assert [token.text for token in found.arguments] == ["a=1"]
    if processes is None:
        assert found.processes is None
    else:
        assert found.processes is not None
        assert found.processes.count == (None if processes == "machine" else processes)


def test_the_environment_in_front_is_kept() -> None:
    assert command("A=1 env B=2 python x.py").environment["B"].text == "2"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("ray job submit python train.py", "needs ` -- `"),
        ("accelerate launch --num_processes many train.py", "not a whole number"),
        ("torchrun --nproc_per_node -2 train.py", "at least 1"),
    ],
)
def test_wrappers_that_cannot_be_read(text: str, message: str) -> None:
    with pytest.raises(LaunchError, match=message):
        command(text)


@pytest.mark.parametrize(
    ("pattern", "matches"),
    [
        ("module:verl.*", False),
        ("script:train_ppo_ray.py", True),
        ("script:cli/train_ppo_ray.py", True),
        ("script:ppo_ray.py", False),
        ("script:*.py", True),
    ],
)
def test_patterns_of_programs(pattern: str, matches: bool) -> None:
    assert Program("script", "openrlhf/cli/train_ppo_ray.py").matches(pattern) is matches
