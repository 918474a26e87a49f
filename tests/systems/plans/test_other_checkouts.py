"""Launches in a checkout of SkyRL, slime or TRL, or of a fork of them: its own trainer is read."""

from __future__ import annotations

import textwrap
from typing import TYPE_CHECKING

import pytest

from rlstep_hooks.launch.text import LaunchError
from rlstep_hooks.planning.launched import Options, Plan
from rlstep_hooks.systems.engine.launches import plan_launch
from rlstep_hooks.systems.engine.pins import Commits
from rlstep_hooks.systems.trl.checkout import beside
from rlstep_hooks.systems.trl.checkout.deciding import mark_of

if TYPE_CHECKING:
    from pathlib import Path

R1_V = """
from transformers import Trainer
class {name}(Trainer):
    def __init__(self, args):
        self.num_generations = args.num_generations
        {more}
    def compute_loss(self, model, inputs):
        prompts = [{repeated} for prompt in prompts for _ in range(self.num_generations)]
{methods}
"""

SKYRL = """
class RayPPOTrainer:
    {asynchronous}def train(self):
        for epoch in range(start_epoch, self.cfg.trainer.epochs):
            for _, rand_prompts in enumerate(self.train_dataloader):
                with Timer("step"):
                    if self.cfg.trainer.algorithm.dynamic_sampling.type is not None:
                        output, uids, keep_sampling = self.handle_dynamic_sampling(output, uids)
                        if keep_sampling:
                            continue
{before}
                    status = self.train_critic_and_policy(training_input)
                self.global_step += 1
                if self.cfg.trainer.{limit} is not None and self.global_step > self.cfg.trainer.{limit}:
                    stop_training = True
                    break
            if stop_training:
                break
"""
LAUNCH = (
    "python -m {package}.entrypoints.main_base trainer.train_batch_size=64 trainer.policy_mini_batch_size=64 trainer.epochs=2 "
    "generator.n_samples_per_prompt=4 trainer.placement.policy_num_gpus_per_node=4 {more}"
)


def in_skyrl(
    folder: Path,
    *,
    package: str = "skyrl.train",
    before: str = "pass",
    limit: str = "max_training_steps",
    asynchronous: str = "async ",
    more: str = "",
    **options: object,
) -> Plan:
    """The plan of a script in a checkout of SkyRL, for 1 000 rows: 15 rollouts in each of two passes."""
    (folder / ".git").mkdir()
    source = folder / "skyrl-train" / package.replace(".", "/")
    source.mkdir(parents=True)
    inner = textwrap.indent(before, " " * 20)
    (source / "trainer.py").write_text(SKYRL.format(before=inner, limit=limit, asynchronous=asynchronous))
    (folder / "train.sh").write_text(LAUNCH.format(package=package, more=more) + "\n")
    return plan_launch([str(folder / "train.sh")], Options(rows=1000, **options))  # type: ignore[arg-type]


@pytest.mark.parametrize(("package", "asynchronous"), [("skyrl.train", "async "), ("skyrl_train", "")])
def test_skyrls_own_trainer_is_planned(tmp_path: Path, package: str, asynchronous: str) -> None:
    plan = in_skyrl(tmp_path, package=package, asynchronous=asynchronous)
    assert plan.schedule is not None
    assert plan.schedule.rollouts == 30
    assert any("was read" in note.text and "trainer.py:3" in note.text for note in plan.notes)


def test_a_line_that_may_leave_rollouts_of_skyrl_out_is_asked_about(tmp_path: Path) -> None:
    with pytest.raises(LaunchError, match=r"continue within a rollout, if stale .*--version"):
        in_skyrl(tmp_path, before="if stale:\n    continue")


OTHER = "trainer.override_entrypoint=integrations.own.entrypoint"


def test_a_program_that_skyrl_hands_the_run_to_is_asked_about(tmp_path: Path) -> None:
    with pytest.raises(
        LaunchError, match=r"override_entrypoint hands the run to integrations.own.entrypoint"
    ) as caught:
        in_skyrl(tmp_path, more=OTHER)
    assert "--version 0.3.0" in str(caught.value)


@pytest.mark.parametrize(("more", "options"), [(OTHER, {"version": "0.3.0"}), ("trainer.override_entrypoint=null", {})])
def test_skyrls_own_program_is_planned_where_nothing_else_has_the_run(
    tmp_path: Path, more: str, options: dict[str, object]
) -> None:
    plan = in_skyrl(tmp_path, more=more, **options)
    assert plan.schedule is not None
    assert plan.schedule.rollouts == 30


