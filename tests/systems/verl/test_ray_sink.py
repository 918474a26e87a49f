"""Recording through Ray: nodes that share no folder, a node that is killed, the recording actor killed, lines that pile up."""

from __future__ import annotations

import os
import shutil
import signal
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import ray
from ray.cluster_utils import Cluster
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from rlstep_hooks.record.events import Phase, RunEnded, Unobserved
from rlstep_hooks.record.ledger import record_files
from rlstep_hooks.record.wire import encode
from rlstep_hooks.session import ray_sink
from rlstep_hooks.session.ray_sink import RayLedger, RecordingActor
from tests.reports import report_of
from tests.scripted_phases import PhaseCase, phase_plan, scripted_phases
from tests.systems.verl.ray_trainers import Controller, Trainer

if TYPE_CHECKING:
    from collections.abc import Iterator

    from rlstep_hooks.judge.report import Report
    from rlstep_hooks.record.events import AnyEvent

RANKS = 3
SCRIPT = scripted_phases(
    PhaseCase(schedule=phase_plan(world_size=RANKS, samples=12, minibatches=(6, 6), microbatch=3, rollouts=4))
)
"""Old log-probs, 2 updates and a sync in each rollout, on 3 trainers."""

SMALL = {"num_cpus": 2, "object_store_memory": 80 * 2**20}
LIMIT = 120
"""Seconds for a test, on a machine that is busy; all of them take 40 on one that is not."""
QUICK = {"health_check_initial_delay_ms": 0, "health_check_period_ms": 200, "health_check_failure_threshold": 3}
"""A node that is gone is noticed within a second."""


class Nodes:
    """A cluster of several nodes on this machine: the controller's, and those of trainers."""

    def __init__(self) -> None:
        head = SMALL | {"include_dashboard": False, "_system_config": QUICK}
        self.cluster = Cluster(initialize_head=True, connect=True, head_node_args=head)
        self.others: list[Any] = []

    def start_trainers(self, run: str) -> dict[str, Any]:
        """A trainer of each rank: the first on the controller's node, each other on a node of its own."""
        while len(self.others) < RANKS - 1:
            self.others.append(self.cluster.add_node(**SMALL))
        ids = [ray.get_runtime_context().get_node_id(), *(node.node_id for node in self.others)]
        return {
            f"rank{rank}": ray.remote(Trainer)
            .options(num_cpus=0, scheduling_strategy=NodeAffinitySchedulingStrategy(node, soft=False))
            .remote(run, f"rank{rank}")
            for rank, node in enumerate(ids)
        }

    def kill_last(self, trainer: Any) -> None:
        """End the last node and its trainer at once, as a machine ends."""
        pid = ray.get(trainer.pid.remote(), timeout=30)
        self.cluster.remove_node(self.others.pop(), allow_graceful=False)
        os.kill(pid, signal.SIGKILL)


@pytest.fixture(scope="module")
def nodes() -> Iterator[Nodes]:
    # Of its own, so that no other Ray is found; short, because the paths of Ray's sockets are limited to 107 characters.
    folder = tempfile.mkdtemp(prefix="ray-", dir="/tmp")
    # The cluster writes its address into a folder "ray" that it takes to be there.
    Path(folder, "ray").mkdir()
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RAY_TMPDIR", folder)
        nodes = Nodes()
        yield nodes
        ray.shutdown()
        nodes.cluster.shutdown()
    shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture(autouse=True)
def time_limit() -> Iterator[None]:
    def over(*_: object) -> None:
        raise TimeoutError(f"the test took more than {LIMIT} s")

    before = signal.signal(signal.SIGALRM, over)
    signal.alarm(LIMIT)
    yield
    signal.alarm(0)
    signal.signal(signal.SIGALRM, before)


def of(process: str) -> list[AnyEvent]:
    """What a process does in the whole run."""
    return [event for name, event in SCRIPT if name == process]


def recorded(folder: Path, run: str, process: str) -> list[AnyEvent]:
    [found] = [record for record in record_files(folder)[run] if record.process == process]
    assert not found.problems()
    return list(found.events())


def problems(report: Report) -> list[str]:
    return [finding.code for finding in report.findings if finding.severity != "info"]


def test_trainers_of_other_nodes_are_recorded_whole_and_judged_while_they_train(nodes: Nodes, tmp_path: Path) -> None:
    trainers = nodes.start_trainers("whole")  # before their controller, as in a real run
    controller = Controller(tmp_path, "whole", SCRIPT, trainers)
    controller.until(Phase, "sync", times=2)
    assert controller.recorder.judge.counts.updates == 2
    report = controller.finish()
    assert (report.verdict, problems(report), report.processes) == ("PASS", [], RANKS + 1)
    for process in trainers:
        assert recorded(tmp_path, "whole", process) == of(process)
    assert report_of(tmp_path, "whole").verdict == "PASS"


