"""Launches in a checkout of EasyR1, or of a fork of it: the loop, the setting of epochs and the mini-batches are its own."""

from __future__ import annotations

import textwrap
from typing import TYPE_CHECKING

import pytest

from rlstep_hooks.launch.text import LaunchError
from rlstep_hooks.planning.launched import Options, Plan
from rlstep_hooks.systems.engine.launches import plan_launch

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

EPOCHS = """
class RayPPOTrainer:
    def fit(self):
        for _ in tqdm(range(self.config.trainer.{epochs}), desc="Epoch", position=0):
            for batch_dict in tqdm(self.train_dataloader, desc="Running step", position=1):
                self.global_step += 1
                if self.global_step {compares} self.training_steps:
                    should_stop = True
                    break
{before}
                batch = batch.repeat(repeat_times=self.config.worker.rollout.n, interleave=True)
                batch = batch.union(gen_batch_output)
                self.actor_rollout_ref_wg.update_actor(batch)
            if should_stop:
                break
"""
STEPS = """
class RayPPOTrainer:
    def fit(self):
        while self.global_step < self.training_steps:
            self.global_step += 1
            batch = self._make_batch_data(metrics=metrics)
            self.actor_rollout_ref_wg.update_actor(batch)

    def _make_batch_data(self, metrics):
        while True:
            new_batch = new_batch.repeat(repeat_times={times}, interleave=True)
            if len(batch) >= rollout_batch_size * self.config.worker.rollout.n:
                return {made}
"""
WHOLE = "batch[: self.config.data.rollout_batch_size * self.config.worker.rollout.n]"
GROUP = "self.config.worker.rollout.n"
PASSES = """
mini_batches = data.split(self.config.global_batch_size_per_device)
for _ in range(self.config.ppo_epochs):
    pass
"""
SCALED = "config.global_batch_size *= self.config.rollout.n\n"


def planned(
    folder: Path,
    *,
    trainer: str = EPOCHS,
    epochs: str = "total_epochs",
    compares: str = ">",
    before: str = "pass",
    workers: str = SCALED,
    actor: str | None = PASSES,
    algorithms: str = "",
    times: str = GROUP,
    made: str = WHOLE,
    more: str = "",
    program: str = "main",
    files: Mapping[str, str] | None = None,
    own: str = "ray_trainer.py",
) -> Plan:
    """The plan of a launch in a checkout, for 1 000 rows: 15 rollouts of 64 prompts in each pass, 10 passes by default."""
    (folder / ".git").mkdir()
    (folder / "verl/trainer").mkdir(parents=True, exist_ok=True)
    (folder / "verl/workers/actor").mkdir(parents=True)
    (folder / "verl/trainer/main.py").write_text("")
    text = trainer.format(
        epochs=epochs, compares=compares, before=textwrap.indent(before, " " * 16), times=times, made=made
    )
    (folder / "verl/trainer" / own).parent.mkdir(exist_ok=True)
    (folder / "verl/trainer" / own).write_text(text)
    (folder / "verl/trainer/config.py").write_text(f"class TrainerConfig:\n    {epochs}: int = 10\n")
    (folder / "verl/workers/fsdp_workers.py").write_text(workers)
    (folder / "verl/trainer/core_algos.py").write_text(algorithms)
    if actor is not None:
        (folder / "verl/workers/actor/dp_actor.py").write_text(actor)
    sizes = "data.rollout_batch_size=64 worker.actor.global_batch_size=64 worker.rollout.n=4"
    for name, source in (files or {}).items():
        (folder / "verl/trainer" / name).write_text(source)
    (folder / "train.sh").write_text(f"python -m verl.trainer.{program} {sizes} {more}\n")
    return plan_launch([str(folder / "train.sh")], Options(rows=1000))


@pytest.mark.parametrize("epochs", ["total_epochs", "total_episodes"])
@pytest.mark.parametrize(
    ("compares", "given", "rollouts"),
    [
        (">", None, 150),  # the checkout's own default
        (">", 2, 30),
        (">=", 2, 29),  # the step is counted before it is compared: the last one is left out
    ],
)
def test_the_loop_of_the_checkout_gives_the_length(
    tmp_path: Path, epochs: str, compares: str, given: int | None, rollouts: int
) -> None:
    more = "" if given is None else f"trainer.{epochs}={given}"
    plan = planned(tmp_path, epochs=epochs, compares=compares, more=more)
    assert plan.schedule is not None
    assert plan.schedule.rollouts == rollouts
    assert any("ray_trainer.py:3" in note.text for note in plan.notes)