SKYRL_PROGRAM = """
from skyrl.train.entrypoints.main_base import BasePPOExp
from .own import {name}

class Exp(BasePPOExp):
    def get_trainer(self, *args, **kwargs):
        return {name}(*args, **kwargs)

def main():
    Exp(cfg).run()
"""
SKYRL_TRAINER = """
from skyrl.train.trainer import RayPPOTrainer

class {name}(RayPPOTrainer):
    def {method}(self):
        pass
"""


def of_own_program(folder: Path, program: str, name: str, method: str) -> Plan:
    """The plan of a program of somebody's own over SkyRL's trainer."""
    (folder / ".git").mkdir()
    (folder / "examples/train/own").mkdir(parents=True)
    (folder / "examples/train/own" / f"{program}.py").write_text(SKYRL_PROGRAM.format(name=name))
    (folder / "examples/train/own/own.py").write_text(SKYRL_TRAINER.format(name=name, method=method))
    launch = LAUNCH.format(package="skyrl.train", more="trainer.placement.colocate_all=false")
    (folder / "train.sh").write_text(
        launch.replace("skyrl.train.entrypoints.main_base", f"examples.train.own.{program}")
    )
    return plan_launch([str(folder / "train.sh")], Options(rows=1000))


@pytest.mark.parametrize("method", ["train", "train_critic_and_policy", "convert_to_training_input"])
def test_a_trainer_over_skyrls_with_a_loop_of_its_own_is_asked_about(tmp_path: Path, method: str) -> None:
    with pytest.raises(LaunchError, match=rf"OwnTrainer has {method} of its own \(own.py:5\)"):
        of_own_program(tmp_path, "main_own", "OwnTrainer", method)


@pytest.mark.parametrize(
    ("program", "name", "method"),
    [("main_own", "OwnTrainer", "postprocess_generator_output"), ("main_async", "AsyncRayPPOTrainer", "train")],
)
def test_a_trainer_over_skyrls_that_leaves_its_loop_is_planned(
    tmp_path: Path, program: str, name: str, method: str
) -> None:
    schedule = of_own_program(tmp_path, program, name, method).schedule
    assert schedule is not None
    assert schedule.rollouts == 30


def test_a_limit_that_the_trainer_beside_the_launch_does_not_read_is_asked_about(tmp_path: Path) -> None:
    with pytest.raises(LaunchError, match=r"nothing reads trainer.max_training_steps"):
        in_skyrl(
            tmp_path, limit="limit_of_its_own", before="pass  # stop_training", more="trainer.max_training_steps=5"
        )


def test_a_setting_of_its_own_that_the_trainer_may_size_updates_by_is_asked_about(tmp_path: Path) -> None:
    own = "trainer.algorithm.own.policy_mini_batch_updates"
    with pytest.raises(LaunchError, match=rf"it reads {own}, a setting of its own that may change the updates"):
        in_skyrl(tmp_path, before="updates = own.policy_mini_batch_updates", more=f"{own}=1")


@pytest.mark.parametrize(
    ("more", "asked"),
    [
        ("", False),
        ("self.train_dataloader = Loader(dataset, batch_size=self.cfg.trainer.eval_batch_size)", True),
    ],
)
def test_a_size_that_only_the_loader_of_validation_rows_reads_changes_no_updates(
    tmp_path: Path, more: str, asked: bool
) -> None:
    loads = f"size = self.cfg.trainer.train_batch_size if is_train else self.cfg.trainer.eval_batch_size\n{more}"
    if asked:
        with pytest.raises(LaunchError, match=r"it reads trainer.eval_batch_size, a setting of its own"):
            in_skyrl(tmp_path, before=loads, more="trainer.eval_batch_size=128")
        return
    plan = in_skyrl(tmp_path, before=loads, more="trainer.eval_batch_size=128")
    assert plan.schedule is not None
    assert plan.schedule.rollouts == 30


def test_a_setting_that_the_trainer_does_not_read_changes_no_updates(tmp_path: Path) -> None:
    plan = in_skyrl(tmp_path, more="trainer.algorithm.own.policy_mini_batch_updates=1")
    assert plan.schedule is not None


