"""Following a run from outside: growing records, several processes, the live line and its two views."""

from __future__ import annotations

import io
import os
import signal
import subprocess
import sys
import threading
import time
import tracemalloc
from typing import TYPE_CHECKING

import msgspec
import pytest
from rich.console import Console

from rlstep_hooks.cli import app
from rlstep_hooks.judge import following
from rlstep_hooks.judge.following import FollowedRun, News
from rlstep_hooks.judge.judge import Judge
from rlstep_hooks.judge.replay import report_of
from rlstep_hooks.judge.rules import progress
from rlstep_hooks.judge.rules.loss import gradient
from rlstep_hooks.judge.standing import Standing
from rlstep_hooks.judge.timeline import LoaderPosition
from rlstep_hooks.planning.finding import Finding, Where
from rlstep_hooks.record.events import AnyEvent, Attached, Measured, MicroBatch, Rollout, RunEnded, RunStarted, Update
from rlstep_hooks.record.ledger import CONTROLLER
from rlstep_hooks.record.wire import encode
from rlstep_hooks.show import console, live
from rlstep_hooks.show.console import ConsoleListener, LiveListener
from rlstep_hooks.show.live import Lines, Redrawn, live_line
from rlstep_hooks.systems.injection import PARENT
from tests.scripted import make_plan, scripted_run, started
from tests.scripted_phases import PhaseCase, phase_plan, scripted_phases

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    from rlstep_hooks.planning.schedule import Schedule

LIMIT = 60
PLAN = make_plan(iterations=2, max_steps=12)
"""6 rollouts of 2 updates, each of 2 micro-batches; ratio exp(0.1) at most."""


def append(folder: Path, events: Iterable[AnyEvent], process: str = "rank0") -> None:
    folder.mkdir(exist_ok=True)
    with (folder / f"run.{process}.jsonl").open("ab") as file:
        file.write(b"".join(map(encode, events)))


def numbers(standing: Standing) -> tuple[int, int, int | None]:
    return standing.rollouts, standing.updates, standing.lag


def finished(run: FollowedRun) -> News:
    news = run.look()
    assert run.over
    return news


# Growing records


def test_a_record_may_appear_late_grow_by_parts_of_lines_and_end(tmp_path: Path) -> None:
    events = scripted_run(PLAN)
    data = b"".join(map(encode, events))
    run = FollowedRun(tmp_path / "log", "run")
    assert numbers(run.look().now) == (0, 0, None)
    (tmp_path / "log").mkdir()
    seen: list[tuple[int, int, int | None]] = []
    over: list[Standing] = []
    with (tmp_path / "log" / "run.rank0.jsonl").open("ab", buffering=0) as file:
        for start in range(0, len(data), 37):
            assert not run.over
            file.write(data[start : start + 37])
            news = run.look()
            seen.append(numbers(news.now))
            over += [news.rollout_over] if news.rollout_over is not None else []
            assert news.errors == ()
    assert run.over
    assert run.complete
    assert news.verdict == "PASS"
    assert seen == sorted(seen, key=lambda numbers: numbers[:2])
    assert seen[-1] == (PLAN.rollouts, PLAN.updates, 1)
    assert [numbers(standing) for standing in over] == [(k, 2 * k, 1) for k in range(1, 7)]
    assert [standing.max_abs_log_ratio for standing in over] == [0.1] * 6


def test_one_look_at_a_whole_run_says_where_it_ended(tmp_path: Path) -> None:
    append(tmp_path, scripted_run(PLAN))
    run = FollowedRun(tmp_path, "run")
    news = finished(run)
    assert numbers(news.now) == (6, 12, 1)
    assert news.started is not None
    assert news.started.schedule == PLAN
    assert run.look().started is None, "said once"


def test_a_resumed_run_counts_on(tmp_path: Path) -> None:
    append(tmp_path, scripted_run(PLAN, start=LoaderPosition(updates=8, version=8)))
    news = finished(FollowedRun(tmp_path, "run"))
    assert numbers(news.now) == (6, 12, 1)