def test_without_the_recording_actor_training_goes_on_and_nothing_is_claimed(nodes: Nodes, tmp_path: Path) -> None:
    trainers = nodes.start_trainers("actor")
    controller = Controller(tmp_path, "actor", SCRIPT, trainers)
    controller.until(Phase, "sync", times=2)
    ray.kill(ray.get_actor("rlstep-actor", namespace=ray_sink.NAMESPACE))
    begun = time.monotonic()
    report = controller.finish()
    assert time.monotonic() - begun < ray_sink.PATIENCE / 2
    assert not controller.dead
    assert (report.verdict, problems(report)) == ("NOT_EVALUATED", [])
    assert report.not_evaluated["order"].startswith("the recording actor is gone: ActorDiedError: The actor")
    assert "\n" not in report.not_evaluated["order"]
    again = report_of(tmp_path, "actor")
    assert (again.verdict, problems(again)) == ("NOT_EVALUATED", [])
    for process in trainers:
        kept = recorded(tmp_path, "actor", process)
        assert kept
        assert kept == of(process)[: len(kept)]


def test_a_node_killed_within_a_call_costs_the_others_nothing(nodes: Nodes, tmp_path: Path) -> None:
    trainers = nodes.start_trainers("within")
    controller = Controller(tmp_path, "within", SCRIPT, trainers)
    controller.until(Phase, "sync", times=2)
    parts, event = controller.next_call()
    while not isinstance(event, Phase) or event.name != "policy_updates":
        controller.call(parts)
        controller.emit(event)
        parts, event = controller.next_call()
    half = parts | {"rank2": parts["rank2"][: len(parts["rank2"]) // 2]}
    controller.call(half)
    wait_for(lambda: recorded(tmp_path, "within", "rank2")[-1:] == half["rank2"][-1:])
    nodes.kill_last(trainers["rank2"])
    controller.call({"rank2": parts["rank2"][len(half["rank2"]) :]})
    assert controller.dead == {"rank2"}
    # The framework's call raises, so the controller sees no return of it.
    controller.emit(RunEnded(status="raised", updates=4, error="ActorDiedError: rank2"))
    wait_for(lambda: recorded(tmp_path, "within", "rank1")[-1:] == parts["rank1"][-1:])
    for report in (controller.report(), report_of(tmp_path, "within")):
        assert (problems(report), report.complete, report.counts.updates) == ([], False, 2)
        assert report.not_evaluated["record"] == "the record of trainer 2 ends within call 1 of policy_updates"
    cut = recorded(tmp_path, "within", "rank2")
    assert cut == of("rank2")[: len(cut)]
    assert cut[-1] == half["rank2"][-1]


def test_a_trainer_that_is_gone_is_named_by_the_judgement(
    nodes: Nodes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ray_sink, "PATIENCE", 3.0)
    trainers = nodes.start_trainers("gone")
    controller = Controller(tmp_path, "gone", SCRIPT, trainers)
    controller.until(Phase, "sync", times=2)
    nodes.kill_last(trainers["rank2"])
    report = controller.finish()
    assert controller.dead == {"rank2"}
    [finding] = [finding for finding in report.findings if finding.severity == "error"]
    assert (finding.code, finding.where.rank) == ("RLS901", 2)
    assert finding.observed == "trainer 2 recorded nothing of call 1 of refresh"
    for process in ("rank0", "rank1"):
        assert recorded(tmp_path, "gone", process) == of(process)
    again = report_of(tmp_path, "gone")
    assert [found for found in again.findings if found.severity == "error"] == [finding]


def test_what_waits_is_bounded_and_the_record_says_where_it_ends(
    nodes: Nodes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ray_sink, "WAITING_BYTES", 10_000)
    ledger = RayLedger("piled", "rank0")  # and no actor to send to
    event = Phase(name="refresh", number=0)
    room = 10_000 // len(encode(event))
    for _ in range(room):
        ledger.write(event)
    for _ in range(2):
        with pytest.raises(OSError, match="wait for the recording actor"):
            ledger.write(event)
    actor = ray.remote(RecordingActor).options(name="rlstep-piled", namespace=ray_sink.NAMESPACE, num_cpus=0)
    kept_alive = actor.remote(str(tmp_path), "piled")
    wait_for(
        lambda: (
            record_files(tmp_path).get("piled")
            # The file may be there before its first line is.
            and any(isinstance(last, Unobserved) for last in recorded(tmp_path, "piled", "rank0")[-1:])
        )
    )
    events = recorded(tmp_path, "piled", "rank0")
    assert events[:-1] == [event] * room
    ray.kill(kept_alive)


def test_a_second_process_of_the_same_name_leaves_the_first_record_alone(nodes: Nodes, tmp_path: Path) -> None:
    actor = ray.remote(RecordingActor).options(name="rlstep-twice", namespace=ray_sink.NAMESPACE, num_cpus=0)
    kept_alive = actor.remote(str(tmp_path), "twice")
    event = Phase(name="refresh", number=0)
    first, second = RayLedger("twice", "rank0"), RayLedger("twice", "rank0")
    first.write(event)
    wait_for(lambda: record_files(tmp_path).get("twice"))
    second.write(event)
    wait_for(lambda: stopped(second))
    with pytest.raises(
        OSError, match=r"^recording stopped: FileExistsError: twice.rank0.jsonl belongs to a process that"
    ):
        second.write(event)
    first.write(event)
    first.close()
    first._thread.join(10)
    assert recorded(tmp_path, "twice", "rank0") == [event, event]
    ray.kill(kept_alive)


def stopped(ledger: RayLedger) -> bool:
    try:
        ledger.write()
    except OSError:
        return True
    return False


def wait_for(condition: Any, seconds: float = 20) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.05)
