"""Launches of programs that are somebody's own and train with a copy of verl beside them: what they build is read."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from rlstep_hooks.launch.text import LaunchError
from tests.systems.plans.checkouts import in_checkout, schedule_of
from tests.systems.plans.test_verl_checkouts import (
    COMPARED_THEN_COUNTED,
    COUNTED_THEN_COMPARED,
    LOADER,
    MAIN,
    SCALING,
    trainer,
)

if TYPE_CHECKING:
    from pathlib import Path

    from rlstep_hooks.planning.launched import Plan

SETTINGS = (
    "data.train_batch_size=100 actor_rollout_ref.rollout.n=4 algorithm.adv_estimator=grpo actor_rollout_ref.model.path=a/b "
    "actor_rollout_ref.actor.ppo_mini_batch_size=50 actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu=5 "
    "actor_rollout_ref.rollout.log_prob_micro_batch_size_per_gpu=5 actor_rollout_ref.ref.log_prob_micro_batch_size_per_gpu=5 "
    "trainer.n_gpus_per_node=2 trainer.total_epochs=2 "
)
WRITES = "    def %s(self, batch):\n        return batch[::2]"
LAST_LEFT_OUT = trainer(COUNTED_THEN_COMPARED.format(sign=">="))


def copy_of_verl(package: str, source: str = trainer(COMPARED_THEN_COUNTED), **more: str) -> dict[str, str]:
    """The files of a copy of verl, by the path of its package."""
    return {
        f"{package}/trainer/main_ppo.py": MAIN.replace("verl.", f"{package.rpartition('/')[2]}."),
        f"{package}/trainer/ppo/ray_trainer.py": source,
        f"{package}/workers/fsdp_workers.py": SCALING,
        f"{package}/workers/actor/dp_actor.py": "",
        **more,
    }


def own(imports: str) -> str:
    return f"{imports}\ndef main(config):\n    trainer = RayPPOTrainer(config=config)\n    trainer.fit()\n"


def planned(folder: Path, files: dict[str, str], program: str, more: str = "", rows: int = 1050) -> Plan:
    """The plan for 1 050 rows: 10 rollouts in each of two passes."""
    return in_checkout(folder, files, f"python3 -m {program} {SETTINGS}{more}\n", rows=rows)


@pytest.mark.parametrize(
    ("place", "imports", "verl"),
    [
        ("mine/main_run.py", "from .trainer.ray_trainer import RayPPOTrainer", "verl"),
        ("mine/main_run.py", "from mine.trainer.ray_trainer import RayPPOTrainer", "verl/verl"),
        ("mine/main_run.py", "from .trainer.ray_trainer import RayPPOTrainer", "third_party/verl/verl"),
    ],
)
def test_the_trainer_beside_a_program_of_ones_own_is_read(tmp_path: Path, place: str, imports: str, verl: str) -> None:
    files = {**copy_of_verl(verl), place: own(imports), "mine/trainer/ray_trainer.py": LAST_LEFT_OUT}
    assert schedule_of(planned(tmp_path, files, "mine.main_run")).rollouts == 19


def test_a_copy_of_verl_under_another_name_is_the_one_that_its_program_lies_in(tmp_path: Path) -> None:
    files = {
        **copy_of_verl("verl_ours", LAST_LEFT_OUT),
        "verl/trainer/ppo/ray_trainer.py": trainer(COMPARED_THEN_COUNTED),
    }
    assert schedule_of(planned(tmp_path, files, "verl_ours.trainer.main_ppo")).rollouts == 19


INSTALLED = "from verl.trainer.ppo.ray_trainer import RayPPOTrainer"
OWN_FIT = LAST_LEFT_OUT[LAST_LEFT_OUT.index("    def fit") :]


def extended(body: str) -> str:
    """A trainer that extends that of a verl which is installed."""
    return f"{INSTALLED}\nclass OurTrainer(RayPPOTrainer):\n{body}\n"


def builds(imports: str) -> str:
    return own(imports).replace("RayPPOTrainer(", "OurTrainer(")


@pytest.mark.parametrize(
    ("files", "rollouts"),
    [
        ({"mine/main_run.py": own("from .loop import RayPPOTrainer"), "mine/loop.py": LAST_LEFT_OUT}, 19),
        ({"mine/main_run.py": builds("from mine.loop import OurTrainer"), "mine/loop.py": extended(OWN_FIT)}, 19),
        ({"mine/main_run.py": builds(extended(OWN_FIT))}, 19),
        (
            {"src/mine/main_run.py": builds("from mine.loop import OurTrainer"), "src/mine/loop.py": extended(OWN_FIT)},
            19,
        ),
        (
            {
                "mine/main_run.py": builds("from .loop import OurTrainer"),
                "mine/loop.py": extended(WRITES % "_validate"),
            },
            20,
        ),
        ({"mine/main_run.py": builds(extended(WRITES % "_collect"))}, 20),
        ({"mine/main_run.py": own(INSTALLED)}, 20),
    ],
)
def test_a_trainer_of_ones_own_is_read_where_verl_is_installed(
    tmp_path: Path, files: dict[str, str], rollouts: int
) -> None:
    plan = planned(tmp_path, files, "mine.main_run", "+trainer.of_ours=1")
    assert schedule_of(plan).rollouts == rollouts
    assert not any(finding.severity == "error" for finding in plan.findings)


@pytest.mark.parametrize(
    ("main", "says"),
    [
        (builds(extended(WRITES % "_balance_batch")), "OurTrainer has _balance_batch of its own"),
        (
            builds(extended("    pass").replace("(RayPPOTrainer)", "(Other, RayPPOTrainer)")),
            "a class that was not found",
        ),
        (own(f"{INSTALLED}\nfrom mine.workers import ActorRolloutRefWorker"), "ActorRolloutRefWorker of its own"),
    ],
)
def test_what_may_change_the_loop_of_an_installed_verl_is_asked_about(tmp_path: Path, main: str, says: str) -> None:
    with pytest.raises(LaunchError, match=says):
        planned(tmp_path, {"mine/main_run.py": main}, "mine.main_run")


HANDED = """
from verl.trainer.main_ppo import TaskRunner, run_ppo
class OurRunner(TaskRunner):
    def {method}(self, config):
        pass
