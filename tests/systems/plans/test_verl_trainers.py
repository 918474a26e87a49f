"""Trainers of verl's forks that say what the releases say in other words: by names and methods of their own, or by inheritance."""

from __future__ import annotations

import textwrap
from typing import TYPE_CHECKING

import pytest

from rlstep_hooks.launch.text import LaunchError
from rlstep_hooks.planning.launched import Options, Plan
from rlstep_hooks.systems.engine.launches import plan_launch
from tests.systems.plans.checkouts import in_checkout, schedule_of
from tests.systems.plans.test_verl_checkouts import (
    COMPARED_THEN_COUNTED,
    COUNTED_THEN_COMPARED,
    LAUNCH,
    planned,
    rollouts,
    trainer,
)

if TYPE_CHECKING:
    from pathlib import Path

EARLY = COUNTED_THEN_COMPARED.format(sign=">=")
GENERATES = "self.actor_rollout_wg.generate_sequences(gen_batch)"
BARS = """
        epochs = tqdm(range(self.config.trainer.total_epochs), desc="Epochs")
        for epoch in epochs:
            steps = tqdm(enumerate({over}), total=len(self.train_dataloader))
            for index, batch_dict in steps:
"""


@pytest.mark.parametrize(("over", "read"), [("self.train_dataloader", True), ("self.train_dataloader[1:]", False)])
def test_a_loop_over_a_progress_bar_is_one_over_what_the_bar_counts(tmp_path: Path, over: str, read: bool) -> None:
    source = trainer(COMPARED_THEN_COUNTED)
    loops = source[source.index("        for epoch in") : source.index("                batch = DataProto")]
    source = source.replace(loops, BARS.format(over=over).lstrip("\n"))
    if read:
        assert rollouts(planned(tmp_path, source)) == 20
        return
    with pytest.raises(LaunchError, match="an epoch is no loop over train_dataloader"):
        planned(tmp_path, source)


def test_a_progress_bar_that_is_made_anew_is_asked_for(tmp_path: Path) -> None:
    source = trainer(COMPARED_THEN_COUNTED).replace(
        "        for epoch in range(self.config.trainer.total_epochs):\n",
        "        epochs = range(self.config.trainer.total_epochs)\n        epochs = range(3)\n        for epoch in epochs:\n",
    )
    with pytest.raises(LaunchError, match="the run goes over epochs"):
        planned(tmp_path, source)


ANSWERS = """
    def _answers(self, batch, profile=False):
        if not self.async_rollout_mode:
            return self.actor_rollout_wg.generate_sequences({asked})
        output = self.async_rollout_manager.generate_sequences(batch)
        self.checkpoint_manager.sleep_replicas()
        return output
"""


@pytest.mark.parametrize(("asked", "read"), [("batch", True), ("batch[::2]", False), ("self.held", False)])
def test_a_method_that_has_the_engine_answer_a_batch_answers_all_of_it(tmp_path: Path, asked: str, read: bool) -> None:
    source = trainer(COMPARED_THEN_COUNTED).replace(GENERATES, "self._answers(gen_batch, profile=True)")
    source += ANSWERS.format(asked=asked)
    if read:
        assert rollouts(planned(tmp_path, source)) == 20
        return
    with pytest.raises(LaunchError, match="may train a part of it"):
        planned(tmp_path, source)


CHOOSES = """
    def _answers(self, manager, batch):
        if self.kind == "search":
            return manager.run_search(batch=batch)
        return {other}
"""


@pytest.mark.parametrize(
    ("other", "read"), [("manager.run_loop(batch=batch)", True), ("batch[manager.chosen]", False), ("None", False)]
)
def test_a_method_that_chooses_between_loops_of_an_agent_answers_all(tmp_path: Path, other: str, read: bool) -> None:
    source = trainer(COMPARED_THEN_COUNTED).replace(GENERATES, "self._answers(manager=manager, batch=gen_batch)")
    source += CHOOSES.format(other=other)
    if read:
        assert rollouts(planned(tmp_path, source)) == 20
        return
    with pytest.raises(LaunchError, match="may train a part of it"):
        planned(tmp_path, source)


def handing_over(before: str) -> str:
    """A trainer whose `fit` comes to statements before it would go over any batches; its loop is a method of its own."""
    source = trainer(COMPARED_THEN_COUNTED).replace("    def fit(self", "    def _run_all(self")
    return source + f"\n    def fit(self):\n{textwrap.indent(before, ' ' * 8)}"


def test_a_fit_that_runs_another_method_is_that_method(tmp_path: Path) -> None:
    before = "try:\n    return self._run_all()\nfinally:\n    self.close()\n"
    assert rollouts(planned(tmp_path, handing_over(before))) == 20