def test_evaluation_and_the_critic_are_not_counted(tmp_path: Path) -> None:
    append(
        tmp_path,
        [
            started(PLAN),
            Rollout(index=0, samples=4, policy_version=0, purpose="evaluation"),
            Update(index=0, role="critic", version=0, microbatches=1),
            MicroBatch(index=0, samples=4, role="critic", policy_version=3),
        ],
    )
    assert numbers(FollowedRun(tmp_path, "run").look().now) == (0, 0, None)


def test_only_new_bytes_are_read_and_none_are_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(progress, "RECENT_UPDATES", 50)  # what rules remember is full soon
    monkeypatch.setattr(gradient, "KEPT", 50)
    data = [encode(event) for event in scripted_run(make_plan(iterations=2, max_steps=1500, rows=None))]
    part = len(data) // 6
    run = FollowedRun(tmp_path, "run")
    path = tmp_path / "run.rank0.jsonl"
    sizes = []
    tracemalloc.start()
    for start in range(0, 6 * part, part):
        with path.open("ab") as file:
            file.write(b"".join(data[start : start + part]))
        run.look()
        sizes.append(tracemalloc.get_traced_memory()[0])
    tracemalloc.stop()
    assert sizes[-1] - sizes[-2] < 20_000 < path.stat().st_size // 30
    path.write_bytes(b"x" * path.stat().st_size)
    assert not run.look().unobserved, "what was read is not read again"


def test_what_cannot_be_judged_is_not_shown_as_passed(tmp_path: Path) -> None:
    events = scripted_run(PLAN)
    append(tmp_path, events[:20])
    run = FollowedRun(tmp_path, "run")
    assert run.look().verdict == "PASS"
    with (tmp_path / "run.rank0.jsonl").open("ab") as file:
        file.write(b"no event\n")
    append(tmp_path, events[20:])
    last = run.look()
    assert last.verdict == "NOT_EVALUATED"
    assert [unknown.what for unknown in last.unobserved] == ["order", "versions", "learning_rate"]


# Errors


def early_rollout(schedule: Schedule) -> list[AnyEvent]:
    """The first micro-batch of the run is followed by a rollout that the plan does not have there."""
    events = scripted_run(schedule)
    at = next(index for index, event in enumerate(events) if isinstance(event, MicroBatch))
    return [*events[: at + 1], Rollout(index=1, samples=4, policy_version=0, sampler_version=0)]


def test_an_error_is_said_when_it_happens_and_once(tmp_path: Path) -> None:
    events = early_rollout(PLAN)
    run = FollowedRun(tmp_path, "run")
    append(tmp_path, events[:-1])
    news = run.look()
    assert (news.errors, news.verdict) == ((), "PASS")
    append(tmp_path, events[-1:])
    news = run.look()
    assert [error.code for error in news.errors].count("RLS201") == 1
    assert news.verdict == "FAIL"
    append(tmp_path, [Rollout(index=2, samples=4, policy_version=0, sampler_version=0)])
    assert "RLS201" not in [error.code for error in run.look().errors]


def test_an_error_of_another_process_names_it_and_two_that_find_the_same_say_it_once(tmp_path: Path) -> None:
    plan = make_plan(iterations=2, max_steps=12, world_size=3, rows=36)
    for rank, events in enumerate((scripted_run(plan), early_rollout(plan), early_rollout(plan))):
        first = msgspec.structs.replace(events[0], rank=rank, world_size=3)
        append(tmp_path, [first, *events[1:]], f"rank{rank}")
    run = FollowedRun(tmp_path, "run")
    news = run.look()
    assert [(error.code, error.where.rank) for error in news.errors if error.code == "RLS201"] == [("RLS201", 1)]
    assert news.verdict == "FAIL"


# Several processes


