"""A launch in a checkout of a fork of verl: what the fork's own trainer says decides, and not what its version is called."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from rlstep_hooks.launch.text import LaunchError
from rlstep_hooks.planning.launched import Options, Plan
from rlstep_hooks.systems.engine.launches import plan_launch

if TYPE_CHECKING:
    from pathlib import Path

MAIN = """
from verl.trainer.ppo.ray_trainer import RayPPOTrainer
def main(config):
    trainer = RayPPOTrainer(config=config)
    trainer.fit()
"""
LOADER = """self.train_dataloader = DataLoader(batch_size=self.config.data.train_batch_size, drop_last=True)
        self.val_dataloader = DataLoader(batch_size=len(self.val_dataset), drop_last=True)
        total_training_steps = len(self.train_dataloader) * self.config.trainer.total_epochs
        if self.config.trainer.total_training_steps is not None:
            total_training_steps = self.config.trainer.total_training_steps
        self.total_training_steps = total_training_steps"""
COUNTED_THEN_COMPARED = """
                self.global_steps += 1
                if self.global_steps {sign} self.total_training_steps:
                    return
"""
COMPARED_THEN_COUNTED = """
                is_last_step = self.global_steps >= self.total_training_steps
                self.actor_rollout_wg.save_checkpoint()
                if is_last_step:
                    return
                self.global_steps += 1
"""
COMMENTED_OUT = """
                self.global_steps += 1
                # if self.global_steps >= self.total_training_steps:
                #     return
"""
LAUNCH = (
    "python3 -m verl.trainer.main_ppo data.train_batch_size=100 actor_rollout_ref.rollout.n=4 algorithm.adv_estimator=grpo "
    "actor_rollout_ref.actor.ppo_mini_batch_size=100 actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu=5 "
    "actor_rollout_ref.rollout.log_prob_micro_batch_size_per_gpu=5 actor_rollout_ref.ref.log_prob_micro_batch_size_per_gpu=5 "
    "trainer.n_gpus_per_node=2 trainer.total_epochs=2"
)


def trainer(end: str, *, repeat: str = "actor_rollout_ref.rollout.n", before_update: str = "") -> str:
    return f"""
class RayPPOTrainer:
    def _create_dataloader(self):
        {LOADER}

    def fit(self):
        self.global_steps = 0
        self.global_steps += 1
        for epoch in range(self.config.trainer.total_epochs):
            for batch_dict in self.train_dataloader:
                batch = DataProto.from_single_dict(batch_dict)
                gen_batch = batch.pop(batch_keys=['input_ids'])
                output = self.actor_rollout_wg.generate_sequences(gen_batch)
                batch = batch.repeat(repeat_times=self.config.{repeat}, interleave=True)
                batch = batch.union(output)
{before_update}
                actor_output = self.actor_rollout_wg.update_actor(batch)
{end}
"""


def planned(
    folder: Path,
    source: str,
    launch: str = LAUNCH,
    *,
    below: str = "",
    workers: str | None = None,
    actor: str = "",
    main: str = MAIN,
    **options: object,
) -> Plan:
    """The plan of a script in a checkout, for 1 050 rows: 10 rollouts in each of two passes."""
    (folder / ".git").mkdir()
    package = folder / below / "verl/trainer"
    (package / "ppo").mkdir(parents=True, exist_ok=True)
    (folder / below / "verl/workers/actor").mkdir(parents=True)
    (folder / below / "verl/workers/fsdp_workers.py").write_text(workers or SCALING)
    (folder / below / "verl/workers/actor/dp_actor.py").write_text(actor)
    (package / "main_ppo.py").write_text(main)
    (package / "ppo/ray_trainer.py").write_text(source)
    (folder / "scripts").mkdir(exist_ok=True)
    (folder / "scripts/train.sh").write_text(launch + "\n")
    return plan_launch([str(folder / "scripts/train.sh")], Options(rows=1050, **options))  # type: ignore[arg-type]


TIMES, SPLIT = "*= self.config.rollout.n", "//= self.device_mesh.shape[0]"
PASSES = "for epoch in range(self.config.ppo_epochs):"


def workers(*lines: str, critic: str = "") -> str:
    """Workers that scale the policy's mini-batch by some lines, and the critic's."""
    body = "\n".join(f"        self.config.actor.ppo_mini_batch_size {line}" for line in lines)
    return f"""
class ActorRolloutRefWorker:
    def __init__(self):
        # self.config.actor.ppo_mini_batch_size *= self.config.nothing
{body}

class CriticWorker:
    def __init__(self):
        {critic}
        self.config.ppo_mini_batch_size //= torch.distributed.get_world_size()
"""


SCALING = workers(TIMES, SPLIT)


def rollouts(plan: Plan) -> int | None:
    assert plan.schedule is not None, plan.findings
    return plan.schedule.rollouts


def assumed(plan: Plan) -> str:
    return "\n".join(note.text for note in plan.notes if note.kind == "assumes")


@pytest.mark.parametrize("below", ["", "code", "train/rl"])
def test_a_run_that_counts_and_then_compares_ends_one_rollout_early(tmp_path: Path, below: str) -> None:
    source = trainer(COUNTED_THEN_COMPARED.format(sign=">="))
    plan = planned(tmp_path, source, below=below)
    assert rollouts(plan) == 19
    line = source.splitlines().index("                if self.global_steps >= self.total_training_steps:") + 1
    assert f"verl/trainer/ppo/ray_trainer.py:{line})" in assumed(plan)
    assert plan.version == "0.2.0.post2"


@pytest.mark.parametrize("end", [COUNTED_THEN_COMPARED.format(sign=">"), COMPARED_THEN_COUNTED])
def test_a_run_that_compares_otherwise_makes_all_its_rollouts(tmp_path: Path, end: str) -> None:
    plan = planned(tmp_path, trainer(end))
    assert rollouts(plan) == 20
    assert plan.version == "0.7.1"


@pytest.mark.parametrize(
    ("end", "made"), [(COUNTED_THEN_COMPARED.format(sign=">="), 6), (COMPARED_THEN_COUNTED, 7), (COMMENTED_OUT, 20)]
)
def test_total_training_steps_shortens_a_run_only_where_the_trainer_compares_it(
    tmp_path: Path, end: str, made: int
) -> None:
    plan = planned(tmp_path, trainer(end), f"{LAUNCH} trainer.total_training_steps=7")
    assert rollouts(plan) == made


def test_the_lines_decide_and_not_the_settings_that_only_a_later_release_has(tmp_path: Path) -> None:
    later = f"{LAUNCH} actor_rollout_ref.rollout.val_kwargs.n=1"
    assert rollouts(planned(tmp_path, trainer(COUNTED_THEN_COMPARED.format(sign=">=")), later)) == 19


def test_a_release_that_the_user_names_is_planned_whatever_lies_beside(tmp_path: Path) -> None:
    plan = planned(tmp_path, trainer(COUNTED_THEN_COMPARED.format(sign=">=")), version="0.4.0")
    assert rollouts(plan) == 20


def test_another_factor_of_repetition_is_asked_for(tmp_path: Path) -> None:
    with pytest.raises(
        LaunchError, match=r"repeated agent_grpo\.n times \(verl/trainer/ppo/ray_trainer\.py:19\)"
    ) as error:
        planned(tmp_path, trainer(COMPARED_THEN_COUNTED, repeat="agent_grpo.n"))
    assert "--version" in str(error.value)


@pytest.mark.parametrize(
    "line", ["batch = batch[keep]", "batch = self.filter_and_downsample(batch)", "if len(batch) < 9: continue"]
)
def test_lines_that_may_leave_samples_out_are_asked_for(tmp_path: Path, line: str) -> None:
    with pytest.raises(LaunchError, match=r"none that is known: .*ray_trainer\.py:21\)"):
        planned(tmp_path, trainer(COMPARED_THEN_COUNTED, before_update=f"                {line}"))


VOTES = """
                if self.config.get('votes', {}).get('enable', False):
                    gen_batch.meta_info['kwargs'] = {'n': self.config.votes.n}
                    output = self.actor_rollout_wg.generate_sequences(gen_batch)
                    output = first_of_each_prompt(output, self.config.votes.n)
                else:
                    output = self.actor_rollout_wg.generate_sequences(gen_batch)
                batch = batch.union(output)