@pytest.mark.parametrize(
    ("test", "launch", "is_asked"),
    [
        (
            "self.config.algorithm.get('search', {}).get('enable', False)",
            f"{LAUNCH} +algorithm.search.enable=True",
            True,
        ),
        ("self.config.algorithm.get('search', {}).get('enable', False)", LAUNCH, False),
        ("os.environ.get('SEARCH')", LAUNCH, True),
    ],
)
def test_a_run_that_is_handed_to_another_function_is_asked_about(
    tmp_path: Path, test: str, launch: str, is_asked: bool
) -> None:
    before = f"search = {test}\nif search:\n    return run_search(self)\nreturn self._run_all()\n"
    if not is_asked:
        assert rollouts(planned(tmp_path, handing_over(before), launch)) == 20
        return
    with pytest.raises(LaunchError, match="its fit returns what `run_search` runs"):
        planned(tmp_path, handing_over(before), launch)


LEAVES = """
                if is_last_step:
                    done = {value}
                    break
                self.global_steps += 1
            if done:
                break
"""


@pytest.mark.parametrize(
    ("value", "more", "read"), [("True", "", True), ("batch", "", False), ("True", "done = True\n", False)]
)
def test_a_run_that_leaves_both_loops_by_a_name_ends_there(tmp_path: Path, value: str, more: str, read: bool) -> None:
    source = trainer(COMPARED_THEN_COUNTED)
    end = source[source.index("                if is_last_step:") :]
    source = source.replace(end, LEAVES.format(value=value).lstrip("\n"))
    source = source.replace(
        "        for epoch in",
        f"        done = False\n        {more or 'pass'}\n        for epoch in".replace("\n\n", "\n"),
    )
    if read:
        assert rollouts(planned(tmp_path, source)) == 20
        return
    with pytest.raises(LaunchError, match="the run ends at `is_last_step`"):
        planned(tmp_path, source)


@pytest.mark.parametrize(
    "line",
    [
        "        batch = batch[:8]\n",
        "        output = output[:8]\n",
        "        for part in batch.chunk(2):\n            pass\n",
    ],
)
def test_a_method_that_answers_a_part_of_a_batch_is_asked_for(tmp_path: Path, line: str) -> None:
    source = trainer(COMPARED_THEN_COUNTED).replace(GENERATES, "self._answers(gen_batch)")
    method = ANSWERS.format(asked="batch")
    before = "        return output\n" if "output" in line else "        if not self"
    with pytest.raises(LaunchError, match="may train a part of it"):
        planned(tmp_path, source + method.replace(before, line + before))


@pytest.mark.parametrize(("end", "title", "made"), [(COMPARED_THEN_COUNTED, "verl", 20), (EARLY, "DeepScaleR", 19)])
def test_the_name_of_a_project_gives_way_to_the_trainer_beside_the_launch(
    tmp_path: Path, end: str, title: str, made: int
) -> None:
    plan = planned(tmp_path, trainer(end), f"{LAUNCH} trainer.project_name=my_deepscaler")
    assert (plan.title, rollouts(plan)) == (title, made)


@pytest.mark.parametrize(
    ("more", "gpus"),
    [
        ("", 4),
        ("actor_rollout_ref.actor.ulysses_sequence_parallel_size=2 ", 8),
        ("actor_rollout_ref.rollout.n_agent=1 actor_rollout_ref.actor.ppo_micro_batch_size=20", None),
    ],
    ids=["verl", "sequence", "Search-R1"],
)
def test_processes_that_the_user_gives_stand_in_for_gpus_that_only_the_run_knows(
    tmp_path: Path, more: str, gpus: int | None
) -> None:
    script = tmp_path / "run.sh"
    script.write_text(f"{LAUNCH.replace('n_gpus_per_node=2', 'n_gpus_per_node=$GPUS')} {more}\n")
    with pytest.raises(LaunchError, match=r"n_gpus_per_node cannot be known: \$GPUS is not set"):
        plan_launch([str(script)], Options(rows=1000))
    schedule = schedule_of(plan_launch([str(script)], Options(rows=1000, world_size=4)))
    assert (schedule.world_size, schedule.settings.get("trainer.n_gpus_per_node")) == (4, gpus)


CHOSEN = """
from verl.trainer.ppo.ray_trainer import RayPPOTrainer
def main(config):
    kind = config.trainer.get("kind", "RayPPOTrainer")
    if kind == "Distilling":
        from verl.trainer.ppo.distilling import DistillingTrainer
        trainer_cls = DistillingTrainer
    else:
        trainer_cls = RayPPOTrainer
    trainer = trainer_cls(config=config)
    trainer.fit()
"""
EXTENDED = """
from verl.trainer.ppo.ray_trainer import RayPPOTrainer
class DistillingTrainer({base}):
    def __init__(self, *given):
        super().__init__(*given)
        {set} = True
    def {method}(self, batch):
        return batch
"""