def test_a_controlled_run_is_counted_by_its_controller(tmp_path: Path) -> None:
    plan = phase_plan(world_size=2, samples=8, minibatches=(4, 4), microbatch=2, rollouts=4)
    run = FollowedRun(tmp_path, "run")
    over = []
    for process, event in scripted_phases(PhaseCase(schedule=plan)):
        append(tmp_path, [event], process)
        if process == CONTROLLER:
            news = run.look()
            over += [numbers(news.rollout_over)[:2]] if news.rollout_over is not None else []
            assert news.errors == ()
    assert over == [(k, 2 * k) for k in range(1, 5)]
    assert numbers(run.look().now)[:2] == (4, 8)
    assert run.over


def with_late_trainer(tmp_path: Path) -> FollowedRun:
    """A run whose controller's record is here, that of its second trainer not yet."""
    plan = phase_plan(world_size=2, samples=8, minibatches=(4, 4), microbatch=2, rollouts=4)
    script = scripted_phases(PhaseCase(schedule=plan))
    append(tmp_path / "late", [event for process, event in script if process == "rank1"], "rank1")
    for name in (CONTROLLER, "rank0"):
        append(tmp_path, [event for process, event in script if process == name], name)
    return FollowedRun(tmp_path, "run")


def test_a_call_waits_for_its_trainers_records(tmp_path: Path) -> None:
    run = with_late_trainer(tmp_path)
    assert numbers(run.look().now)[:2] == (0, 0)
    assert numbers(run.look().now)[:2] == (0, 0)
    (tmp_path / "late" / "run.rank1.jsonl").rename(tmp_path / "run.rank1.jsonl")
    last = run.look()
    assert numbers(last.now)[:2] == (4, 8)
    assert last.unobserved == ()
    assert run.over


def test_a_trainer_without_a_record_is_waited_for_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = with_late_trainer(tmp_path)
    run.look()
    monkeypatch.setattr(following, "PATIENCE", 0.0)
    last = run.look()
    assert numbers(last.now)[:2] == (4, 8)
    assert last.verdict == "NOT_EVALUATED", "one of the trainers is not known"
    assert run.over


def test_trainers_of_a_controller_are_not_judged_without_it(tmp_path: Path) -> None:
    append(tmp_path, [Attached(run="run", process="rank0"), Update(index=0, version=1, microbatches=1)])
    run = FollowedRun(tmp_path, "run")
    assert numbers(run.look().now) == (0, 0, None)
    assert not run.over


def test_a_run_is_over_when_all_its_processes_are(tmp_path: Path) -> None:
    events = scripted_run(PLAN)
    append(tmp_path, events, "rank0")
    append(tmp_path, events[:-1], "rank1")
    run = FollowedRun(tmp_path, "run")
    run.look()
    assert run.complete
    assert not run.over
    append(tmp_path, events[-1:], "rank1")
    run.look()
    assert run.over


def killed(tmp_path: Path, host: str) -> FollowedRun:
    """A run without an end, whose process is no more."""
    process = subprocess.Popen([sys.executable, "-c", "pass"])
    process.wait(LIMIT)
    events = scripted_run(PLAN)
    assert isinstance(events[0], RunStarted)
    append(tmp_path, [msgspec.structs.replace(events[0], host=host, pid=process.pid), *events[1:20]])
    run = FollowedRun(tmp_path, "run")
    run.look()
    return run


def test_a_killed_run_of_this_machine_is_over(tmp_path: Path) -> None:
    run = killed(tmp_path, os.uname().nodename)
    assert run.over
    assert not run.complete


def test_a_run_of_another_machine_is_over_only_with_its_end(tmp_path: Path) -> None:
    assert not killed(tmp_path, "another-machine").over


# The line


def standing(**fields: object) -> Standing:
    return Standing(**{"rollouts": 12, "updates": 48, "schedule": PLAN, "lag": 3, **fields})  # type: ignore[arg-type]


