"""`rlstep rehearse` with real training: a healthy launch is proved, broken ones are caught, and nothing is left behind."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest
from packaging.version import Version

from rlstep_hooks.testing.tiny_trl import tiny_tokenizer
from tests.rehearsals.broken import BROKEN, HEALTHY, Broken
from tests.systems.trl.conftest import RELEASE

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.skipif(
    Version("1.16") > RELEASE, reason="the newest release is enough here; `nox -s rehearse` has more"
)


def rehearse(folder: Path, launch: Broken) -> subprocess.CompletedProcess[str]:
    temporary, here = folder / "tmp", folder / "here"
    temporary.mkdir()
    here.mkdir()
    launch.write(here)
    before = sorted(here.iterdir())
    command = [
        sys.executable,
        "-m",
        "rlstep_hooks",
        "rehearse",
        "--json",
        *launch.options,
        "--",
        sys.executable,
        "train.py",
    ]
    variables = os.environ | {"TMPDIR": str(temporary)}
    done = subprocess.run(command, cwd=here, env=variables, capture_output=True, text=True, timeout=300)
    assert sorted(here.iterdir()) == before
    assert not list(temporary.iterdir())
    return done


def test_a_healthy_launch_is_proved(tmp_path: Path) -> None:
    done = rehearse(tmp_path, HEALTHY)
    assert done.returncode == 0, done.stdout + done.stderr
    outcome = json.loads(done.stdout)
    states = {line["what"]: line["state"] for line in outcome["lines"]}
    assert states == {
        "the script runs to its end": "proved",
        "updates per rollout": "proved",
        "lags of the old log-probs": "proved",
        "order and arithmetic of the updates": "proved",
        "reward signal": "proved",
        "the reward function": "proved",
        "learning rate of the whole run": "proved",
        "resume from a checkpoint": "proved",
    }
    assert outcome["schedule"]["updates"] == 300
    assert outcome["schedule"]["lags"] == [0, 1]


@pytest.mark.parametrize("name", ["reward raises on an empty completion"])
def test_a_broken_launch_is_caught(tmp_path: Path, name: str) -> None:
    done = rehearse(tmp_path, BROKEN[name])
    assert done.returncode == BROKEN[name].status, done.stdout + done.stderr
    assert BROKEN[name].said in done.stdout


OWN_MODEL = """
from datasets import Dataset
from trl import GRPOConfig, GRPOTrainer

rows = Dataset.from_dict({"prompt": [f"add {n}" for n in range(12)]})
settings = GRPOConfig(
    output_dir="out", per_device_train_batch_size=4, num_generations=4, max_steps=20, save_strategy="no", logging_steps=5
)


def length(completions, **kwargs):
    return [float(len(completion)) for completion in completions]


trainer = GRPOTrainer("model", reward_funcs=length, args=settings, train_dataset=rows)
trainer.train()
assert "five" in trainer.processing_class.get_vocab()
assert trainer.model.config.model_type == "qwen3"
trainer.save_model("{saved}")
trainer.model.save_pretrained("{saved}")
"""


def test_a_model_of_the_users_own_gives_its_tokenizer_and_its_kind_and_no_weights(tmp_path: Path) -> None:
    here, saved = tmp_path / "here", tmp_path / "saved"
    model = here / "model"
    model.mkdir(parents=True)
    tiny_tokenizer().save_pretrained(model)
    (model / "config.json").write_text('{"model_type": "qwen3", "hidden_size": 4096, "num_hidden_layers": 40}')
    (model / "model.safetensors").write_bytes(b"no weights")
    (here / "train.py").write_text(OWN_MODEL.replace("{saved}", str(saved)))
    command = [sys.executable, "-m", "rlstep_hooks", "rehearse", "--rollouts", "2", "--", sys.executable, "train.py"]
    done = subprocess.run(command, cwd=here, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "its own tokenizer" in done.stdout
    assert not saved.exists()
    assert sorted(path.name for path in here.iterdir()) == ["model", "train.py"]
