"""Training that goes on from a checkpoint: at the end of a pass, within one, and with weights or moments that were not loaded."""

from __future__ import annotations

import shutil
from typing import TYPE_CHECKING, Any

import pytest

from rlstep_hooks.observe.checkpoints import FOLDER
from tests.systems.openrlhf.audited import alarms, audited
from tests.systems.openrlhf.faults import FAULTS, asking
from tests.systems.openrlhf.launch import Assets, reinforce

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

    from tests.systems.audited import Audited


pytestmark = pytest.mark.thorough


@pytest.fixture(scope="module")
def train(assets: Assets, extensions: Path, tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Audited]:
    """Train in one folder after the other run there: four rollouts in a pass, a checkpoint after every second."""
    folder = tmp_path_factory.mktemp("resumed")

    def run(
        *,
        episodes: int,
        latest: str = "",
        noted: bool = True,
        environment: Mapping[str, str] | None = None,
        **more: Any,
    ) -> Audited:
        flags: dict[str, Any] = reinforce(assets, folder, rows=32)
        flags |= {
            "ckpt.save_steps": 2,
            "ckpt.max_num": 10,
            "train.num_episodes": episodes,
            "ckpt.load_enable": bool(latest),
            **more,
        }
        if latest:
            (folder / "ckpt" / "_actor" / "latest").write_text(latest)
        if not noted:
            shutil.rmtree(folder / "log" / FOLDER)
        return audited(flags, folder, extensions=extensions, environment=environment)

    first = run(episodes=1, environment={"RLSTEP_ON_FAIL": "raise"})
    assert first.outcome.status == 0, first.outcome.tail
    assert alarms(first.report) == []
    return run


def test_a_run_that_resumes_at_the_end_of_a_pass_is_clean(train: Callable[..., Audited]) -> None:
    run = train(episodes=2, latest="global_step4", environment={"RLSTEP_ON_FAIL": "raise"})
    assert run.outcome.status == 0, run.outcome.tail
    assert [str(finding) for finding in alarms(run.report)] == []
    assert (run.report.verdict, run.report.counts.rollouts, run.report.updates_before) == ("PASS", 4, 8)
    assert {o.code: o.verdict for o in run.report.rules}["RLS702"] == "PASS", "the weights are those that were saved"


@pytest.mark.parametrize("generated", [8, 16])
def test_asynchronous_training_that_resumes_is_clean(train: Callable[..., Audited], generated: int) -> None:
    more = {"train.async_enable": True, "rollout.vllm_generate_batch_size": generated}
    run = train(episodes=1, latest="global_step2", environment={"RLSTEP_ON_FAIL": "raise"}, **more)
    assert run.outcome.status == 0, run.outcome.tail
    assert [str(finding) for finding in alarms(run.report)] == []
    counts = run.report.counts
    assert (run.report.verdict, counts.rollouts, counts.weight_syncs, run.report.updates_before) == ("PASS", 2, 2, 4)


@pytest.mark.parametrize("name", ["checkpoint_not_loaded", "moments_not_loaded"])
def test_what_is_not_loaded_within_a_pass_is_found(train: Callable[..., Audited], name: str) -> None:
    run = train(episodes=1, latest="global_step2", environment=asking({name: 0}))
    assert (run.report.counts.rollouts, run.report.updates_before) == (2, 4)
    (found,) = alarms(run.report)
    assert found.code == "RLS702"
    assert FAULTS[name].cause in found.expected
    assert run.report.verdict == "FAIL"


def test_a_checkpoint_that_nobody_noted_is_read(train: Callable[..., Audited]) -> None:
    run = train(episodes=1, latest="global_step2", noted=False)
    assert [str(finding) for finding in alarms(run.report)] == []
    assert {o.code: o.verdict for o in run.report.rules}["RLS702"] == "PASS"