@pytest.mark.parametrize(
    ("compares", "steps", "rollouts"), [(">", 20, 20), (">=", 20, 19), (">", 40, 30), (">=", 40, 30)]
)
def test_a_loop_over_epochs_ends_with_the_rows_or_with_the_steps(
    tmp_path: Path, compares: str, steps: int, rollouts: int
) -> None:
    plan = planned(tmp_path, compares=compares, more=f"trainer.total_epochs=2 trainer.max_steps={steps}")
    assert plan.schedule is not None
    assert plan.schedule.rollouts == rollouts


def test_a_package_may_hand_the_trainer_on(tmp_path: Path) -> None:
    (tmp_path / "verl/trainer/ray_trainer").mkdir(parents=True)
    (tmp_path / "verl/trainer/ray_trainer/__init__.py").write_text("from .loop import RayPPOTrainer, Role\n")
    plan = planned(tmp_path, own="ray_trainer/loop.py")
    assert plan.schedule is not None
    assert plan.schedule.rollouts == 150
    assert any("verl/trainer/ray_trainer/loop.py:3" in note.text for note in plan.notes)


def test_a_loop_over_steps_goes_on_until_they_are_done(tmp_path: Path) -> None:
    plan = planned(tmp_path, trainer=STEPS, more="trainer.total_epochs=2 trainer.max_steps=40")
    assert plan.schedule is not None
    assert plan.schedule.rollouts == 40


@pytest.mark.parametrize(("read", "given"), [("total_epochs", "total_episodes"), ("total_episodes", "total_epochs")])
def test_a_setting_of_epochs_that_the_checkout_does_not_read_is_asked_about(
    tmp_path: Path, read: str, given: str
) -> None:
    with pytest.raises(LaunchError, match=rf"nothing reads trainer.{given}.*--version"):
        planned(tmp_path, epochs=read, more=f"trainer.{given}=3")


def test_a_line_that_may_leave_rollouts_out_is_asked_about(tmp_path: Path) -> None:
    with pytest.raises(LaunchError, match=r"continue within a rollout .*ray_trainer.py:11"):
        planned(tmp_path, before="if stale:\n    continue")


def test_minibatches_that_are_scaled_by_something_else_are_asked_about(tmp_path: Path) -> None:
    with pytest.raises(LaunchError, match=r"global_batch_size \*= self.config.rollout.m"):
        planned(tmp_path, workers=SCALED + "self.config.actor.global_batch_size *= self.config.rollout.m\n")


@pytest.mark.parametrize(
    ("times", "made", "said"),
    [
        (
            "int(self.config.worker.rollout.n * share)",
            WHOLE,
            r"prompts are repeated int\(self.config.worker.rollout.n \* share\)",
        ),
        (GROUP, "first, second", r"a rollout is `\(first, second\)`"),
        (GROUP, "batch[:limit]", r"a rollout is `batch\[:limit\]`"),
    ],
)
def test_a_rollout_that_is_made_in_another_way_is_asked_about(tmp_path: Path, times: str, made: str, said: str) -> None:
    with pytest.raises(LaunchError, match=rf"{said}.*--version"):
        planned(tmp_path, trainer=STEPS, times=times, made=made)


@pytest.mark.parametrize(
    ("before", "said"),
    [
        ("batch = batch[kept]", r"`batch = batch\[kept\]` may train a part"),
        ("batch, more = self.mix(batch)", r"may train a part"),
        ("self.actor_rollout_ref_wg.update_actor(other)", "a rollout is not trained once"),
        ("for part in parts:\n    self.actor_rollout_ref_wg.update_actor(part)", "a rollout is not trained once"),
        ("copies = batch.repeat(repeat_times=2)", "prompts are repeated 2 times"),
    ],
)
def test_samples_that_are_left_out_or_trained_again_are_asked_about(tmp_path: Path, before: str, said: str) -> None:
    with pytest.raises(LaunchError, match=said):
        planned(tmp_path, before=before)


