"""What is believed of the weights that engines hold, by their records."""

from __future__ import annotations

import os
from types import SimpleNamespace
from typing import TYPE_CHECKING

import pytest

from rlstep_hooks.record.events import Attached, FactsRead, Generated, Unobserved, WeightSync
from rlstep_hooks.record.ledger import FolderLedger
from rlstep_hooks.systems.openrlhf.observe import generator
from rlstep_hooks.systems.openrlhf.observe.generator import GENERATOR, GeneratorTail
from rlstep_hooks.systems.openrlhf.observe.labels import FIRST_WEIGHTS, NOT_KNOWN, CutOff, EngineWeights, sampling_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from pathlib import Path

    from rlstep_hooks.record.events import AnyEvent

RUN = "run"
FAILED = Unobserved(what="sampler", why="a hook failed")


def record(folder: Path, process: str, *events: AnyEvent) -> FolderLedger:
    """A process's record with these events, which may go on."""
    ledger = FolderLedger(folder, RUN, process)
    ledger.write(*events)
    return ledger


def attached(process: str, host: str = "") -> Attached:
    return Attached(run=RUN, process=process, world_size=1, host=host or os.uname().nodename, pid=1, started=0.0)


def synced(label: int) -> WeightSync:
    return WeightSync(policy_version=-1, label=label)


def test_samples_are_shared_among_the_engines_by_what_each_took_last(tmp_path: Path) -> None:
    first = record(tmp_path, "engine0", attached("engine0"), synced(7))
    record(tmp_path, "engine1", attached("engine1"))
    weights = EngineWeights(tmp_path, RUN, 2)
    assert weights.labels(4) == ((FIRST_WEIGHTS, 2), (7, 2))
    first.write(synced(8))
    assert weights.labels(5) == ((FIRST_WEIGHTS, 2), (8, 3))
    assert weights.trouble == ""


def test_an_engine_that_missed_a_sync_is_not_believed_again(tmp_path: Path) -> None:
    ledger = record(tmp_path, "engine0", attached("engine0"), synced(7), FAILED)
    weights = EngineWeights(tmp_path, RUN, 1)
    assert weights.labels(4) == NOT_KNOWN
    ledger.write(synced(8))
    assert weights.labels(4) == NOT_KNOWN
    assert weights.trouble == FAILED.why


def test_an_engine_on_another_machine_is_not_believed(tmp_path: Path) -> None:
    record(tmp_path, "engine0", attached("engine0", host="elsewhere"), synced(7))
    assert EngineWeights(tmp_path, RUN, 1).labels(4) == NOT_KNOWN


@pytest.mark.parametrize("what", ["sampler", "order"])
def test_a_rollout_is_not_taken_for_one_that_the_generator_may_have_missed(
    what: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(generator, "folder", lambda: tmp_path)
    monkeypatch.setattr(generator, "run_name", lambda: RUN)
    rollouts = [Generated(index=index, samples=16, prompts=8) for index in range(2)]
    failed = Unobserved(what=what, why=FAILED.why)
    record(tmp_path, GENERATOR, attached(GENERATOR), rollouts[0], failed, rollouts[1])
    tail = GeneratorTail(None)
    assert tail.next_rollout() == (rollouts[0], False)
    assert tail.next_rollout() == (rollouts[1] if what == "sampler" else None, False)
    assert tail.unobserved == {what: FAILED.why}


class Late:
    """A sink through which a record comes only after somebody has looked for it."""

    def __init__(self, arrive: Callable[[], object]) -> None:
        self._arrive = arrive

    def wait_for(self, lacking: Callable[[], Iterable[str]]) -> None:
        assert list(lacking()) == [GENERATOR]
        self._arrive()
        assert not list(lacking())


def test_a_rollout_that_is_still_under_way_is_waited_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(generator, "folder", lambda: tmp_path)
    monkeypatch.setattr(generator, "run_name", lambda: RUN)
    rollout, ledger = Generated(index=0, samples=16, prompts=8), record(tmp_path, GENERATOR, attached(GENERATOR))
    tail = GeneratorTail(Late(lambda: ledger.write(rollout)))  # type: ignore[arg-type]
    assert tail.next_rollout() == (rollout, False)


def test_settings_of_a_sampler_are_those_that_vllm_makes_of_them() -> None:
    assert sampling_of(1, 0.9, top_k=-1) == {"temperature": 1.0, "top_p": 0.9, "top_k": 0.0}
    assert sampling_of(0.0, 0.9, top_k=5) == {"temperature": 0.0, "top_p": 1.0, "top_k": 0.0}
    assert sampling_of(0.001, 1.0, top_k=0)["temperature"] == 0.01


def test_what_an_engine_samples_with_lasts_until_it_says_otherwise(tmp_path: Path) -> None:
    ledger = record(tmp_path, "engine0", attached("engine0"))
    weights = EngineWeights(tmp_path, RUN, 1)
    weights.labels(4)
    assert weights.settings() == (), "it has sampled nothing so far"
    usual, other = sampling_of(1.0, 1.0, top_k=-1), sampling_of(0.3, 1.0, top_k=-1)
    ledger.write(FactsRead(facts={"sampling": usual}))
    assert weights.settings() == (usual,)
    weights.labels(4)
    assert weights.settings() == (usual,)
    weights.labels(4)
    ledger.write(FactsRead(facts={"sampling": other}), FactsRead(facts={"sampling": usual}))
    assert weights.settings() == (other, usual)
    weights.labels(4)
    assert weights.settings() == (usual,)


def test_answers_are_cut_off_at_the_configured_length() -> None:
    args = SimpleNamespace(
        rollout=SimpleNamespace(max_new_tokens=4),
        data=SimpleNamespace(max_len=16),
        train=SimpleNamespace(agent_func_path=None),
    )
    seen, usual = CutOff(args), sampling_of(1.0, 1.0, top_k=-1)
    seen.answered({"truncated": False, "action_ranges": [(2, 4)]})
    assert seen.take((usual,)) == (usual,), "none was cut off"
    seen.answered({"truncated": True, "action_ranges": [(2, 6)]})
    assert seen.take((usual,)) == ({**usual, "max_tokens": 4.0},)
    for end in (6, 4):
        seen.answered({"truncated": True, "action_ranges": [(2, end)]})
    assert seen.take((usual,)) == ({**usual, "max_tokens": 2.0},)
    args.train.agent_func_path = "agent.py"
    several = CutOff(args)
    several.answered({"truncated": True, "action_ranges": [(2, 4)]})
    assert several.take((usual,)) == (usual,), "turns have what is left"
