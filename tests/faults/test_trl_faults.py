"""Every fault of the corpus, in a real training run: found by the rule that names it, at the event where it begins."""

from __future__ import annotations

import gc
from functools import cache
from typing import TYPE_CHECKING, Any

import pytest

pytest.importorskip("trl")

from rlstep_hooks import StepAuditCallback
from rlstep_hooks.judge.causes import groups
from rlstep_hooks.judge.judge import Judge
from rlstep_hooks.judge.rules import BY_CODE
from rlstep_hooks.planning.finding import Finding, Where
from rlstep_hooks.testing.tiny_trl import tiny_trainer
from tests.detection.outcomes import Clean, Detected, delay_of, note
from tests.faults.fault import WHOLE_RUN, Apply, Fault, unchanged
from tests.faults.trl_faults import EXPRESSIBLE, FAULTS, RELEASE

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from rlstep_hooks.judge.report import Report
    from rlstep_hooks.record.events import AnyEvent

PROVOKED_ELSEWHERE = {
    "RLS314": "faults of the forward have a file of their own (tests/systems/trl/test_scored_alone.py)",
    "RLS315": "faults of the forward have a file of their own (tests/systems/trl/test_reference_alone.py)",
    "RLS102": "an information about the plan",
    "RLS506": "an information about the plan",
    "RLS211": "TRL's GRPO and RLOO have no critic; in verl's faults (tests/systems/verl)",
    "RLS405": "weight syncs are no part of TRL's plan; in verl's faults (tests/systems/verl)",
    "RLS415": "needs an engine that weights are brought to; in the tests of vLLM and of AsyncGRPOTrainer",
    "RLS416": "needs an engine that weights are brought to; in the tests of vLLM and of AsyncGRPOTrainer",
    "RLS417": "needs an engine that weights are brought to; in the tests of vLLM and of AsyncGRPOTrainer",
    "RLS418": "needs an engine with an adapter; in the tests of vLLM (tests/systems/trl_vllm)",
    "RLS422": "needs an engine with a prefix cache; in the tests of vLLM (tests/systems/trl_vllm)",
    "RLS113": "of TRL's PPOTrainer; in its own tests (tests/systems/trl_ppo)",
    "RLS309": "of TRL's PPOTrainer; in its own tests (tests/systems/trl_ppo)",
    "RLS212": "an information; an early stop by the data is no part of TRL's GRPO and RLOO",
    "RLS214": "TRL has no limit of the divergence; in the faults of Stable-Baselines3 (tests/systems/classic)",
    "RLS213": "TRL has no limit of the divergence; in the faults of Stable-Baselines3 (tests/systems/classic)",
    "RLS208": "needs a release that leaves gradients over at the end of a data epoch",
    "RLS701": "needs a checkpoint",
    "RLS507": "TRL gives its samples no names; in verl's faults (tests/systems/verl)",
    "RLS508": "rewards beside advantages are looked at in verl's faults (tests/systems/verl)",
    "RLS513": "rows are looked at in verl's faults (tests/systems/verl)",
    "RLS702": "needs a checkpoint; in verl's faults (tests/systems/verl)",
    "RLS703": "needs a checkpoint; in tests/systems/trl/test_resume.py",
    "RLS312": "of asynchronous training; in verl's faults (tests/systems/verl)",
    "RLS520": "of asynchronous training; in verl's faults (tests/systems/verl)",
    "RLS521": "of classic loops; in Stable-Baselines3's faults (tests/systems/classic)",
    "RLS522": "of runs that were exported; in the faults of exports (tests/ingest)",
    "RLS421": "TRL has completions in the place of actions; in the faults of Stable-Baselines3 (tests/systems/classic)",
    "RLS120": "the seed is applied before an audit begins; in the tests of Stable-Baselines3 (tests/systems/classic)",
    "RLS420": "TRL builds no network from settings; in the faults of Stable-Baselines3 (tests/systems/classic)",
    "RLS423": "needs a model that the trainer loads itself (tests/systems/trl/test_loaded.py)",
    "RLS523": "needs several processes; in the tests of ranks (tests/systems/trl/test_processes.py)",
    "RLS419": "needs several processes; in the tests of ranks (tests/systems/trl_ranks)",
    "RLS811": "needs several processes; in the tests of ranks (tests/systems/trl_ranks)",
    "RLS119": "needs DeepSpeed (tests/systems/trl_ranks/test_deepspeed.py, test_deepspeed_releases.py)",
    "RLS820": "needs several processes; in the tests of ranks (trl/test_processes.py, trl_ranks/test_many_ranks.py in tests/systems)",
    "RLS813": "faults of the layers have a file of their own (tests/systems/trl/test_layer_slope.py)",
    "RLS812": "needs several processes; in the tests of ranks (tests/systems/trl_ranks)",
    "RLS901": "needs several processes",
    "RLS902": "needs several processes",
}
"""Rules without a fault here, and why."""


class Recorded:
    """Keeps the events of a run."""

    def __init__(self) -> None:
        self.events: list[AnyEvent] = []

    def heard(self, event: AnyEvent, judge: Any) -> None:
        self.events.append(event)


