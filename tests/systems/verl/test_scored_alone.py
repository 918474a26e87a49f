"""Rows of old log-probs that are scored again alone: silent on healthy runs, and mistakes of the batched forward are named (RLS314)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
import torch
from transformers import Qwen2ForCausalLM

from rlstep_hooks.record.events import Measured
from tests.systems.verl import forward_faults, packed_rows
from tests.systems.verl.audited import alarms, audited
from tests.systems.verl.launch import Assets, grpo

if TYPE_CHECKING:
    from pathlib import Path

    from tests.systems.audited import Audited

ACTOR, ROLLOUT = "actor_rollout_ref.actor", "actor_rollout_ref.rollout"
SHARP = 30.0
"""Weights of usual initial sizes attend to all tokens alike, and give nearly the same logits whatever is attended to."""
SLOW = 1e-5
"""A rate that fits weights as sharp as these. At 1e-3 an update moves log-probs by 5 nats: rounding to bfloat16 is not small, and after
three updates the policy may be sure of each token, whatever a forward attends to."""

FOUND = {
    "temperature_left_out": (1, "temperature: not applied"),
    "positions_of_completion": (2, "position ids: they begin again at the completion"),
    "prompt_not_attended_to": (3, ""),
}
"""Fault -> the rollout that it is made in, and what is named."""


@pytest.fixture(scope="module")
def sharp(tmp_path_factory: pytest.TempPathFactory) -> Assets:
    made = Assets.write(tmp_path_factory.mktemp("sharp"), sharpness=SHARP)
    model = Qwen2ForCausalLM.from_pretrained(made.model)
    with torch.no_grad():
        for layer in model.model.layers:
            layer.self_attn.q_proj.weight.mul_(SHARP)
    model.save_pretrained(made.model)
    return made


def gaps(run: Audited) -> dict[int, tuple[float, str]]:
    """The mean distance and the cause of each rollout."""
    values = [of for event in run.record("rank0") if isinstance(event, Measured) for of in event.rollouts]
    return {of.index: (of.clean_gap, of.clean_like) for of in values if of.clean_gap is not None}


def test_mistakes_of_the_forward_are_named_at_their_rollouts(sharp: Assets, tmp_path: Path) -> None:
    overrides = grpo(sharp) | {
        f"{ROLLOUT}.temperature": 0.7,
        f"{ACTOR}.optim.lr": SLOW,
        "trainer.total_epochs": 2,
        "trainer.total_training_steps": 5,
    }
    asked = ",".join(f"{name}@{rollout}" for name, (rollout, _) in FOUND.items())
    run = audited(overrides, tmp_path, modules=[forward_faults.MODULE], environment={forward_faults.VARIABLE: asked})
    assert run.outcome.status == 0, run.outcome.tail
    seen = gaps(run)
    assert {rollout for rollout, (gap, _) in seen.items() if gap > 1e-4} == {rollout for rollout, _ in FOUND.values()}
    assert len(seen) == 5
    # What is far beyond rounding three times comes up again, as an error.
    found = {of.where.rollout: of for of in reversed(run.findings()) if of.code == "RLS314"}
    assert set(found) == {rollout for rollout, _ in FOUND.values()}
    for rollout, cause in FOUND.values():
        assert (f"another forward: {cause}" if cause else "by none of the usual mistakes") in found[rollout].why


@pytest.mark.thorough
def test_packed_rows_are_silent_until_they_read_their_neighbours(sharp: Assets, tmp_path: Path) -> None:
    run = audited(
        grpo(sharp) | packed_rows.OVERRIDES | {f"{ACTOR}.optim.lr": SLOW},
        tmp_path,
        modules=[packed_rows.MODULE, forward_faults.MODULE],
        environment={forward_faults.VARIABLE: "rows_not_apart@2"},
    )
    assert run.outcome.status == 0, run.outcome.tail
    seen = gaps(run)
    assert [rollout for rollout, (gap, _) in seen.items() if gap > 1e-4] == [2]


HEALTHY: dict[str, dict[str, Any]] = {
    "first trainer, passes": {"trainer.use_v1": False, f"{ACTOR}.ppo_epochs": 2},
    "bfloat16, by tokens": {
        f"{ACTOR}.optim.lr": SLOW,
        f"+{ACTOR}.fsdp_config.mixed_precision.param_dtype": "bf16",
        f"{ACTOR}.use_dynamic_bsz": True,
        f"{ACTOR}.ppo_max_token_len_per_gpu": 160,
        f"{ROLLOUT}.log_prob_use_dynamic_bsz": True,
        f"{ROLLOUT}.log_prob_max_token_len_per_gpu": 160,
    },
}


@pytest.mark.thorough
@pytest.mark.parametrize("name", HEALTHY)
def test_silent_on_healthy_runs(name: str, sharp: Assets, tmp_path: Path) -> None:
    run = audited(grpo(sharp) | HEALTHY[name], tmp_path)
    assert run.outcome.status == 0, run.outcome.tail
    assert not alarms(run.report)
    (rule,) = [rule for rule in run.report.rules if rule.code == "RLS314"]
    assert rule.verdict == "PASS", rule.reason
    assert rule.checks > 2 * run.report.counts.rollouts, "old log-probs, and two micro-batches that are trained"