_OTHERS = "class AdvantageEstimator(str):\n    GRPO = 'grpo'\n    OWN = 'own'\n\nX = 1\n"
_OF_OWN = "if self.config.algorithm.adv_estimator == AdvantageEstimator.OWN:\n    batch = self.mix(batch)"


def test_what_only_launches_with_another_estimator_come_to_decides_nothing(tmp_path: Path) -> None:
    plan = planned(tmp_path, before=_OF_OWN, algorithms=_OTHERS, more="algorithm.adv_estimator=grpo")
    assert plan.schedule is not None
    assert plan.schedule.rollouts == 150


@pytest.mark.parametrize("more", ["algorithm.adv_estimator=own", ""])
def test_what_the_estimator_of_the_launch_may_come_to_is_asked_about(tmp_path: Path, more: str) -> None:
    with pytest.raises(LaunchError, match="may train a part"):
        planned(tmp_path, before=_OF_OWN, algorithms=_OTHERS, more=more)


@pytest.mark.parametrize(
    ("actor", "said"),
    [
        ("for _ in range(2):\n    pass\n", "not passed over ppo_epochs times"),
        ("for _ in range(self.config.ppo_epochs):\n    full.split(chunk)\n", "not of the global batch size"),
        (None, "the policy's worker was not found"),
    ],
)
def test_passes_and_minibatches_of_another_kind_are_asked_about(tmp_path: Path, actor: str | None, said: str) -> None:
    with pytest.raises(LaunchError, match=said):
        planned(tmp_path, actor=actor)


def test_a_trainer_that_lies_elsewhere_is_asked_about(tmp_path: Path) -> None:
    (tmp_path / "verl/trainer/ray_trainer").mkdir(parents=True)
    (tmp_path / "verl/trainer/ray_trainer/loop.py").write_text(STEPS)
    (tmp_path / "verl/trainer/main.py").write_text("")
    (tmp_path / ".git").mkdir()
    (tmp_path / "train.sh").write_text("python -m verl.trainer.main data.rollout_batch_size=64 worker.rollout.n=4\n")
    with pytest.raises(LaunchError, match=r"was not found in verl beside the launch.*--version"):
        plan_launch([str(tmp_path / "train.sh")], Options(rows=1000))


NAMES = 'class AdvantageEstimator(str, Enum):\n    GRPO = "grpo"\n    OURS = "ours"\n\n\nother = 1\n'


@pytest.mark.parametrize(("name", "accepted"), [("ours", True), ("grpo", True), ("rloo", False)])
def test_the_estimators_are_those_of_the_checkout(tmp_path: Path, name: str, accepted: bool) -> None:
    plan = planned(tmp_path, algorithms=NAMES, more=f"algorithm.adv_estimator={name}")
    assert (plan.schedule is not None) is accepted
    assert plan.shown is not None
    assert plan.shown.rollouts == 150


PROGRAM = """
from .data_loader import create_dataloader
from .own_trainer import OwnTrainer

class Runner:
    def run(self, config):
        # RayPPOTrainer(config) was here
        train_dataloader, val_dataloader = {loader}(config.data)
        trainer = OwnTrainer(config=config, train_dataloader=train_dataloader)
        trainer.fit()
"""
TWICE = """
class OwnTrainer(RayPPOTrainer):
    def _make_batch_data(self, metrics):
        new_batch = new_batch.repeat(repeat_times=self.config.worker.rollout.n, interleave=True)
        return batch[: self.config.data.rollout_batch_size * self.config.worker.rollout.n * 2]
"""


def of_own(
    folder: Path,
    *,
    own: str = "class OwnTrainer(RayPPOTrainer):\n    def note(self):\n        pass\n",
    loader: str = "create_dataloader",
    behind: str = "",
) -> Plan:
    """The plan of a launch whose program builds a trainer of its own, beside EasyR1's."""
    files = {"main_own.py": PROGRAM.format(loader=loader) + behind, "own_trainer.py": own}
    more = "trainer.max_steps=40"
    return planned(folder, trainer=STEPS, program="main_own", files=files, more=more)