def of_subclass(folder: Path, kind: str = "Distilling", **words: str) -> Plan:
    """The plan of a launch that chooses a trainer, which extends that of the releases."""
    (folder / "verl/trainer/ppo").mkdir(parents=True)
    text = EXTENDED.format(**{"base": "RayPPOTrainer", "set": "self.has_teacher", "method": "_distance", **words})
    (folder / "verl/trainer/ppo/distilling.py").write_text(text)
    source = trainer(COMPARED_THEN_COUNTED, before_update="                batch = self._compute_more(batch)")
    return planned(folder, source, f"{LAUNCH} +trainer.kind={kind}", main=CHOSEN)


@pytest.mark.parametrize("method", ["_distance", "_validate", "init_workers"])
def test_a_trainer_that_extends_that_of_verl_has_its_loop(tmp_path: Path, method: str) -> None:
    plan = of_subclass(tmp_path, method=method)
    assert rollouts(plan) == 20
    assert "verl/trainer/ppo/ray_trainer.py" in "\n".join(note.text for note in plan.notes)


@pytest.mark.parametrize(
    "words",
    [
        {"method": "_create_dataloader"},
        {"method": "_compute_more"},
        {"set": "self.config.actor_rollout_ref.rollout.n"},
        {"base": "RayPPOTrainer, Mixin"},
        {"base": "Unknown"},
    ],
)
def test_a_trainer_that_may_change_the_loop_that_it_extends_is_asked_for(tmp_path: Path, words: dict[str, str]) -> None:
    with pytest.raises(LaunchError, match="which trainer"):
        of_subclass(tmp_path, **words)


def test_a_trainer_that_the_launch_does_not_choose_is_not_read(tmp_path: Path) -> None:
    assert rollouts(of_subclass(tmp_path, "Another", method="_create_dataloader")) == 20


@pytest.mark.parametrize(
    ("written", "assumed"),
    [
        ("${BASE}", "which is not set in the script, is the folder that has recipe/mine/grpo.yaml"),
        ("$BASE/", "which is not set in the script, is the folder that has recipe/mine/grpo.yaml"),
        ("$BASE/other", None),
        ("/home/their-name", "/recipe/mine/grpo.yaml, which is not on this machine, is recipe/mine/grpo.yaml here"),
        ("your/code", "your/code/recipe/mine/grpo.yaml, which is not on this machine, is recipe/mine/grpo.yaml here"),
        ("../../other", None),
    ],
)
def test_a_configuration_is_looked_for_whose_path_begins_as_nothing_here_does(
    tmp_path: Path, written: str, assumed: str | None
) -> None:
    files = {"recipe/mine/grpo.yaml": "data: {train_batch_size: 20}\ntrainer: {total_epochs: 3, n_gpus_per_node: 1}\n"}
    launch = (
        f"python3 -m verl.trainer.main_ppo --config-path={written}/recipe/mine --config-name=grpo "
        "actor_rollout_ref.actor.ppo_mini_batch_size=20 actor_rollout_ref.actor.use_dynamic_bsz=True\n"
    )
    if assumed is None:
        with pytest.raises(LaunchError, match="is not here, and what it sets decides the plan"):
            in_checkout(tmp_path, files, launch, rows=100)
        return
    plan = in_checkout(tmp_path, files, launch, rows=100)
    assert schedule_of(plan).rollouts == 15
    assert any(assumed in note.text for note in plan.notes)


def test_a_configuration_that_the_repository_would_have_to_have_is_looked_for_at_its_place_alone(
    tmp_path: Path,
) -> None:
    """A script that goes up one folder too few names a file of its own repository that is not there: the run cannot start."""
    files = {"configs/mine/grpo.yaml": "data: {train_batch_size: 20}\ntrainer: {total_epochs: 3, n_gpus_per_node: 1}\n"}
    launch = (
        'ROOT="$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)/scripts"\n'
        'python3 -m verl.trainer.main_ppo --config-path="$ROOT/configs/mine" --config-name=grpo '
        "actor_rollout_ref.actor.ppo_mini_batch_size=20 actor_rollout_ref.actor.use_dynamic_bsz=True\n"
    )
    with pytest.raises(LaunchError, match=r"scripts/configs/mine/grpo\.yaml is not here"):
        in_checkout(tmp_path, files, launch, rows=100)
    assert schedule_of(in_checkout(tmp_path, files, launch.replace("/scripts", ""), rows=100)).rollouts == 15