"""
GENERATES = "\n                output = self.actor_rollout_wg.generate_sequences(gen_batch)\n"


@pytest.mark.parametrize(("more", "says"), [("", None), (" +votes.enable=True +votes.n=32", "may train a part of it")])
def test_what_is_joined_into_the_batch_that_is_trained_is_followed(tmp_path: Path, more: str, says: str | None) -> None:
    source = trainer(COMPARED_THEN_COUNTED, before_update=VOTES).replace(GENERATES, "\n")
    if says is None:
        assert rollouts(planned(tmp_path, source, LAUNCH + more)) == 20
        return
    with pytest.raises(LaunchError, match=rf"first_of_each_prompt.*{says}.*each prompt is answered votes\.n times"):
        planned(tmp_path, source, LAUNCH + more)


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ("gen_batch.meta_info['n'] = 8", "answered 8 times"),
        ("gen_batch.meta_info.update({'n': votes})", "answered votes times"),
        ("gen_batch.meta_info['n'] = self.config.actor_rollout_ref.rollout.n", None),
        ("test_batch.meta_info['n'] = 8", None),
        ("scores = self.rm_wg.compute_rm_score(batch)\n                batch = batch.union(scores)", None),
        ("part = output[kept]\n                batch = batch.union(part)", "`part = output.kept.` may train a part"),
        ("more = self.actor_rollout_wg.generate_sequences(hinted)", "generated more than once"),
        ("greedy_baseline = self.actor_rollout_wg.generate_sequences(greedy)", None),
        (
            "one = self.rm_wg.compute_rm_score(batch)\n                other = self.rm_wg.compute_rm_score(batch)\n"
            "                scores = one if better(one, other) else other\n                batch = batch.union(scores)",
            None,
        ),
        (
            "part = output if ready else output[kept]\n                batch = batch.union(part)",
            "`part = output.kept.`",
        ),
        ("if is_resuming and batch_idx < self.offset:\n                    continue", None),
        ("if self.resuming:\n                    continue", None),
        ("if batch_idx < self.offset:\n                    continue", "continue within a rollout"),
        ("if is_resuming or batch_idx < self.offset:\n                    continue", "continue within a rollout"),
        ("for one in hinted:\n                    self.actor_rollout_wg.generate_sequences(one)", "more than once"),
    ],
)
def test_another_number_of_answers_is_asked_for(tmp_path: Path, line: str, says: str | None) -> None:
    source = trainer(COMPARED_THEN_COUNTED, before_update=f"                {line}")
    if says is None:
        assert rollouts(planned(tmp_path, source)) == 20
        return
    with pytest.raises(LaunchError, match=rf"{says}.*ray_trainer\.py:\d+.*--version"):
        planned(tmp_path, source)


FOR_TEACHER = """
def for_teacher(batch, tokenizer, options=None):
    ids = [tokenizer(each) for each in batch.non_tensor_batch['raw_prompt']]
    batch.batch['teacher_ids'] = stack(ids)
    {last}
"""


@pytest.mark.parametrize("place", ["teacher.py", "ray_trainer.py"])
@pytest.mark.parametrize(
    ("last", "says"),
    [
        ("return batch", None),
        ("return batch[:8]", "may train a part of it"),
        ("if not ids:\n        return batch[:8]\n    return batch", "may train a part of it"),
    ],
)
def test_a_function_that_gives_the_batch_back_is_read_where_it_lies(
    tmp_path: Path, place: str, last: str, says: str | None
) -> None:
    function = FOR_TEACHER.format(last=last)
    asks = "from verl.trainer.ppo.teacher import for_teacher\n                " if place == "teacher.py" else ""
    lines = f"                {asks}batch = for_teacher(batch=batch, tokenizer=self.tokenizer)"
    source = trainer(COMPARED_THEN_COUNTED, before_update=lines)
    (tmp_path / "verl/trainer/ppo").mkdir(parents=True)
    if place == "teacher.py":
        (tmp_path / "verl/trainer/ppo/teacher.py").write_text(function)
    else:
        source = function + source
    if says is None:
        assert rollouts(planned(tmp_path, source)) == 20
        return
    with pytest.raises(LaunchError, match=says):
        planned(tmp_path, source)


HINTING = """
    def __init__(self):
        self.with_hint = self.config.trainer.get('with_hint', False)

    def _hint(self, batch):
        hinted = self.actor_rollout_wg.generate_sequences(batch)
        batch.batch['responses'] = hinted.batch['responses']
"""


@pytest.mark.parametrize("asked", [False, True])
def test_a_method_that_generates_again_is_asked_for_where_the_launch_calls_it(tmp_path: Path, asked: bool) -> None:
    hints = "                if self.with_hint:\n                    self._hint(batch)"
    source = trainer(COMPARED_THEN_COUNTED, before_update=hints) + HINTING
    if asked:
        with pytest.raises(LaunchError, match="answers are generated more than once in a rollout"):
            planned(tmp_path, source, f"{LAUNCH} +trainer.with_hint=True")
    else:
        assert rollouts(planned(tmp_path, source)) == 20


def test_a_branch_that_the_launch_does_not_take_does_not_count(tmp_path: Path) -> None:
    line = "                if self.config.trainer.get('drops', False):\n                    continue"
    assert rollouts(planned(tmp_path, trainer(COMPARED_THEN_COUNTED, before_update=line))) == 20


@pytest.mark.parametrize(
    ("written", "instead", "says"),
    [
        ("train_batch_size, drop_last=True", "train_batch_size, drop_last=False", "does not drop its last batch"),
        ("train_batch_size, drop_last=True", "train_batch_size * 2, drop_last=True", "the loader's batch is"),
        (" * self.config.trainer.total_epochs", " * 2", "the total of steps is len"),
        ("total_training_steps = total_tr", "total_training_steps = 2 * total_tr", "the total of steps is 2"),
        ("def _create_dataloader", "def _make_dataloader", "has no _create_dataloader"),
    ],
)
def test_another_loader_or_another_total_is_asked_for(tmp_path: Path, written: str, instead: str, says: str) -> None:
    source = trainer(COMPARED_THEN_COUNTED).replace(written, instead)
    assert source != trainer(COMPARED_THEN_COUNTED)
    with pytest.raises(LaunchError, match=says):
        planned(tmp_path, source)


def test_of_two_copies_the_nearer_one_is_read_and_of_two_equally_near_one_is_asked_for(tmp_path: Path) -> None:
    source = trainer(COUNTED_THEN_COMPARED.format(sign=">="))
    other = tmp_path / "other/verl/trainer/ppo"
    other.mkdir(parents=True)
    (other / "ray_trainer.py").write_text(trainer(COMMENTED_OUT))
    with pytest.raises(LaunchError, match=r"2 copies of verl.*code/verl, other/verl"):
        planned(tmp_path, source, below="code")
    script = tmp_path / "code/train.sh"
    script.write_text(LAUNCH)
    assert rollouts(plan_launch([str(script)], Options(rows=1050))) == 19


@pytest.mark.parametrize(("actor", "updates"), [(PASSES, 3), (f"# {PASSES}", 1)])
def test_whether_a_rollout_is_passed_over_several_times_is_read(tmp_path: Path, actor: str, updates: int) -> None:
    launch = f"{LAUNCH} actor_rollout_ref.actor.ppo_epochs=3"
    source = trainer(COUNTED_THEN_COMPARED.format(sign=">="))
    plan = planned(tmp_path, source, launch, workers=workers(TIMES, SPLIT), actor=actor)
    assert plan.schedule is not None
    assert (plan.schedule.updates_per_rollout, plan.schedule.rollouts) == (updates, 19)


@pytest.mark.parametrize(
    ("lines", "size"),
    [
        ((TIMES, SPLIT), 98),  # 49 prompts of 4 samples on 2 processes: 98 samples on each
        ((SPLIT, TIMES), 96),  # 24 prompts on each, which are 96 samples
        ((SPLIT,), 24),
    ],
)
def test_how_a_mini_batch_is_scaled_is_read(tmp_path: Path, lines: tuple[str, ...], size: int) -> None:
    launch = LAUNCH.replace("ppo_mini_batch_size=100", "ppo_mini_batch_size=49").replace(
        "actor.ppo_micro_batch_size_per_gpu=5", "actor.ppo_micro_batch_size_per_gpu=2"
    )
    plan = planned(tmp_path, trainer(COMPARED_THEN_COUNTED), launch, workers=workers(*lines), actor=PASSES)
    assert plan.schedule is not None, plan.findings
    assert plan.schedule.samples_per_update == 2 * size


@pytest.mark.parametrize(
    ("critic", "updates"), [("self.config.ppo_mini_batch_size *= self.config.rollout_n", 1), ("", 4)]
)
def test_how_the_critics_mini_batch_is_scaled_is_read(tmp_path: Path, critic: str, updates: int) -> None:
    launch = LAUNCH.replace("=grpo", "=gae") + " critic.ppo_micro_batch_size_per_gpu=5"
    source = workers(TIMES, SPLIT, critic=critic)
    plan = planned(tmp_path, trainer(COMPARED_THEN_COUNTED), launch, workers=source, actor=PASSES)
    assert plan.schedule is not None, plan.findings
    assert plan.schedule.critic is not None
    assert plan.schedule.critic.updates_per_rollout == updates


def test_another_factor_of_a_mini_batch_is_asked_for(tmp_path: Path) -> None:
    with pytest.raises(LaunchError, match=r"mini-batches are multiplied by self\.config\.rollout\.n_agent"):
        planned(
            tmp_path, trainer(COMPARED_THEN_COUNTED), workers=workers("*= self.config.rollout.n_agent"), actor=PASSES
        )


AGENT, GROUP = "actor_rollout_ref.rollout.n_agent", "actor_rollout_ref.rollout.n"
SEARCH = (
    f"{LAUNCH} actor_rollout_ref.rollout.n_agent=2 actor_rollout_ref.actor.ppo_micro_batch_size=10 "
    "trainer.total_training_steps=7"
)


def test_a_launch_with_the_settings_of_a_known_fork_is_that_forks_where_the_trainer_ends_as_it_does(
    tmp_path: Path,
) -> None:
    plan = planned(tmp_path, trainer(COUNTED_THEN_COMPARED.format(sign=">="), repeat=AGENT), SEARCH)
    assert (plan.framework, rollouts(plan)) == ("search_r1", 6)


@pytest.mark.parametrize("end", [COMPARED_THEN_COUNTED, COMMENTED_OUT])
def test_a_fork_that_took_such_settings_over_and_ends_otherwise_is_asked_for(tmp_path: Path, end: str) -> None:
    with pytest.raises(LaunchError, match=r"not that of Search-R1") as error:
        planned(tmp_path, trainer(end, repeat=AGENT), SEARCH)
    assert "--version a14dc3a" in str(error.value)


OTHER_LOOPS = {
    "batch = batch[:64]": "batch = batch[:64]",
    "if not kept.any(): continue": "continue within a rollout",
    "batch = manager.run_llm_loop(batch)": "run_llm_loop",
    "batch = DataProto.concat([batch, executor_rows])": "concat",
    "batch = batch.repeat(repeat_times=self.config.other.n)": "repeated other.n times",
}


@pytest.mark.parametrize("line", OTHER_LOOPS)
def test_a_fork_that_took_such_settings_over_and_trains_other_rows_is_asked_for(tmp_path: Path, line: str) -> None:
    source = trainer(COUNTED_THEN_COMPARED.format(sign=">="), before_update=f"                {line}")
    with pytest.raises(LaunchError, match=r"not that of Search-R1") as error:
        planned(tmp_path, source, SEARCH)
    assert OTHER_LOOPS[line] in str(error.value)
    assert "ray_trainer.py:21)" in str(error.value)


def test_a_mask_that_a_fork_adds_to_its_batch_changes_no_count(tmp_path: Path) -> None:
    line = "                batch, metrics = self._create_loss_mask(batch, metrics)"
    source = trainer(COUNTED_THEN_COMPARED.format(sign=">="), repeat=AGENT, before_update=line)
    assert rollouts(planned(tmp_path, source, SEARCH)) == 6


def test_a_fork_without_the_repetition_of_the_one_that_is_known_is_asked_for(tmp_path: Path) -> None:
    with pytest.raises(LaunchError, match=r"nothing repeats a prompt actor_rollout_ref\.rollout\.n_agent times"):
        planned(tmp_path, trainer(COUNTED_THEN_COMPARED.format(sign=">=")), SEARCH)


OTHER_LOADERS = {
    "drop_last=True, max_steps=9)": "the loader is given max_steps",
    "drop_last=False)": "does not drop its last batch",
}


@pytest.mark.parametrize("launch", [LAUNCH, SEARCH])
@pytest.mark.parametrize("written", OTHER_LOADERS)
def test_a_loader_that_no_release_has_is_asked_for(tmp_path: Path, launch: str, written: str) -> None:
    source = trainer(COUNTED_THEN_COMPARED.format(sign=">="), repeat=AGENT if launch == SEARCH else GROUP)
    source = source.replace("drop_last=True)", written, 1)
    with pytest.raises(LaunchError, match=OTHER_LOADERS[written]):
        planned(tmp_path, source, launch)


def test_a_loop_over_a_part_of_the_loader_is_asked_for(tmp_path: Path) -> None:
    source = trainer(COUNTED_THEN_COMPARED.format(sign=">=")).replace(
        "in self.train_dataloader", "in islice(self.train_dataloader, self.global_steps, None)"
    )
    with pytest.raises(LaunchError, match="an epoch is no loop over train_dataloader"):
        planned(tmp_path, source)


def test_a_loop_that_logs_a_validation_is_not_taken_for_the_loop_over_epochs(tmp_path: Path) -> None:
    source = trainer(COMPARED_THEN_COUNTED).replace(
        "        self.global_steps = 0\n",
        "        self.global_steps = 0\n        for name in metrics:\n            log(name)\n",
    )
    assert rollouts(planned(tmp_path, source)) == 20


REJECTING = f"{LAUNCH} trainer.rejection_sample={{rejects}} trainer.rejection_sample_multiplier=2"
REJECTION = """
                if self.config.trainer.rejection_sample:
                    if not valid_mask.any():
                        print("nothing is left")
                        continue
                    batch = batch[valid_mask]
                    batch = dataprotoitem_to_dataproto(batch)
                    if not max_batch_size:
                        continue
                    batch = batch[size_mask]
                    batch = dataprotoitem_to_dataproto(batch)
