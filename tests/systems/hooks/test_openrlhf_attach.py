"""How the audit reaches OpenRLHF's processes, and which weights their engines hold. No OpenRLHF and no Ray needed."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import pytest

from rlstep_hooks.observe.hooks import Hooks
from rlstep_hooks.record.events import Attached, FactsRead, Generated, WeightSync
from rlstep_hooks.record.ledger import FolderLedger
from rlstep_hooks.systems.openrlhf.observe import generator as generator_module
from rlstep_hooks.systems.openrlhf.observe import ray_hooks as launch
from rlstep_hooks.systems.openrlhf.observe.generator import SamplingWeights
from rlstep_hooks.systems.openrlhf.observe.labels import (
    FIRST_WEIGHTS,
    NOT_KNOWN,
    EngineWeights,
    SampledWith,
    sampling_of,
)

HERE = os.uname().nodename
ROOT = Path(__file__).parents[3]
WARM, COLD = sampling_of(1.0, 1.0, top_k=-1), sampling_of(0.1, 1.0, top_k=-1)
"""What training samples with, and an evaluation."""


@pytest.fixture(autouse=True)
def driver(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The environment of a driver for which an audit was asked."""
    for name in (
        launch.RUN,
        "RAY_RUNTIME_ENV_HOOK",
        "RLSTEP_ON_FAIL",
        "RLSTEP_PARENT",
        "RLSTEP_SINK",
        "RLSTEP_SCALARS",
    ):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv(launch.FOLDER, str(tmp_path))


def test_the_hook_adds_our_setup_and_the_folder(tmp_path: Path) -> None:
    given = {"env_vars": {"NCCL_DEBUG": "WARN"}}
    changed = launch.runtime_env_hook(given)
    assert changed["worker_process_setup_hook"] == "rlstep_hooks.systems.openrlhf.observe.ray_hooks.setup_worker"
    assert changed["env_vars"] == {"NCCL_DEBUG": "WARN", "RLSTEP_DIR": str(tmp_path)}
    assert given == {"env_vars": {"NCCL_DEBUG": "WARN"}}, "what was given stays as it was"


def test_the_hook_takes_no_environment_and_its_own_one() -> None:
    once = launch.runtime_env_hook(None)
    assert launch.runtime_env_hook(once) == once