def test_a_commit_that_the_user_names_is_taken_at_his_word(tmp_path: Path) -> None:
    plan = in_skyrl(tmp_path, before="if stale:\n    continue", version="0.3.0")
    assert plan.schedule is not None
    assert plan.schedule.rollouts == 30


SLIME = """
def train(args):
    actor_model.update_weights()
    for rollout_id in range({over}):
        data = ray.get(rollout_manager.generate.remote(rollout_id))
        if args.use_critic:
            values = critic_model.async_train(rollout_id, data)
            if rollout_id >= args.num_critic_only_steps:
                ray.get(actor_model.async_train(rollout_id, data))
        else:
            ray.get(actor_model.async_train(rollout_id, data))
        if args.debug_exit_after_rollout is not None and rollout_id > args.debug_exit_after_rollout:
            break
{after}
"""
WORKER = """
class MegatronTrainRayActor:
    def train_actor(self, rollout_id, rollout_data):
        can_reuse_log_probs_in_loss = len(num_microbatches) == 1
        if self.args.compute_advantages_and_returns:
            if "ref" in self.weights_backuper.backup_tags:
                rollout_data.update(self.compute_log_prob(data_iterator, num_microbatches, store_prefix="ref_"))
            if {condition}:
                rollout_data.update(self.compute_log_prob(data_iterator, num_microbatches, store_prefix=""))
"""
OF_SLIME = (
    "python3 {program} --rollout-batch-size 32 --n-samples-per-prompt 8 --num-rollout 100 --global-batch-size 256 "
)


def in_slime(
    folder: Path,
    *,
    over: str = "args.start_rollout_id, args.num_rollout",
    after: str = "",
    more: str = "",
    name: str = "train.py",
    worker: str = "",
    method: str = "train_actor",
    package: str = "slime",
) -> Plan:
    """The plan of a script in a checkout of slime."""
    (folder / ".git").mkdir()
    if worker:
        (folder / package / "backends/megatron_utils").mkdir(parents=True)
        text = WORKER.format(condition=worker).replace("def train_actor", f"def {method}")
        (folder / package / "backends/megatron_utils/actor.py").write_text(text)
    (folder / "scripts").mkdir()
    (folder / name).write_text(SLIME.format(over=over, after=textwrap.indent(after, " " * 8)))
    (folder / "scripts/run.sh").write_text(OF_SLIME.format(program=name) + f"--actor-num-gpus-per-node 8 {more}\n")
    return plan_launch([str(folder / "scripts/run.sh")], Options(rows=1000))


ALWAYS = "not self.args.use_rollout_logprobs or self.args.get_mismatch_metrics"


@pytest.mark.parametrize(
    ("worker", "more", "source"),
    [
        (ALWAYS, "", "recompute"),
        (ALWAYS, "--use-rollout-logprobs", "engine"),
        (f"({ALWAYS}) and not can_reuse_log_probs_in_loss", "", "detach"),
        ("", "", "detach"),  # no worker beside the launch
    ],
)
def test_the_worker_says_whether_old_logprobs_have_a_forward_of_their_own(
    tmp_path: Path, worker: str, more: str, source: str
) -> None:
    plan = in_slime(tmp_path, worker=worker, more=more)
    assert plan.schedule is not None
    assert plan.schedule.old_logprob_source == source
    said = any("actor.py:9" in note.text for note in plan.notes)
    assert said is (worker == ALWAYS)


def test_a_worker_of_before_slime_had_a_critic_has_a_method_of_another_name(tmp_path: Path) -> None:
    plan = in_slime(tmp_path, worker=ALWAYS, method="train")
    assert plan.schedule is not None
    assert plan.schedule.old_logprob_source == "recompute"


def test_the_worker_of_miles_is_read_too(tmp_path: Path) -> None:
    plan = in_slime(tmp_path, worker=ALWAYS, package="miles")
    assert plan.schedule is not None
    assert plan.schedule.old_logprob_source == "recompute"


def test_a_forward_that_a_flag_of_its_own_decides_on_is_asked_about(tmp_path: Path) -> None:
    with pytest.raises(LaunchError, match=r"actor.py:9 computes them if .* and self.args.own_flag; --version"):
        in_slime(tmp_path, worker="self.args.own_flag")


