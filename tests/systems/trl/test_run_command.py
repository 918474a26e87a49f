"""`rlstep run` around a script that never heard of this package, with real training."""

from __future__ import annotations

import importlib
import os
import pkgutil
import re
import signal
import subprocess
import sys
from types import ModuleType
from typing import TYPE_CHECKING, Any

import pytest
import trl
from packaging.version import Version
from transformers import Trainer

from rlstep_hooks.record.events import RunStarted
from rlstep_hooks.record.ledger import records
from rlstep_hooks.systems.trl.observe.others import is_other, why_not
from tests.reports import report_of
from tests.systems.run_command import LIMIT, rlstep, run_script
from tests.systems.trl.conftest import RELEASE

if TYPE_CHECKING:
    from pathlib import Path

SCRIPT = """
from pathlib import Path
from rlstep_hooks.testing.tiny_trl import tiny_trainer
trainer = tiny_trainer(Path("out"), max_steps=4, num_iterations=2)
{change}
trainer.train()
"""
OWN_SCRIPT = """
import sys, time
from trl import GRPOConfig, GRPOTrainer
from rlstep_hooks.testing.tiny_trl import tiny_model, tiny_reward, tiny_rows, tiny_tokenizer

def reward(completions, **kwargs):
    time.sleep(float(sys.argv[1]))
    return tiny_reward(completions)

tokenizer = tiny_tokenizer()
arguments = GRPOConfig(
    output_dir="out", per_device_train_batch_size=4, num_generations=4, max_completion_length=8, num_iterations=2,
    gradient_accumulation_steps=1, max_steps=6, learning_rate=1e-2, report_to=[], use_cpu=True, bf16=False,
    save_strategy="no", disable_tqdm=False,
)
trainer = GRPOTrainer(
    model=tiny_model(tokenizer), processing_class=tokenizer, args=arguments, train_dataset=tiny_rows(20), reward_funcs=reward,
)
trainer.train()
print("trained", trainer.state.global_step)
sys.exit(3)
"""
"""A script as people write it: its configuration can be read, and it never heard of an audit."""


def run(folder: Path, change: str = "", *options: str) -> subprocess.CompletedProcess[str]:
    return run_script(folder, SCRIPT.format(change=change), options=options)


def test_a_script_is_audited_without_an_edit(tmp_path: Path) -> None:
    done = run(tmp_path)
    assert done.returncode == 0, done.stderr
    assert "rlstep: no plan from the command: none of these starts a known trainer: train.py\n" in done.stderr
    assert done.stderr.count("old log-probs ") == 1, "the live plan is printed once, by the parent"
    assert done.stderr.count("PASS ") - done.stderr.count("PASS so far") == 1, "the report is printed once"
    report = report_of(tmp_path / "log")
    assert (report.verdict, report.counts.updates, report.complete) == ("PASS", 4, True)


def test_plan_line_report_and_the_commands_own_status(tmp_path: Path) -> None:
    done = run_script(tmp_path, OWN_SCRIPT, "0.6", options=("--rows", "20"))
    assert done.returncode == 3, done.stderr
    plan, verdict = done.stderr.find("· GRPO · from the launch command"), done.stderr.find("\nPASS  ")
    line = re.search(r"\nrollout \d", done.stderr)
    assert line is not None
    assert 0 <= plan < line.start() < verdict, done.stderr
    assert "3 rollouts · 6 updates" in done.stderr[plan : line.start()]
    words = re.search(r"\nrollout (\d) of 3 · update (\d) of 6 · lag 1 (· ratio .* )?· PASS so far\n", done.stderr)
    assert words is not None
    assert int(words[2]) == 2 * int(words[1])
    assert "rollout" not in done.stdout.replace("rlstep/rollouts", ""), "standard output is the command's own"
    assert done.stdout.endswith("trained 6\n")