"""
FILLING = """
                if self.config.trainer.rejection_sample:
                    new_batch = batch[valid_mask]
                    held = DataProto.concat([held, new_batch])
                    if len(held) < 100:
                        continue
                    batch = held[:100]
"""
MULTIPLIED = """train_batch_size = self.config.data.train_batch_size
        if self.config.trainer.rejection_sample:
            train_batch_size *= self.config.trainer.rejection_sample_multiplier
            train_batch_size = int(train_batch_size)
        self.train_dataloader = DataLoader(batch_size=train_batch_size, drop_last=True)"""


def rejecting(lines: str) -> str:
    source = trainer(COUNTED_THEN_COMPARED.format(sign=">="), before_update=lines)
    return source.replace(
        "self.train_dataloader = DataLoader(batch_size=self.config.data.train_batch_size, drop_last=True)",
        MULTIPLIED,
        1,
    )


@pytest.mark.parametrize(("rejects", "made"), [("True", 9), ("False", 19)])
def test_a_fork_that_rejects_groups_as_the_known_one_does_is_planned_as_that(
    tmp_path: Path, rejects: str, made: int
) -> None:
    plan = planned(tmp_path, rejecting(REJECTION), REJECTING.format(rejects=rejects))
    assert (plan.framework, rollouts(plan)) == ("skywork_or1", made)


def test_a_fork_that_fills_a_rollout_from_later_batches_is_asked_for(tmp_path: Path) -> None:
    with pytest.raises(LaunchError, match=r"not that of Skywork-OR1 .*continue within a rollout") as error:
        planned(tmp_path, rejecting(FILLING), REJECTING.format(rejects="True"))
    assert "--version 64e96af plans it as Skywork-OR1" in str(error.value)


def test_a_fork_that_rejects_nothing_in_this_launch_is_planned(tmp_path: Path) -> None:
    assert rollouts(planned(tmp_path, rejecting(FILLING), REJECTING.format(rejects="False"))) == 19


def test_a_known_fork_whose_trainer_is_not_found_is_asked_for(tmp_path: Path) -> None:
    main = MAIN + "    OtherTrainer(config=config).fit()\n"
    with pytest.raises(LaunchError, match=r"which trainer verl\.trainer\.main_ppo uses was not found"):
        planned(tmp_path, trainer(COUNTED_THEN_COMPARED.format(sign=">="), repeat=AGENT), SEARCH, main=main)


CHOOSING = """
from verl.trainer.ppo.ray_trainer import RayPPOTrainer
from verl.trainer.ppo.other import OtherTrainer
def main(config):
    other = config.algorithm.get('other', False)
    if other:
        trainer_cls = OtherTrainer
    else:
        trainer_cls = RayPPOTrainer
    trainer = trainer_cls(config=config)
    trainer.fit()
"""
OF_CLASS = """
from verl.trainer.ppo.ray_trainer import RayPPOTrainer as Base
class TaskRunner:
    trainer_cls = Base
    def run(self, config):
        # OtherTrainer(config)
        trainer = self.trainer_cls(config=config)
        trainer.fit()
"""


@pytest.mark.parametrize("main", [CHOOSING, OF_CLASS])
def test_a_trainer_that_stands_in_a_name_of_its_own_is_found(tmp_path: Path, main: str) -> None:
    assert rollouts(planned(tmp_path, trainer(COUNTED_THEN_COMPARED.format(sign=">=")), main=main)) == 19


@pytest.mark.parametrize("setting", ["algorithm.other=True", "+algorithm.other=True"])
def test_a_trainer_that_the_launch_chooses_by_a_setting_is_the_one_that_is_read(tmp_path: Path, setting: str) -> None:
    with pytest.raises(LaunchError, match="which trainer"):
        planned(tmp_path, trainer(COUNTED_THEN_COMPARED.format(sign=">=")), f"{LAUNCH} {setting}", main=CHOOSING)


@pytest.mark.parametrize(
    ("named", "planned_as"), [("0.4.0.dev", "0.4.1"), ("0.3.1.dev", "0.4.1"), ("0.5.0", "0.5.0"), ("9.9", "0.7.1")]
)
def test_the_release_is_the_one_that_the_checkout_names_where_its_lines_allow_it(
    tmp_path: Path, named: str, planned_as: str
) -> None:
    (tmp_path / "verl/version").mkdir(parents=True)
    (tmp_path / "verl/version/version").write_text(f"{named}\n")
    assert planned(tmp_path, trainer(COMPARED_THEN_COUNTED)).version == planned_as


DETACHES = """
        if on_policy:
            old_log_prob = log_prob.detach()