def main(config):
    run_ppo(config, task_runner_class=OurRunner)
"""


@pytest.mark.parametrize(
    ("method", "is_read"), [("add_reward_model_worker", True), ("run", False), ("add_actor_rollout_worker", False)]
)
def test_a_runner_of_ones_own_runs_what_main_ppo_runs_unless_it_says_otherwise(
    tmp_path: Path, method: str, is_read: bool
) -> None:
    files = copy_of_verl("verl", LAST_LEFT_OUT, **{"verl/trainer/main_ours.py": HANDED.format(method=method)})
    if is_read:
        assert schedule_of(planned(tmp_path, files, "verl.trainer.main_ours")).rollouts == 19
        return
    with pytest.raises(LaunchError, match=r"which trainer verl\.trainer\.main_ours uses was not found"):
        planned(tmp_path, files, "verl.trainer.main_ours")


FILTERS = """
                if not self.config.algorithm.filter_groups.enable:
                    batch = batch
                else:
                    kept = batch[kept_traj_idxs]
                    prompt_bsz = self.config.data.train_batch_size
                    if num_prompt_in_batch < prompt_bsz:
                        max_num_gen_batches = self.config.algorithm.filter_groups.max_num_gen_batches
                        if max_num_gen_batches <= 0 or num_gen_batches < max_num_gen_batches:
                            continue
                        else:
                            raise ValueError('too many')
                    else:
                        traj_bsz = self.config.data.train_batch_size * self.config.actor_rollout_ref.rollout.n
                        batch = batch[:traj_bsz]