@pytest.mark.parametrize("name", ["train.py", "train_async.py"])
def test_slimes_own_program_is_planned(tmp_path: Path, name: str) -> None:
    plan = in_slime(tmp_path, name=name)
    assert plan.schedule is not None
    assert plan.schedule.rollouts == 100
    assert any("was read" in note.text and f"{name}:2" in note.text for note in plan.notes)


@pytest.mark.parametrize(
    ("package", "started", "asked"),
    [
        ("slime", "", True),
        ("miles", "", True),
        ("slime", "cd /elsewhere/slime\n", False),  # the run has another copy, which is not here
        ("slime", 'cd "$SLIME_HOME"\n', False),
        ("other", "", False),
    ],
)
def test_a_program_that_the_checkout_of_slime_does_not_have_is_asked_about(
    tmp_path: Path, package: str, started: str, asked: bool
) -> None:
    (tmp_path / package / "utils").mkdir(parents=True)
    (tmp_path / package / "utils/arguments.py").write_text("")
    in_slime(tmp_path)
    launch = tmp_path / "scripts/other.sh"
    launch.write_text(f"{started}{OF_SLIME.format(program='train_async.py')} --actor-num-gpus-per-node 8\n")
    if asked:
        with pytest.raises(
            LaunchError, match=rf"train_async.py, which is not in the checkout that has {package}/ .*train.py"
        ):
            plan_launch([str(launch)], Options(rows=1000))
        return
    assert plan_launch([str(launch)], Options(rows=1000)).framework == "slime"


@pytest.mark.parametrize(
    ("changed", "says"),
    [
        ({"over": "args.num_steps"}, "the loop over rollouts is another one"),
        ({"after": "if reward > args.enough:\n    break"}, "break within a rollout, if reward > args.enough"),
        ({"more": "--debug-exit-after-rollout 5"}, "break within a rollout"),
    ],
)
def test_a_line_that_may_end_a_run_of_slime_is_asked_about(tmp_path: Path, changed: dict[str, str], says: str) -> None:
    with pytest.raises(LaunchError, match=says):
        in_slime(tmp_path, **changed)


@pytest.mark.parametrize(
    ("returns", "asked"),
    [(" -> list[Sample]", True), (" -> Sample | list[Sample]", True), (" -> Sample", False), ("", False)],
)
def test_a_function_that_makes_several_samples_of_one_is_asked_about(tmp_path: Path, returns: str, asked: bool) -> None:
    """slime trains all samples that come back: the sizes alone do not say how many updates that makes."""
    (tmp_path / "agents").mkdir()
    (tmp_path / "agents/rollout.py").write_text(
        f"async def generate(args, sample, parameters){returns}:\n    return sample\n"
    )
    more = "--custom-generate-function-path agents.rollout.generate"
    if not asked:
        plan = in_slime(tmp_path, more=more)
        assert plan.schedule is not None
        assert plan.schedule.updates == 100
        return
    with pytest.raises(
        LaunchError, match=r"depends on the run: agents\.rollout\.generate returns .*agents/rollout\.py:1"
    ):
        in_slime(tmp_path, more=more)


GRPO = """
from trl import GRPOConfig, GRPOTrainer
config = GRPOConfig(
    output_dir="x", per_device_train_batch_size=6, num_generations=6, gradient_accumulation_steps=4, max_steps=500
)
GRPOTrainer(model="m", args=config, train_dataset=data, reward_funcs=[reward]).train()
"""
TRAINER = """
class RepeatSampler(Sampler):
    def __iter__(self):
        yield from indexes

class GRPOTrainer(Trainer):
    def _prepare_inputs(self, inputs: dict[str, int]) -> dict[str, int]:
        \"\"\"Says something.\"\"\"
        {line}
        return inputs

    def compute_loss(self, inputs):
        return {loss}
"""
CONFIG = 'class GRPOConfig:\n    num_generations: int = field(default=8, metadata={"help": "samples"})\n'
LIKE_A_RELEASE = "x = self.generate(inputs)"


def in_trl(
    folder: Path,
    *,
    line: str = LIKE_A_RELEASE,
    config: str = CONFIG,
    launch: str = GRPO,
    more: str = "",
    **options: object,
) -> Plan:
    """The plan of a launch of GRPO in a checkout with a trainer of its own."""
    (folder / ".git").mkdir()
    (folder / "trl/trainer").mkdir(parents=True)
    (folder / "trl/trainer/grpo_trainer.py").write_text(TRAINER.format(line=line, loss="0"))
    (folder / "trl/trainer/grpo_config.py").write_text(config)
    (folder / "train.py").write_text(launch)
    (folder / "train.sh").write_text(f"python train.py {more}\n")
    return plan_launch([str(folder / "train.sh")], Options(rows=7000, world_size=3, **options))  # type: ignore[arg-type]


