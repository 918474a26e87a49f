"""A launch in a checkout of a fork of OpenRLHF: the fork's own trainer and its own flags decide."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from rlstep_hooks.launch.text import LaunchError
from rlstep_hooks.planning.launched import Options, Plan
from rlstep_hooks.systems.engine.launches import plan_launch

if TYPE_CHECKING:
    from pathlib import Path

LAUNCH = (
    "python3 -m openrlhf.cli.train_ppo_ray --rollout_batch_size 64 --n_samples_per_prompt 4 --train_batch_size 128 "
    "--actor_num_gpus_per_node 4 --num_episodes 2"
)
FLAGS = """
parser.add_argument("--rollout_batch_size", type=int, default=1024)
parser.add_argument("--n_samples_per_prompt", type=int, default=1)
parser.add_argument("--train_batch_size", type=int, default=128)
parser.add_argument("--micro_train_batch_size", type=int, default={micro}, help="batch size per GPU")
parser.add_argument("--actor_num_gpus_per_node", type=int, default=8)
parser.add_argument("--num_episodes", type=int, default=1)
parser.add_argument(
    "--samples_save_path", type=str, default=datetime.now().strftime("%m%d")
)
parser.add_argument("--keep_all", action="store_true")
parser.add_argument("--own_rounds", type=bool, default=False)
parser.add_argument("--dynamic_filtering", action="store_true")
parser.add_argument(
    "--advantage_estimator", type=str, choices=["gae", "rloo", "of_its_own"], default="gae"
)
for role in ("actor", "critic"):
    parser.add_argument(f"--{{role}}_adam_lr", type=float, default=1e-6 if role == "actor" else 9e-6)
"""
FIT = """
class PPOTrainer:
    def fit(self, args, prompts_dataloader, consumed_samples=0):
        start_episode = 0
        for episode in range(start_episode, {episodes}):
            for rand_prompts in self.prompts_dataloader:
                for experience in self.experience_maker.make_experience_list(rand_prompts):
                    self.replay_buffer.append(experience)
{before}
                status = self.ppo_train(steps)
                self.replay_buffer.clear()
                if self.strategy.is_rank_0():
                    for sample in samples:
                        if sample is None:
                            continue
                steps = steps + 1

    def ppo_train(self, global_steps=0):
        {first}
        dataloader = DataLoader(self.replay_buffer, batch_size=self.replay_buffer.sample_batch_size, shuffle=True, drop_last=True)
        for epoch in range({passes}):
            for experience in dataloader:
                status = self.training_step(experience, global_steps)
"""
ACTOR = """
class ActorPPOTrainer(PPOTrainer):
    def ppo_train(self, global_steps):
        if global_steps > self.freezing_actor_steps:
            status.update(super().ppo_train(global_steps))

class ActorModelRayActor:
    def prepare_datasets(self):
        self.prompts_dataset = PromptDataset(prompts_data, self.tokenizer, strategy)
{rounds}
        self.prompts_dataloader = strategy.setup_dataloader(
            self.prompts_dataset, {drawn}, True, True
        )
"""
PROMPTS = """
class PromptDataset(Dataset):
    def __init__(self, dataset, tokenizer, strategy):
        self.prompts = []
        for data in tqdm(dataset):
            prompt = preprocess_data(data)
{keeps}

    def __len__(self):
        return {length}
"""
KEEPS = "            self.prompts.append(prompt)"
ROUNDS = """
        if args.own_rounds:
            self.prompts_dataset = RoundsDataset(prompts_data, self.tokenizer, strategy)
"""
DRAWN = "args.rollout_batch_size // strategy.world_size"
MAKER = "def generate_samples(self):\n    all_prompts = sum([[prompt] * args.n_samples_per_prompt for prompt in all_prompts], [])\n"
DRIVER = """
def prepare_datasets(strategy, tokenizer):
    prompts_dataset = {dataset}(train_data, tokenizer, strategy)
    prompts_dataloader = strategy.setup_dataloader(
        prompts_dataset, {drawn}, True, True
    )

class BasePPOTrainer:
    def fit(self):
        raise NotImplementedError