def test_the_trainer_that_the_program_builds_is_read(tmp_path: Path) -> None:
    with pytest.raises(LaunchError, match=r"a rollout is `batch.* \* 2\]` \(verl/trainer/own_trainer.py:5\)"):
        of_own(tmp_path, own=TWICE)


def test_what_a_trainer_takes_over_is_read_where_it_is_written(tmp_path: Path) -> None:
    plan = of_own(tmp_path)
    assert plan.schedule is not None
    assert (plan.schedule.rollouts, plan.schedule.prompts_per_rollout) == (40, 64)
    assert any("ray_trainer.py:3" in note.text for note in plan.notes)


def test_rows_from_a_loader_of_ones_own_are_asked_about(tmp_path: Path) -> None:
    with pytest.raises(LaunchError, match=r"its rows come from create_tree_loader \(verl/trainer/main_own.py:8\)"):
        of_own(tmp_path, loader="create_tree_loader")


LOADER = """
if config.mini_rollout_batch_size is not None:
    train_batch_size = config.mini_rollout_batch_size
else:
    train_batch_size = config.rollout_batch_size
train_dataloader = StatefulDataLoader(dataset=train_dataset, batch_size={size}, drop_last=True)
val_dataloader = StatefulDataLoader(dataset=val_dataset, batch_size=val_batch_size)
"""


@pytest.mark.parametrize("size", ["train_batch_size", "config.rollout_batch_size"])
def test_a_loader_takes_as_many_rows_as_a_rollout_has_prompts(tmp_path: Path, size: str) -> None:
    plan = planned(tmp_path, files={"data_loader.py": LOADER.format(size=size)})
    assert plan.schedule is not None
    assert plan.schedule.rollouts == 150


def test_a_loader_that_takes_fewer_rows_than_a_rollout_has_prompts_is_asked_about(tmp_path: Path) -> None:
    loader = LOADER.format(size="math.ceil(train_batch_size / (variants + 1))")
    with pytest.raises(LaunchError, match=r"takes math.ceil\(.*\) rows at a time \(verl/trainer/data_loader.py:6\)"):
        planned(tmp_path, files={"data_loader.py": loader})


def test_a_program_with_two_trainers_is_asked_about(tmp_path: Path) -> None:
    with pytest.raises(LaunchError, match=r"main_own.py uses was not found: it builds OtherTrainer and OwnTrainer"):
        of_own(tmp_path, behind="OtherTrainer(config)\n")


def test_a_trainer_that_derives_from_another_one_is_asked_about(tmp_path: Path) -> None:
    with pytest.raises(LaunchError, match="which trainer EasyR1 uses was not found"):
        of_own(tmp_path, own="class OwnTrainer(ForeignTrainer):\n    pass\n")


@pytest.mark.parametrize(("cuts", "microbatch"), [("", 16), ("if self.config.dynamic_batching:\n    pass\n", None)])
def test_workers_without_dynamic_batching_cut_microbatches_of_a_fixed_size(
    tmp_path: Path, cuts: str, microbatch: int | None
) -> None:
    more = "worker.actor.micro_batch_size_per_device_for_update=2"
    plan = planned(tmp_path, actor=PASSES + cuts, more=more)
    assert plan.schedule is not None
    assert plan.schedule.samples_per_microbatch == microbatch


STRUCTURED = {
    "main.py": """
from .config import PPOConfig
def main():
    cli_args = OmegaConf.from_cli()
    default_config = OmegaConf.structured(PPOConfig())
    config = OmegaConf.merge(default_config, OmegaConf.load(cli_args.config), cli_args)
""",
    "config.py": """
from ..workers.config import WorkerConfig
@dataclass
class DataConfig:
    rollout_batch_size: int = 512
@dataclass
class OwnDataConfig(DataConfig):
    seed: int = 1
@dataclass
class TrainerConfig:
    total_epochs: int = 10
    extra: Dict[str, Any] = field(default_factory=dict)
@dataclass
class PPOConfig:
    data: OwnDataConfig = field(default_factory=OwnDataConfig)
    worker: WorkerConfig = field(default_factory=WorkerConfig)
    trainer: Optional[TrainerConfig] = None
    algorithm: AlgorithmConfig = field(default_factory=AlgorithmConfig)
""",
    "../workers/config.py": """
@dataclass
class ActorConfig:
    global_batch_size: int = 256
    per_device: int = field(default=-1, init=False)
class RolloutConfig:
    pass
@dataclass
class WorkerConfig:
    actor: ActorConfig = field(default_factory=ActorConfig)
    rollout: RolloutConfig = field(default_factory=RolloutConfig)
""",
}


