"""CleanRL: golden case, the extra mini-batch, defaults of scripts."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from rlstep_hooks.launch.text import LaunchError
from rlstep_hooks.planning.refusal import PlanError
from tests.golden.reading import planned, read

if TYPE_CHECKING:
    from pathlib import Path


LOOPS = """
if True:
    for iteration in range(1, args.num_iterations + 1):
        for epoch in range(args.update_epochs):
            ratio = logratio.exp()
"""


def test_default() -> None:
    """Golden: cleanrl/ppo.py."""
    reading = read("python cleanrl/ppo.py")
    schedule = reading.schedule
    assert (schedule.samples_per_rollout, schedule.samples_per_update) == (512, 128)
    assert schedule.updates_per_rollout == 16
    assert (schedule.rollouts, schedule.updates) == (976, 15616)
    assert schedule.remainder == "error"
    assert any("last 288 of 500000" in note.text for note in reading.notes)
    assert reading.facts["lr_constant"] is False


@pytest.mark.parametrize(
    ("script", "samples", "updates", "rollouts"),
    [
        ("ppo_atari", 1024, 16, 9765),
        ("ppo_continuous_action", 2048, 320, 488),
        ("ppo_procgen", 16384, 24, 1525),
        ("ppo_rnd_envpool", 16384, 16, 122070),
        ("ppo_pettingzoo_ma_atari", 2048, 16, 9765),
    ],
)
def test_defaults_of_scripts(script: str, samples: int, updates: int, rollouts: int) -> None:
    schedule = read(f"python cleanrl/{script}.py --seed 1").schedule
    assert (schedule.samples_per_rollout, schedule.updates_per_rollout, schedule.rollouts) == (
        samples,
        updates,
        rollouts,
    )


def test_floor_division_makes_an_extra_minibatch() -> None:
    reading = read("python cleanrl/ppo.py --num-envs 4 --num-steps 128 --num-minibatches 6")
    assert reading.schedule.minibatches == (85, 85, 85, 85, 85, 85, 2)
    assert reading.schedule.updates_per_rollout == 28
    assert reading.schedule.remainder == "keep"
    assert any("7 updates a pass, not num_minibatches = 6" in note.text for note in reading.notes)
    even = read("python cleanrl/ppo.py --num-envs 4 --num-steps 128 --num-minibatches 8")
    assert even.schedule.minibatches == (64,) * 8
    assert not any(note.kind == "grows" for note in even.notes)


def test_many_more_minibatches_than_asked_for() -> None:
    plan = planned("python cleanrl/ppo.py --num-envs 1 --num-steps 30 --num-minibatches 16 --no-norm-adv")
    assert plan.schedule is not None
    assert plan.schedule.minibatches == (1,) * 30
    assert "RLS113" in [finding.code for finding in plan.findings]


def test_a_single_sample_breaks_the_policy() -> None:
    with pytest.raises(PlanError, match="becomes nan") as caught:
        read("python cleanrl/ppo.py --num-envs 4 --num-steps 128 --num-minibatches 7")  # 512 = 7 x 73 + 1
    assert caught.value.fix == "num_minibatches = 4 or 8"
    assert read("python cleanrl/ppo.py --num-minibatches 7 --no-norm-adv").schedule.minibatches[-1] == 1
    assert read("python cleanrl/ppo.py --num-minibatches 7 --norm-adv False").schedule.minibatches[-1] == 1


def test_more_minibatches_than_samples() -> None:
    with pytest.raises(PlanError, match="must not be zero"):
        read("python cleanrl/ppo.py --num-envs 1 --num-steps 4 --num-minibatches 8")


def test_rollouts_on_both_sides() -> None:
    launch = "python cleanrl/ppo.py --total-timesteps "
    assert [read(launch + str(steps)).schedule.rollouts for steps in (1023, 1024, 1025)] == [1, 2, 2]
    short = read(launch + "500")
    assert (short.schedule.rollouts, short.schedule.updates) == (0, 0)
    assert any("nothing is trained" in note.text for note in short.notes)


def test_target_kl() -> None:
    reading = read("python cleanrl/ppo.py --target-kl 0.01")
    assert reading.schedule.updates_bound == "upper"
    assert read("python cleanrl/ppo.py").schedule.updates_bound == "exact"
    assert read("python cleanrl/ppo.py --target-kl None").schedule.updates_bound == "exact"


def test_lstm_takes_whole_environments() -> None:
    assert read("python cleanrl/ppo_atari_lstm.py").schedule.minibatches == (256,) * 4
    with pytest.raises(PlanError, match=r"num_envs % args\.num_minibatches"):
        read("python cleanrl/ppo_atari_lstm.py --num-minibatches 3")


def test_several_gpus_share_the_environments() -> None:
    schedule = read(
        "torchrun --standalone --nnodes=1 --nproc_per_node=2 cleanrl/ppo_atari_multigpu.py --local-num-envs 4"
    ).schedule
    assert (schedule.world_size, schedule.samples_per_rollout, schedule.samples_per_update) == (2, 1024, 256)
    assert schedule.rollouts == 9765


def test_a_local_copy_has_its_own_defaults(tmp_path: Path) -> None:
    file = tmp_path / "ppo_mine.py"
    file.write_text(
        "@dataclass\nclass Args:\n    total_timesteps: int = int(1e5)\n    num_envs: int = 2\n    num_steps: int = 100\n"
        "    num_minibatches: int = 5\n    update_epochs: int = 3\n    anneal_lr: bool = False\n" + LOOPS
    )
    schedule = read(file).schedule
    assert (schedule.samples_per_rollout, schedule.updates_per_rollout, schedule.rollouts) == (200, 15, 500)
    assert read(f"python {file} --num-envs 4").schedule.samples_per_rollout == 400


def test_ppo_py_is_known_by_its_flags_only() -> None:
    assert read("python ppo.py --num-minibatches 8").schedule.updates_per_rollout == 32
    with pytest.raises(LaunchError, match="none of these starts a known trainer"):
        read("python ppo.py")


def test_unknown_script() -> None:
    with pytest.raises(LaunchError, match="not one of CleanRL's PPO scripts"):
        read("python cleanrl/ppo_new.py")


def test_a_size_that_the_script_fills_in(tmp_path: Path) -> None:
    """ppo_atari_multigpu.py: `num_envs: int = 0` beside `local_num_envs: int = 8`."""
    file = tmp_path / "ppo_mine.py"
    file.write_text(
        "class Args:\n    total_timesteps: int = 10000\n    local_num_envs: int = 8\n    num_steps: int = 100\n"
        "    num_minibatches: int = 4\n    update_epochs: int = 3\n    num_envs: int = 0\n    anneal_lr: bool = False\n"
        + LOOPS
    )
    assert read(file).schedule.prompts_per_rollout == 8


def test_a_rate_that_falls_to_a_floor_has_no_horizon_in_rollouts(tmp_path: Path) -> None:
    """ppo_trxl.py: `anneal_steps` timesteps, whatever `total_timesteps` is."""
    file = tmp_path / "ppo_trxl.py"
    file.write_text(
        "class Args:\n    total_timesteps: int = 10000\n    num_envs: int = 4\n    num_steps: int = 100\n    num_minibatches: int = 4\n"
        "    update_epochs: int = 3\n    anneal_steps: int = 32 * 100\n" + LOOPS
    )
    schedule = read(file).schedule
    assert (schedule.rollouts, schedule.lr_ticks, schedule.lr_horizon) == (25, 25, None)


def test_phasic_policy_gradient_is_not_read() -> None:
    with pytest.raises(LaunchError, match="two phases"):
        read("python cleanrl/ppg_procgen.py --num-minibatches 8 --num-steps 256 --update-epochs 1 --num-envs 64")


@pytest.mark.parametrize(
    ("written", "other", "said"),
    [
        (
            "for iteration in range(1, args.num_iterations + 1)",
            "while global_step < args.total_timesteps",
            "its iterations",
        ),
        ("for epoch in range(args.update_epochs)", "if True", "update_epochs"),
    ],
)
def test_a_file_with_cleanrls_settings_and_another_loop_is_asked_about(
    tmp_path: Path, written: str, other: str, said: str
) -> None:
    file = tmp_path / "grpo.py"
    settings = "num_envs: int = 4\n    num_steps: int = 8\n    total_timesteps: int = 800\n    num_minibatches: int = 4"
    text = f"class Args:\n    {settings}\n    update_epochs: int = 4\n{LOOPS}"
    file.write_text(text)
    assert read(file).schedule.rollouts == 25
    file.write_text(text.replace(written, other))
    with pytest.raises(LaunchError, match=f"but not its loop over {said}.*--version"):
        read(file)


PARSER = """
import argparse
def parse_args():
    parser = argparse.ArgumentParser()
    parser.add_argument("--total-timesteps", type=int, default={total})
    parser.add_argument("--num-envs", type=int, default={envs})
    parser.add_argument("--num-steps", type=int, default=128)
    parser.add_argument("--num-minibatches", type=int, default=4)
    parser.add_argument("--update-epochs", type=int, default=8)
    parser.add_argument("--target-kl", type=float, default=None)
    parser.add_argument("--test", type=lambda x: bool(strtobool(x)), default=False, nargs="?", const=True)
    args = parser.parse_args()
    args.batch_size = int(args.num_envs * args.num_steps)
    args.minibatch_size = int(args.batch_size // args.num_minibatches)
    return args
args = parse_args()
{after}
num_updates = args.total_timesteps // args.batch_size
for update in tqdm(range(1, num_updates + 1)):
    for epoch in range(args.update_epochs):
        ratio = logratio.exp()
"""


def of_parser(folder: Path, name: str, *, total: str = "1000000", envs: str = "10", after: str = "") -> Path:
    """A file of CleanRL's as it was before mid-2023, with argparse, and defaults of its own."""
    file = folder / name
    file.parent.mkdir(exist_ok=True)
    file.write_text(PARSER.format(total=total, envs=envs, after=after))
    return file


@pytest.mark.parametrize(
    "name", ["ppo_continuous_action.py", "ppo_continuous_action_of_its_own.py", "cleanrl/ppo.py", "cleanrl/ppo_new.py"]
)
def test_defaults_of_argparse_are_those_of_the_file(tmp_path: Path, name: str) -> None:
    file = of_parser(tmp_path, name)
    schedule = read(file).schedule
    assert (schedule.samples_per_rollout, schedule.updates_per_rollout, schedule.rollouts) == (1280, 32, 781)
    more = read(f"python {file} --num-envs 20 --total-timesteps 25600").schedule
    assert (more.samples_per_rollout, more.rollouts) == (2560, 10)


def test_a_default_of_argparse_that_is_no_literal_is_asked_about(tmp_path: Path) -> None:
    assert read(of_parser(tmp_path, "ppo_atari_a.py", total="int(1e6)")).schedule.rollouts == 781
    file = of_parser(tmp_path, "ppo_atari_b.py", envs="os.cpu_count()")
    with pytest.raises(LaunchError, match="num_envs"):
        read(file)
    assert read(f"python {file} --num-envs 10").schedule.rollouts == 781


def test_sizes_that_a_file_changes_behind_its_parser(tmp_path: Path) -> None:
    """A change that only a flag makes is none where the flag is not given."""
    file = of_parser(tmp_path, "ppo_atari_a.py", after="if args.test:\n    args.total_timesteps = 1280")
    assert read(file).schedule.rollouts == 781
    with pytest.raises(LaunchError, match="total_timesteps"):
        read(f"python {file} --test")
    with pytest.raises(LaunchError, match="num_envs"):
        read(of_parser(tmp_path, "ppo_atari_b.py", after="args.num_envs = 2"))
    with pytest.raises(LaunchError, match="num_steps"):
        read(of_parser(tmp_path, "ppo_atari_c.py", after="setattr(args, 'num_steps', 2)"))


def test_a_field_that_a_file_changes_behind_tyro(tmp_path: Path) -> None:
    """`args.num_steps = 7` is what the loop runs with, whatever the dataclass has."""
    text = (
        "@dataclass\nclass Args:\n    total_timesteps: int = 10000\n    local_num_envs: int = 8\n    num_steps: int = 100\n"
        "    num_minibatches: int = 4\n    update_epochs: int = 3\n    num_envs: int = 0\n    anneal_lr: bool = False\n"
        "    short: bool = False\nargs = tyro.cli(Args)\n{after}\n" + LOOPS
    )
    file = tmp_path / "ppo_mine.py"
    for after in (
        "args.num_envs = args.local_num_envs * args.world_size",
        "if args.short:\n    args.num_steps = 7",
        "envs.num_envs = args.num_envs",  # ppo_atari_envpool_xla_jax.py
    ):
        file.write_text(text.format(after=after))
        assert read(file).schedule.samples_per_rollout == 800
    file.write_text(text.format(after="args.num_steps = 7"))
    with pytest.raises(LaunchError, match="num_steps is changed"):
        read(file)
    for computed in ("args.minibatch_size = 64", "args.num_iterations = args.total_timesteps // args.batch_size + 1"):
        file.write_text(text.format(after=computed))
        with pytest.raises(LaunchError, match="is computed otherwise"):
            read(file)
