"""`rlstep_hooks.audit` on a tiny loop with real torch: what it finds, what it leaves alone, what it admits not to know."""

from __future__ import annotations

import subprocess
import sys
from typing import TYPE_CHECKING, Any

import pytest
import torch
from torch.optim import optimizer as torch_hooks

import rlstep_hooks
from rlstep_hooks import Schedule, StepAuditError
from rlstep_hooks.judge.causes import groups
from rlstep_hooks.judge.judge import Judge
from rlstep_hooks.planning.finding import Where
from rlstep_hooks.record.events import FactsRead
from rlstep_hooks.record.ledger import records
from rlstep_hooks.systems.own_loop.numbers import HELD
from tests.detection.outcomes import Clean, Detected, delay_of, note
from tests.reports import claimed, report_of
from tests.systems.classic.tiny import EPOCHS, MINIBATCHES, ROLLOUTS, SAMPLES, TinyLoop, errors, plan

if TYPE_CHECKING:
    from pathlib import Path

    from torch import Tensor

    from rlstep_hooks.judge.report import Report
    from rlstep_hooks.record.events import AnyEvent
    from rlstep_hooks.systems.own_loop.loop import LoopAudit

UPDATES = ROLLOUTS * EPOCHS * MINIBATCHES


class Events:
    """Keeps the events of a run."""

    def __init__(self) -> None:
        self.heard_so_far: list[AnyEvent] = []

    def heard(self, event: AnyEvent, judge: Any) -> None:
        self.heard_so_far.append(event)


def audited(loop: TinyLoop, schedule: Schedule | None = None, **options: Any) -> Report:
    options = {"optimizer": loop.optimizer, "listeners": ()} | options
    with rlstep_hooks.audit(schedule or plan(), **options) as audit:
        loop.run(audit)
    return audit.report


# As planned


@pytest.mark.parametrize("named", [True, False])
def test_a_loop_as_planned_passes_without_a_finding(named: bool) -> None:
    loop = TinyLoop()
    report = audited(loop, optimizer=loop.optimizer if named else None)
    assert claimed(report, "own_loop") == set()
    note(Clean(framework="a loop of one's own", alarms=tuple(finding.code for finding in report.findings)))
    assert (report.verdict, report.findings, report.complete) == ("PASS", [], True)
    counts = report.counts
    assert (counts.rollouts, counts.samples) == (ROLLOUTS, ROLLOUTS * SAMPLES)
    assert (counts.updates, counts.microbatches, counts.old_logprob_refreshes) == (UPDATES, UPDATES, ROLLOUTS)
    assert [lag.lag for lag in report.lags] == list(range(EPOCHS * MINIBATCHES))
    assert report.lags[0].max_abs_log_ratio <= 1e-6, (
        "the same weights; a processor may round a batch of another size otherwise"
    )
    assert all(lag.max_abs_log_ratio > 0 for lag in report.lags[1:])
    passed = {rule.code for rule in report.rules if rule.verdict == "PASS"}
    assert {
        "RLS201",
        "RLS204",
        "RLS301",
        "RLS302",
        "RLS303",
        "RLS305",
        "RLS307",
        "RLS401",
        "RLS404",
        "RLS502",
    } <= passed
    assert "RLS802" in passed


class Accumulating(TinyLoop):
    """Two micro-batches behind each update."""

    def update(self, audit: LoopAudit) -> None:
        self.waiting = not getattr(self, "waiting", False)
        if not self.waiting:
            super().update(audit)