"""


@pytest.mark.parametrize(("actor", "taken_from"), [(DETACHES, "detach"), ("old_log_prob = data['x']", "recompute")])
def test_where_the_old_log_probs_of_a_single_update_come_from_is_read(
    tmp_path: Path, actor: str, taken_from: str
) -> None:
    plan = planned(tmp_path, trainer(COMPARED_THEN_COUNTED), actor=f"{PASSES}\n{actor}")
    assert plan.schedule is not None, plan.findings
    assert (plan.schedule.updates_per_rollout, plan.schedule.old_logprob_source) == (1, taken_from)


@pytest.mark.parametrize(("strategy", "read"), [("fsdp", True), ("megatron", False)])
def test_the_strategy_and_not_the_name_of_a_configuration_says_whose_workers_run(
    tmp_path: Path, strategy: str, read: bool
) -> None:
    (tmp_path / "ours.yaml").write_text(f"actor_rollout_ref: {{actor: {{strategy: {strategy}}}}}\n")
    plan = planned(tmp_path, trainer(COMPARED_THEN_COUNTED), f"{LAUNCH} --config-path={tmp_path} --config-name=ours")
    assert ("Its workers were not read" not in assumed(plan)) == read


KNOWS = """
    def init_workers(self):
        if self.config.algorithm.adv_estimator == 'gae':
            pass
        elif self.config.algorithm.adv_estimator in ['grpo', 'ours']:
            pass
        else:
            raise NotImplementedError('ppo')
"""


@pytest.mark.parametrize(("estimator", "refused"), [("grpo", False), ("ours", False), ("ppo", True)])
def test_an_estimator_that_a_fork_does_not_know_is_refused(tmp_path: Path, estimator: str, refused: bool) -> None:
    source = trainer(COUNTED_THEN_COMPARED.format(sign=">="), repeat=AGENT) + KNOWS
    plan = planned(tmp_path, source, SEARCH.replace("=grpo", f"={estimator}"))
    assert [found.observed for found in plan.findings if found.severity == "error"] == (
        ["NotImplementedError: algorithm.adv_estimator=ppo"] if refused else []
    )


def test_an_estimator_that_a_fork_does_not_know_is_asked_about_where_no_trainer_is_beside_it(tmp_path: Path) -> None:
    launch = tmp_path / "train.sh"
    launch.write_text(SEARCH.replace("=grpo", "=ours"))
    with pytest.raises(LaunchError, match=r"adv_estimator=ours is none of Search-R1's, and the trainer that has it"):
        plan_launch([str(launch)], Options(rows=1050))


@pytest.mark.parametrize(
    ("name", "main", "says"),
    [
        ("main_ours", MAIN, ""),
        ("main_ours", MAIN.replace("RayPPOTrainer", "OurTrainer"), "uses nothing that trains with it"),
        ("main_theirs", MAIN, "which trainer verl.trainer.main_theirs uses was not found"),
    ],
)
def test_a_program_of_another_name_that_builds_the_common_trainer_is_planned(
    tmp_path: Path, name: str, main: str, says: str
) -> None:
    (tmp_path / "verl/trainer").mkdir(parents=True)
    (tmp_path / "verl/trainer/main_ours.py").write_text(main)
    launch = LAUNCH.replace("main_ppo", name)
    if not says:
        assert rollouts(planned(tmp_path, trainer(COMPARED_THEN_COUNTED), launch)) == 20
        return
    with pytest.raises(LaunchError, match=says):
        planned(tmp_path, trainer(COMPARED_THEN_COUNTED), launch)


@pytest.mark.parametrize(
    ("more", "size"),
    [
        ("self.config.actor.ppo_micro_batch_size *= self.config.rollout.n", 40),  # 5 on each of 2 processes, times 4
        ("self.config.actor.ppo_micro_batch_size_per_gpu = self.config.actor.ppo_micro_batch_size", 10),
    ],
)
def test_how_the_micro_batch_of_a_fork_is_scaled_is_read(tmp_path: Path, more: str, size: int) -> None:
    source = trainer(COUNTED_THEN_COMPARED.format(sign=">="), repeat=AGENT)
    scaling = workers(SPLIT, TIMES).replace("class CriticWorker", f"        {more}\n\nclass CriticWorker")
    launch = SEARCH.replace("actor.ppo_micro_batch_size_per_gpu=5 ", "")
    plan = planned(tmp_path, source, launch, workers=scaling)
    assert plan.schedule is not None, plan.findings
    assert plan.schedule.samples_per_microbatch == size


@pytest.mark.parametrize("actor", [PASSES, ""])
def test_passes_that_a_fork_makes_and_the_known_one_does_not_are_asked_for(tmp_path: Path, actor: str) -> None:
    source = trainer(COUNTED_THEN_COMPARED.format(sign=">="), repeat=AGENT)
    launch = f"{SEARCH} actor_rollout_ref.actor.ppo_epochs=3"
    if not actor:
        assert rollouts(planned(tmp_path, source, launch)) == 6
        return
    with pytest.raises(LaunchError, match=r"a rollout is passed over ppo_epochs times \(verl/workers/actor/dp_actor"):
        planned(tmp_path, source, launch, actor=actor)


def test_a_mini_batch_of_a_fork_with_a_factor_of_its_own_is_asked_for(tmp_path: Path) -> None:
    source = trainer(COUNTED_THEN_COMPARED.format(sign=">="), repeat=AGENT)
    with pytest.raises(LaunchError, match=r"not that of Search-R1 .*multiplied by self\.config\.rollout\.n_agent"):
        planned(tmp_path, source, SEARCH, workers=workers(SPLIT, "*= self.config.rollout.n_agent"))


EPISODES = """
                made = self.traj_collector.multi_turn_loop(
                    gen_batch=gen_batch, actor_rollout_wg=self.actor_rollout_wg, envs=self.envs, is_train=True)
                batch = made
                batch = adjust_batch(self.config, batch)
"""
EPISODES_LAUNCH = LAUNCH.replace("rollout.n=4", "rollout.n=1") + " env.rollout.n=4 env.env_name=webshop"


@pytest.mark.parametrize(
    ("end", "lines", "says"),
    [
        (COMPARED_THEN_COUNTED, EPISODES, ""),
        (COUNTED_THEN_COMPARED.format(sign=">="), EPISODES, "its run ends at"),
        (COMPARED_THEN_COUNTED, f"{EPISODES}                batch = batch[valid_mask]", "may train a part of it"),
    ],
)
def test_a_fork_of_verl_agent_is_planned_where_its_trainer_takes_episodes_in_the_same_way(
    tmp_path: Path, end: str, lines: str, says: str
) -> None:
    source = trainer(end, before_update=lines, repeat="env.rollout.n")
    if not says:
        plan = planned(tmp_path, source, EPISODES_LAUNCH, actor=PASSES)
        assert (plan.framework, rollouts(plan)) == ("verl_agent", 20)
        return
    with pytest.raises(LaunchError, match=rf"not that of verl-agent .*{says}"):
        planned(tmp_path, source, EPISODES_LAUNCH, actor=PASSES)


COLLECTOR = """
class TrajectoryCollector:
    def multi_turn_loop(self, gen_batch, actor_rollout_wg, envs, critics=None, is_train=True):
        if self.config.env.use_critics and is_train:
            found = self.criticised_multi_turn_loop(gen_batch=gen_batch)
        elif self.config.algorithm.filter_groups.enable and is_train:
            found = self.dynamic_multi_turn_loop(gen_batch=gen_batch)
        else:
            found = self.vanilla_multi_turn_loop(gen_batch=gen_batch)
        return self.gather_rollout_data(found)
"""


@pytest.mark.parametrize(
    ("more", "collector", "says"),
    [
        ("env.use_critics=False", COLLECTOR, ""),
        ("env.use_critics=True", COLLECTOR, "multi_turn_loop"),
        ("", COLLECTOR, "multi_turn_loop"),
        ("env.use_critics=False", "", "multi_turn_loop"),
    ],
)
def test_a_fork_may_give_its_collector_of_episodes_more_where_its_loops_are_those_of_verl_agent(
    tmp_path: Path, more: str, collector: str, says: str
) -> None:
    place = tmp_path / "agent_system/multi_turn_rollout/rollout_loop.py"
    place.parent.mkdir(parents=True)
    place.write_text(collector)
    lines = EPISODES.replace("envs=self.envs,", "envs=self.envs, critics=self.critics,")
    source = trainer(COMPARED_THEN_COUNTED, before_update=lines, repeat="env.rollout.n")
    launch = f"{EPISODES_LAUNCH} algorithm.filter_groups.enable=False {more}"
    if not says:
        assert rollouts(planned(tmp_path, source, launch, actor=PASSES)) == 20
        return
    with pytest.raises(LaunchError, match=rf"not that of verl-agent .*{says}"):
        planned(tmp_path, source, launch, actor=PASSES)


ANEW = """
    def _next_pass(self):
        self.train_dataloader = DataLoader(batch_size=self.config.data.train_batch_size, drop_last=True)

    def _load_checkpoint(self):
        self.train_dataloader = torch.load(path)