def test_a_folder_is_made_absolute(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv(launch.FOLDER, "log")
    assert launch.runtime_env_hook({})["env_vars"]["RLSTEP_DIR"] == str(tmp_path / "log")


def test_what_the_user_set_for_workers_wins() -> None:
    changed = launch.runtime_env_hook({"env_vars": {"RLSTEP_DIR": "/shared"}})
    assert changed["env_vars"]["RLSTEP_DIR"] == "/shared"


def test_another_setup_hook_stays(capsys: pytest.CaptureFixture[str]) -> None:
    given = {"worker_process_setup_hook": "mine.setup"}
    assert launch.runtime_env_hook(given) is given
    assert "rlstep: not evaluated: another" in capsys.readouterr().err


def test_a_workers_child_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(launch.RUN, "run")
    given = {"env_vars": {}}
    assert launch.runtime_env_hook(given) is given
    launch.ask_ray()
    assert "RAY_RUNTIME_ENV_HOOK" not in os.environ


def test_the_driver_asks_ray_once_and_a_hook_of_the_users_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    launch.ask_ray()
    assert os.environ["RAY_RUNTIME_ENV_HOOK"] == launch.HOOK
    monkeypatch.setenv("RAY_RUNTIME_ENV_HOOK", "mine.hook")
    launch.ask_ray()
    assert os.environ["RAY_RUNTIME_ENV_HOOK"] == "mine.hook"


def test_nothing_is_asked_of_ray_without_an_audit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(launch.FOLDER)
    launch.ask_ray()
    assert "RAY_RUNTIME_ENV_HOOK" not in os.environ


def test_an_engine_without_an_audit_loads_nothing() -> None:
    code = (
        "import sys; from rlstep_hooks.systems.openrlhf.observe.ray_hooks import setup_engine; setup_engine()\n"
        "print(*(name for name in sys.modules if name != '__main__' and name.split('.')[0] not in sys.stdlib_module_names))"
    )
    environment = {name: value for name, value in os.environ.items() if name not in (launch.FOLDER, launch.RUN)}
    run = subprocess.run(
        [sys.executable, "-S", "-c", code],
        env=environment | {"PYTHONPATH": str(ROOT)},
        check=True,
        capture_output=True,
        text=True,
        timeout=60,
    )
    home = "rlstep_hooks.systems.openrlhf"
    ours = {"rlstep_hooks", "rlstep_hooks.systems", home, f"{home}.observe", f"{home}.observe.environment"}
    assert set(run.stdout.split()) == ours | {f"{home}.observe.ray_hooks"}, "it is loaded wherever vLLM runs"


# Labels


def engine(folder: Path, number: int, host: str = HERE) -> FolderLedger:
    """An engine's record that has begun."""
    ledger = FolderLedger(folder, "run", f"engine{number}")
    ledger.write(Attached(run="run", process=f"engine{number}", host=host, started=time.time()))
    return ledger


def test_engines_hold_their_first_weights_and_then_each_sync(tmp_path: Path) -> None:
    ledger = engine(tmp_path, 0)
    weights = EngineWeights(tmp_path, "run", 1)
    assert weights.labels(4) == ((FIRST_WEIGHTS, 4),)
    ledger.write(WeightSync(policy_version=-1, label=7), WeightSync(policy_version=-1, label=9))
    assert weights.labels(4) == ((9, 4),)


def test_two_engines_share_the_samples(tmp_path: Path) -> None:
    first, _ = engine(tmp_path, 0), engine(tmp_path, 1)
    first.write(WeightSync(policy_version=-1, label=7))
    assert EngineWeights(tmp_path, "run", 2).labels(5) == ((FIRST_WEIGHTS, 2), (7, 3))


def test_an_engine_without_a_record_or_of_another_machine_is_not_known(tmp_path: Path) -> None:
    engine(tmp_path, 0)
    assert EngineWeights(tmp_path, "run", 2).labels(4) == NOT_KNOWN
    engine(tmp_path, 1, host="another")
    assert EngineWeights(tmp_path, "run", 2).labels(4) == NOT_KNOWN
    assert EngineWeights(tmp_path, "run", 0).labels(4) == NOT_KNOWN


def test_samples_keep_the_label_they_were_generated_with() -> None:
    sampled = SampledWith()
    sampled.generated(6, ((1, 6),), (WARM,))
    assert sampled.take(4) == (((1, 4),), (WARM,))
    sampled.generated(6, ((2, 6),), (WARM,))
    assert sampled.take(4) == (((1, 2), (2, 2)), (WARM,)), "two waited in the buffer"
    assert sampled.take(4) == (((2, 4),), (WARM,))


def test_samples_keep_the_settings_they_were_drawn_with() -> None:
    sampled = SampledWith()
    sampled.generated(4, ((1, 4),), (WARM,))
    sampled.generated(4, ((1, 4),), (COLD,))
    assert sampled.take(2)[1] == (WARM,)
    assert sampled.take(4)[1] == (WARM, COLD)
    assert sampled.take(2)[1] == (COLD,)
    sampled.generated(2, ((1, 2),), ())
    assert sampled.take(2) == (((1, 2),), ()), "an engine that does not say"


class Gaps:
    """Fails where a hook failed."""

    def cannot(self, what: str, why: str) -> None:
        """Nothing is expected to fail."""
        raise AssertionError(f"{what}: {why}")


class Generator:
    """What of OpenRLHF's generator decides where samples come from: a buffer, and a call that sends prompts to the engines."""

    def __init__(self) -> None:
        self.args = SimpleNamespace(
            vllm=SimpleNamespace(num_engines=1, tensor_parallel_size=1),
            rollout=SimpleNamespace(n_samples_per_prompt=2, max_new_tokens=None),
            train=SimpleNamespace(agent_func_path=None),
        )
        self.prompts_dataloader = SimpleNamespace(dataset=[], batch_size=1)
        self._sample_buffer: list[int] = []

    def _dispatch_prompts_to_vllm(self, prompts: list[str], labels: list[str]) -> None:
        """Sends nothing here."""

    def _process_response_into_experience(self, response: dict[str, str]) -> None:
        """Makes nothing here."""


def test_a_rollout_from_the_buffer_has_not_the_settings_of_the_evaluation_before_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(generator_module, "folder", lambda: tmp_path)
    monkeypatch.setattr(generator_module, "run_name", lambda: "run")
    generator = Generator()
    engine = FolderLedger(tmp_path, "run", "engine0")
    engine.write(Attached(run="run", process="engine0", host=os.uname().nodename))
    sampling = SamplingWeights(generator)
    hooks = Hooks(Gaps())
    sampling.attach(hooks)

    def call(settings: dict[str, float] | None, buffered: int, index: int = 0) -> Generated:
        sampling.before()
        if settings is not None:
            generator._dispatch_prompts_to_vllm(["a"], ["b"])
            engine.write(FactsRead(facts={"sampling": settings}))
        generator._sample_buffer = [0] * buffered
        return sampling.rollout(4, index)

    assert call(WARM, 8).sampling == (WARM,), "12 are made, 8 wait"
    sampling.before()
    engine.write(FactsRead(facts={"sampling": COLD}))  # the evaluation
    assert call(None, 4).sampling == (WARM,), "nothing is sent: all came from the buffer"
    assert call(WARM, 4).sampling == (WARM,)
    hooks.take_off()


def test_samples_without_a_label_make_the_rollout_unknown() -> None:
    sampled = SampledWith()
    sampled.generated(2, ((1, 2),), (WARM,))
    sampled.generated(2, NOT_KNOWN, (WARM,))
    assert sampled.take(4)[0] == NOT_KNOWN
    assert sampled.take(1) == (NOT_KNOWN, ()), "nothing was generated"