def test_micro_batches_accumulate() -> None:
    report = audited(Accumulating(), plan(minibatches=1, microbatches=2))
    assert (report.verdict, report.findings) == ("PASS", [])
    assert (report.counts.updates, report.counts.microbatches) == (UPDATES // 2, UPDATES)


class EarlyStop(TinyLoop):
    """Every second rollout is trained in one pass only."""

    def train_pass(self, audit: LoopAudit) -> None:
        if self.rollouts % 2 == 0 or self.pass_number == 0:
            super().train_pass(audit)


def test_updates_that_may_end_early_are_reported_and_no_error() -> None:
    report = audited(EarlyStop(), plan(early_stop=True))
    assert report.verdict == "PASS"
    assert [(finding.code, finding.severity) for finding in report.findings] == [("RLS212", "info")]
    assert report.findings[0].observed == f"{2 * MINIBATCHES} updates not made, on 2 of {ROLLOUTS} rollouts"
    assert errors(audited(EarlyStop())) == ["RLS201", "RLS502", "RLS206"]


class TwoOptimizers(TinyLoop):
    """A critic with an optimizer of its own, trained in turn with the policy."""

    def __init__(self) -> None:
        super().__init__()
        self.critic = torch.nn.Linear(3, 1)
        self.critic_optimizer = torch.optim.Adam(self.critic.parameters(), lr=0.01)

    def train_minibatch(self, audit: LoopAudit, chosen: Tensor) -> None:
        super().train_minibatch(audit, chosen)
        targets = self.advantages[chosen]
        audit.microbatch(role="critic", indices=chosen, targets=targets)
        torch.nn.functional.mse_loss(self.critic(self.observations[chosen]).squeeze(1), targets).backward()
        self.critic_optimizer.step()
        self.critic_optimizer.zero_grad()


def test_a_critic_with_an_optimizer_of_its_own() -> None:
    loop = TwoOptimizers()
    report = audited(loop, plan(critic=plan(rollouts=None)), critic_optimizer=loop.critic_optimizer)
    assert (report.verdict, report.findings) == ("PASS", [])
    assert (report.counts.updates, report.counts.critic_updates) == (UPDATES, UPDATES)
    loop = TwoOptimizers()
    twice = audited(loop, plan(critic=plan(epochs=2 * EPOCHS)), critic_optimizer=loop.critic_optimizer)
    assert errors(twice)[0] == "RLS201"
    assert "of the critic" in twice.findings[0].expected


class WithoutRatio(TinyLoop):
    """A2C: no old log-probs, no ratio."""

    def compute_old(self, audit: LoopAudit) -> None:
        with torch.no_grad():
            self.old = self.log_probs(torch.arange(SAMPLES))

    def train_pass(self, audit: LoopAudit) -> None:
        if self.pass_number == 0:
            self.train_minibatch(audit, torch.arange(SAMPLES))

    def tell(self, audit: LoopAudit, chosen: Tensor, new: Tensor, old: Tensor, advantages: Tensor) -> None:
        audit.microbatch(indices=chosen, advantages=advantages)


def test_a_loop_without_a_ratio() -> None:
    report = audited(WithoutRatio(), plan(epochs=1, minibatches=1, old_logprobs="none"))
    assert (report.verdict, report.findings) == ("PASS", [])
    assert "refresh" not in report.not_evaluated


# Broken


class RecomputedOld(TinyLoop):
    """Old log-probs computed again at the beginning of each pass."""

    def train_pass(self, audit: LoopAudit) -> None:
        if self.pass_number:
            self.compute_old(audit)
        super().train_pass(audit)


class OldReplaced(TinyLoop):
    """The same without a word to the audit."""

    def train_pass(self, audit: LoopAudit) -> None:
        if self.pass_number:
            with torch.no_grad():
                self.old = self.log_probs(torch.arange(SAMPLES))
        super().train_pass(audit)


class NewForOld(TinyLoop):
    """The loss gets the current log-probs as old ones, from a loop that hands over no rollout to compare them with."""

    def compute_old(self, audit: LoopAudit) -> None:
        audit.refresh()

    def train_minibatch(self, audit: LoopAudit, chosen: Tensor) -> None:
        self.old = self.log_probs(torch.arange(SAMPLES)).detach()
        super().train_minibatch(audit, chosen)

    def log_probs(self, chosen: Tensor) -> Tensor:
        everywhere = torch.arange(SAMPLES)
        return super().log_probs(everywhere)[chosen]


class AutocastKeptOpen(TinyLoop):
    """One autocast around all updates: it keeps the weights that it has cast, so no forward sees an update until it ends."""

    def run(self, audit: LoopAudit, rollouts: int = ROLLOUTS) -> None:
        with torch.autocast("cpu", dtype=torch.bfloat16):
            super().run(audit, rollouts)


class OneUpdate(TinyLoop):
    """The optimizer steps once a rollout."""

    def update(self, audit: LoopAudit) -> None:
        self.seen = getattr(self, "seen", 0) + 1
        if self.seen % (EPOCHS * MINIBATCHES) == 0:
            super().update(audit)


class Overlapping(TinyLoop):
    """The second mini-batch begins in the middle of the first."""

    def train_pass(self, audit: LoopAudit) -> None:
        order, size = torch.randperm(SAMPLES), SAMPLES // MINIBATCHES
        for start in (0, size // 2):
            self.train_minibatch(audit, order[start : start + size])


class HalfTrained(TinyLoop):
    """Each pass trains the same half of the samples twice over two passes, and never the others."""

    def train_pass(self, audit: LoopAudit) -> None:
        for first in (0, SAMPLES // 2):
            rows = torch.arange(SAMPLES // 2) if self.pass_number == 0 else torch.arange(SAMPLES // 2, SAMPLES)
            self.train_minibatch(audit, rows if first == 0 else rows.flip(0))


class OneMiniBatch(TinyLoop):
    """The whole rollout at once."""

    def train_pass(self, audit: LoopAudit) -> None:
        self.train_minibatch(audit, torch.randperm(SAMPLES))


class OnePassTooMany(TinyLoop):
    def train_pass(self, audit: LoopAudit) -> None:
        super().train_pass(audit)
        if self.pass_number == EPOCHS - 1:
            super().train_pass(audit)


class AnotherTemperature(TinyLoop):
    """Old log-probs at another temperature than the loss's."""

    def compute_old(self, audit: LoopAudit) -> None:
        with torch.no_grad():
            scores = 2 * self.model(self.observations)
            self.old = scores.log_softmax(-1).gather(1, self.actions[:, None]).squeeze(1)
        audit.refresh(self.old)


class AdvantagesWithGradient(TinyLoop):
    def tell(self, audit: LoopAudit, chosen: Tensor, new: Tensor, old: Tensor, advantages: Tensor) -> None:
        super().tell(audit, chosen, new, old, advantages + self.model(self.observations[chosen])[:, 0])


class OldWithGradient(TinyLoop):
    def tell(self, audit: LoopAudit, chosen: Tensor, new: Tensor, old: Tensor, advantages: Tensor) -> None:
        super().tell(audit, chosen, new, old + 0 * new, advantages)


class FrozenModel(TinyLoop):
    """The optimizer steps weights that the loss never sees change: they are put back after each step."""

    def update(self, audit: LoopAudit) -> None:
        kept = [p.detach().clone() for p in self.model.parameters()]
        super().update(audit)
        with torch.no_grad():
            for parameter, before in zip(self.model.parameters(), kept, strict=True):
                parameter.copy_(before)


class NotCleared(TinyLoop):
    """zero_grad is left out, and the norm is clipped."""

    def update(self, audit: LoopAudit) -> None:
        torch.nn.utils.clip_grad_norm_(self.model.parameters(), 0.05)
        self.optimizer.step()


class ZeroedByAGuard(TinyLoop):
    """A guard against NaN zeroes the gradients of the first update on the second rollout; momentum goes on."""

    def __init__(self) -> None:
        super().__init__()
        self.optimizer = torch.optim.Adam(self.model.parameters(), lr=1e-3)

    def update(self, audit: LoopAudit) -> None:
        if self.rollouts == 2:
            for parameter in self.model.parameters():
                parameter.grad.mul_(0)
        super().update(audit)


COUNTS: dict[type[TinyLoop], str] = {
    OneUpdate: f"{EPOCHS * MINIBATCHES} micro-batches to an update instead of 1",
    OnePassTooMany: f"{EPOCHS + 1} passes over each rollout instead of {EPOCHS}",
}
"""Where one whole number explains all counts."""


@pytest.mark.parametrize(
    ("broken", "code", "rollout", "update"),
    [
        (RecomputedOld, "RLS303", 0, MINIBATCHES),
        (OldReplaced, "RLS305", 0, MINIBATCHES),
        (NewForOld, "RLS302", 0, 1),
        (AutocastKeptOpen, "RLS302", 0, 1),
        (OneUpdate, "RLS204", 0, 0),
        (Overlapping, "RLS502", 0, 1),
        (HalfTrained, "RLS502", 0, 1),
        (OneMiniBatch, "RLS207", 0, 0),
        (OnePassTooMany, "RLS202", 0, EPOCHS * MINIBATCHES),
        (AnotherTemperature, "RLS301", 0, 0),
        (AdvantagesWithGradient, "RLS802", 0, 0),
        (OldWithGradient, "RLS802", 0, 0),
        (FrozenModel, "RLS404", 0, 1),
        (NotCleared, "RLS803", 0, 1),
        (ZeroedByAGuard, "RLS809", 1, EPOCHS * MINIBATCHES),
    ],
)
def test_fault_is_found_at_its_place(
    broken: type[TinyLoop], code: str, rollout: int, update: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("rlstep_hooks.session.session.INTERVAL", 0.0)  # as where rollouts take longer than it
    events = Events()
    report = audited(broken(), listeners=(events,))
    found = {finding.code: finding for finding in report.findings}
    outcome = Detected(
        framework="a loop of one's own",
        fault=broken.__name__,
        report="textbook PPO",
        code=code,
        found=code in found,
        delay=delay_of(events.heard_so_far, Judge(), code, Where(rollout=rollout, update=update)),
        early=0,
    )
    note(outcome)
    assert code in found, errors(report)
    assert (found[code].where.rollout, found[code].where.update) == (rollout, update)
    assert report.verdict == ("PASS" if found[code].severity == "warning" else "FAIL")
    heads = [head.code for head, _ in groups(report.findings) if head.severity != "info"]
    # Old log-probs that are replaced by the new ones are both; that the ratio is exactly 1 says how they were replaced.
    assert heads == ["RLS302" if broken is OldReplaced else code], "one cause, one headline"
    assert report.counts_explained == COUNTS.get(broken, "")


def test_a_target_with_a_gradient_is_found_in_the_critics_loss_too() -> None:
    class TargetWithGradient(TwoOptimizers):
        def train_minibatch(self, audit: LoopAudit, chosen: Tensor) -> None:
            TinyLoop.train_minibatch(self, audit, chosen)
            targets = 0.9 * self.critic(self.observations[chosen]).squeeze(1)
            audit.microbatch(role="critic", indices=chosen, targets=targets)
            (self.critic(self.observations[chosen]).squeeze(1) - targets).square().mean().backward()
            self.critic_optimizer.step()
            self.critic_optimizer.zero_grad()

    loop = TargetWithGradient()
    report = audited(loop, plan(critic=plan()), critic_optimizer=loop.critic_optimizer)
    assert errors(report) == ["RLS802"]


# Not known, and said so


def not_evaluated(report: Report) -> set[str]:
    return {rule.code for rule in report.rules if rule.verdict == "NOT_EVALUATED"}


def test_only_numbers_of_samples_are_needed() -> None:
    class Silent(TinyLoop):
        def tell(self, audit: LoopAudit, chosen: Tensor, new: Tensor, old: Tensor, advantages: Tensor) -> None:
            audit.microbatch(len(chosen))

    report = audited(Silent())
    assert (report.verdict, report.findings) == ("PASS", [])
    assert {"RLS301", "RLS302", "RLS305", "RLS502", "RLS802"} <= not_evaluated(report)


def test_a_loop_that_never_speaks_of_old_log_probs_is_not_blamed_for_it() -> None:
    class Silent(TinyLoop):
        def compute_old(self, audit: LoopAudit) -> None:
            with torch.no_grad():
                self.old = self.log_probs(torch.arange(SAMPLES))

    report = audited(Silent())
    assert (report.verdict, report.findings) == ("PASS", [])
    assert "audit.refresh was not called" in report.not_evaluated["refresh"]
    assert {"RLS303", "RLS305"} <= not_evaluated(report)


def test_a_loop_that_never_speaks_of_micro_batches_is_not_judged() -> None:
    class Silent(TinyLoop):
        def tell(self, audit: LoopAudit, chosen: Tensor, new: Tensor, old: Tensor, advantages: Tensor) -> None:
            pass

    report = audited(Silent())
    assert (report.verdict, report.findings) == ("NOT_EVALUATED", [])
    assert "audit.microbatch" in report.not_evaluated["order"]


def test_a_second_optimizer_that_nobody_named_is_not_guessed_at() -> None:
    loop = TwoOptimizers()
    report = audited(loop, plan(critic=plan()), optimizer=None)
    assert report.verdict == "NOT_EVALUATED"
    assert "Adam" in report.not_evaluated["order"]


def test_indices_on_a_device_are_not_waited_for() -> None:
    class OnADevice(TinyLoop):
        def tell(self, audit: LoopAudit, chosen: Tensor, new: Tensor, old: Tensor, advantages: Tensor) -> None:
            audit.microbatch(len(chosen), indices=torch.empty(len(chosen), dtype=torch.long, device="meta"))

    report = audited(OnADevice())
    assert (report.verdict, report.findings) == ("PASS", [])
    assert "device" in report.not_evaluated["samples"]


def test_arrays_of_numpy_are_taken_too() -> None:
    class WithNumpy(TinyLoop):
        def tell(self, audit: LoopAudit, chosen: Tensor, new: Tensor, old: Tensor, advantages: Tensor) -> None:
            audit.microbatch(indices=chosen.numpy(), advantages=advantages.numpy())

    report = audited(WithNumpy())
    assert (report.verdict, report.findings) == ("PASS", [])
    assert {"RLS301", "RLS302", "RLS305"} <= not_evaluated(report)


def test_negative_indices_count_from_the_end() -> None:
    class FromTheEnd(TinyLoop):
        def tell(self, audit: LoopAudit, chosen: Tensor, new: Tensor, old: Tensor, advantages: Tensor) -> None:
            super().tell(audit, chosen - SAMPLES, new, old, advantages)

    report = audited(FromTheEnd())
    assert (report.verdict, report.findings) == ("PASS", [])


def test_a_step_that_a_gradient_scaler_left_out_is_information() -> None:
    class Scaled(TinyLoop):
        def update(self, audit: LoopAudit) -> None:
            if self.rollouts == 1 and self.pass_number == 0:
                audit.skipped_update()
                self.optimizer.zero_grad()
            else:
                super().update(audit)

    report = audited(Scaled())
    assert report.verdict == "PASS"
    assert [(finding.code, finding.severity) for finding in report.findings] == [("RLS210", "info")]
    assert report.counts.skipped_updates == MINIBATCHES


# What it leaves alone


def state(loop: TinyLoop) -> list[Tensor]:
    moments = [value for entry in loop.optimizer.state.values() for value in entry.values()]
    return [*loop.model.state_dict().values(), *moments, torch.get_rng_state(), loop.old]


def test_training_is_bit_for_bit_the_same(tmp_path: Path) -> None:
    class WithAdam(TinyLoop):
        def __init__(self) -> None:
            super().__init__()
            self.optimizer = torch.optim.Adam(self.model.parameters(), lr=0.01)

    plain, seen = WithAdam(), WithAdam()
    torch.manual_seed(1)
    plain.run(rlstep_hooks.audit(plan()))  # never begun: its calls do nothing
    plainly = [value.clone() for value in state(plain)]
    torch.manual_seed(1)
    assert audited(seen, log_dir=tmp_path).verdict == "PASS"
    assert all(torch.equal(a, b) for a, b in zip(plainly, state(seen), strict=True))


def hooks_on(optimizer: Any) -> int:
    own = len(optimizer._optimizer_step_pre_hooks) + len(optimizer._optimizer_step_post_hooks)
    return own + len(torch_hooks._global_optimizer_pre_hooks) + len(torch_hooks._global_optimizer_post_hooks)


@pytest.mark.parametrize("named", [True, False])
def test_no_hook_stays_behind(named: bool) -> None:
    loop = TinyLoop()
    with rlstep_hooks.audit(plan(), optimizer=loop.optimizer if named else None, listeners=()):
        assert hooks_on(loop.optimizer) == 2
    assert hooks_on(loop.optimizer) == 0


class UserError(RuntimeError):
    pass


@pytest.mark.parametrize("place", ["sample", "train_minibatch"])
def test_the_loops_own_exception_passes_unchanged(place: str, monkeypatch: pytest.MonkeyPatch) -> None:
    loop, error = TinyLoop(), UserError("mine")

    def fails(*args: Any) -> None:
        if place == "train_minibatch":
            raise error
        with args[0].rollout(samples=SAMPLES):
            raise error

    monkeypatch.setattr(loop, place, fails)
    audit = rlstep_hooks.audit(plan(), optimizer=loop.optimizer, listeners=())
    with pytest.raises(UserError) as caught, audit:
        loop.run(audit)
    assert caught.value is error
    assert error.__context__ is None
    assert hooks_on(loop.optimizer) == 0
    report = audit.report
    assert (report.complete, errors(report)) == (False, [])
    assert report.counts.rollouts == (0 if place == "sample" else 1)


def test_a_fault_of_the_audit_costs_an_observation_and_nothing_else() -> None:
    class Confused(TinyLoop):
        def tell(self, audit: LoopAudit, chosen: Tensor, new: Tensor, old: Tensor, advantages: Tensor) -> None:
            audit.microbatch(indices="not numbers")  # type: ignore[arg-type]

    report = audited(Confused())
    assert (report.verdict, report.counts.updates) == ("NOT_EVALUATED", UPDATES)
    assert "a hook failed" in report.not_evaluated["order"]


def test_what_is_no_optimizer_is_not_evaluated(capsys: pytest.CaptureFixture[str]) -> None:
    loop = TinyLoop()
    report = audited(loop, optimizer=object())
    assert report.verdict == "NOT_EVALUATED"
    assert "no torch optimizer" in report.not_evaluated["order"]


def test_numbers_do_not_pile_up_in_a_loop_without_rollouts() -> None:
    loop = TinyLoop()
    audit = rlstep_hooks.audit(plan(), optimizer=loop.optimizer, listeners=())
    audit.begin()
    loop.sample(audit)
    assert audit._observer is not None
    for _ in range(3 * HELD):
        loop.optimizer.step()
        assert audit._observer._numbers.held < HELD
    audit.end()


# What it does


def test_raise_comes_out_of_the_call_that_follows_the_error() -> None:
    loop = OneUpdate()
    audit = rlstep_hooks.audit(plan(), optimizer=loop.optimizer, on_fail="raise", listeners=())
    with pytest.raises(StepAuditError, match="RLS204") as caught, audit:
        loop.run(audit)
    assert loop.seen == 1
    assert caught.value.finding.code == "RLS204"
    assert hooks_on(loop.optimizer) == 0
    assert audit.report.verdict == "FAIL"


def test_raise_tells_of_an_error_that_only_the_end_shows() -> None:
    loop = TinyLoop()
    with (
        pytest.raises(StepAuditError, match="RLS206"),
        rlstep_hooks.audit(
            plan(rollouts=ROLLOUTS + 1), optimizer=loop.optimizer, on_fail="raise", listeners=()
        ) as audit,
    ):
        loop.run(audit)


def test_stop_is_a_wish_that_the_loop_can_follow() -> None:
    loop = OneUpdate()
    with rlstep_hooks.audit(plan(), optimizer=loop.optimizer, on_fail="stop", listeners=()) as audit:
        stopped_after = 0
        for _ in range(ROLLOUTS):
            assert audit.should_stop == (stopped_after > 0)
            if audit.should_stop:
                break
            loop.run(audit, rollouts=1)
            stopped_after += 1
    assert stopped_after == 1
    assert errors(audit.report) == ["RLS204"]  # and no RLS206: the end was wished


def test_the_end_may_come_before_the_plans_where_somebody_wishes_it() -> None:
    loop = TinyLoop()
    with rlstep_hooks.audit(plan(), optimizer=loop.optimizer, listeners=()) as audit:
        loop.run(audit, rollouts=1)
        audit.end(stopped=True)
    assert (audit.report.verdict, audit.report.findings) == ("PASS", [])
    loop = TinyLoop()
    with rlstep_hooks.audit(plan(), optimizer=loop.optimizer, listeners=()) as audit:
        loop.run(audit, rollouts=1)
    assert errors(audit.report) == ["RLS206"]


def test_the_record_is_written_as_it_happens_and_gives_the_same_report(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RLSTEP_DIR", str(tmp_path))
    loop = TinyLoop()
    with rlstep_hooks.audit(plan(), optimizer=loop.optimizer, listeners=()) as audit:
        assert audit.folder == tmp_path
        loop.run(audit, rollouts=1)
        meanwhile = report_of(tmp_path)
        assert (meanwhile.counts.rollouts, meanwhile.counts.updates) == (1, EPOCHS * MINIBATCHES)
        loop.run(audit, rollouts=ROLLOUTS - 1)
    assert report_of(tmp_path) == audit.report
    assert len(records(tmp_path)) == 1
    assert audited(TinyLoop(), log_dir=None).verdict == "PASS"
    assert len(records(tmp_path)) == 1


@pytest.mark.parametrize("reduced", [False, True])
def test_the_precision_is_read_from_the_weights_and_from_autocast(reduced: bool, tmp_path: Path) -> None:
    class WithAutocast(TinyLoop):
        def compute_old(self, audit: LoopAudit) -> None:
            with torch.autocast("cpu", dtype=torch.bfloat16, enabled=reduced):
                super().compute_old(audit)

        def train_minibatch(self, audit: LoopAudit, chosen: Tensor) -> None:
            with torch.autocast("cpu", dtype=torch.bfloat16, enabled=reduced):
                super().train_minibatch(audit, chosen)

    report = audited(WithAutocast(), log_dir=tmp_path)
    assert (report.verdict, report.findings) == ("PASS", [])
    (record,) = next(iter(records(tmp_path).values()))
    facts = [event.facts for event in record.events() if isinstance(event, FactsRead)]
    assert facts == [{"compute_dtype": "bfloat16" if reduced else "float32"}]


def test_a_folder_that_cannot_be_written_is_said_and_the_run_is_judged(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    report = audited(TinyLoop(), log_dir=tmp_path / "file")
    assert report.verdict == "PASS"
    assert "nothing is recorded" in report.not_evaluated["recording"]


def test_the_report_before_and_during_the_loop() -> None:
    loop = TinyLoop()
    audit = rlstep_hooks.audit(plan(), optimizer=loop.optimizer, listeners=())
    assert audit.report.verdict == "NOT_EVALUATED"
    with audit:
        loop.run(audit, rollouts=1)
        assert (audit.report.verdict, audit.version) == ("PASS", EPOCHS * MINIBATCHES)
        loop.run(audit, rollouts=ROLLOUTS - 1)
    with pytest.raises(ValueError, match="optimizer="):
        rlstep_hooks.audit(plan(critic=plan()), critic_optimizer=loop.optimizer)
    with pytest.raises(ValueError, match="on_fail"):
        rlstep_hooks.audit(plan(), on_fail="explode")  # type: ignore[arg-type]


def test_plan_and_verdict_are_printed(capsys: pytest.CaptureFixture[str]) -> None:
    audited(TinyLoop(), listeners=None)
    printed = capsys.readouterr().err
    assert "4 environments x 4 timesteps" in printed
    assert "PASS" in printed


# Rewards, advantages, and the steps of the optimizer


class Scored(TinyLoop):
    """GAE over four actors, handed over with its rewards; normalised for the loss."""

    gamma, lam = 0.9, 0.8

    def __init__(self) -> None:
        super().__init__()
        self.optimizer = torch.optim.Adam(self.model.parameters(), lr=0.01)

    def compute_old(self, audit: LoopAudit) -> None:
        super().compute_old(audit)
        self.rewards, self.values, self.last = torch.randn(4, 4), torch.randn(4, 4), torch.randn(4)
        self.dones = (torch.rand(4, 4) > 0.7).float()

    def sample(self, audit: LoopAudit) -> None:
        super().sample(audit)
        computed = self.gae(self.gamma, self.lam)
        audit.rewards(self.rewards)
        audit.advantages(
            computed,
            "gae",
            values=self.values,
            last_values=self.last,
            dones=self.dones,
            gamma=Scored.gamma,
            lam=Scored.lam,
        )
        self.advantages = self.normalised(computed.flatten())

    def gae(self, gamma: float, lam: float) -> Tensor:
        found, following, last = torch.zeros(4, 4), self.last, torch.zeros(4)
        for t in reversed(range(4)):
            goes_on = 1 - self.dones[t]
            last = self.rewards[t] + gamma * following * goes_on - self.values[t] + gamma * lam * goes_on * last
            found[t], following = last, self.values[t]
        return found

    def normalised(self, advantages: Tensor) -> Tensor:
        return (advantages - advantages.mean()) / (advantages.std() + 1e-8)

    def wrong(self) -> bool:
        """From the second rollout on."""
        return self.rollouts > 0


def test_advantages_and_steps_as_documented() -> None:
    report = audited(Scored())
    assert (report.verdict, report.findings) == ("PASS", [])
    assert {"RLS516", "RLS517", "RLS806", "RLS807"} <= {rule.code for rule in report.rules if rule.verdict == "PASS"}


class SwappedArguments(Scored):
    """gamma and lambda change places."""

    def gae(self, gamma: float, lam: float) -> Tensor:
        return super().gae(lam, gamma) if self.wrong() else super().gae(gamma, lam)


class WithoutCritic(Scored):
    """The critic's values are not there yet when GAE is computed."""

    def gae(self, gamma: float, lam: float) -> Tensor:
        values, last = self.values, self.last
        if self.wrong():
            self.values, self.last = values * 0, last * 0
        found = super().gae(gamma, lam)
        self.values, self.last = values, last
        return found


class AdvantagesOfOthers(Scored):
    """A flatten in another order than that of the observations."""

    def normalised(self, advantages: Tensor) -> Tensor:
        return super().normalised(advantages.reshape(4, 4).T.flatten() if self.wrong() else advantages)


class Descent(Scored):
    """The sign is lost where advantages are normalised."""

    def normalised(self, advantages: Tensor) -> Tensor:
        return super().normalised(-advantages if self.wrong() else advantages)


class StepScaled(Scored):
    """The weights are moved once more after the step."""

    def update(self, audit: LoopAudit) -> None:
        if self.wrong() and not hasattr(self, "plain"):
            self.plain = type(self.optimizer).step

            def further(optimizer: Any, closure: Any = None) -> Any:
                before = self.model.weight.detach().clone()
                result = self.plain.__wrapped__(optimizer, closure)
                self.model.weight.data += 2 * (self.model.weight.data - before)
                return result

            self.optimizer.step = torch.optim.Optimizer.profile_hook_step(further).__get__(self.optimizer)
        super().update(audit)

    def wrong(self) -> bool:
        return self.rollouts > 1


class AdamMadeAnew(Scored):
    """The state of the optimizer is dropped before each rollout is trained."""

    def train_pass(self, audit: LoopAudit) -> None:
        if self.rollouts > 1 and self.pass_number == 0:
            for state in self.optimizer.state.values():
                state["exp_avg"] = state["exp_avg"] * 0
        super().train_pass(audit)


@pytest.mark.parametrize(
    ("broken", "code", "update", "cause"),
    [
        (SwappedArguments, "RLS516", EPOCHS * MINIBATCHES, "gamma and lambda swapped"),
        (WithoutCritic, "RLS516", EPOCHS * MINIBATCHES, "without the critic's values"),
        (AdvantagesOfOthers, "RLS517", EPOCHS * MINIBATCHES, "other values"),
        (Descent, "RLS517", EPOCHS * MINIBATCHES, "other values"),
        (StepScaled, "RLS806", EPOCHS * MINIBATCHES, "times the step"),
        (AdamMadeAnew, "RLS807", EPOCHS * MINIBATCHES, "others among those"),
    ],
)
def test_a_wrong_number_is_found_by_the_rule_of_its_link(
    broken: type[TinyLoop], code: str, update: int, cause: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("rlstep_hooks.session.session.INTERVAL", 0.0)
    events = Events()
    report = audited(broken(), listeners=(events,))
    found = {finding.code: finding for finding in report.findings}
    note(
        Detected(
            framework="a loop of one's own",
            fault=broken.__name__,
            report="textbook PPO",
            code=code,
            found=code in found,
            delay=delay_of(events.heard_so_far, Judge(), code, Where(rollout=1, update=update)),
            early=0,
        )
    )
    assert code in found, errors(report)
    assert (found[code].where.rollout, found[code].where.update) == (1, update)
    assert cause in found[code].observed
    assert report.verdict == "FAIL"


@pytest.mark.parametrize(
    ("estimator", "made"),
    [
        ("grpo", lambda groups: (groups - groups.mean(1, keepdim=True)) / (groups.std(1, keepdim=True) + 1e-4)),
        ("grpo", lambda groups: (groups - groups.mean(1, keepdim=True)) / groups.std(1, keepdim=True, correction=0)),
        ("dr_grpo", lambda groups: groups - groups.mean(1, keepdim=True)),
        ("rloo", lambda groups: groups - (groups.sum(1, keepdim=True) - groups) / 3),
    ],
)
def test_estimators_that_compare_the_samples_of_a_prompt(estimator: Any, made: Any) -> None:
    class Grouped(TinyLoop):
        def sample(self, audit: LoopAudit) -> None:
            super().sample(audit)
            rewards = torch.randn(SAMPLES)
            self.advantages = made(rewards.view(-1, 4)).flatten()
            audit.rewards(rewards)
            audit.advantages(self.advantages * self.sign(), estimator, group=4)

        def sign(self) -> float:
            return 1.0

    class Negative(Grouped):
        def sign(self) -> float:
            return -1.0

    report = audited(Grouped())
    assert (report.verdict, report.findings) == ("PASS", [])
    report = audited(Negative())
    assert (errors(report)[0], report.findings[0].observed) == ("RLS516", "of the opposite sign")


def test_what_does_not_fit_together_is_said() -> None:
    class WithoutRewards(TinyLoop):
        def sample(self, audit: LoopAudit) -> None:
            super().sample(audit)
            audit.advantages(self.advantages, "grpo", group=4)

    report = audited(WithoutRewards())
    assert report.verdict == "PASS"
    assert "audit.advantages was called without audit.rewards" in report.not_evaluated["advantages"]


def test_a_closure_computes_gradients_anew_so_its_step_is_not_replayed() -> None:
    class Closed(TinyLoop):
        def update(self, audit: LoopAudit) -> None:
            def closure() -> Any:
                for parameter in self.model.parameters():
                    parameter.grad *= 3
                return 0.0

            self.optimizer.step(closure)
            self.optimizer.zero_grad()

    assert errors(audited(Closed())) == []


def test_a_norm_above_its_limit_is_found_and_one_below_is_not() -> None:
    assert errors(audited(TinyLoop(), max_grad_norm=1e3)) == []
    report = audited(TinyLoop(), max_grad_norm=1e-3)
    assert errors(report) == ["RLS808"]
    assert report.findings[0].expected == "a gradient norm of at most 0.001, the configured limit"


RANDOM = """
import random, sys
import rlstep_hooks
from tests.systems.classic.tiny import TinyLoop, plan
loop = TinyLoop()
random.seed(5)
expected = random.getstate()
assert "rich" not in sys.modules
with rlstep_hooks.audit(plan(), optimizer=loop.optimizer) as audit:
    assert "rich" in sys.modules
    loop.run(audit)
assert random.getstate() == expected
"""


def test_the_console_draws_nothing_from_the_generator_of_python() -> None:
    """Found with TRL 0.16.1: rich draws from it when it is imported, which an audit may be the first to do."""
    done = subprocess.run([sys.executable, "-c", RANDOM], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_a_layer_that_the_loop_freezes_hides_nothing() -> None:
    class Freezing(TinyLoop):
        def train_minibatch(self, audit: LoopAudit, chosen: Tensor) -> None:
            if self.rollouts == 2:
                self.model.bias.requires_grad_(False)
            super().train_minibatch(audit, chosen)

    report = audited(Freezing())
    assert (report.verdict, errors(report)) == ("PASS", [])
