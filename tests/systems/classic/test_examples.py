"""The examples as they stand: they learn, they pass, and each mistake is named."""

from __future__ import annotations

import importlib.util
import runpy
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import torch

import rlstep_hooks
from rlstep_hooks import Schedule
from tests.reports import report_of
from tests.systems.classic.tiny import errors

if TYPE_CHECKING:
    from types import ModuleType

EXAMPLES = Path(__file__).parents[3] / "examples"


def example(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, EXAMPLES / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # dataclasses look their module up
    spec.loader.exec_module(module)
    return module


def run(path: Path, *arguments: str, monkeypatch: pytest.MonkeyPatch) -> int:
    """The exit status of an example that is run as a program."""
    monkeypatch.setattr(sys, "argv", [str(path), *arguments])
    with pytest.raises(SystemExit) as exit_:
        runpy.run_path(str(path), run_name="__main__")
    return int(exit_.value.code or 0)


def mean_returns(printed: str) -> list[float]:
    line = next(line for line in printed.splitlines() if line.startswith("mean return:"))
    return [float(part.split()[0]) for part in line.removeprefix("mean return:").split(",")]


def test_the_loop_learns_as_planned(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("RLSTEP_DIR", str(tmp_path))
    assert run(EXAMPLES / "ppo_loop.py", monkeypatch=monkeypatch) == 0
    returns = mean_returns(capsys.readouterr().out)
    assert returns[0] < 40  # a random policy
    assert returns[-1] > 150
    report = report_of(tmp_path)
    assert (report.verdict, report.findings) == ("PASS", [])
    assert (report.counts.rollouts, report.counts.updates) == (60, 60 * 16)


@pytest.mark.parametrize(
    ("fault", "code", "update"),
    [
        ("old_logprobs_every_epoch", "RLS303", 0),
        ("one_update", "RLS204", 0),
        ("target_not_detached", "RLS802", 0),
        ("overlapping_minibatches", "RLS502", 1),
    ],
)
def test_a_beginners_mistake_is_named(
    fault: str, code: str, update: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RLSTEP_DIR", str(tmp_path))
    assert run(EXAMPLES / "ppo_loop.py", "--rollouts", "2", "--fault", fault, monkeypatch=monkeypatch) == 1
    found = {finding.code: finding.where for finding in report_of(tmp_path).findings}
    assert code in found, list(found)
    assert (found[code].rollout, found[code].update) == (0, update)


def test_rlstep_run_reports_a_loop_that_audits_itself(tmp_path: Path) -> None:
    loop = [sys.executable, str(EXAMPLES / "ppo_loop.py"), "--rollouts", "2", "--fault", "one_update"]
    run_it = [sys.executable, "-m", "rlstep_hooks", "run", "--strict", "--dir", str(tmp_path / "record"), "--"]
    done = subprocess.run([*run_it, *loop], capture_output=True, text=True, check=False)
    assert done.returncode == 1
    printed = done.stdout + done.stderr
    assert printed.count("ERROR RLS204") == 1  # from the record, and not a second time by the loop itself
    assert len(list((tmp_path / "record").glob("*.rank0.jsonl"))) == 1


def test_every_fault_of_the_loop_is_tested() -> None:
    tested = {case[0] for case in test_a_beginners_mistake_is_named.pytestmark[0].args[1]}
    assert set(example("ppo_loop").FAULTS) == tested


def trained(module: ModuleType, audit: Any, optimizer: Any, sampler: Any, model: Any) -> list[Any]:
    history = module.train(sampler, model, optimizer, 3, audit)
    moments = [value for entry in optimizer.state.values() for value in entry.values()]
    return [*model.state_dict().values(), *moments, torch.get_rng_state(), torch.tensor(history)]


def test_the_loop_trains_bit_for_bit_the_same_without_the_audit() -> None:
    module = example("ppo_loop")
    schedule = Schedule.ppo(
        actors=module.ACTORS, steps=module.STEPS, epochs=module.EPOCHS, minibatches=module.MINIBATCHES, rollouts=3
    )
    results = []
    for audits in (False, True):
        torch.manual_seed(0)
        model = module.ActorCritic(4, 2)
        optimizer = torch.optim.Adam(model.parameters(), lr=module.RATE)
        audit = rlstep_hooks.audit(schedule, optimizer=optimizer, listeners=())
        if audits:
            audit.begin()
        results.append(trained(module, audit, optimizer, module.Sampler(0), model))
        audit.end()
    assert audit.report.verdict == "PASS"
    plain, seen = results
    assert all(torch.equal(a, b) for a, b in zip(plain, seen, strict=True))


@pytest.mark.parametrize("arguments", [(), ("--target-kl", "0.002")])
def test_a_file_in_cleanrls_style(arguments: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RLSTEP_DIR", str(tmp_path))
    short = ("--total-timesteps", "5120")
    assert run(EXAMPLES / "cleanrl_ppo.py", *short, *arguments, monkeypatch=monkeypatch) == 0
    report = report_of(tmp_path)
    assert (report.verdict, errors(report)) == ("PASS", [])
    assert report.counts.rollouts == 10
    assert (report.counts.updates < 160) == bool(arguments)
    assert [finding.code for finding in report.findings] == (["RLS212"] if arguments else [])


def test_torchrls_parts_in_a_loop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RLSTEP_DIR", str(tmp_path))
    module = example("torchrl_ppo")
    monkeypatch.setattr(module, "ROLLOUTS", 4)
    assert module.main() == 0
    report = report_of(tmp_path)
    assert (report.verdict, report.findings) == ("PASS", [])
    assert (report.counts.rollouts, report.counts.updates) == (4, 4 * module.EPOCHS * module.MINIBATCHES)
    passed = {rule.code for rule in report.rules if rule.verdict == "PASS"}
    assert {"RLS305", "RLS502", "RLS802"} <= passed  # identity and old log-probs, from torchrl's own replay buffer
    assert "RLS301" not in passed  # the new log-probs stay inside its loss


def test_a_buffer_of_torchrl_that_draws_with_replacement_is_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from torchrl.data import RandomSampler

    monkeypatch.setenv("RLSTEP_DIR", str(tmp_path))
    module = example("torchrl_ppo")
    monkeypatch.setattr(module, "ROLLOUTS", 2)
    monkeypatch.setattr(module, "SamplerWithoutReplacement", RandomSampler)
    assert module.main() == 1
    assert errors(report_of(tmp_path)) == ["RLS502"]
