"""`assert_schedule`: what it reads and compares, and its message when the plan differs."""

from __future__ import annotations

import re
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest

from rlstep_hooks import assert_schedule
from rlstep_hooks.launch.text import LaunchError
from tests.systems.plans.verl_configs import ROWS, V091, verl_config

SCRIPTS = Path(__file__).parents[1] / "golden" / "scripts"
SKYRL = (
    "python -m skyrl.train.entrypoints.main_base trainer.train_batch_size=1024 trainer.policy_mini_batch_size=256 "
    "generator.n_samples_per_prompt=5 trainer.epochs=20"
)
RIGHT: dict[str, Any] = {
    "updates_per_rollout": 4,
    "lags": [0, 1, 2, 3],
    "updates": 560,
    "data_epochs": Fraction(1024 * 140, 7473),
    "old_logprob_source": "recompute",
    "rows_reshuffled": True,
    "critic": None,
}


def refusal(config: Any, **given: Any) -> str:
    with pytest.raises(AssertionError) as failed:
        assert_schedule(config, **given)
    return str(failed.value)


@pytest.mark.parametrize("launch", [SKYRL, SKYRL.split(), tuple(SKYRL.split())], ids=["text", "words", "tuple"])
def test_a_plan_as_expected_is_returned(launch: Any) -> None:
    assert assert_schedule(launch, rows=7473, **RIGHT).rollouts == 140


def test_scripts_and_configuration_files_are_read(tmp_path: Path) -> None:
    script = tmp_path / "train.sh"
    script.write_text(f"{SKYRL} trainer.policy_mini_batch_size=$SIZE\n")
    for path in (script, str(script)):
        assert_schedule(path, rows=7473, variables={"SIZE": "512"}, updates_per_rollout=2)
    config = tmp_path / "grpo.yaml"
    config.write_text(
        "per_device_train_batch_size: 4\ngradient_accumulation_steps: 8\nsteps_per_generation: 4\nmax_steps: 4\n"
    )
    assert_schedule(config, framework="trl", world_size=1, updates_per_rollout="1/2")
    assert_schedule(config, framework="trl", world_size=1, version="1.16.0", updates_per_rollout=Fraction(1, 2))
    critic = {"updates_per_rollout": 4}
    assert_schedule(SCRIPTS / "verl_ppo_critic.sh", rows=7473, critic=critic)
    assert "critic.updates_per_rollout" in refusal(
        SCRIPTS / "verl_ppo_critic.sh", rows=7473, critic={"updates_per_rollout": 1}
    )


def test_a_difference_is_shown_with_what_it_comes_from() -> None:
    text = refusal(SKYRL, rows=7473, **(RIGHT | {"updates_per_rollout": "7/2", "lags": (0,)}))
    shown = re.sub(r"\s+", " ", text)
    for part in (
        "SkyRL 0.3.0, from the launch command, is not planned as expected",
        "expected planned",
        "updates_per_rollout 7/2 4",
        "trainer.update_epochs_per_batch * trainer.train_batch_size / trainer.policy_mini_batch_size",
        "trainer.train_batch_size = 1024, trainer.policy_mini_batch_size = 256",
        "skyrl/train/trainer.py _execute_training_step",
        "lags (0,) (0, 1, 2, 3)",
    ):
        assert part in shown
    assert "560" not in text, "only what differs is shown"
    assert max(map(len, text.splitlines())) <= 100


@pytest.mark.parametrize("name", sorted(RIGHT))
def test_each_kind_of_quantity_can_differ(name: str) -> None:
    wrong = {"lags": (), "old_logprob_source": "detach", "rows_reshuffled": False, "critic": {}}.get(name, 3)
    assert name in refusal(SKYRL, rows=7473, **(RIGHT | {name: wrong}))


def test_what_cannot_be_known_is_no_pass() -> None:
    text = refusal(SKYRL, updates=560)
    assert "not known" in text
    assert "data.train_data is not given; give --rows" in text


def test_an_error_of_the_plan_fails_without_any_quantity() -> None:
    assert "RLS510" in refusal(SKYRL, rows=7)
    refused = refusal(f"{SKYRL} trainer.policy_mini_batch_size=300", updates_per_rollout=3)
    assert "RLS110" in refused
    assert "trainer.policy_mini_batch_size = 256 or 512" in refused


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"update_per_rollout": 4}, "there is no quantity update_per_rollout; did you mean updates_per_rollout"),
        ({"xyz": 4}, "there is no quantity xyz; there are algorithm, "),
        ({"critic": {"update": 4}}, "there is no quantity update; did you mean updates"),
        ({"critic": 4}, "critic is a dict of quantities or None, not 4"),
        ({"data_epochs": 0.5}, 'data_epochs: whole numbers and fractions are compared exactly; write "1/2"'),
        ({"data_epochs": "half"}, "data_epochs is a number or a fraction such as '1/2', not 'half'"),
        ({"updates_per_rollout": "1/0"}, "updates_per_rollout is a number or a fraction"),
    ],
)
def test_what_is_no_quantity_is_a_mistake_of_the_test(given: dict[str, Any], message: str) -> None:
    critic = SCRIPTS / "verl_ppo_critic.sh"
    with pytest.raises(TypeError, match=re.escape(message)):
        assert_schedule(critic if "critic" in given else SKYRL, rows=7473, **given)


def test_a_launch_that_cannot_be_read_is_no_failed_assertion(tmp_path: Path) -> None:
    with pytest.raises(LaunchError, match="none of these starts a known trainer"):
        assert_schedule("nonsense --a 1")
    with pytest.raises(LaunchError, match="there is no such file"):
        assert_schedule(tmp_path / "absent.yaml")
    with pytest.raises(TypeError, match="no system knows int"):
        assert_schedule(42)


@pytest.fixture
def verl_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rlstep_hooks.systems.verl.plan.installed_release", lambda: V091)


@pytest.mark.usefixtures("verl_installed")
def test_a_live_configuration_is_asserted_like_a_launch() -> None:
    assert assert_schedule(verl_config(), rows=ROWS, updates_per_rollout=2, rollouts=4).framework == "verl"
    text = refusal(verl_config(), rows=ROWS, updates_per_rollout=3)
    assert re.search(r"updates_per_rollout +3 +2\n", text)
    assert "verl 0.9.1, from the live configuration" in text
    assert "actor_rollout_ref.actor.ppo_mini_batch_size = 4" in text
    assert "RLS110" in refusal(verl_config(data__train_batch_size=2), rows=ROWS)
    with pytest.raises(TypeError, match="are for launches"):
        assert_schedule(verl_config(), rows=ROWS, version="0.9.1")
