"""What cannot be audited is not evaluated, with the reason, and training goes on untouched.

Nothing is launched here: the configuration is verl's own, the trainer an object with what the audit looks at. Megatron, separate
trainers and engines, and releases to come cannot be trained on a CPU.
"""

from __future__ import annotations

import asyncio
import inspect
import sys
from importlib.resources import files
from types import ModuleType, SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest
from hydra import compose, initialize_config_dir

from rlstep_hooks.observe.patches import Patches
from rlstep_hooks.record.events import Judged, RunEnded
from rlstep_hooks.record.ledger import records
from rlstep_hooks.systems.verl.observe import attach, controller, controller_hooks, plugin, start
from rlstep_hooks.systems.verl.observe.controller import VerlController
from rlstep_hooks.systems.verl.observe.controller_hooks import place_hooks
from rlstep_hooks.systems.verl.releases import VerlRelease
from tests.systems.verl.launch import Assets, command, grpo

if TYPE_CHECKING:
    from pathlib import Path

WHAT_FIT_RETURNS = object()


def configuration(settings: dict[str, Any]) -> Any:
    """verl's configuration of a run, as its trainer holds it."""
    assets = Assets(*[files("verl").joinpath(name) for name in ("model", "train", "validation")])  # type: ignore[list-item]
    arguments = command(grpo(assets) | settings)[3:]
    with initialize_config_dir(str(files("verl").joinpath("trainer/config")), version_base=None):
        return compose("ppo_trainer", overrides=arguments)


class StandIn:
    """What the audit looks at in a trainer, which trains nothing."""

    def __init__(self, **settings: Any) -> None:
        self.config = configuration(settings)
        self.train_dataset = range(36)
        self.global_steps = 0
        self.total_training_steps = 4
        self.actor_rollout_wg = SimpleNamespace()
        self.checkpoint_manager = SimpleNamespace(actor_wg=self.actor_rollout_wg)
        self.attributes: dict[str, Any] = {}

    def _load_checkpoint(self) -> int:
        return 7

    def fit(self) -> object:
        self.attributes = dict(vars(self))
        return WHAT_FIT_RETURNS