"""
RESUMED = ANEW[ANEW.index("    def _load") :]


@pytest.mark.parametrize("launch", [LAUNCH, SEARCH])
def test_a_trainer_that_makes_its_loader_anew_is_asked_for(tmp_path: Path, launch: str) -> None:
    """One fork samples a single batch for each pass from the second on: 508 rollouts came where 4 499 were planned."""
    source = trainer(COUNTED_THEN_COMPARED.format(sign=">="))
    with pytest.raises(
        LaunchError, match=r"_next_pass makes train_dataloader anew \(verl/trainer/ppo/ray_trainer\.py"
    ) as error:
        planned(tmp_path, source + ANEW, launch)
    assert "_load_checkpoint" not in str(error.value)
    assert "--version" in str(error.value)


@pytest.mark.parametrize(("launch", "number"), [(LAUNCH, 19), (SEARCH, 6)])
def test_a_loader_that_a_resumed_run_takes_up_is_no_other_loader(tmp_path: Path, launch: str, number: int) -> None:
    source = trainer(COUNTED_THEN_COMPARED.format(sign=">="), repeat=AGENT if launch == SEARCH else GROUP)
    assert rollouts(planned(tmp_path, source + RESUMED, launch)) == number


def test_a_program_whose_trainer_is_not_found_is_asked_for(tmp_path: Path) -> None:
    other = LAUNCH.replace("python3 -m verl.trainer.main_ppo", "python3 main_ppo_split.py")
    (tmp_path / "scripts").mkdir()
    (tmp_path / "scripts/main_ppo_split.py").write_text(MAIN.replace("RayPPOTrainer(", "made("))
    with pytest.raises(LaunchError, match=r"which trainer main_ppo_split\.py uses was not found in verl"):
        planned(tmp_path, trainer(COMPARED_THEN_COUNTED), other)


ACTOR = """
from verl.trainer.ppo.ray_trainer import RayPPOTrainer
from verl.trainer.ppo.other import OtherTrainer
def main(config):
    chosen = OtherTrainer if config.algorithm.other == True else RayPPOTrainer
    trainer = chosen{options}.remote(config=config)
    ray.get(trainer.fit.remote())
"""


@pytest.mark.parametrize("options", ["", ".options(num_cpus=1)"])
@pytest.mark.parametrize(("other", "found"), [("False", True), ("True", False)])
def test_a_trainer_that_is_an_actor_of_ray_is_found(tmp_path: Path, options: str, other: str, found: bool) -> None:
    source = trainer(COUNTED_THEN_COMPARED.format(sign=">="))
    launch, main = f"{LAUNCH} +algorithm.other={other}", ACTOR.format(options=options)
    if found:
        assert rollouts(planned(tmp_path, source, launch, main=main)) == 19
        return
    with pytest.raises(LaunchError, match=r"which trainer verl\.trainer\.main_ppo uses was not found"):
        planned(tmp_path, source, launch, main=main)


CONFIGURED = MAIN.replace(
    "def main", "@hydra.main(config_path='config', config_name='ppo_trainer', version_base=None)\ndef main"
)
CONFIGURATION = """
data: {train_batch_size: 100, own: 3}
actor_rollout_ref:
  actor: {ppo_mini_batch_size: 50, ppo_micro_batch_size_per_gpu: 5, ppo_epochs: 1}
  rollout: {n: 4, log_prob_micro_batch_size_per_gpu: 5, tensor_model_parallel_size: 2}
  ref: {log_prob_micro_batch_size_per_gpu: 5}
algorithm: {adv_estimator: grpo, drops: false}
trainer: {n_gpus_per_node: 2, total_epochs: 3, total_training_steps: null}
"""


DROPPING = """

def apply_mode(batch, mode):
    if mode != 'drop':
        return batch, {}
    return batch[batch.batch['short']], {}
"""


@pytest.mark.parametrize(
    ("line", "more", "known"),
    [
        ("mode = self.config.get('mode', 'use')", "", True),
        ("mode = self.config.get('mode', 'use')", "+mode=drop", False),
        ("mode = self.config.trainer.get('mode', 'use')", "+trainer.mode=drop", False),
        ("mode = made()", "", False),
    ],
)
def test_a_function_with_a_known_beginning_may_take_a_part(tmp_path: Path, line: str, more: str, known: bool) -> None:
    """`apply_...` adds columns in verl; one of a fork's own is read."""
    changes = f"                {line}\n                batch, metrics = apply_mode(batch, mode)"
    source = trainer(COMPARED_THEN_COUNTED, before_update=changes) + DROPPING
    if known:
        assert rollouts(planned(tmp_path, source, f"{LAUNCH} {more}")) == 20
        return
    with pytest.raises(LaunchError, match=r"batch = apply_mode\(batch, mode\)` may train a part"):
        planned(tmp_path, source, f"{LAUNCH} {more}")


def configured(folder: Path, launch: str, configuration: str = CONFIGURATION, *, before_update: str = "") -> Plan:
    config = folder / "verl/trainer/config"
    config.mkdir(parents=True)
    (config / "ppo_trainer.yaml").write_text(configuration)
    return planned(folder, trainer(COMPARED_THEN_COUNTED, before_update=before_update), launch, main=CONFIGURED)


def test_what_the_launch_leaves_out_is_as_the_checkouts_own_configuration_has_it(tmp_path: Path) -> None:
    plan = configured(tmp_path, "python3 -m verl.trainer.main_ppo trainer.nnodes=1")
    assert plan.schedule is not None, plan.findings
    made = (plan.schedule.rollouts, plan.schedule.samples_per_prompt, plan.schedule.updates_per_rollout)
    assert made == (30, 4, 2)
    assert not [setting for setting in plan.unused if "ppo_trainer.yaml" in setting.place.source]


def test_what_the_configuration_refuses_is_said_before_its_trainer_is_asked_about(tmp_path: Path) -> None:
    """With such a setting no trainer is ever made, whatever it does."""
    launch = "python3 -m verl.trainer.main_ppo actor_rollout_ref.actor.own=1"
    with pytest.raises(LaunchError, match=r"Could not override 'actor_rollout_ref\.actor\.own'") as refused:
        configured(tmp_path / "refused", launch, before_update=" " * 16 + "batch = batch[keep]")
    assert "--version" not in str(refused.value)
    launch = "python3 -m verl.trainer.main_ppo data.own=1"
    with pytest.raises(LaunchError, match="none that is known"):
        configured(tmp_path / "asked", launch, before_update=" " * 16 + "batch = batch[keep]")


def test_the_checkouts_own_configuration_says_which_settings_are_refused(tmp_path: Path) -> None:
    given = "data.own=4 actor_rollout_ref.rollout.tensor_model_parallel_size=1 actor_rollout_ref.actor.use_kl_loss=True"
    plan = configured(tmp_path, f"python3 -m verl.trainer.main_ppo {given}")
    assert [(found.code, found.observed.partition(".")[0]) for found in plan.findings if found.severity == "error"] == [
        ("RLS110", "Could not override 'actor_rollout_ref")
    ]
    assert not plan.foreign


@pytest.mark.parametrize(("given", "asked"), [("", False), (" algorithm.drops=True", True)])
def test_the_checkouts_own_configuration_decides_which_branch_is_taken(tmp_path: Path, given: str, asked: bool) -> None:
    line = "                if self.config.algorithm.drops:\n                    continue"
    launch = f"python3 -m verl.trainer.main_ppo trainer.total_epochs=2{given}"
    if asked:
        with pytest.raises(LaunchError, match="continue within a rollout"):
            configured(tmp_path, launch, before_update=line)
    else:
        assert rollouts(configured(tmp_path, launch, before_update=line)) == 20


def test_a_configuration_with_a_list_of_defaults_is_not_taken_for_the_whole(tmp_path: Path) -> None:
    listed = "defaults: [actor: dp_actor, _self_]\n" + CONFIGURATION
    plan = configured(tmp_path, f"{LAUNCH} actor_rollout_ref.actor.use_kl_loss=True", listed)
    assert not [found for found in plan.findings if found.severity == "error"]


def test_workers_that_do_not_scale_a_mini_batch_are_asked_for(tmp_path: Path) -> None:
    with pytest.raises(LaunchError, match=r"nothing scales ppo_mini_batch_size \(verl/workers/fsdp_workers\.py\)"):
        planned(tmp_path, trainer(COMPARED_THEN_COUNTED), workers="class ActorRolloutRefWorker: pass\n")


@pytest.mark.parametrize(
    ("end", "expected"),
    [(COUNTED_THEN_COMPARED.format(sign=">="), 19), (COMPARED_THEN_COUNTED, 20), (COMMENTED_OUT, 20)],
)
def test_a_configuration_on_its_own_is_planned_by_the_trainer_of_its_checkout(
    tmp_path: Path, end: str, expected: int
) -> None:
    planned(tmp_path, trainer(end))
    config = tmp_path / "scripts/ppo.yaml"
    config.write_text(
        "data: {train_batch_size: 100}\ntrainer: {total_epochs: 2, n_gpus_per_node: 2}\n"
        "actor_rollout_ref: {actor: {ppo_mini_batch_size: 100, use_dynamic_bsz: true}, rollout: {log_prob_use_dynamic_bsz: true}}\n"
        "critic: {use_dynamic_bsz: true}\n"
    )
    assert rollouts(plan_launch([str(config)], Options(rows=1050))) == expected


RECIPE = LAUNCH.replace("verl.trainer.main_ppo", "recipe.dapo.main_dapo")
FILTERED = """
                if self.config.algorithm.filter_groups.enable:
                    batch = batch[kept]
                    if len(batch) < 100:
                        continue
"""
FILLED = """
                new_batch = batch
                if not self.config.algorithm.filter_groups.enable:
                    batch = new_batch
                else:
                    new_batch = new_batch[kept_traj_idxs]
                    batch = new_batch if batch is None else DataProto.concat([batch, new_batch])
                    if num_prompt_in_batch < 100:
                        if max_num_gen_batches <= 0 or num_gen_batches < max_num_gen_batches:
                            self.gen_steps += 1
                            continue
                        else:
                            raise ValueError
                    else:
                        if self.config.get('tree', False):
                            pass
                        else:
                            traj_bsz = self.config.data.train_batch_size * self.config.actor_rollout_ref.rollout.n
                            batch = batch[:traj_bsz]
"""


