"""The measured timelines (tests/golden) in real training with the installed release: observed letter by letter."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from rlstep_hooks import StepAuditCallback, plan
from rlstep_hooks.testing.tiny_trl import tiny_trainer
from tests.golden.letters import letters
from tests.golden.timelines import COMMON_SETTINGS, TIMELINES, Timeline
from tests.systems.trl.conftest import RELEASE
from tests.systems.trl.helpers import events_of, explained, problems

if TYPE_CHECKING:
    from pathlib import Path

HERE = [t for t in TIMELINES if str(RELEASE) in t.releases and t.world_size == 1]


@pytest.mark.parametrize("timeline", HERE, ids=lambda timeline: timeline.config)
def test_a_real_run_shows_the_measured_timeline(tmp_path: Path, timeline: Timeline) -> None:
    settings = COMMON_SETTINGS | timeline.settings
    if RELEASE.release >= (0, 22):
        settings.setdefault("loss_type", "bnpo")  # the divisor of dapo has a test of its own
        if timeline.algorithm == "RLOO":
            del settings["loss_type"]
    evaluation_rows = 4 if "eval_strategy" in settings else 0
    resume = None
    if timeline.resume_at:
        resume = str(tmp_path / f"checkpoint-{timeline.resume_at}")
        first = settings | {"max_steps": timeline.resume_at, "save_strategy": "steps", "save_steps": timeline.resume_at}
        tiny_trainer(tmp_path, algorithm=timeline.algorithm, rows=timeline.rows, **first).train()
    audit = StepAuditCallback(log_dir=None, listeners=())
    trainer = tiny_trainer(
        tmp_path,
        algorithm=timeline.algorithm,
        rows=timeline.rows,
        evaluation_rows=evaluation_rows,
        callbacks=[audit],
        **settings,
    )
    before = plan(trainer)
    trainer.train(resume_from_checkpoint=resume)
    assert letters(events_of(audit)) == timeline.observed_letters
    assert (trainer.state.max_steps, trainer.state.global_step) == (timeline.max_steps, timeline.global_step)
    assert trainer.state.epoch == pytest.approx(timeline.epoch, abs=1e-3)
    report = audit.report
    assert report.schedule == before
    assert (before.lags, before.old_logprob_source) == (timeline.lags, timeline.old_logprob_source)
    assert before.rows_dropped_per_epoch == timeline.rows_dropped
    if timeline.deviation:
        assert explained(report) == {timeline.deviation}, problems(report)
        assert report.verdict == "FAIL"
    else:
        assert report.verdict == "PASS", problems(report)
        assert not problems(report)