def test_a_trainer_of_trl_that_samples_as_no_release_does_is_asked_about(tmp_path: Path) -> None:
    with pytest.raises(LaunchError, match=r"GRPO trainer of trl beside the launch is none that is known.*--version"):
        in_trl(tmp_path)


def test_a_trainer_of_trl_that_samples_as_a_release_does_is_planned_as_that(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    own = mark_of(TRAINER.format(line="x = self.generate(inputs)", loss="1 # another"), CONFIG, "")
    marks = {"0.15.2": "another", "0.16.0": own, "0.16.1": own, "0.17.0": "a third"}
    monkeypatch.setattr(beside, "commits_of", lambda _: Commits((), {}, {}, marks))
    plan = in_trl(tmp_path)
    assert plan.schedule is not None
    assert (plan.version, plan.schedule.rollouts) == ("0.16.1", 2000)
    assert any("samples as TRL 0.16.0 to 0.16.1 does" in note.text for note in plan.notes)


PARSES = """
from trl import GRPOConfig, GRPOTrainer, ModelConfig, ScriptArguments, TrlParser
parser = TrlParser((ScriptArguments, GRPOConfig, ModelConfig))
script, config, model = parser.parse_args_and_config()
GRPOTrainer(model="m", args=config, train_dataset=data, reward_funcs=[reward]).train()
"""


@pytest.mark.parametrize(
    ("launch", "more"),
    [
        (GRPO.replace("max_steps=500", "max_steps=500, hint_ratio=0.5"), ""),
        (PARSES, "--per_device_train_batch_size 6 --num_generations 6 --max_steps 500 --hint_ratio 0.5"),
    ],
)
def test_a_setting_that_the_trl_beside_the_launch_adds_is_no_unknown_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, launch: str, more: str
) -> None:
    marks = {"0.18.0": mark_of(TRAINER.format(line=LIKE_A_RELEASE, loss="0"), CONFIG, ""), "0.19.0": "another"}
    monkeypatch.setattr(beside, "commits_of", lambda _: Commits((), {}, {}, marks))
    plan = in_trl(tmp_path, config=f"{CONFIG}    hint_ratio: float = 0.1\n", launch=launch, more=more)
    assert plan.schedule is not None
    assert (plan.version, plan.schedule.updates) == ("0.18.2", 500)
    assert not any("hint_ratio" in finding.observed for finding in plan.findings)


def test_a_release_of_trl_that_the_user_names_is_taken_at_his_word(tmp_path: Path) -> None:
    assert in_trl(tmp_path, version="0.15.2").version == "0.15.2"


@pytest.mark.parametrize(
    ("trainer", "config", "same"),
    [
        (TRAINER.format(line="x = self.generate(inputs)  # why", loss="0"), CONFIG, True),
        (TRAINER.format(line="x = self.generate(inputs)", loss="other"), CONFIG, True),
        (TRAINER.format(line="x = self.generate(inputs)", loss="0").replace("Says", "Explains"), CONFIG, True),
        (TRAINER.format(line="x = self.generate(inputs)", loss="0").replace(": dict[str, int]", ""), CONFIG, True),
        (TRAINER.format(line="x = self.generate(inputs)", loss="0"), CONFIG.replace("samples", "completions"), True),
        (TRAINER.format(line="x = self.generate(inputs[:1])", loss="0"), CONFIG, False),
        (TRAINER.format(line="x = self.generate(inputs)", loss="0").replace("indexes", "half"), CONFIG, False),
        (TRAINER.format(line="x = self.generate(inputs)", loss="0"), CONFIG.replace("8", "4"), False),
    ],
)
def test_the_mark_is_that_of_the_code_that_decides(trainer: str, config: str, *, same: bool) -> None:
    own = mark_of(TRAINER.format(line="x = self.generate(inputs)", loss="0"), CONFIG, "")
    assert (mark_of(trainer, config, "") == own) is same