def of_recipe(folder: Path, end: str, *, more: str = "", **words: str) -> Plan:
    """The plan of DAPO's recipe in a checkout, for 1 050 rows: 10 rollouts in each of two passes."""
    source = trainer(end, before_update=words.pop("before_update", FILTERED), **words)
    (folder / "recipe/dapo").mkdir(parents=True)
    (folder / "recipe/dapo/dapo_ray_trainer.py").write_text(source.replace("RayPPOTrainer", "RayDAPOTrainer"))
    return planned(folder, trainer(COMPARED_THEN_COUNTED), f"{RECIPE} {more}")


@pytest.mark.parametrize("more", ["", "+algorithm.filter_groups.enable=False"])
def test_the_trainer_of_the_recipe_is_read(tmp_path: Path, more: str) -> None:
    plan = of_recipe(tmp_path, COMPARED_THEN_COUNTED, more=more)
    assert rollouts(plan) == 20
    assert "recipe/dapo/dapo_ray_trainer.py" in assumed(plan)


@pytest.mark.parametrize(
    ("end", "words", "says"),
    [
        (COUNTED_THEN_COMPARED.format(sign=">="), {}, "compared after the step is counted up"),
        (COMMENTED_OUT, {}, "nothing ends it at its total of steps"),
        (COMPARED_THEN_COUNTED, {"before_update": "                batch = batch[kept]"}, "may train a part"),
        (COMPARED_THEN_COUNTED, {"repeat": "data.copies"}, "each prompt is repeated data.copies times"),
    ],
)
def test_a_recipe_of_another_kind_is_asked_for(tmp_path: Path, end: str, words: dict[str, str], says: str) -> None:
    with pytest.raises(LaunchError, match=rf"DAPO's recipe beside the launch is none that is known.*{says}.*--version"):
        of_recipe(tmp_path, end, **words)


BY_GENERATED = """
                is_last_step = self.gen_steps >= self.total_training_steps
                if is_last_step:
                    return
                self.global_steps += 1
                self.gen_steps += 1
"""


@pytest.mark.parametrize("more", ["", "+algorithm.filter_groups.enable=True"])
def test_a_recipe_that_ends_by_the_batches_that_it_generated_is_read(tmp_path: Path, more: str) -> None:
    started = "\n        self.gen_steps = 0\n        self.gen_steps += 1\n        for epoch"
    source = trainer(BY_GENERATED, before_update=FILLED).replace("\n        for epoch", started)
    (tmp_path / "recipe/dapo").mkdir(parents=True)
    (tmp_path / "recipe/dapo/dapo_ray_trainer.py").write_text(source.replace("RayPPOTrainer", "RayDAPOTrainer"))
    plan = planned(tmp_path, trainer(COMPARED_THEN_COUNTED), f"{RECIPE} trainer.total_training_steps=7 {more}")
    # Where groups are filtered, a batch that is generated is no rollout.
    assert rollouts(plan) == (None if more else 7)


def test_generated_batches_that_are_not_counted_with_the_rollouts_are_asked_for(tmp_path: Path) -> None:
    with pytest.raises(LaunchError, match="gen_steps is counted up 0 times before the loop and 1 times in it"):
        of_recipe(tmp_path, BY_GENERATED)


def test_a_recipe_that_filters_its_groups_has_no_exact_length(tmp_path: Path) -> None:
    plan = of_recipe(tmp_path, COMMENTED_OUT, more="+algorithm.filter_groups.enable=True", before_update=FILLED)
    assert rollouts(plan) is None


HANDED_OVER = """
    def fit(self):
        {way}
"""
MOST = """
                max_num_gen_batches = self.config.algorithm.filter_groups.max_num_gen_batches
"""


@pytest.mark.parametrize(("way", "is_read"), [("return self.own_fit()", True), ("return run_elsewhere(self)", False)])
def test_a_recipe_whose_fit_runs_another_method_is_that_method(tmp_path: Path, way: str, is_read: bool) -> None:
    """Conditions of the recipe that its reader knows by their words stay as they are written, whatever the settings are."""
    most = "+algorithm.filter_groups.enable=True +algorithm.filter_groups.max_num_gen_batches=10"
    end = COMMENTED_OUT + HANDED_OVER.format(way=way)
    filled = FILLED.replace("                new_batch = batch\n", f"{MOST}                new_batch = batch\n", 1)
    source = trainer(end, before_update=filled).replace("    def fit(self", "    def own_fit(self", 1)
    (tmp_path / "recipe/dapo").mkdir(parents=True)
    (tmp_path / "recipe/dapo/dapo_ray_trainer.py").write_text(source.replace("RayPPOTrainer", "RayDAPOTrainer"))
    if is_read:
        assert rollouts(planned(tmp_path, trainer(COMPARED_THEN_COUNTED), f"{RECIPE} {most}")) is None
        return
    with pytest.raises(LaunchError, match="its fit returns what `run_elsewhere` runs"):
        planned(tmp_path, trainer(COMPARED_THEN_COUNTED), f"{RECIPE} {most}")


PARTS = """
defaults:
  - actor@actor_rollout_ref.actor: own_actor
  - _self_
data: {train_batch_size: 100}
actor_rollout_ref:
  rollout: {n: 4, log_prob_micro_batch_size_per_gpu: 5, tensor_model_parallel_size: 2}
  ref: {log_prob_micro_batch_size_per_gpu: 5}
algorithm: {adv_estimator: grpo}
trainer: {n_gpus_per_node: 2, total_epochs: 3, total_training_steps: null, with_hints: false}
"""
OWN_ACTOR = "{ppo_mini_batch_size: 50, ppo_micro_batch_size_per_gpu: 5, ppo_epochs: 1, hint_loss: 0}\n"
SILENT = "python3 -m verl.trainer.main_ppo trainer.with_hints=True actor_rollout_ref.actor.hint_loss=1"


@pytest.mark.parametrize(
    ("more", "codes"), [("", []), ("trainer.no_hints=True", ["RLS110"]), ("actor.no_hints=True", ["RLS110"])]
)
def test_a_configuration_of_several_files_is_put_together(tmp_path: Path, more: str, codes: list[str]) -> None:
    (tmp_path / "verl/trainer/config/actor").mkdir(parents=True)
    (tmp_path / "verl/trainer/config/actor/own_actor.yaml").write_text(OWN_ACTOR)
    (tmp_path / "verl/trainer/config/ppo_trainer.yaml").write_text(PARTS)
    plan = planned(tmp_path, trainer(COMPARED_THEN_COUNTED), f"{SILENT} {more}", main=CONFIGURED)
    assert [found.code for found in plan.findings if found.severity == "error"] == codes
    assert plan.shown is not None
    # 100 prompts with 4 samples in mini-batches of 50 prompts, 10 rollouts in each of 3 passes.
    assert (plan.shown.rollouts, plan.shown.updates_per_rollout) == (30, 2)


@pytest.mark.parametrize("program", ["-m kept.verl.trainer.main_ppo", "kept/verl/trainer/main_ppo.py"])
def test_a_package_within_another_is_named_by_the_checkouts_own_path(tmp_path: Path, program: str) -> None:
    launch = LAUNCH.replace("-m verl.trainer.main_ppo", program)
    plan = planned(tmp_path, trainer(COUNTED_THEN_COMPARED.format(sign=">=")), launch, below="kept")
    assert rollouts(plan) == 19
    assert "kept/verl/trainer/ppo/ray_trainer.py" in assumed(plan)


OF_EXPERIMENT = """
hydra: {searchpath: ["file://verl/trainer/config"]}
defaults: [ppo_trainer, _self_]
rollout: {nnodes: 1, n_gpus_per_node: 8}
"""


@pytest.mark.parametrize(
    ("more", "codes"), [("rollout.n_gpus_per_node=2 +algorithm.own.x=1", []), ("rollout.gpus=2", ["RLS110"])]
)
def test_an_experimental_program_has_the_settings_of_its_own_configuration(
    tmp_path: Path, more: str, codes: list[str]
) -> None:
    folder = tmp_path / "verl/experimental/one_step_off_policy"
    (folder / "config").mkdir(parents=True)
    (folder / "main_ppo.py").write_text(CONFIGURED.replace("ppo_trainer'", "one_step'"))
    (folder / "config/one_step.yaml").write_text(OF_EXPERIMENT)
    (tmp_path / "verl/trainer/config").mkdir(parents=True)
    (tmp_path / "verl/trainer/config/ppo_trainer.yaml").write_text(CONFIGURATION)
    launch = LAUNCH.replace("verl.trainer.main_ppo", "verl.experimental.one_step_off_policy.main_ppo")
    plan = planned(tmp_path, trainer(COMPARED_THEN_COUNTED), f"{launch} {more}")
    assert not plan.foreign
    assert [found.code for found in plan.findings if found.severity == "error"] == codes
    assert "the configuration beside the launch was read" in assumed(plan)