"""


@pytest.mark.parametrize(("enable", "rollouts"), [("False", 20), ("True", None)])
def test_a_recipe_of_ones_own_that_filters_groups_is_read_as_that_of_dapo(
    tmp_path: Path, enable: str, rollouts: int | None
) -> None:
    source = trainer(COMPARED_THEN_COUNTED, before_update=FILTERS).replace(
        "class RayPPOTrainer:", "class RayOurTrainer(RayPPOTrainer):"
    )
    source = source.replace(f"    def _create_dataloader(self):\n        {LOADER}\n", "")
    files = {
        **copy_of_verl("verl"),
        "recipe/ours/main_ours.py": MAIN.replace("verl.trainer.ppo.ray_trainer", ".our_trainer").replace(
            "RayPPO", "RayOur"
        ),
        "recipe/ours/our_trainer.py": f"from verl.trainer.ppo.ray_trainer import RayPPOTrainer\n{source}",
    }
    more = f"algorithm.filter_groups.enable={enable} algorithm.filter_groups.max_num_gen_batches=10"
    schedule = schedule_of(planned(tmp_path, files, "recipe.ours.main_ours", more))
    assert (schedule.rollouts, schedule.updates_per_rollout) == (rollouts, 2)


GROUPS = """
                groups = self.config.algorithm.get('filter_groups', None)
                filters = groups is not None and groups.get('enable', False)
                if filters:
                    continue
                if self.keeps_all:
                    pass
                else:
                    batch = batch[kept]
"""
KEEPS = "class RayPPOTrainer:\n    def __init__(self, config):\n        self.keeps_all = config.data.get('keeps_all', True)\n"


@pytest.mark.parametrize(
    ("more", "says"),
    [
        ("", ""),
        ("+algorithm.filter_groups.enable=False", ""),
        ("+algorithm.filter_groups.enable=True", "continue within a rollout"),
        ("+data.keeps_all=False", "may train a part of it"),
    ],
)
def test_a_condition_is_decided_by_the_settings_that_its_names_stand_for(tmp_path: Path, more: str, says: str) -> None:
    source = trainer(COMPARED_THEN_COUNTED, before_update=GROUPS).replace("class RayPPOTrainer:\n", KEEPS)
    files = copy_of_verl("verl", source)
    if not says:
        assert schedule_of(planned(tmp_path, files, "verl.trainer.main_ppo", more)).rollouts == 20
        return
    with pytest.raises(LaunchError, match=says):
        planned(tmp_path, files, "verl.trainer.main_ppo", more)


PASSES_THROUGH = """
                batch = self._join(metrics, own=batch)
                self._ask_again(batch)
"""
JOIN = """
    def _join(self, metrics, own):
        options = self.config.get('ours', {}).get('join', {}) or {}
        own.non_tensor_batch['role'] = 'own'
        if not bool(options.get('enable', False)):
            return own
        return DataProto.concat([own, made(own)])

    def _ask_again(self, batch):
        mode = str(self.config.get('ours', {}).get('mode', '')).lower()
        if mode != 'twice':
            return None
        return self.actor_rollout_wg.generate_sequences(batch)
"""


@pytest.mark.parametrize(
    ("more", "join", "says"),
    [
        ("", JOIN, ""),
        ("+ours.join.enable=True", JOIN, "may train a part of it"),
        ("+ours.mode=Twice", JOIN, "answers are generated more than once"),
        ("", JOIN.replace("['role'] = 'own'", "['role'] = 'own'\n        own = own[:4]"), "may train a part of it"),
        ("", JOIN.replace("['role'] = 'own'", "['role'] = 'own'\n        own.subset(kept)"), "may train a part of it"),
    ],
)
def test_a_method_that_the_settings_leave_without_effect_gives_its_batch_back(
    tmp_path: Path, more: str, join: str, says: str
) -> None:
    files = copy_of_verl("verl", trainer(COMPARED_THEN_COUNTED, before_update=PASSES_THROUGH) + join)
    if not says:
        assert schedule_of(planned(tmp_path, files, "verl.trainer.main_ppo", more)).rollouts == 20
        return
    with pytest.raises(LaunchError, match=says):
        planned(tmp_path, files, "verl.trainer.main_ppo", more)


WITHOUT_SURE_ONES = """
    def _without_sure_ones(self, rewards, batch):
        if not self.config.trainer.get('leaves_out', False):
            return rewards, batch
        rewards, batch = rewards[kept], batch[kept]
        return rewards, batch
        self.train_dataloader = StatefulDataLoader(dataset=kept)
