"""verl with the real vLLM engine on the CPU: weights are really sent and held, and the engine's log-probs agree with the trainer's."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pandas

from rlstep_hooks.record.events import Measured
from tests.systems import cache_faults
from tests.systems.verl.audited import Expected, audited
from tests.systems.verl.launch import Assets, grpo
from tests.systems.verl_vllm import faults

if TYPE_CHECKING:
    from pathlib import Path

VLLM = {
    "actor_rollout_ref.rollout.name": "vllm",
    # A CPU engine cannot give its memory back while training goes on.
    "actor_rollout_ref.rollout.free_cache_engine": False,
    "+actor_rollout_ref.rollout.enable_sleep_mode": False,
    "actor_rollout_ref.rollout.enforce_eager": True,
    "actor_rollout_ref.rollout.max_model_len": 128,
    "actor_rollout_ref.rollout.max_num_seqs": 32,
    "actor_rollout_ref.rollout.max_num_batched_tokens": 512,
}

LONG = {"data.max_prompt_length": 200, "actor_rollout_ref.rollout.max_model_len": 256}


def test_clean_run(tmp_path: Path) -> None:
    assets = Assets.write(tmp_path)
    common_beginning(assets)
    overrides = grpo(assets) | VLLM | LONG | {"trainer.total_training_steps": 3}
    run = audited(overrides, tmp_path / "run", environment={"VLLM_CPU_KVCACHE_SPACE": "1"}, limit=580)
    Expected(rollouts=3, updates=6).check(run)
    gaps = [
        values.sampler_gap_max
        for event in run.record("rank0")
        if isinstance(event, Measured)
        for values in event.rollouts
        if values.sampler_gap_max is not None
    ]
    assert len(gaps) == 3
    assert max(gaps) < 1e-4, "rounding, also with the weights of later versions"
    proved = {rule.code: (rule.verdict, rule.checks) for rule in run.report.rules}
    assert proved["RLS415"] == proved["RLS416"] == ("PASS", 4), "before the first rollout, and after each"
    assert proved["RLS422"] == ("PASS", 3), "after each sync that requests followed"


def test_faults_of_a_sync_are_named_at_that_sync(tmp_path: Path) -> None:
    overrides = grpo(Assets.write(tmp_path)) | VLLM | {"trainer.total_training_steps": 4}
    environment = {"VLLM_CPU_KVCACHE_SPACE": "1"}
    run = audited(overrides, tmp_path / "run", modules=[faults.MODULE], environment=environment, limit=580)
    found = {
        finding.code: finding.expected + finding.observed
        for finding in run.report.findings
        if finding.code in ("RLS415", "RLS416", "RLS417")
    }
    assert set(found) == {"RLS415", "RLS416", "RLS417"}
    assert f"sync {faults.HALF}" in found["RLS416"]
    assert "bfloat16" in found["RLS417"]
    assert f"after sync {faults.OTHERS}" in found["RLS415"]


def test_keys_of_older_weights_are_found_after_the_first_sync_of_other_weights(tmp_path: Path) -> None:
    assets = Assets.write(tmp_path)
    common_beginning(assets)
    overrides = grpo(assets) | VLLM | LONG | {"trainer.total_training_steps": 3}
    environment = {"VLLM_CPU_KVCACHE_SPACE": "1"}
    run = audited(overrides, tmp_path / "run", modules=[cache_faults.MODULE], environment=environment, limit=580)
    assert run.outcome.status == 0, run.outcome.tail
    (found,) = [finding for finding in run.report.findings if finding.code == "RLS422"]
    assert f"computed after sync {cache_faults.KEPT}" in found.expected
    assert f"the oldest after sync {cache_faults.KEPT - 1}" in found.observed
    (rule,) = [rule for rule in run.report.rules if rule.code == "RLS422"]
    assert rule.checks == 3, "after each sync that requests followed"


def common_beginning(assets: Assets) -> None:
    """Prompts begin with the same tokens, more of them than a block of the cache has, which is 128 on a CPU."""
    for file in (assets.train, assets.validation):
        rows = pandas.read_parquet(file)
        rows["prompt"] = [
            [{**of, "content": "0123456789" * 15 + of["content"]} for of in turns] for turns in rows["prompt"]
        ]
        rows.to_parquet(file)