OVERSAMPLING = """
    def filter_and_downsample(self, scores, batch):
        batch.reorder(reorder_index[: int(len(batch) // self.config.data.{factor})])
        return batch
"""


def of_prime(folder: Path, factor: str) -> Plan:
    source = trainer(
        COUNTED_THEN_COMPARED.format(sign=">="),
        before_update="                batch = self.filter_and_downsample(scores, batch)",
    ).replace(
        "batch_size=self.config.data.train_batch_size",
        "batch_size=int(self.config.data.train_batch_size * self.config.data.oversample_factor)",
    )
    prime = folder / "recipe/prime"
    prime.mkdir(parents=True)
    own = source.replace("RayPPOTrainer", "RayPRIMETrainer") + OVERSAMPLING.format(factor=factor)
    (prime / "prime_ray_trainer.py").write_text(own)
    main = MAIN.replace("verl.trainer.ppo.ray_trainer", ".prime_ray_trainer").replace("RayPPO", "RayPRIME")
    (prime / "main_prime.py").write_text(main)
    launch = LAUNCH.replace("verl.trainer.main_ppo", "recipe.prime.main_prime").replace("grpo", "rloo")
    return planned(folder, trainer(COMPARED_THEN_COUNTED), f"{launch} data.oversample_factor=2")


def test_a_trainer_beside_its_program_is_found_and_read(tmp_path: Path) -> None:
    plan = of_prime(tmp_path, "oversample_factor")
    assert plan.schedule is not None
    # 200 of 1 050 prompts in each rollout, so 5 in each of 2 passes, of which the last never comes.
    assert (plan.schedule.rollouts, plan.schedule.prompts_per_rollout) == (9, 200)


def test_a_trainer_that_keeps_another_part_than_the_one_that_is_known_is_asked_for(tmp_path: Path) -> None:
    with pytest.raises(
        LaunchError, match=r"filter_and_downsample keeps other samples \(recipe/prime/prime_ray_trainer"
    ):
        of_prime(tmp_path, "kept_factor")


GENERATING = """
    def generate_sequences(self, prompts):
        output = self.rollout.generate_sequences(prompts=prompts)
        if self._is_actor and recompute_log_prob:
            old_log_probs = self.actor.compute_log_prob(data=output)
            output.batch['old_log_probs'] = old_log_probs
        return output
"""
OF_VERSION_0_1 = SCALING.replace("\nclass CriticWorker", GENERATING + "\nclass CriticWorker")
RECOMPUTED = "                {indent}batch = batch.union(self.actor_rollout_wg.compute_log_prob(batch))"


def source_of_old_logprobs(folder: Path, *, before_update: str = "", workers: str = OF_VERSION_0_1) -> tuple[str, str]:
    """Where old log-probs come from, and what the plan assumes."""
    source = trainer(COUNTED_THEN_COMPARED.format(sign=">="), before_update=before_update)
    plan = planned(folder, source, workers=workers)
    assert plan.schedule is not None, plan.findings
    return plan.schedule.old_logprob_source, assumed(plan)


def test_workers_that_generate_may_compute_old_logprobs(tmp_path: Path) -> None:
    source, said = source_of_old_logprobs(tmp_path)
    assert source == "at_rollout"
    assert "computed with the rollout, in generate_sequences (verl/workers/fsdp_workers.py:12)" in said


def test_a_trainer_that_asks_for_old_logprobs_has_them_recomputed(tmp_path: Path) -> None:
    assert source_of_old_logprobs(tmp_path, before_update=RECOMPUTED.format(indent=""))[0] == "recompute"


def test_workers_that_only_generate_leave_old_logprobs_to_the_trainer(tmp_path: Path) -> None:
    assert source_of_old_logprobs(tmp_path, workers=SCALING)[0] == "recompute"


@pytest.mark.parametrize(
    ("condition", "source"),
    [
        ("self.config.trainer.n_gpus_per_node == 2", "recompute"),
        ("self.config.trainer.n_gpus_per_node > 2", "at_rollout"),
    ],
)
def test_a_branch_that_the_launch_decides_decides_on_old_logprobs(tmp_path: Path, condition: str, source: str) -> None:
    before = f"                if {condition}:\n{RECOMPUTED.format(indent='    ')}"
    assert source_of_old_logprobs(tmp_path, before_update=before)[0] == source


def test_a_branch_that_only_the_run_decides_leaves_old_logprobs_unknown(tmp_path: Path) -> None:
    before = f"                if self.retempers:\n{RECOMPUTED.format(indent='    ')}"
    with pytest.raises(LaunchError, match=r"may be computed again \(verl/trainer/ppo/ray_trainer.py:2\d\).*--version"):
        source_of_old_logprobs(tmp_path, before_update=before)


def test_old_logprobs_of_a_method_of_its_own_are_asked_about(tmp_path: Path) -> None:
    method = "\n    def _again(self, batch):\n        return self.actor_rollout_wg.compute_log_prob(batch)\n"
    source = trainer(COUNTED_THEN_COMPARED.format(sign=">=")) + method
    with pytest.raises(LaunchError, match="may be computed again outside of fit"):
        planned(tmp_path, source, workers=OF_VERSION_0_1)


def test_what_is_not_multiplied_is_not_rounded_down(tmp_path: Path) -> None:
    source = trainer(COUNTED_THEN_COMPARED.format(sign=">="))
    plan = planned(tmp_path, source, workers=workers(SPLIT))
    assert plan.schedule is not None
    assert plan.schedule.samples_per_update == 100
    assert not any("rounded down" in note.text for note in plan.notes)


ENDS_IF = """
                self.global_steps += 1
                if self.global_steps >= self.total_training_steps and {condition}:
                    return
"""


def test_an_end_on_conditions_that_the_launch_meets_is_one(tmp_path: Path) -> None:
    source = trainer(ENDS_IF.format(condition="self.config.trainer.n_gpus_per_node == 2"))
    assert rollouts(planned(tmp_path, source)) == 19


def test_an_end_on_a_condition_that_only_the_run_knows_is_asked_about(tmp_path: Path) -> None:
    with pytest.raises(LaunchError, match="the run returns within a rollout"):
        planned(tmp_path, trainer(ENDS_IF.format(condition="self.enough")))


def test_a_fork_whose_loop_is_not_read_is_asked_about_with_the_reason(tmp_path: Path) -> None:
    source = trainer(COMMENTED_OUT, repeat=AGENT).replace("for batch_dict in self.train_dataloader", "while self.more")
    with pytest.raises(LaunchError, match=r"not that of Search-R1 .*: an epoch is no loop over train_dataloader"):
        planned(tmp_path, source, SEARCH)


RECIPE_CONFIGURATION = """
hydra: {searchpath: ["file://verl/trainer/config"]}
defaults: [ppo_trainer, _self_]
algorithm: {filter_groups: {enable: false, metric: null, max_num_gen_batches: 0}, own: {setting: 1}}
"""


def configured_recipe(folder: Path, more: str, before_update: str = FILLED) -> Plan:
    (folder / "recipe/dapo/config").mkdir(parents=True)
    (folder / "recipe/dapo/config/dapo_trainer.yaml").write_text(RECIPE_CONFIGURATION)
    (folder / "recipe/dapo/main_dapo.py").write_text(CONFIGURED.replace("ppo_trainer'", "dapo_trainer'"))
    source = trainer(COMPARED_THEN_COUNTED, before_update=before_update).replace("RayPPOTrainer", "RayDAPOTrainer")
    (folder / "recipe/dapo/dapo_ray_trainer.py").write_text(source)
    (folder / "verl/trainer/config").mkdir(parents=True)
    (folder / "verl/trainer/config/ppo_trainer.yaml").write_text(CONFIGURATION)
    return planned(
        folder, trainer(COMPARED_THEN_COUNTED), f"python3 -m recipe.dapo.main_dapo trainer.total_epochs=3 {more}"
    )


def test_the_recipes_own_configuration_says_which_settings_are_refused(tmp_path: Path) -> None:
    plan = configured_recipe(tmp_path, "algorithm.own.setting=2 algorithm.other=1")
    assert [found.observed.partition(".")[0] for found in plan.findings if found.severity == "error"] == [
        "Could not override 'algorithm"
    ]
    assert rollouts(plan) == 30


def test_a_recipe_that_filters_as_the_releases_do_is_planned(tmp_path: Path) -> None:
    plan = configured_recipe(tmp_path, "algorithm.filter_groups.enable=True algorithm.own.setting=2")
    assert plan.schedule is not None, plan.findings
    assert not [found for found in plan.findings if found.severity == "error"]
    assert (plan.schedule.samples_per_rollout, plan.schedule.rollouts) == (400, None)
    assert "the rest of them is cut off" in assumed(plan)


@pytest.mark.parametrize(
    ("more", "lines", "says"),
    [
        ("+tree=True", FILLED, "nothing cuts what the filter left"),
        ("", FILLED + "                batch = batch[selected_idxs]\n", "may train a part of it"),
    ],
)
def test_a_recipe_that_filters_otherwise_is_asked_for(tmp_path: Path, more: str, lines: str, says: str) -> None:
    with pytest.raises(LaunchError, match=rf"DAPO's recipe beside the launch is none that is known.*{says}"):
        configured_recipe(tmp_path, f"algorithm.filter_groups.enable=True {more}", lines)