class PPOTrainer(BasePPOTrainer):
    def fit(self):
        for episode in range(episode, self.args.num_episodes):
            for _, rand_prompts, labels in self.prompts_dataloader:
                samples = self.samples_generator.generate_samples(rand_prompts)
                if self.args.dynamic_filtering:
                    if len(samples) < 4:
                        continue
{before}
                status = self.ppo_train(steps)
"""
UNTIL_EXHAUSTED = """
def prepare_datasets(strategy, tokenizer):
    prompts_dataset = {dataset}(train_data, tokenizer, strategy)
    prompts_dataloader = strategy.setup_dataloader(prompts_dataset, 1, True, True)

class PPOTrainer:
    def fit(self, global_step=0):
        for episode in range(start_episode, self.args.num_episodes):
            while True:
                rollout_samples, _, _, is_exhausted = self.samples_generator.generate_samples()
{ends}
                status, global_step = self.train_step(rollout_samples, global_step)
"""
ENDS = "                if is_exhausted:\n                    break"
POLICY = """
class ActorPPOTrainer:
    def ppo_train(self, kl_ctl):
        if self.args.use_dynamic_batch:
            self.replay_buffer.setup_dynamic_batch(self.strategy)
        dataloader = DataLoader(self.replay_buffer, batch_size=self.replay_buffer.sample_batch_size, drop_last=True)
        for epoch in range(self.max_epochs):
            for step, experience in enumerate(dataloader):
                status = self.training_step(experience, kl_ctl, step)