@pytest.mark.parametrize(
    ("more", "says"),
    [
        # Fields, what a field takes without saying, and what is not found or is no dataclass.
        ("data.seed=2 worker.actor.per_device=1 trainer.extra.own=1 algorithm.own=1 worker.rollout.own=1", []),
        (
            "worker.actor.entropy_coeff=0.1",
            ["ConfigKeyError: Key 'entropy_coeff' not in 'ActorConfig' (full_key: worker.actor.entropy_coeff)"],
        ),
        ("trainer.own=1", ["ConfigKeyError: Key 'own' not in 'TrainerConfig' (full_key: trainer.own)"]),
        ("data.own=1", ["ConfigKeyError: Key 'own' not in 'OwnDataConfig' (full_key: data.own)"]),
    ],
)
def test_a_setting_that_the_dataclasses_of_the_checkout_do_not_have_is_refused(
    tmp_path: Path, more: str, says: list[str]
) -> None:
    plan = planned(tmp_path, more=more, files=STRUCTURED)
    assert [found.observed for found in plan.findings if found.severity == "error"] == says
    assert plan.schedule is not None


def test_a_key_of_the_configuration_file_is_refused_at_its_line(tmp_path: Path) -> None:
    (tmp_path / "own.yaml").write_text("worker:\n  actor:\n    own: 1\n")
    plan = planned(tmp_path, more="config=own.yaml", files=STRUCTURED)
    assert [found.code for found in plan.findings if found.severity == "error"] == ["RLS110"]
    assert "own.yaml:3:5" in str(plan.findings[0].why)


COPY = {
    "../../copy/config.py": "@dataclass\nclass PPOConfig:\n    trainer: TrainerConfig = None\n",
    "../../copy/ray_trainer.py": "class RayPPOTrainer:\n    pass\n",
}
COPIED_MAIN = """
from omegaconf import OmegaConf
{imports}

@ray.remote(num_cpus=1)
class Runner:
    def run(self, config):
        RayPPOTrainer(config=config).fit()

OmegaConf.merge(OmegaConf.structured(PPOConfig()), OmegaConf.from_cli())
"""


def in_package_of_its_own(folder: Path, imports: str, more: str = "") -> Plan:
    """The plan of a launch whose program is not in the package `verl`."""
    (folder / "copy").mkdir()
    files = {**STRUCTURED, **COPY, "../../copy/main.py": COPIED_MAIN.format(imports=imports)}
    planned(folder, more=more, files=files)
    (folder / "run.sh").write_text((folder / "train.sh").read_text().replace("verl.trainer.main", "copy.main"))
    return plan_launch([str(folder / "run.sh")], Options(rows=1000))


def test_a_program_elsewhere_with_a_trainer_of_its_own_is_asked_about(tmp_path: Path) -> None:
    said = r"its own RayPPOTrainer of copy/ray_trainer.py \(copy/main.py:3\): what that makes of the sizes was not read"
    with pytest.raises(LaunchError, match=said):
        in_package_of_its_own(tmp_path, "from .ray_trainer import RayPPOTrainer")


def test_the_calls_of_a_program_are_no_keys_of_its_configuration(tmp_path: Path) -> None:
    imports = "from verl.trainer.config import PPOConfig\nfrom verl.trainer.ray_trainer import RayPPOTrainer"
    plan = in_package_of_its_own(tmp_path, imports, "worker.actor.entropy_coeff=0.1")
    assert [finding.observed for finding in plan.findings if finding.code == "RLS110"] == [
        "ConfigKeyError: Key 'entropy_coeff' not in 'ActorConfig' (full_key: worker.actor.entropy_coeff)"
    ]


def test_a_configuration_that_the_copy_lacks_is_not_assumed(tmp_path: Path) -> None:
    # The run looks for it in the same copy: it ends before it trains.
    with pytest.raises(LaunchError, match=r"examples/config\.yaml is not here"):
        planned(tmp_path, more="config=examples/config.yaml")