def errors(plan: Plan) -> list[str]:
    return [found.observed for found in plan.findings if found.severity == "error"]


DEEPSCALER = "python3 -m verl.trainer.main_ppo trainer.project_name=deepscaler "
EARLY_CONFIGURATION = """
data: {train_batch_size: 100}
actor_rollout_ref:
  actor: {ppo_mini_batch_size: 50, ppo_micro_batch_size: 10, use_dynamic_bsz: false, own: null}
  rollout: {n: 4, override_config: {}}
algorithm: {adv_estimator: grpo}
trainer: {n_gpus_per_node: 2, total_epochs: 2, project_name: null, save_freq: 5}
"""


def early_fork(folder: Path, more: str, *, actor: str = "") -> Plan:
    """A launch that is recognised as one of DeepScaleR, in a checkout with a configuration of its own."""
    config = folder / "inner/verl/trainer/config"
    config.mkdir(parents=True)
    (config / "ppo_trainer.yaml").write_text(EARLY_CONFIGURATION)
    source = trainer(COUNTED_THEN_COMPARED.format(sign=">="))
    return planned(folder, source, DEEPSCALER + more, below="inner", main=CONFIGURED, actor=PASSES + "\n" + actor)


def test_hydra_refuses_what_the_configuration_of_any_fork_does_not_have(tmp_path: Path) -> None:
    plan = early_fork(tmp_path, "actor_rollout_ref.rollout.async_engine=False actor_rollout_ref.actor.own=1")
    assert errors(plan) == [
        "Could not override 'actor_rollout_ref.rollout.async_engine'. To append to your config use "
        "+actor_rollout_ref.rollout.async_engine=..."
    ]
    assert plan.findings[0].code == "RLS110"


@pytest.mark.parametrize(
    ("more", "says"),
    [
        ("+trainer.val_before_train=False ++trainer.save_freq=3 +actor_rollout_ref.actor.own=1", []),
        ("hydra.run.dir=out actor_rollout_ref.rollout.override_config.seed=1", []),
        ("+trainer.save_freq=3", ["Could not append to config. An item is already at 'trainer.save_freq'."]),
    ],
)
def test_hydra_adds_what_is_not_there_and_nothing_else(tmp_path: Path, more: str, says: list[str]) -> None:
    assert errors(early_fork(tmp_path, more)) == says


def test_a_fork_has_the_defaults_of_its_own_configuration(tmp_path: Path) -> None:
    plan = early_fork(tmp_path, "trainer.nnodes=1")
    assert plan.schedule is not None, plan.findings
    assert (plan.schedule.prompts_per_rollout, plan.schedule.samples_per_prompt, plan.schedule.rollouts) == (100, 4, 19)


ASSERTED = "        assert self.config.ppo_mini_batch_size % self.config.ppo_micro_batch_size == 0\n"


@pytest.mark.parametrize(("indent", "refused"), [("", True), ("    " * 3, False)])
def test_a_micro_batch_divides_a_mini_batch_even_where_token_counts_cut_it_if_the_checkout_says_so(
    tmp_path: Path, indent: str, refused: bool
) -> None:
    # 50 prompts of 4 samples on 2 processes, in micro-batches of 3 samples on each.
    more = "actor_rollout_ref.actor.use_dynamic_bsz=True actor_rollout_ref.actor.ppo_micro_batch_size=6"
    found = errors(early_fork(tmp_path, more, actor=indent + ASSERTED))
    assert any("a mini-batch of 100 samples of one process is not a multiple" in each for each in found) is refused
    assert bool(found) is refused


def recipe(folder: Path, more: str) -> Plan:
    """A launch of a recipe that is planned as verl's own loop, in a checkout with a configuration of its own."""
    (folder / "recipe/entropy/config").mkdir(parents=True)
    (folder / "recipe/entropy/config/entropy_trainer.yaml").write_text(RECIPE_CONFIGURATION)
    (folder / "recipe/entropy/main_entropy.py").write_text(
        CONFIGURED.replace("ppo_trainer'", "entropy_trainer'").replace("RayPPO", "RayEntropy")
    )
    (folder / "verl/trainer/config").mkdir(parents=True)
    (folder / "verl/trainer/config/ppo_trainer.yaml").write_text(CONFIGURATION)
    launch = f"python3 -m recipe.entropy.main_entropy algorithm.own.setting=2 trainer.total_epochs=3 {more}"
    return planned(folder, trainer(COMPARED_THEN_COUNTED), launch)


def test_the_configuration_of_a_recipe_that_is_only_planned_says_what_is_refused(tmp_path: Path) -> None:
    plan = recipe(tmp_path, "data.train_files=train.parquet --config-name=entropy_trainer")
    assert errors(plan) == ["Could not override 'data.train_files'. To append to your config use +data.train_files=..."]


@pytest.mark.parametrize(
    ("over", "read"),
    [
        ("range(1, self.config.trainer.total_epochs + 1)", True),
        ("range(0, self.config.trainer.total_epochs)", True),
        ("range(start_epoch, self.config.trainer.total_epochs)", True),
        ("range(1, self.config.trainer.total_epochs)", False),
        ("range(self.config.trainer.total_epochs + 1)", False),
        ("range(0, self.config.trainer.total_epochs, 2)", False),
    ],
)
def test_epochs_that_are_numbered_from_1_are_as_many(tmp_path: Path, over: str, read: bool) -> None:
    source = trainer(COMPARED_THEN_COUNTED).replace("range(self.config.trainer.total_epochs)", over)
    if read:
        assert rollouts(planned(tmp_path, source)) == 20
        return
    with pytest.raises(LaunchError) as asked:
        planned(tmp_path, source)
    # Of a loop that was not read, nothing else is said.
    assert f"the run goes over {over}" in str(asked.value)
    assert "nothing repeats" not in str(asked.value)


def test_of_a_recipe_that_was_not_read_nothing_is_said_but_why(tmp_path: Path) -> None:
    source = trainer(COMPARED_THEN_COUNTED).replace("total_epochs)", "total_epochs + 1)")
    (tmp_path / "recipe/dapo").mkdir(parents=True)
    (tmp_path / "recipe/dapo/dapo_ray_trainer.py").write_text(source.replace("RayPPOTrainer", "RayDAPOTrainer"))
    with pytest.raises(LaunchError) as asked:
        planned(tmp_path, source, RECIPE)
    assert "the run goes over range(self.config.trainer.total_epochs + 1)" in str(asked.value)
    assert "nothing ends it" not in str(asked.value)
    assert "nothing repeats" not in str(asked.value)


@pytest.mark.parametrize(
    ("mark", "found"), [("README.md", True), ("setup.py", True), (".gitignore", True), (None, False)]
)
def test_a_copy_of_a_repository_without_its_git_folder_is_a_repository(
    tmp_path: Path, mark: str | None, found: bool
) -> None:
    # Of the 19 rollouts a run of the release would make 20.
    root = tmp_path / "unpacked"
    root.mkdir()
    planned(root, trainer(COUNTED_THEN_COMPARED.format(sign=">=")), below="inner")
    (root / ".git").rmdir()
    if mark is not None:
        (root / mark).write_text("")
    assert rollouts(plan_launch([str(root / "scripts/train.sh")], Options(rows=1050))) == (19 if found else 20)


def test_a_copy_below_the_folder_of_a_launch_is_found_where_nothing_tells_a_root(tmp_path: Path) -> None:
    root = tmp_path / "unpacked"
    root.mkdir()
    planned(root, trainer(COUNTED_THEN_COMPARED.format(sign=">=")), below="inner")
    (root / ".git").rmdir()
    (root / "scripts/train.sh").rename(root / "train.sh")
    assert rollouts(plan_launch([str(root / "train.sh")], Options(rows=1050))) == 19


ROLLOUT_CONFIG = """
@dataclass
class ServerConfig(BaseConfig):
    def __post_init__(self):
        if self.mode == "async":
            raise ValueError("not of this class")


@dataclass
class RolloutConfig(BaseConfig):
    mode: str = "async"

    def __post_init__(self):
        {condition}
            raise ValueError("Rollout mode 'sync' has been removed. " "Leave it out.")
        if self.mode != "async":
            warnings.warn("unknown")
"""


@pytest.mark.parametrize(
    ("condition", "mode", "refused"),
    [
        ('if self.mode == "sync":', "sync", True),
        ('if self.mode == "sync":', "async", False),
        ('if self.mode == "sync" and self.strict:', "sync", False),
        ('if self.other == "sync":', "sync", False),
    ],
)
def test_a_value_that_the_copy_refuses_when_it_builds_the_configuration(
    tmp_path: Path, condition: str, mode: str, refused: bool
) -> None:
    (tmp_path / "verl/workers/config").mkdir(parents=True)
    (tmp_path / "verl/workers/config/rollout.py").write_text(ROLLOUT_CONFIG.format(condition=condition))
    plan = planned(tmp_path, trainer(COMPARED_THEN_COUNTED), f"{LAUNCH} actor_rollout_ref.rollout.mode={mode}")
    errors = [found.observed for found in plan.findings if found.severity == "error"]
    assert errors == (["ValueError: Rollout mode 'sync' has been removed. Leave it out."] if refused else [])