def train(folder: Path, settings: dict[str, Any], prepare: Apply, apply: Apply) -> tuple[Report, list[AnyEvent]]:
    recorded = Recorded()
    audit = StepAuditCallback(log_dir=None, listeners=(recorded,))
    trainer = tiny_trainer(folder, callbacks=[audit], **settings)
    prepare(trainer)
    apply(trainer)
    trainer.train()
    return audit.report, recorded.events


def alarms(report: Report) -> list[Finding]:
    return [finding for finding in report.findings if finding.severity != "info"]


@pytest.fixture(scope="module", autouse=True)
def frozen_imports() -> Iterator[None]:
    """Spare each training call's full garbage collection the objects of all imported modules: a third of the time."""
    gc.freeze()
    yield
    gc.unfreeze()


@pytest.fixture(autouse=True)
def numbers_with_each_rollout(monkeypatch: pytest.MonkeyPatch) -> None:
    """As in a run whose rollouts take longer than the interval, which is a second; these take milliseconds."""
    monkeypatch.setattr("rlstep_hooks.session.session.INTERVAL", 0.0)


@pytest.fixture(scope="module")
def clean(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """Reports of runs without a fault, one for each setting."""
    folder = tmp_path_factory.mktemp("clean")

    @cache
    def trained(settings: tuple[tuple[str, Any], ...], prepare: Apply) -> Report:
        report, _ = train(folder, dict(settings), prepare, unchanged)
        note(Clean(framework="TRL", alarms=tuple(finding.code for finding in alarms(report))))
        return report

    return lambda fault: trained(tuple(sorted(fault.settings.items())), fault.prepare)


def is_at(found: Where, expected: Where) -> bool:
    """Whether a place agrees with the expected one in every number that the latter has."""
    if expected == WHOLE_RUN:
        return found == expected
    numbers = ((getattr(found, name), getattr(expected, name)) for name in Where.__struct_fields__)
    return all(have == want for have, want in numbers if want is not None)


def comes_before(found: Where, fault: Where) -> bool:
    """Whether a place lies in an update before the fault's."""
    return found.update is not None and fault.update is not None and found.update < fault.update


@pytest.mark.parametrize("fault", EXPRESSIBLE, ids=lambda fault: fault.name)
def test_fault_is_found_by_its_rule_at_its_event(fault: Fault, tmp_path: Path, clean: Any) -> None:
    without = clean(fault)
    assert (without.verdict, alarms(without)) == ("PASS", [])
    report, events = train(tmp_path, dict(fault.settings), fault.prepare, fault.apply)
    named = [finding for finding in alarms(report) if finding.code == fault.code]
    assert RELEASE is not None
    place = fault.place(RELEASE)
    early = [str(finding) for finding in alarms(report) if comes_before(finding.where, place)]
    note(
        Detected(
            framework="TRL",
            fault=fault.name,
            report=fault.report,
            code=fault.code,
            found=any(is_at(finding.where, place) for finding in named),
            delay=delay_of(events, Judge(), fault.code, place),
            early=len(early),
        )
    )
    found = [str(finding) for finding in alarms(report)]
    assert named, f"not found by {fault.code}; found: {found}; {report.verdict}, not evaluated: {report.not_evaluated}"
    assert is_at(named[0].where, place), f"at {named[0].where} instead of {place}"
    assert fault.cause in f"{named[0].observed}; {named[0].why}", named[0].why
    assert not early, "found before the fault began"
    if RELEASE.since("1.16"):
        # One cause, one headline: whatever else is found is folded below it, or is another variant of the same rule. In older releases
        # a fault can show itself in other places too, because what follows from it is another.
        heads = [head.code for head, _ in groups(alarms(report))]
        assert heads[0] == (fault.headline or fault.code), found
        assert set(heads) - {heads[0]} == set(fault.beside), found
        assert report.verdict == ("PASS" if fault.doubtful else "FAIL"), found


def test_a_compiled_trainer_left_behind_takes_a_fault_away(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two faults were not found now and then in TRL 0.16.1: another test of the process had trained with torch_compile.

    The loop clears the gradients by the compiled model's own method, so `gradients_never_cleared` is no fault: nothing is wrong.
    `gradients_tripled_by_a_module` is none either where the compiled model leaves hooks of modules out. It does so in a process of its
    own; whether it does after other models were compiled depends on what dynamo remembers of them, so that is not asserted.
    """
    monkeypatch.setenv("ACCELERATE_DYNAMO_BACKEND", "EAGER")
    (fault,) = (fault for fault in FAULTS if fault.name == "gradients_never_cleared")
    report, _ = train(tmp_path, dict(fault.settings), fault.prepare, fault.apply)
    assert (report.verdict, alarms(report)) == ("PASS", [])


def test_every_rule_has_a_fault_or_a_reason_for_none() -> None:
    of_runs = {code for code, rule in BY_CODE.items() if rule.seen_in != "plan"}
    assert {fault.code for fault in FAULTS} | set(PROVOKED_ELSEWHERE) == of_runs


def test_names_are_unique_and_every_fault_is_described() -> None:
    assert len({fault.name for fault in FAULTS}) == len(FAULTS)
    assert all(fault.apply.__doc__ and fault.report for fault in FAULTS)