"""


@pytest.mark.parametrize(
    ("more", "method", "says"),
    [
        ("", WITHOUT_SURE_ONES, ""),
        ("+trainer.leaves_out=True", WITHOUT_SURE_ONES, "may train a part of it"),
        (
            "",
            WITHOUT_SURE_ONES.replace("return rewards, batch", "return rewards, batch[:4]", 1),
            "may train a part of it",
        ),
        ("", WITHOUT_SURE_ONES.replace("        return rewards, batch\n        self", "        self"), ""),
        (
            "+trainer.leaves_out=True",
            WITHOUT_SURE_ONES.replace("        return rewards, batch\n        self", "        self"),
            "_without_sure_ones makes train_dataloader anew",
        ),
    ],
)
def test_a_method_that_the_settings_end_at_once_gives_back_several_things_as_they_are(
    tmp_path: Path, more: str, method: str, says: str
) -> None:
    lines = "                rewards, batch = self._without_sure_ones(rewards=rewards, batch=batch)\n"
    files = copy_of_verl("verl", trainer(COMPARED_THEN_COUNTED, before_update=lines) + method)
    if not says:
        assert schedule_of(planned(tmp_path, files, "verl.trainer.main_ppo", more)).rollouts == 20
        return
    with pytest.raises(LaunchError, match=says):
        planned(tmp_path, files, "verl.trainer.main_ppo", more)


ANEW = """
            if filters and epoch == 1:
                self.train_dataloader = StatefulDataLoader(dataset=kept)
"""
TURNS = """
    def init_workers(self):
        self.joins_turns = True
        if self.config.actor_rollout_ref.rollout.get('mode', 'sync') == 'async':
            if not self.config.trainer.get('joins_turns', True):
                self.joins_turns = False
"""


@pytest.mark.parametrize(
    ("more", "says"),
    [
        ("", ""),
        ("+data.row_filter.enable=True", "fit makes train_dataloader anew"),
        ("+actor_rollout_ref.rollout.mode=async +trainer.joins_turns=False", "may train a part of it"),
    ],
)
def test_what_settings_rule_out_between_passes_and_in_other_methods_is_passed_over(
    tmp_path: Path, more: str, says: str
) -> None:
    lines = "                if not self.joins_turns:\n                    batch = self._each_turn(batch)\n"
    source = trainer(COMPARED_THEN_COUNTED, before_update=lines) + ANEW + TURNS
    source = source.replace(
        "        self.global_steps = 0\n",
        "        self.global_steps = 0\n        options = self.config.data.get('row_filter', {}) or {}\n"
        "        filters = bool(options.get('enable', False))\n",
    )
    files = copy_of_verl("verl", source)
    if not says:
        assert schedule_of(planned(tmp_path, files, "verl.trainer.main_ppo", more)).rollouts == 20
        return
    with pytest.raises(LaunchError, match=says):
        planned(tmp_path, files, "verl.trainer.main_ppo", more)


def test_a_loader_that_may_be_none_has_the_total_of_its_batches(tmp_path: Path) -> None:
    loader = LOADER.replace("len(self.train_dataloader) *", "size *").replace(
        "        total_training_steps = size",
        "        size = len(self.train_dataloader) if self.train_dataloader is not None else 0\n        total_training_steps = size",
    )
    files = copy_of_verl("verl", trainer(COMPARED_THEN_COUNTED).replace(LOADER, loader))
    assert schedule_of(planned(tmp_path, files, "verl.trainer.main_ppo")).rollouts == 20


def test_a_reference_in_a_configuration_of_the_checkout_is_the_value_of_what_it_refers_to(tmp_path: Path) -> None:
    main = MAIN.replace("def main", "@hydra.main(config_path='config', config_name='ppo_trainer')\ndef main")
    config = (
        "data: {train_batch_size: 1024}\nactor_rollout_ref:\n  model: {path: null}\n"
        "  rollout: {n: 1, log_prob_micro_batch_size_per_gpu: 1}\n"
        "  ref: {log_prob_micro_batch_size_per_gpu: 1}\n"
        "  actor: {ppo_mini_batch_size: '${data.train_batch_size}', ppo_micro_batch_size_per_gpu: 1}\n"
        "algorithm: {adv_estimator: gae}\ntrainer: {n_gpus_per_node: 8, total_epochs: 30}\n"
    )
    files = {**copy_of_verl("verl"), "verl/trainer/main_ppo.py": main, "verl/trainer/config/ppo_trainer.yaml": config}
    launch = SETTINGS.replace("actor_rollout_ref.actor.ppo_mini_batch_size=50 ", "")
    plan = in_checkout(tmp_path, files, f"python3 -m verl.trainer.main_ppo {launch}\n", rows=1050)
    assert schedule_of(plan).samples_per_update == 400
    assert schedule_of(plan).updates_per_rollout == 1


VOTES = """
                if self.use_ttrl:
                    self.config.actor_rollout_ref.rollout.n = self.n_votes_per_prompt
                if self.use_ttrl:
                    batch = batch[sorted_indices]
                    batch = self._select_top_k_per_prompt(batch, self.n_votes_per_prompt, self.n_samples_per_prompt)
