"""Random legal configurations over all fields, drawn from the dataclass of the release and trained for real: no false finding.

Twelve run with all tests; `nox -s soak` runs as many new ones as it is told.
"""

from __future__ import annotations

import dataclasses
import os
import subprocess
import sys
import zlib
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import trl
from packaging.version import Version

from tests.systems.trl.conftest import RELEASE
from tests.systems.trl.random_runs import fields
from tests.systems.trl.random_runs.drawing import algorithms, draw
from tests.systems.trl.random_runs.draws import Draw
from tests.systems.trl.random_runs.soak import shrunk
from tests.systems.trl.random_runs.training import Outcome

if TYPE_CHECKING:
    from collections.abc import Callable

ROOT = Path(__file__).parents[3]


def soak(*arguments: str) -> subprocess.CompletedProcess[str]:
    """The command, in a process that has imported nothing else and may fork."""
    command = [sys.executable, "-m", "tests.systems.trl.random_runs", *arguments]
    environment = os.environ | {"HF_HUB_OFFLINE": "1", "PYTHONPATH": str(ROOT)}
    return subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=600, check=False)


def test_healthy_runs_have_no_finding() -> None:
    done = soak("--runs", "12", "--seed", "7", "--no-shrink")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "12 healthy runs" in done.stdout


def test_what_is_wrong_is_no_healthy_run() -> None:
    """A callback that writes the learning rate is in no draw, and no condition excuses the finding."""
    done = soak("--only", Draw("GRPO", {"max_steps": 4}, {"callback": "writes_rate"}).to_json())
    assert done.returncode == 1, done.stdout + done.stderr
    assert "RLS605 error" in done.stdout


def test_a_draw_is_made_as_small_as_it_stays_false(monkeypatch: pytest.MonkeyPatch) -> None:
    def judged(drawn: Draw) -> Outcome:
        false = drawn.settings.get("beta") == 0.5 and drawn.around.get("tied") is False
        return Outcome("trained", findings=["RLS999 error: false"] if false else [])

    monkeypatch.setattr("tests.systems.trl.random_runs.soak.judged", judged)
    drawn = Draw("RLOO", {"top_k": 5, "beta": 0.5, "seed": 3}, {"rows": 9, "tied": False})
    assert shrunk(drawn, {"RLS999"}) == Draw("RLOO", {"beta": 0.5}, {"tied": False})


@pytest.mark.parametrize("algorithm", sorted(set(algorithms())))
def test_each_field_is_drawn_or_says_why_not(algorithm: str) -> None:
    kind = getattr(trl, f"{algorithm}Config")
    drawn, kept = fields.varied(kind), fields.unvaried(kind)
    assert drawn.keys() | kept.keys() == {field.name for field in dataclasses.fields(kind) if field.init}
    assert all(kept.values())
    assert len(drawn) > 2 * len(kept)


def test_values_come_from_types_choices_and_documented_words() -> None:
    @dataclasses.dataclass
    class Config:
        flag: bool | None = None
        kind: str = dataclasses.field(default="a", metadata={"help": "Either 'a' or 'b'. Needs `'c'`."})
        level: str = dataclasses.field(default="x", metadata={"choices": ["x", "y"]})
        count: int = 8
        use_vllm: bool = False

    Config.__annotations__ = {"flag": bool | None, "kind": str, "level": str, "count": int, "use_vllm": bool}
    assert fields.varied(Config) == {
        "flag": [True, False, None],
        "kind": ["a", "b"],
        "level": ["x", "y"],
        "count": [8, 16, 4],
    }
    assert fields.unvaried(Config) == {"use_vllm": fields.FIXED["use_vllm"]}


def test_a_draw_is_the_same_whenever_it_is_asked_for() -> None:
    first = draw(3, 5)
    assert draw(3, 5) == first == Draw.from_json(first.to_json())
    assert draw(3, 6) != first
    assert all(
        len(one.settings) + len(one.around) == len(first.settings) + len(first.around) - 1 for one in first.smaller()
    )


def reward(completions: Any, **kwargs: Any) -> list[float]:
    """Different for every completion of a rollout, so that a run without signal is never drawn."""
    return [zlib.crc32(str(text).encode()) % 7 + 0.01 * index for index, text in enumerate(completions)]


CANCELLING = {
    "per_device_train_batch_size": 1, "gradient_accumulation_steps": 4, "steps_per_generation": 2, "num_iterations": 3,
    "num_generations": 2, "rows": 6, "max_completion_length": 2, "learning_rate": 0.01, "lr_scheduler_type": "linear",
    "optim": "rmsprop", "shuffle_dataset": False, "loss_type": "grpo", "scale_rewards": True, "num_train_epochs": 1.0,
}  # fmt: skip
"""Found by the soak: both completions of a group become equal, their rewards differ, and so their gradients cancel to exactly 0."""


BARELY_MOVING = {
    "per_device_train_batch_size": 1, "gradient_accumulation_steps": 1, "num_iterations": 3, "num_generations": 5, "rows": 5,
    "max_completion_length": 2, "learning_rate": 1e-3, "lr_scheduler_type": "linear", "optim": "sgd", "max_grad_norm": 1e-3,
    "steps_per_generation": 5, "shuffle_dataset": False, "loss_type": "grpo", "scale_rewards": "group", "num_train_epochs": 0.5,
}  # fmt: skip
"""Found by the soak: a whole step is clipped to 1e-6, and both tokens of a micro-batch round to the log-probs that they had."""


@pytest.mark.skipif(Version("0.18") > RELEASE, reason="this release has no steps_per_generation")
def test_gradients_of_equal_completions_may_cancel(build: Callable[..., Any]) -> None:
    trains_without_finding(build, CANCELLING)


@pytest.mark.skipif(Version("0.24") > RELEASE, reason="this release has no scale_rewards by name")
def test_a_step_may_be_too_small_for_two_tokens(build: Callable[..., Any]) -> None:
    trains_without_finding(build, BARELY_MOVING)


def trains_without_finding(build: Callable[..., Any], config: dict[str, Any]) -> None:
    """Train, and look for findings that no known deviation of this release explains."""
    trainer, audit = build(reward=reward, **config)
    trainer.train()
    assert not [str(found) for found in audit.report.findings if found.severity != "info" and not found.deviation]