"""


def planned(
    folder: Path,
    *,
    episodes: str = "args.num_episodes",
    before: str = "",
    first: str = "",
    passes: str = "self.max_epochs",
    drawn: str = DRAWN,
    maker: str = MAKER,
    micro: int = 4,
    flags: str = "",
    more: str = "",
    trainer: str = "",
    actor: str = "",
    keeps: str = KEEPS,
    length: str = "len(self.prompts)",
    prompts_in: str = "datasets",
    **options: object,
) -> Plan:
    """The plan of a script in a checkout, for 1 000 rows: 15 rollouts of 64 prompts in each of two episodes."""
    (folder / ".git").mkdir(parents=True)
    package = folder / "openrlhf"
    for inner in ("cli", "trainer/ray", "trainer/ppo_utils", prompts_in):
        (package / inner).mkdir(parents=True, exist_ok=True)
    (package / "cli/train_ppo_ray.py").write_text(FLAGS.format(micro=micro) + flags)
    fit = trainer or FIT.format(episodes=episodes, before=before, first=first, passes=passes)
    (package / "trainer/ppo_trainer.py").write_text(fit)
    (package / "trainer/ray/ppo_actor.py").write_text(actor or ACTOR.format(drawn=drawn, rounds=""))
    (package / "trainer/ppo_utils/experience_maker.py").write_text(maker)
    (package / prompts_in / "prompts_dataset.py").write_text(PROMPTS.format(keeps=keeps, length=length))
    (folder / "train.sh").write_text(f"{LAUNCH} {more}\n")
    return plan_launch([str(folder / "train.sh")], Options(rows=1000, **options))  # type: ignore[arg-type]


@pytest.mark.parametrize("drops", ["", ", drop_last=True"])
def test_a_fork_may_number_its_rollouts_and_name_what_its_loader_is_given(tmp_path: Path, drops: str) -> None:
    over = "step, rand_prompts in enumerate(self.prompts_dataloader, start=1)"
    trainer = FIT.format(episodes="args.num_episodes", before="", first="", passes="self.max_epochs")
    plan = planned(
        tmp_path,
        trainer=trainer.replace("rand_prompts in self.prompts_dataloader", over),
        actor=ACTOR.replace(", True, True", "").format(drawn=f"batch_size={DRAWN}, shuffle=True{drops}", rounds=""),
    )
    assert plan.schedule is not None
    assert (plan.schedule.rollouts, plan.schedule.updates) == (30, 60)


def test_the_trainer_of_a_release_is_planned_as_the_nearest_release(tmp_path: Path) -> None:
    plan = planned(tmp_path)
    assert plan.schedule is not None
    assert (plan.version, plan.schedule.rollouts, plan.schedule.updates) == ("0.7.0", 30, 60)
    assert any("was read" in note.text and "ppo_trainer.py:3" in note.text for note in plan.notes)


def test_the_forks_own_flags_are_accepted(tmp_path: Path) -> None:
    plan = planned(tmp_path, more="--samples_save_path x --keep_all --critic_adam_lr 1e-5")
    assert not [finding for finding in plan.findings if finding.code in ("RLS110", "RLS116")]


def test_a_flag_that_the_fork_does_not_have_ends_its_run(tmp_path: Path) -> None:
    plan = planned(tmp_path, more="--packing_samples")
    assert [finding.code for finding in plan.findings if finding.severity == "error"] == ["RLS110"]


def test_an_algorithm_of_the_forks_own_is_asked_about(tmp_path: Path) -> None:
    with pytest.raises(LaunchError, match="of_its_own is an algorithm of its own"):
        planned(tmp_path, more="--advantage_estimator of_its_own")


def test_a_fork_whose_flags_are_not_all_seen_is_not_said_to_refuse_one(tmp_path: Path) -> None:
    plan = planned(tmp_path, flags="add_more_arguments(parser)\n", more="--packing_samples")
    assert not [finding for finding in plan.findings if finding.severity == "error"]


def test_the_forks_own_defaults_hold(tmp_path: Path) -> None:
    plan = planned(tmp_path, micro=8)
    assert plan.schedule is not None
    assert plan.schedule.samples_per_microbatch == 32


@pytest.mark.parametrize(
    ("changed", "says"),
    [
        ({"episodes": "10"}, "the run goes over range"),
        (
            {"before": "                if steps > 5:\n                    break"},
            "break within a rollout, if steps > 5",
        ),
        ({"before": "                if not good:\n                    continue"}, "continue within a rollout"),
        ({"before": "                self.replay_buffer.active_sampling()"}, "active_sampling may leave samples out"),
        ({"before": "                self.ppo_train(steps)"}, "not trained once"),
        ({"first": "self.replay_buffer.filter()"}, "filter may leave samples out"),
        ({"passes": "2"}, "not passed over max_epochs times"),
        ({"drawn": "args.rollout_batch_size"}, "the loader of prompts is"),
        (
            {"actor": ACTOR.replace("True, True", "drop_last=False").format(drawn=DRAWN, rounds="")},
            "the loader of prompts is",
        ),
        ({"maker": MAKER.replace("args.n_samples_per_prompt", "8")}, "nothing repeats a prompt"),
        ({"maker": MAKER + "experiences = filter_groups(experiences)\n"}, "may leave samples out"),
    ],
)
def test_a_line_that_no_release_has_is_asked_about(tmp_path: Path, changed: dict[str, str], says: str) -> None:
    with pytest.raises(LaunchError, match=rf"{says}.*--version"):
        planned(tmp_path, **changed)  # type: ignore[arg-type]


def test_a_release_that_the_user_names_is_taken_at_his_word(tmp_path: Path) -> None:
    assert planned(tmp_path, episodes="10", version="0.6.4").version == "0.6.4"


GENERATES = "args.vllm_generate_batch_size"


@pytest.mark.parametrize(
    ("trainer", "generator", "release"),
    [
        (DRIVER.format(dataset="PromptDataset", before="", drawn="args.rollout_batch_size"), None, "0.7.5"),
        (DRIVER.format(dataset="PromptDataset", before="", drawn=GENERATES), None, "0.9.0"),
        (UNTIL_EXHAUSTED.format(dataset="PromptDataset", ends=ENDS), None, "0.9.8"),
        (UNTIL_EXHAUSTED.format(dataset="PromptDataset", ends=ENDS), "exhausted = False", "0.9.10"),
        (UNTIL_EXHAUSTED.format(dataset="PromptDataset", ends=ENDS), "self._sample_buffer = []", "0.10.1.post2"),
    ],
)
def test_a_trainer_with_one_controller_is_the_release_whose_lines_it_has(
    tmp_path: Path, trainer: str, generator: str | None, release: str
) -> None:
    if generator is not None:
        (tmp_path / "openrlhf/trainer/ppo_utils").mkdir(parents=True)
        (tmp_path / "openrlhf/trainer/ppo_utils/samples_generator.py").write_text(generator)
    plan = planned(tmp_path, trainer=trainer, actor=POLICY)
    assert plan.schedule is not None
    assert (plan.version, plan.schedule.rollouts) == (release, 30)


def test_another_loader_of_a_controller_is_asked_about(tmp_path: Path) -> None:
    with pytest.raises(LaunchError, match="loader of prompts is another one"):
        planned(
            tmp_path,
            trainer=DRIVER.format(dataset="PromptDataset", before="", drawn="args.own_batch_size"),
            actor=POLICY,
        )


def test_prompts_of_a_class_of_the_forks_own_are_asked_about(tmp_path: Path) -> None:
    says = r"the prompts are a RoundsDataset, which may .* \(openrlhf/trainer/ray/ppo_actor.py:\d+\).*--version"
    with pytest.raises(LaunchError, match=says):
        planned(tmp_path, more="--own_rounds true", actor=ACTOR.format(drawn=DRAWN, rounds=ROUNDS))


def test_a_class_of_the_forks_own_that_the_launch_does_not_take_is_not_asked_about(tmp_path: Path) -> None:
    plan = planned(tmp_path, actor=ACTOR.format(drawn=DRAWN, rounds=ROUNDS))
    assert plan.schedule is not None
    assert plan.schedule.rollouts == 30


def test_prompts_of_a_controllers_own_class_are_asked_about(tmp_path: Path) -> None:
    trainer = DRIVER.format(dataset="RoundsDataset", before="", drawn="args.rollout_batch_size")
    with pytest.raises(LaunchError, match="the prompts are a RoundsDataset"):
        planned(tmp_path, trainer=trainer, actor=POLICY)


@pytest.mark.parametrize(
    "imported",
    [
        "from openrlhf.dataset_utils import PromptDataset, SFTDataset\n",
        "from openrlhf.dataset_utils import (\n    SFTDataset,\n    PromptDataset,\n)\n",
    ],
)
def test_prompts_are_read_in_the_folder_that_the_trainer_has_them_from(tmp_path: Path, imported: str) -> None:
    actor = imported + ACTOR.format(drawn=DRAWN, rounds="")
    plan = planned(tmp_path, actor=actor, prompts_in="dataset_utils")
    assert plan.schedule is not None
    assert (plan.schedule.rollouts, plan.schedule.updates) == (30, 60)


def test_prompts_of_another_length_are_seen_in_a_folder_of_another_name(tmp_path: Path) -> None:
    actor = "from openrlhf.dataset_utils import PromptDataset\n" + ACTOR.format(drawn=DRAWN, rounds="")
    with pytest.raises(
        LaunchError, match=r"another one than that of the prompts \(openrlhf/dataset_utils/prompts_dataset\.py:\d+"
    ):
        planned(tmp_path, actor=actor, prompts_in="dataset_utils", length="len(self.prompts) * 10")
    with pytest.raises(LaunchError, match=r"there is no datasets/prompts_dataset\.py \(openrlhf\)"):
        planned(tmp_path / "elsewhere", prompts_in="dataset_utils")


@pytest.mark.parametrize(
    ("changed", "says"),
    [
        ({"length": "len(self.prompts) * 10"}, "the length is another one than that of the prompts"),
        (
            {"keeps": "            for _ in range(10):\n                self.prompts.append(prompt)"},
            "a row is not one prompt",
        ),
        ({"keeps": f"            if not prompt:\n                continue\n{KEEPS}"}, "a row is not one prompt"),
        ({"keeps": f"{KEEPS}\n{KEEPS}"}, "a row is not one prompt"),
    ],
)
def test_another_length_of_the_prompts_is_asked_about(tmp_path: Path, changed: dict[str, str], says: str) -> None:
    with pytest.raises(LaunchError, match=rf"{says}.*prompts_dataset.py:\d+"):
        planned(tmp_path, **changed)  # type: ignore[arg-type]


def test_filtering_that_releases_have_too_makes_the_length_unknown(tmp_path: Path) -> None:
    plan = planned(
        tmp_path,
        more="--dynamic_filtering",
        trainer=DRIVER.format(dataset="PromptDataset", before="", drawn=GENERATES),
        actor=POLICY,
    )
    assert plan.schedule is not None
    assert plan.schedule.rollouts is None


def test_a_controller_that_leaves_rollouts_out_is_asked_about(tmp_path: Path) -> None:
    before = "                if skipped(samples):\n                    continue"
    with pytest.raises(LaunchError, match="continue within a rollout"):
        planned(tmp_path, trainer=DRIVER.format(dataset="PromptDataset", before=before, drawn=GENERATES), actor=POLICY)


def test_up_to_0_7_0_each_process_draws_its_own_prompts(tmp_path: Path) -> None:
    """0.7.0 as published still has ActorPPOTrainer.fit with a loader of its own; from 0.7.1 on one controller draws."""
    (tmp_path / "train.sh").write_text(
        LAUNCH.replace("--rollout_batch_size 64", "--rollout_batch_size 66 --micro_train_batch_size 2") + "\n"
    )
    drawn = {}
    for release in ("0.7.0", "0.7.1"):
        shown = plan_launch([str(tmp_path / "train.sh")], Options(rows=1000, version=release)).shown
        assert shown is not None
        drawn[release] = shown.prompts_per_rollout
    assert drawn == {"0.7.0": 64, "0.7.1": 66}


ASYNCHRONOUS = """
class GenerateSamplesActor(BasePPOTrainer):
    def fit(self, start_episode, queue):
        for episode in range(start_episode, self.args.num_episodes):
            for _, rand_prompts, labels in self.prompts_dataloader:
                while queue.full():
                    time.sleep(1)
                rollout_samples = self.generate(rand_prompts)
                if self.args.dynamic_filtering and len(rollout_samples) < 4:
                    continue
{sampled}
                queue.put((rollout_samples, episode))
        queue.put("done")