def test_the_line() -> None:
    line = live_line(standing(max_abs_log_ratio=0.03), "PASS")
    assert line == "rollout 12 of 6 · update 48 of 12 · lag 3 · ratio 0.97 to 1.03 · PASS so far"
    assert live_line(Standing(), "FAIL") == "rollout 0 of ? · update 0 of ? · FAIL"
    assert live_line(Standing(), "NOT_EVALUATED").endswith(" · NOT EVALUATED so far")


@pytest.mark.parametrize(
    ("largest", "words"),
    [
        (0.0, "ratio 1 "),
        (1e-6, "ratio 0.999999 to 1.000001 "),
        (0.002, "ratio 0.998 to 1.002 "),
        (0.3, "ratio 0.74 to 1.35 "),
        (5.0, "ratio 0.007 to 1.5e+02 "),
        (1e9, "ratio 0 to 1e+304 "),
    ],
)
def test_the_ratio_has_the_digits_that_it_needs(largest: float, words: str) -> None:
    assert words in live_line(standing(max_abs_log_ratio=largest), "PASS")


@pytest.mark.parametrize("width", range(25, 90, 5))
def test_a_narrow_terminal_keeps_the_verdict(width: int) -> None:
    line = live_line(standing(max_abs_log_ratio=0.03), "PASS", width=width)
    assert line.endswith("PASS so far")
    assert len(line) <= max(width, 34)


FINDING = Finding(
    code="RLS304", severity="error", title="Old log-probs changed", expected="", observed="", where=Where(rollout=3), why="", fix=""
)  # fmt: skip


def news(rollout: int, largest: float, *errors: Finding) -> News:
    at = standing(rollouts=rollout, updates=4 * rollout, max_abs_log_ratio=largest)
    return News(now=at, verdict="FAIL" if errors else "PASS", rollout_over=at, errors=errors)


def test_lines_come_once_in_a_while_and_cover_what_came_between(monkeypatch: pytest.MonkeyPatch) -> None:
    out = io.StringIO()
    clock = 100.0
    monkeypatch.setattr(live.time, "monotonic", lambda: clock)
    lines = Lines(Console(file=out, width=40))
    for second in range(1, 8):
        clock = 100.0 + second
        lines.show(news(second, 0.5 if second == 3 else 0.01))
    assert out.getvalue().split("\n") == [
        "",
        "rollout 1 of 6 · update 4 of 12 · lag 3 · ratio 0.99 to 1.01 · PASS so far",
        "",
        "rollout 6 of 6 · update 24 of 12 · lag 3 · ratio 0.61 to 1.65 · PASS so far",
        "",
    ]


def test_an_error_does_not_wait_for_the_line() -> None:
    out = io.StringIO()
    lines = Lines(Console(file=out))
    lines.show(news(1, 0.0))
    lines.show(news(2, 0.0, FINDING))
    assert out.getvalue().endswith("PASS so far\n\nFAIL: RLS304 Old log-probs changed at rollout 3\n")


def test_in_a_terminal_a_line_takes_the_place_of_an_unfinished_bar() -> None:
    out = io.StringIO()
    lines = Lines(Console(file=out, force_terminal=True, color_system=None, width=200))
    lines.show(news(1, 0.0))
    assert out.getvalue().startswith("\r\x1b[Krollout 1 of 6")
    assert out.getvalue().count("\x1b[") == 1, "the cursor is not moved otherwise"


def test_the_line_of_a_terminal_of_its_own_is_taken_away_and_errors_stay() -> None:
    out = io.StringIO()
    view = Redrawn(Console(file=out, force_terminal=True, color_system=None, width=100))
    view.show(news(1, 0.0))
    view.show(news(2, 0.0, FINDING))
    view.close()
    assert "FAIL: RLS304 Old log-probs changed at rollout 3\n" in out.getvalue()
    assert "rollout 2 of 6" in out.getvalue()
    assert out.getvalue().rstrip("\x1b[?25h\r\n").endswith(("\x1b[2K", "FAIL")), out.getvalue()[-40:]