def in_r1_v(
    folder: Path,
    *,
    name: str = "Qwen2VLGRPOTrainer",
    repeated: str = "prompt",
    more: str = "pass",
    methods: str = "",
    program: str = "grpo.py",
    **options: object,
) -> Plan:
    """The plan of a script in a checkout with R1-V's names, on 2 processes, for 1 000 rows."""
    source = folder / "src" / "open_r1"
    (source / "trainer").mkdir(parents=True)
    (folder / ".git").mkdir()
    (source / program).write_text(
        f"from trainer import {name}\ntrainer = {name}(args=training_args)\ntrainer.train()\n"
    )
    (source / "trainer" / "__init__.py").write_text(f"from .grpo_trainer import {name}\n")
    written = R1_V.format(name=name, repeated=repeated, more=more, methods=methods)
    (source / "trainer" / "grpo_trainer.py").write_text(written)
    script = folder / "train.sh"
    script.write_text(
        f"torchrun --nproc_per_node 2 src/open_r1/{program} --max_pixels 9 --num_generations 4 --max_steps 5\n"
    )
    return plan_launch([str(script)], Options(rows=1000, **options))  # type: ignore[arg-type]


def test_a_trainer_that_samples_as_r1_vs_is_planned_by_its_formulas(tmp_path: Path) -> None:
    plan = in_r1_v(tmp_path)
    assert plan.title == "R1-V (TRL 0.14)"
    assert plan.schedule is not None
    assert plan.schedule.samples_per_rollout == 2 * 8 * 4
    assert any("Qwen2VLGRPOTrainer beside the launch, which was read" in note.text for note in plan.notes)


@pytest.mark.parametrize(
    ("changed", "says"),
    [
        (
            {"name": "GRPOTrainerV2", "methods": "    def _get_train_sampler(self): ..."},
            r"grpo_trainer.py:3:1: GRPOTrainerV2 is not the trainer of R1-V: it has _get_train_sampler",
        ),
        ({"more": "args.per_device_train_batch_size = 4"}, "it assigns per_device_train_batch_size"),
        ({"repeated": "prompt.lower()"}, "it does not repeat each row of a batch"),
    ],
)
def test_a_trainer_under_r1_vs_names_that_samples_otherwise_is_asked_about(
    tmp_path: Path, changed: dict[str, str], says: str
) -> None:
    with pytest.raises(LaunchError, match=says):
        in_r1_v(tmp_path, **changed)


SAMPLER = """
    def _get_train_sampler(self):
        if self.train_dataset is None:
            return None
        return {sampler}
"""


@pytest.mark.parametrize(
    "methods",
    [
        "",
        SAMPLER.format(sampler="SequentialSampler(self.train_dataset)"),
        SAMPLER.format(sampler="torch.utils.data.RandomSampler(self.train_dataset, generator=seeded())"),
    ],
)
def test_the_trainer_of_another_program_that_samples_as_r1_vs_is_planned_by_its_formulas(
    tmp_path: Path, methods: str
) -> None:
    plan = in_r1_v(tmp_path, program="grpo_math.py", name="ChronusGRPOTrainer", methods=methods)
    assert plan.title == "R1-V (TRL 0.14)"
    assert plan.schedule is not None
    assert plan.schedule.samples_per_rollout == 2 * 8 * 4
    assert any("ChronusGRPOTrainer beside the launch, which was read" in note.text for note in plan.notes)


@pytest.mark.parametrize(
    "changed",
    [
        {"repeated": "half(prompt)"},
        {"more": "self.num_iterations = args.num_iterations"},
        {"methods": SAMPLER.format(sampler="RandomSampler(self.train_dataset, replacement=True, num_samples=8)")},
        {"methods": SAMPLER.format(sampler="RepeatRandomSampler(self.train_dataset)")},
        {"methods": SAMPLER.format(sampler="RandomSampler(self.hard_rows)")},
        {"methods": SAMPLER.format(sampler="None")},
    ],
)
def test_the_trainer_of_another_program_that_samples_otherwise_is_asked_about(
    tmp_path: Path, changed: dict[str, str]
) -> None:
    remedy = "--framework trl plans it all the same"
    with pytest.raises(LaunchError, match=f"is not a trainer of TRL: .*; {remedy}"):
        in_r1_v(tmp_path, program="grpo_math.py", **changed)


def test_the_user_may_say_that_it_is_r1_v(tmp_path: Path) -> None:
    assert in_r1_v(tmp_path, more="args.max_steps = 4", framework="r1_v").schedule is not None