class TrainingActor(BasePPOTrainer):
    def fit(self, queue, steps):
        while True:
            output = queue.get()
            if output == "done":
                break
{received}
            status = self.ppo_train(steps)
"""
PREPARES = """
def prepare_datasets(strategy, tokenizer):
    prompts_dataset = PromptDataset(train_data, tokenizer, strategy)
    prompts_dataloader = strategy.setup_dataloader(prompts_dataset, 1, True, True)
"""
WAITS = "                if len(rollout_samples) < self.args.least:\n                    continue"


@pytest.mark.parametrize(
    ("sampled", "received", "says"),
    [
        ("", "", ""),
        (WAITS, "", r"continue within a rollout, if len\(rollout_samples\) < self.args.least"),
        (
            "",
            "            if len(self.kept) < 8:\n                continue",
            r"continue within a rollout, if len\(self.kept\) < 8",
        ),
        ("", "            self.ppo_train(steps)", "a rollout is not trained once, in each case"),
    ],
)
def test_the_loops_of_the_asynchronous_trainer_are_read(tmp_path: Path, sampled: str, received: str, says: str) -> None:
    (tmp_path / "openrlhf/trainer").mkdir(parents=True)
    text = ASYNCHRONOUS.format(sampled=sampled, received=received)
    (tmp_path / "openrlhf/trainer/ppo_trainer_async.py").write_text(text)
    flags = 'parser.add_argument("--async_train", action="store_true")\n'
    # The other trainer is one that nobody knows; this launch does not run it.
    wrong = FIT.format(episodes="other", before="", first="", passes="2") + PREPARES
    if says:
        with pytest.raises(LaunchError, match=rf"{says} \(openrlhf/trainer/ppo_trainer_async.py.*--version"):
            planned(tmp_path, trainer=wrong, flags=flags, more="--async_train --vllm_num_engines 2")
        return
    plan = planned(tmp_path, trainer=wrong, flags=flags, more="--async_train --vllm_num_engines 2")
    assert plan.shown is not None


def test_the_list_of_prompts_may_have_another_name(tmp_path: Path) -> None:
    kept = "            self.processed.append(prompt)"
    plan = planned(tmp_path / "same", keeps=kept, length="len(self.processed)")
    assert plan.schedule is not None
    assert plan.schedule.rollouts == 30
    with pytest.raises(LaunchError, match="a row is not one prompt"):
        planned(tmp_path / "other", keeps=kept, length="len(self.prompts)")


WITHOUT_RAY = (
    FLAGS
    + """