"""
SELECT = """
    def _select_top_k_per_prompt(self, data, n_votes_per_prompt, n_samples_per_prompt):
        for i in range(len(data) // n_votes_per_prompt):
            start = i * n_votes_per_prompt
            selected_indices.extend(range({taken}))
        return data[selected_indices]
"""
VOTING = (
    "reward_model.reward_kwargs.n_votes_per_prompt=8 reward_model.reward_kwargs.n_samples_per_prompt=4 "
    "reward_model.reward_manager={manager}"
)


@pytest.mark.parametrize(
    ("manager", "taken", "says"),
    [
        ("ttrl", "start, start + n_samples_per_prompt", ""),
        ("ttrl", "start, start + 1", "not that of TTRL"),
        ("naive", "start, start + n_samples_per_prompt", "answers vote with reward_model.reward_manager=ttrl alone"),
    ],
)
def test_ttrl_trains_a_part_of_the_answers_that_vote(tmp_path: Path, manager: str, taken: str, says: str) -> None:
    source = trainer(COMPARED_THEN_COUNTED, before_update=VOTES) + SELECT.format(taken=taken)
    files = copy_of_verl("verl", source)
    more = VOTING.format(manager=manager)
    if says:
        with pytest.raises(LaunchError, match=says):
            planned(tmp_path, files, "verl.trainer.main_ppo", more)
        return
    plan = planned(tmp_path, files, "verl.trainer.main_ppo", more)
    schedule = schedule_of(plan)
    assert plan.framework == "verl_ttrl"
    assert (schedule.samples_per_prompt, schedule.samples_per_update, schedule.updates_per_rollout) == (8, 200, 2)
    assert (schedule.samples_dropped_per_rollout, schedule.rollouts) == (400, 20)
    assert {"RLS512", "RLS113"}.isdisjoint(finding.code for finding in plan.findings)


REPEATS = (
    "                batch = batch.repeat(repeat_times=self.config.actor_rollout_ref.rollout.n, interleave=True)\n"
)


def of_groups(folder: Path, more: str, *, lines: str = "") -> Plan:
    """The plan of a trainer that repeats prompts by a setting of its own."""
    own_repeat = REPEATS.replace("actor_rollout_ref.rollout.n", "groups.size")
    source = trainer(COMPARED_THEN_COUNTED).replace(REPEATS, own_repeat + lines)
    files = copy_of_verl("verl", source)
    launch = SETTINGS.replace("actor_rollout_ref.rollout.n=4 ", "")
    return in_checkout(folder, files, f"python3 -m verl.trainer.main_ppo {launch} {more}\n", rows=1050)


def test_a_setting_of_a_forks_own_may_say_how_many_samples_a_prompt_has(tmp_path: Path) -> None:
    schedule = schedule_of(of_groups(tmp_path, "groups.size=8"))
    # Sizes are scaled by rollout.n, which is 1.
    assert (schedule.samples_per_prompt, schedule.samples_per_update, schedule.updates_per_rollout) == (8, 50, 16)
    assert schedule.rollouts == 20


SKIPS = """
    def _skips(self, at):
        \"\"\"Whether a batch was trained before.\"\"\"
        if not getattr(self, "_skipping", False):
            return False
        return at < self._skipped

    def {setter}(self, state):
        self._skipping = state is not None

    def load_state(self, state):
        self._setup(state)
"""


@pytest.mark.parametrize(
    ("setter", "asks"), [("_setup", False), ("restore", False), ("init_workers", True), ("_elsewhere", True)]
)
def test_batches_that_only_a_run_that_goes_on_skips_are_in_the_plan(tmp_path: Path, setter: str, asks: bool) -> None:
    first = "                batch = DataProto.from_single_dict(batch_dict)\n"
    skips = f"                if self._skips(1):\n                    continue\n{first}"
    source = trainer(COMPARED_THEN_COUNTED)
    assert first in source
    files = copy_of_verl("verl", source.replace(first, skips, 1) + SKIPS.format(setter=setter))
    if asks:
        with pytest.raises(LaunchError, match="continue within a rollout"):
            planned(tmp_path, files, "verl.trainer.main_ppo")
    else:
        assert schedule_of(planned(tmp_path, files, "verl.trainer.main_ppo")).rollouts == 20


DISPATCHES = (
    "def main(config):\n    if config.trainer.use_v1:\n        run_ppo(config, task_runner_class=TaskRunnerV1)\n    else:\n"
    "        from verl.trainer.main_ppo_v0 import TaskRunner\n        run_ppo(config, task_runner_class=TaskRunner)\n"
)


@pytest.mark.parametrize(("chosen", "rollouts"), [("trainer.use_v1=False", 19), ("trainer.use_v1=True", 20)])
def test_a_copy_that_chooses_the_trainer_from_before_0_9_is_read(tmp_path: Path, chosen: str, rollouts: int) -> None:
    files = {
        **copy_of_verl("verl", LAST_LEFT_OUT),
        "verl/trainer/main_ppo.py": DISPATCHES,
        "verl/trainer/main_ppo_v0.py": MAIN,
        "verl/trainer/ppo/v1/__init__.py": "",
    }
    assert schedule_of(planned(tmp_path, files, "verl.trainer.main_ppo", f" {chosen}")).rollouts == rollouts


OF_V1 = """
class PPOTrainer:
    def fit(self):
        while {goes_on}:
            is_last_step = self.global_steps >= self.total_training_steps
            batch = self.step(metrics, self.timing_raw)
            {more}
            self.global_steps += 1
            current_epoch = (self.global_steps - 1) // self.steps_per_epoch
            if is_last_step:
                return
"""
GOES_ON = "current_epoch < self.config.trainer.total_epochs and self.global_steps <= self.total_training_steps"


def of_v1(folder: Path, *, goes_on: str = GOES_ON, more: str = "pass") -> Plan:
    files = {
        **copy_of_verl("verl", LAST_LEFT_OUT),
        "verl/trainer/main_ppo.py": DISPATCHES,
        "verl/trainer/main_ppo_v0.py": MAIN,
        "verl/trainer/ppo/v1/__init__.py": "",
        "verl/trainer/ppo/v1/trainer_base.py": OF_V1.format(goes_on=goes_on, more=more),
    }
    return planned(folder, files, "verl.trainer.main_ppo", " trainer.use_v1=True")


def test_a_copy_whose_trainer_of_0_9_has_the_release_s_loop_is_planned_as_the_release(tmp_path: Path) -> None:
    assert schedule_of(of_v1(tmp_path)).rollouts == 20


@pytest.mark.parametrize(
    ("goes_on", "more", "said"),
    [
        ("current_epoch < self.config.trainer.total_epochs", "pass", "the run goes on while"),
        (GOES_ON, "if self.enough:\n                return", "return within a step"),
        (GOES_ON, "if self.skips:\n                continue", "continue within a step"),
        (GOES_ON, "self.step(metrics, self.timing_raw)", "a step is made in 2 places"),
        (GOES_ON, "is_last_step = self.enough", "the last step is"),
        (GOES_ON, "self.global_steps += 2", "a step counts 2"),
    ],
)
def test_a_copy_that_changes_the_loop_of_0_9_s_trainer_is_asked_about(
    tmp_path: Path, goes_on: str, more: str, said: str
) -> None:
    with pytest.raises(LaunchError, match=said):
        of_v1(tmp_path, goes_on=goes_on, more=more)


def test_the_batch_of_a_loader_may_be_that_of_the_rollout_or_else_of_the_update(tmp_path: Path) -> None:
    size = "self.config.data.get('gen_batch_size', None) or self.config.data.train_batch_size"
    files = copy_of_verl("verl", trainer(COMPARED_THEN_COUNTED).replace("self.config.data.train_batch_size", size, 1))
    assert schedule_of(planned(tmp_path, files, "verl.trainer.main_ppo")).rollouts == 20
    files = copy_of_verl(
        "verl", trainer(COMPARED_THEN_COUNTED).replace("self.config.data.train_batch_size", f"{size} // 2", 1)
    )
    with pytest.raises(LaunchError, match="the loader's batch is"):
        planned(tmp_path, files, "verl.trainer.main_ppo")


def test_a_repetition_by_one_leaves_the_setting_of_a_forks_own_alone(tmp_path: Path) -> None:
    schedule = schedule_of(of_groups(tmp_path, "groups.size=8 actor_rollout_ref.rollout.n=1", lines=REPEATS))
    assert (schedule.samples_per_prompt, schedule.samples_per_update, schedule.updates_per_rollout) == (8, 50, 16)


@pytest.mark.parametrize(
    ("more", "lines"),
    [
        ("groups.size=8 actor_rollout_ref.rollout.n=2", ""),
        ("", ""),
        ("groups.size=8 actor_rollout_ref.rollout.n=4", REPEATS),
    ],
)
def test_two_settings_that_may_repeat_prompts_are_asked_about(tmp_path: Path, more: str, lines: str) -> None:
    with pytest.raises(LaunchError, match=r"each prompt is repeated groups\.size times"):
        of_groups(tmp_path, more, lines=lines)


ADDS = """
                data = self._maybe_more(batch, scores)
                if data is not None:
                    more, found = data
                    batch = batch.union(more)
"""
MAYBE = """
    def _maybe_more(self, batch, scores):
        if scores is None:
            return None
        more = DataProto.from_dict(made(batch))
        {line}
        return more, {{}}
"""


@pytest.mark.parametrize(("line", "says"), [("pass", ""), ("batch.subset(kept)", "may train a part of it")])
def test_what_a_method_adds_to_a_batch_has_its_rows_where_it_takes_none_of_them_away(
    tmp_path: Path, line: str, says: str
) -> None:
    source = trainer(COMPARED_THEN_COUNTED, before_update=ADDS) + MAYBE.format(line=line)
    if not says:
        assert schedule_of(planned(tmp_path, copy_of_verl("verl", source), "verl.trainer.main_ppo")).rollouts == 20
        return
    with pytest.raises(LaunchError, match=says):
        planned(tmp_path, copy_of_verl("verl", source), "verl.trainer.main_ppo")


@pytest.mark.parametrize(
    ("imports", "says"),
    [
        ("from verl.workers.fsdp_workers import ActorRolloutRefWorker", ""),
        (
            "from .workers import ActorRolloutRefWorker",
            "the workers of the policy are ActorRolloutRefWorker of its own",
        ),
        ("from .workers import CriticWorker", ""),
    ],
)
def test_workers_of_a_programs_own_are_asked_about(tmp_path: Path, imports: str, says: str) -> None:
    main = f"{own('from .ray_trainer import RayPPOTrainer')}    {imports}\n"
    files = {
        **copy_of_verl("verl"),
        "mine/main_run.py": main,
        "mine/ray_trainer.py": LAST_LEFT_OUT,
        "mine/workers.py": "",
    }
    if not says:
        assert schedule_of(planned(tmp_path, files, "mine.main_run")).rollouts == 19
        return
    with pytest.raises(LaunchError, match=says):
        planned(tmp_path, files, "mine.main_run")


POOL = "resource_pool_spec = {pool: [config.trainer.n_gpus_per_node] * config.trainer.nnodes"


@pytest.mark.parametrize(
    ("line", "says"),
    [
        (f"{POOL}}}", ""),
        (f"{POOL}, rewards: [config.reward_model.n_gpus_per_node] * config.reward_model.nnodes}}", ""),
        ("resource_pool_spec = {pool: [2]}", ""),
        ("resource_pool_spec = {pool: [1, 1]}", ""),
        ("resource_pool_spec = {pool: [1]}", "may be a part of them"),
        ("resource_pool_spec = {pool: [gpus]}", "may be a part of them"),
        ("self.trainer = RayPPOTrainer", ""),
        ("RayPPOTrainer.fit = fit", "`RayPPOTrainer.fit = fit` replaces what is read"),
        ("ray_trainer.RayPPOTrainer.fit = fit", "replaces what is read"),
        (f"{POOL.replace('node]', 'node // 2]')}}}", "may be a part of them"),
        (f"{POOL}, critics: [config.trainer.n_gpus_per_node - 1] * 1}}", "may be a part of them"),
        ("resource_pool_spec = {pool: [config.policy.gpus] * 1}", "may be a part of them"),
        ("resource_pool_spec = {}", "given processes pool by pool, which may be a part of them"),
    ],
)
def test_a_program_that_replaces_a_method_or_splits_the_processes_is_asked_about(
    tmp_path: Path, line: str, says: str
) -> None:
    main = f"{own('from .ray_trainer import RayPPOTrainer')}    {line}\n"
    files = {**copy_of_verl("verl"), "mine/main_run.py": main, "mine/ray_trainer.py": LAST_LEFT_OUT}
    if not says:
        assert schedule_of(planned(tmp_path, files, "mine.main_run", "trainer.nnodes=1")).rollouts == 19
        return
    with pytest.raises(LaunchError, match=says):
        planned(tmp_path, files, "mine.main_run", "trainer.nnodes=1")


def test_a_program_that_splits_the_processes_is_asked_about_where_there_is_no_copy_of_verl(tmp_path: Path) -> None:
    main = own("from verl.trainer.ppo.ray_trainer import RayPPOTrainer")
    assert schedule_of(planned(tmp_path, {"mine/main_run.py": main}, "mine.main_run")).rollouts == 20
    with pytest.raises(LaunchError, match="replaces what is read"):
        planned(tmp_path, {"mine/main_run.py": f"{main}    RayPPOTrainer.fit = fit\n"}, "mine.main_run")


def test_a_recipe_that_is_planned_as_a_release_has_it_is_not_read_elsewhere(tmp_path: Path) -> None:
    main = MAIN.replace("verl.trainer.ppo.ray_trainer", ".ray_trainer").replace("RayPPO", "OneStepOffRay")
    source = LAST_LEFT_OUT.replace("RayPPOTrainer", "OneStepOffRayTrainer")
    files = {
        **copy_of_verl("verl"),
        "recipe/one_step_off_policy/main_ppo.py": main,
        "recipe/one_step_off_policy/ray_trainer.py": source,
    }
    with pytest.raises(LaunchError, match="uses nothing that trains with it"):
        planned(tmp_path, files, "recipe.one_step_off_policy.main_ppo")