# The views of the process that trains


def listened(view: ConsoleListener | LiveListener) -> None:
    judge = Judge()
    for event in scripted_run(PLAN):
        judge.observe(event)
        view.heard(event, judge)
    view.finished(judge.report())


def test_the_trainers_own_line_is_the_same_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(console, "EVERY", 0.0)
    out = io.StringIO()
    listened(LiveListener(Console(file=out, width=200)))
    expected = (
        f"rollout {k} of 6 · update {2 * k} of 12 · lag 1 · ratio 0.90 to 1.11 · PASS so far\n" for k in range(1, 6)
    )
    assert out.getvalue() == "".join(expected)


def test_the_trainers_own_line_in_a_terminal_is_taken_away() -> None:
    out = io.StringIO()
    listened(LiveListener(Console(file=out, force_terminal=True, color_system=None, width=70)))
    assert "update 12 of 12 · ratio 0.90 to 1.11 · PASS so far" in out.getvalue()
    assert "lag" not in out.getvalue(), "the terminal is too narrow for it"


def test_under_rlstep_run_the_process_that_trains_is_silent(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(PARENT, "1")
    for terminal in (True, False):
        out = io.StringIO()
        listened(LiveListener(Console(file=out, force_terminal=terminal)))
        listened(ConsoleListener(Console(file=out, force_terminal=terminal)))
        assert out.getvalue() == ""


# `rlstep report --follow`


def report(folder: Path, capsys: pytest.CaptureFixture[str]) -> tuple[int | str | None, str, str]:
    with pytest.raises(SystemExit) as exit_:
        app.main(["report", str(folder), "--follow"])
    captured = capsys.readouterr()
    return exit_.value.code, captured.out, captured.err


def test_a_finished_run_is_reported_at_once(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    append(tmp_path, scripted_run(PLAN))
    status, out, err = report(tmp_path, capsys)
    assert (status, err) == (0, "")
    assert "PASS" in out


def test_a_run_that_the_folder_does_not_have_is_not_waited_for(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    append(tmp_path, scripted_run(PLAN)[:-1])
    with pytest.raises(SystemExit) as exit_:
        app.main(["report", str(tmp_path), "--follow", "--run", "another"])
    assert exit_.value.code == 2
    assert "holds no run another" in capsys.readouterr().err


def test_a_run_that_begins_later_is_followed_to_its_end(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    events = scripted_run(PLAN)

    def train() -> None:
        for start in range(0, len(events), 20):
            time.sleep(0.4)
            append(tmp_path / "log", events[start : start + 20])

    training = threading.Thread(target=train)
    training.start()
    status, out, err = report(tmp_path / "log", capsys)
    training.join()
    assert status == 0
    assert "rlstep: waiting for a run" in err
    assert "of 6 · update" in err
    assert "PASS" in out
    assert report_of(tmp_path / "log").complete


def test_a_killed_run_is_reported_with_what_it_left(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    killed(tmp_path, os.uname().nodename)
    _, out, _ = report(tmp_path, capsys)
    assert "training did not come to its end" in " ".join(out.split())


def test_an_interrupt_ends_the_following_and_reports(tmp_path: Path) -> None:
    events = [event for event in scripted_run(PLAN) if not isinstance(event, RunEnded | Measured)]
    append(tmp_path, [msgspec.structs.replace(events[0], host="another-machine"), *events[1:]])
    process = subprocess.Popen(
        [sys.executable, "-m", "rlstep_hooks", "report", str(tmp_path), "--follow"],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    assert process.stderr is not None
    assert "following run" in process.stderr.readline() + process.stderr.readline()
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=LIMIT)
    assert "no longer following" in err
    assert "training did not come to its end" in " ".join(out.split())
    assert process.returncode == 2, "what the run will still do was not observed"