@pytest.fixture
def trained(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> Any:
    """Puts the controller's hooks on a trainer and lets it train: the report that was printed."""
    monkeypatch.setattr(controller, "run_of_ray", lambda: "run")
    monkeypatch.setenv("RLSTEP_DIR", str(tmp_path / "log"))
    seen: list[VerlController] = []

    def made(trainer: Any, *, own_fit: bool) -> VerlController:
        seen.append(VerlController(trainer, own_fit=own_fit))
        return seen[-1]

    monkeypatch.setattr(controller_hooks, "VerlController", made)

    def train(**settings: Any) -> tuple[VerlController, str]:
        patches, trainer_class = Patches(), type("Trainer", (StandIn,), {})
        place_hooks(patches, trainer_class)
        trainer = trainer_class(**settings)
        before = dict(vars(trainer))
        assert trainer._load_checkpoint() == 7
        assert trainer.fit() is WHAT_FIT_RETURNS
        assert trainer.attributes.keys() == before.keys(), "nothing was wrapped"
        assert not patches.restore()
        (made,) = seen
        return made, "".join(capfd.readouterr())

    return train


CASES = {
    "actor_rollout_ref.actor.strategy=megatron": {"actor_rollout_ref.actor.strategy": "megatron"},
    "rollout.agent.agent_loop_manager_class": {
        "+actor_rollout_ref.rollout.agent.agent_loop_manager_class": "mine.Manager"
    },
}


@pytest.mark.parametrize("reason", CASES)
def test_what_is_not_covered_is_not_evaluated(reason: str, trained: Any) -> None:
    made, printed = trained(**CASES[reason])
    assert made.report.verdict == "NOT_EVALUATED"
    assert reason in made.report.not_evaluated["order"]
    assert made.report.findings == [] or all(finding.severity == "info" for finding in made.report.findings)
    assert "NOT EVALUATED" in printed
    assert reason.split("=")[0] in printed.replace("\n", "").replace(" ", "")


def test_a_release_to_come_is_not_evaluated(trained: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(start, "installed_release", lambda: VerlRelease("0.10.0"))
    made, printed = trained()
    assert (made.report.verdict, made.schedule) == ("NOT_EVALUATED", None)
    assert "verl 0.10.0 is not supported (0.2 to 0.9 are)" in made.report.not_evaluated["order"]
    assert "NOT EVALUATED" in printed


def test_an_earlier_release_has_its_plan_and_no_hooks(trained: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(start, "installed_release", lambda: VerlRelease("0.8.0"))
    made, _ = trained()
    assert made.report.verdict == "NOT_EVALUATED"
    assert made.schedule.updates == 8
    assert "gets the plan only" in made.report.not_evaluated["order"]


@pytest.mark.parametrize("release", ["0.8.0", "0.10.0"])
def test_trainers_of_other_releases_are_left_alone(release: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(attach, "installed_release", lambda: VerlRelease(release))
    attach._place_trainer(object())  # has none of the classes that would be hooked


def test_a_folder_that_cannot_be_written_is_not_evaluated(
    trained: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    file = tmp_path / "file"
    file.write_text("no folder")
    monkeypatch.setenv("RLSTEP_DIR", str(file / "log"))
    made, printed = trained()
    assert made.report.verdict == "NOT_EVALUATED"
    assert str(file) in made.report.not_evaluated["order"]
    assert "NOT EVALUATED" in printed
    assert file.read_text() == "no folder"


def test_a_configuration_that_verl_refuses_later_is_not_evaluated(trained: Any) -> None:
    made, _ = trained(**{"actor_rollout_ref.actor.ppo_mini_batch_size": 3})
    assert "data size must be divisible" in made.report.not_evaluated["order"]


@pytest.mark.parametrize("error", [None, KeyboardInterrupt()])
def test_a_trainer_with_a_fit_of_its_own_has_its_end_recorded(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, error: BaseException | None
) -> None:
    monkeypatch.setattr(controller, "run_of_ray", lambda: "run")
    monkeypatch.setenv("RLSTEP_DIR", str(tmp_path / "log"))

    class Own(StandIn):
        def fit(self) -> object:
            if error is not None:
                raise error
            return WHAT_FIT_RETURNS

    patches = Patches()
    place_hooks(patches, StandIn)
    try:
        trainer = Own(**CASES["actor_rollout_ref.actor.strategy=megatron"])
        before = vars(trainer).keys() - {"fit"}
        trainer._load_checkpoint()
        if error is None:
            assert trainer.fit() is WHAT_FIT_RETURNS
        else:
            with pytest.raises(KeyboardInterrupt):
                trainer.fit()
    finally:
        patches.restore()
    assert vars(trainer).keys() == before
    [(record,)] = records(tmp_path / "log").values()
    *_, ended, judged = record.events()
    assert isinstance(ended, RunEnded)
    assert isinstance(judged, Judged)
    assert (ended.status, ended.error) == (("completed", "") if error is None else ("raised", "KeyboardInterrupt: "))


def test_an_audit_that_cannot_begin_says_so(
    trained: Any, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    def broken(trainer: Any, *, own_fit: bool) -> Any:
        raise RuntimeError("broken on purpose")

    monkeypatch.setattr(controller_hooks, "VerlController", broken)
    patches, trainer_class = Patches(), type("Trainer", (StandIn,), {})
    place_hooks(patches, trainer_class)
    trainer = trainer_class()
    assert trainer._load_checkpoint() == 7
    assert trainer.fit() is WHAT_FIT_RETURNS
    assert "rlstep: not evaluated: the audit could not begin: RuntimeError: broken on purpose" in capfd.readouterr().err


def test_a_module_that_is_not_as_it_was_read_is_imported_all_the_same(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "module_without_trainer.py").write_text("value = 1\n")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(attach, "_attached", True)
    attach._when_imported("module_without_trainer", attach._place_controller("PPOTrainer"))
    import module_without_trainer

    assert isinstance(sys.modules["module_without_trainer"], ModuleType)
    assert module_without_trainer.value == 1
    assert "module_without_trainer could not be hooked" in capfd.readouterr().err


def test_every_class_has_its_own_functions_again(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    from verl.trainer.ppo.ray_trainer import RayPPOTrainer
    from verl.trainer.ppo.v1.trainer_base import PPOTrainer
    from verl.utils.tracking import Tracking
    from verl.workers import engine_workers
    from verl.workers.engine.fsdp import transformer_impl
    from verl.workers.utils import losses

    owners = (
        RayPPOTrainer, PPOTrainer, Tracking, engine_workers.ActorRolloutRefWorker, engine_workers.TrainingWorker,
        transformer_impl.FSDPEngineWithLMHead, transformer_impl.FSDPEngine, losses,
    )  # fmt: skip

    def functions() -> dict[tuple[Any, str], Any]:
        return {(owner, name): value for owner in owners for name, value in vars(owner).items() if callable(value)}

    assert not plugin.asked(), "it was loaded with this file, before any test asks for an audit"
    monkeypatch.setenv("RLSTEP_DIR", str(tmp_path))
    before = functions()
    for worker in (False, True):
        if worker:
            monkeypatch.setenv(attach.WORKER, "1")
        attach.attach()
        changed = {name for (owner, name), value in functions().items() if before.get((owner, name)) is not value}
        assert (
            {"update_weights", "optimizer_step", "get_policy_loss_fn"} <= changed
            if worker
            else {"fit", "log"} <= changed
        )
        assert attach.detach() == []
        assert functions().keys() == before.keys()
        assert all(value is before[place] for place, value in functions().items())


class Waiting(StandIn):
    """As the trainers of experimental/one_step_off_policy."""

    async def fit(self) -> object:  # type: ignore[override]
        self._load_checkpoint()
        await asyncio.sleep(0)
        return WHAT_FIT_RETURNS


class Within(StandIn):
    """Calls verl's loop from its own."""

    def fit(self) -> object:
        self._load_checkpoint()
        found = super().fit()
        self.attributes["after"] = len(controller_hooks._controllers)
        return found


@pytest.mark.parametrize("kind", [Waiting, Within])
def test_other_forms_of_fit_have_their_end_recorded_once(
    kind: type[StandIn], monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(controller, "run_of_ray", lambda: "run")
    monkeypatch.setenv("RLSTEP_DIR", str(tmp_path / "log"))
    patches = Patches()
    place_hooks(patches, StandIn)
    try:
        trainer = kind(**CASES["actor_rollout_ref.actor.strategy=megatron"])
        found = trainer.fit()
        assert (asyncio.run(found) if inspect.iscoroutine(found) else found) is WHAT_FIT_RETURNS
    finally:
        patches.restore()
    assert trainer.attributes.get("after", 1) == 1, "the audit goes on until the outer loop ends"
    [(record,)] = records(tmp_path / "log").values()
    assert [type(event) for event in record.events()][-2:] == [RunEnded, Judged]
    assert sum(isinstance(event, RunEnded) for event in record.events()) == 1
    assert "never began" not in "".join(capfd.readouterr())