def train(args):
    prompts_dataset = {dataset}(prompts_data, tokenizer, strategy)
    prompts_dataloader = strategy.setup_dataloader(
        prompts_dataset, args.rollout_batch_size // strategy.world_size, True, True
    )
"""
)
WITH_ANSWERS = """
class WithAnswers(PromptDataset):
    def __init__(self, dataset, tokenizer, strategy):
        super().__init__(dataset, tokenizer, strategy)
        self.answers = [each["answer"] for each in dataset]
{more}
    def __getitem__(self, index):
        return self.prompts[index], self.answers[index]
"""


def without_ray(folder: Path, *, before: str = "", dataset: str = "PromptDataset", more: str = "") -> Plan:
    """The plan of the program whose processes have all roles, in a checkout of a fork."""
    (folder / ".git").mkdir(parents=True)
    package = folder / "openrlhf"
    for inner in ("cli", "trainer/ray", "trainer/ppo_utils", "datasets"):
        (package / inner).mkdir(parents=True, exist_ok=True)
    (package / "cli/train_ppo.py").write_text(WITHOUT_RAY.format(micro=4, dataset=dataset))
    fit = FIT.format(episodes="args.num_episodes", before=before, first="", passes="self.max_epochs")
    (package / "trainer/ppo_trainer.py").write_text(fit)
    (package / "trainer/ray/ppo_actor.py").write_text(ACTOR.format(drawn=DRAWN, rounds=""))
    (package / "trainer/ppo_utils/experience_maker.py").write_text(MAKER)
    prompts = PROMPTS.format(keeps=KEEPS, length="len(self.prompts)") + WITH_ANSWERS.format(more=more)
    (package / "datasets/prompts_dataset.py").write_text(prompts)
    launch = LAUNCH.replace("python3 -m openrlhf.cli.train_ppo_ray", "deepspeed --module openrlhf.cli.train_ppo")
    (folder / "train.sh").write_text(f"{launch.replace('--actor_num_gpus_per_node 4 ', '')} --keep_all\n")
    return plan_launch([str(folder / "train.sh")], Options(rows=1000, world_size=4))


@pytest.mark.parametrize("dataset", ["PromptDataset", "WithAnswers"])
def test_the_trainer_of_the_program_without_ray_is_read(tmp_path: Path, dataset: str) -> None:
    plan = without_ray(tmp_path, dataset=dataset)
    assert plan.schedule is not None
    assert (plan.version, plan.schedule.rollouts, plan.schedule.updates) == ("0.5.9.post1", 30, 60)
    assert not [finding.observed for finding in plan.findings if finding.severity == "error"]
    assert any("was read" in note.text and "ppo_trainer.py:3" in note.text for note in plan.notes)


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"before": "                if steps >= 10:\n                    return"}, "return within a rollout"),
        ({"before": "                self.ppo_train(steps)"}, "trained once"),
        (
            {"dataset": "WithAnswers", "more": "        self.prompts = self.prompts[:10]"},
            "the prompts are a WithAnswers",
        ),
        (
            {"dataset": "WithAnswers", "more": "    def __len__(self):\n        return 10"},
            "the prompts are a WithAnswers",
        ),
        ({"dataset": "Elsewhere"}, "the prompts are a Elsewhere"),
    ],
)
def test_what_the_program_without_ray_does_otherwise_is_asked_about(
    tmp_path: Path, changes: dict[str, str], says: str
) -> None:
    with pytest.raises(LaunchError, match=says):
        without_ray(tmp_path, **changes)