@pytest.mark.parametrize(("end", "read"), [(COMPARED_THEN_COUNTED, True), (EARLY, False)])
def test_the_recipe_of_dapo_is_read_where_it_lies_in_a_folder_of_its_own(tmp_path: Path, end: str, read: bool) -> None:
    (tmp_path / "recipe/dapo/src").mkdir(parents=True)
    source = trainer(end).replace("RayPPOTrainer", "RayDAPOTrainer")
    (tmp_path / "recipe/dapo/src/dapo_ray_trainer.py").write_text(source)
    launch = LAUNCH.replace("verl.trainer.main_ppo", "recipe.dapo.src.main_dapo")
    if read:
        plan = planned(tmp_path, trainer(COMPARED_THEN_COUNTED), launch)
        assert rollouts(plan) == 20
        assert any("(recipe/dapo/src/dapo_ray_trainer.py)" in note.text for note in plan.notes)
        return
    with pytest.raises(LaunchError, match="the trainer of DAPO's recipe beside the launch is none that is known"):
        planned(tmp_path, trainer(COMPARED_THEN_COUNTED), launch)


@pytest.mark.parametrize("anew", ["dataprotoitem_to_dataproto", "copy.deepcopy"])
@pytest.mark.parametrize(("given", "read"), [("batch", True), ("batch[keep]", False)])
def test_a_batch_that_is_made_anew_of_all_its_rows_stays_whole(
    tmp_path: Path, anew: str, given: str, read: bool
) -> None:
    line = f"                batch = {anew}({given})"
    source = trainer(COMPARED_THEN_COUNTED, before_update=line)
    if read:
        assert rollouts(planned(tmp_path, source)) == 20
        return
    with pytest.raises(LaunchError, match="may train a part of it"):
        planned(tmp_path, source)


ESTIMATORS = """
class AdvantageEstimator(str, Enum):
    GRPO = 'grpo'
    SUBSET = 'subset'
"""


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ("batch.subset(chosen)", "`batch.subset\\(chosen\\)` may leave a part of it"),
        ("batch.batch = batch.batch[chosen]", "may leave a part of it"),
        ("output.subset(chosen)", "may leave a part of it"),
        ("batch.reorder(order)", ""),
        ("batch.pop(batch_keys=['scores'])", ""),
        ("batch.batch = batch.batch.to('cpu')", ""),
        ("metrics.update(found)", ""),
        ("batch.batch['scores'] = scores", ""),
    ],
)
def test_a_method_that_may_leave_a_part_of_a_batch_is_asked_for(tmp_path: Path, line: str, says: str) -> None:
    source = trainer(COMPARED_THEN_COUNTED, before_update=f"                {line}")
    if not says:
        assert rollouts(planned(tmp_path, source)) == 20
        return
    with pytest.raises(LaunchError, match=says):
        planned(tmp_path, source)


@pytest.mark.parametrize(("estimator", "asked"), [("grpo", False), ("subset", True)])
def test_an_estimator_that_the_launch_does_not_have_rules_its_branch_out(
    tmp_path: Path, estimator: str, asked: bool
) -> None:
    line = (
        "                if self.config.algorithm.adv_estimator == AdvantageEstimator.SUBSET:\n"
        "                    batch.subset(chosen)"
    )
    source = ESTIMATORS + trainer(COMPARED_THEN_COUNTED, before_update=line)
    launch = LAUNCH.replace("adv_estimator=grpo", f"adv_estimator={estimator}")
    if asked:
        with pytest.raises(LaunchError, match="may leave a part of it"):
            planned(tmp_path, source, launch)
        return
    assert rollouts(planned(tmp_path, source, launch)) == 20


BUILDS = """
import hydra
from {package} import {trainer}
@hydra.main(config_path="config", config_name="ppo_trainer")
def main(config):
    trainer = {trainer}(config)
    trainer.fit()
"""


@pytest.mark.parametrize(
    ("package", "trainer", "says"),
    [
        ("verl.trainer.ppo.ray_trainer", "RayPPOTrainer", ""),
        ("mine", "Trainer", "has settings of NeMo-RL, but uses nothing that trains with it"),
    ],
)
def test_a_script_with_a_name_of_another_framework_is_known_by_its_settings(
    tmp_path: Path, package: str, trainer: str, says: str
) -> None:
    files = {"scripts/run_grpo_train.py": BUILDS.format(package=package, trainer=trainer)}
    launch = LAUNCH.replace("-m verl.trainer.main_ppo", "scripts/run_grpo_train.py")
    if says:
        with pytest.raises(LaunchError, match=says):
            in_checkout(tmp_path, files, launch)
        return
    plan = in_checkout(tmp_path, files, launch)
    assert (plan.title, schedule_of(plan).rollouts) == ("verl", 20)