def test_a_killed_run_ends_for_who_runs_it_and_who_follows_it(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(OWN_SCRIPT)
    running = subprocess.Popen(
        rlstep("run", "--dir", "log", "--", sys.executable, "train.py", "60"),
        cwd=tmp_path, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    following = subprocess.Popen(
        rlstep("report", "log", "--follow"), cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    assert following.stderr is not None
    while "following" not in following.stderr.readline():
        assert following.poll() is None
    started = next(next(iter(records(tmp_path / "log").values()))[0].events())
    assert isinstance(started, RunStarted)
    os.kill(started.pid, signal.SIGKILL)
    _, err = running.communicate(timeout=LIMIT)
    assert running.returncode == 128 + signal.SIGKILL
    assert "training did not come to its end" in " ".join(err.split())
    out, err = following.communicate(timeout=LIMIT)
    assert "without recording an end" in err
    assert "training did not come to its end" in " ".join(out.split())


def test_strict_turns_a_failure_into_status_1(tmp_path: Path) -> None:
    fault = "from rlstep_hooks.testing.trl_faults import FAULTS; FAULTS['regenerate_every_step'](trainer)"
    done = run(tmp_path, fault, "--strict")
    assert done.returncode == 1, done.stderr
    assert report_of(tmp_path / "log").verdict == "FAIL"
    assert done.stderr.count("FAIL: RLS201 ") == 1, "said once"
    assert done.stderr.index("FAIL: RLS201 ") < done.stderr.index("\nFAIL  ")


def test_a_run_that_the_audit_ended_does_not_exit_with_0(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RLSTEP_ON_FAIL", "Stop")
    fault = "from rlstep_hooks.testing.trl_faults import FAULTS; FAULTS['regenerate_every_step'](trainer)"
    done = run(tmp_path, fault)
    assert done.returncode == 1, done.stderr
    report = report_of(tmp_path / "log")
    assert (report.verdict, report.stopped_by) == ("FAIL", "RLS201")
    assert re.search(
        r"rlstep: on_fail=stop ended training after \d updates of 4 planned, for this error:\nRLS201 ", done.stderr
    )


def test_a_reward_function_that_sleeps_is_told_while_it_does(tmp_path: Path) -> None:
    sleeps = """
import time
rewarded, calls = trainer.reward_funcs[0], []
def reward(**kwargs):
    calls.append(0)
    if len(calls) == 2:
        time.sleep(8)
    return rewarded(**kwargs)
trainer.reward_funcs[0] = reward
"""
    done = run(tmp_path, sleeps, "--stalled-after", "4")
    assert done.returncode == 0, done.stderr
    told = [line for line in done.stderr.splitlines() if "rank 0: the last event is " in line]
    assert len(told) == 1, done.stderr
    assert "rlstep:   rank 0: the last event is an update, " in told[0]
    assert "(rollouts: 1, updates: " in told[0]


def test_a_wish_that_is_not_known_is_refused_before_training(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RLSTEP_ON_FAIL", "explode")
    done = run(tmp_path)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == 'rlstep: RLSTEP_ON_FAIL is "warn", "stop" or "raise", not \'explode\'\n'


OTHERS = """
import importlib
from datasets import Dataset
from rlstep_hooks.testing.tiny_trl import quiet_settings, tiny_model, tiny_reward, tiny_tokenizer

CASES = {
    "SFTTrainer": ("trl", "SFTConfig", {"text": ["add two and three"] * 4}, {}),
    "OnlineDPOTrainer": ("trl.experimental.online_dpo", "OnlineDPOConfig", {"prompt": ["add two"] * 4}, {"reward_funcs": tiny_reward}),
    "SDPOTrainer": (
        "trl.experimental.sdpo", "SDPOConfig", {"prompt": ["add two"] * 4, "privileged_context": ["five"] * 4},
        {"reward_funcs": tiny_reward},
    ),
    "SDFTTrainer": ("trl.experimental.sdft", "SDFTConfig", {"prompt": ["add two"] * 4, "privileged_context": ["five"] * 4}, {}),
    "A2POTrainer": ("trl.experimental.a2po", "A2POConfig", {"prompt": ["add two"] * 4}, {"reward_funcs": tiny_reward}),
}
for name, (package, config, rows, more) in CASES.items():
    module, tokenizer = importlib.import_module(package), tiny_tokenizer()
    kind = getattr(module, config)
    wanted = quiet_settings("out") | {"max_steps": 1, "num_generations": 2, "max_completion_length": 4}
    settings = {key: value for key, value in wanted.items() if key in kind.__dataclass_fields__}
    try:
        trainer = getattr(module, name)(
            model=tiny_model(tokenizer), args=kind(**settings), processing_class=tokenizer,
            train_dataset=Dataset.from_dict(rows), **more,
        )
        trainer.train()
    except Exception as error:  # trained or not: it is named
        print(name, type(error).__name__)
"""


@pytest.mark.skipif(Version("1.16") > RELEASE, reason="some of these trainers came with a later release")
def test_trainers_that_are_not_audited_are_refused_by_name(tmp_path: Path) -> None:
    done = run_script(tmp_path, OTHERS)
    assert done.returncode == 0, done.stderr
    said = " ".join(done.stderr[done.stderr.index("no process recorded anything") :].split())
    assert "Is rlstep-hooks installed" not in said
    for name in ("OnlineDPOTrainer", "SDPOTrainer", "SDFTTrainer", "A2POTrainer"):
        assert f"{name} is not audited: it " in said, done.stdout + done.stderr
        assert f"not evaluated: {name} is not audited" in done.stderr, "the process says it when the trainer is built"
    assert "SFTTrainer makes no rollouts, so there is nothing to audit" in said
    again = run_script(tmp_path, "print('nothing')")
    assert "Is rlstep-hooks installed" in " ".join(again.stderr.split()), (
        "what an earlier command noted is not said again"
    )


def test_every_trainer_of_this_release_is_audited_or_named() -> None:
    kinds = {
        kind
        for found in pkgutil.walk_packages(trl.__path__, "trl.")
        for kind in vars(module_of(found.name)).values()
        if isinstance(kind, type) and issubclass(kind, Trainer) and kind.__module__.startswith("trl.")
    }
    unknown = [kind.__name__ for kind in kinds if is_other(kind) and "is not known" in why_not(kind)]
    assert set(unknown) <= {"_BaseTrainer"}
    assert {kind.__name__ for kind in kinds} >= {"GRPOTrainer", "SFTTrainer"}
    assert not any(
        is_other(kind) for kind in kinds if kind.__name__ in ("GRPOTrainer", "AsyncGRPOTrainer", "GMPOTrainer")
    )


def module_of(name: str) -> Any:
    """A module of TRL; an empty one where it needs a package that is not here."""
    try:
        return importlib.import_module(name)
    except Exception:  # noqa: BLE001 - whatever a package that is not here makes it raise
        return ModuleType(name)
