"""Rows of old log-probs that are scored again alone: silent on healthy rollouts, and a mistake of the forward is named (RLS314)."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
import torch
from transformers import Qwen2ForCausalLM

from rlstep_hooks.judge.rules.ratio.values import MEAN_TOLERANCE
from rlstep_hooks.record.events import Measured
from tests.systems.openrlhf import forward_faults
from tests.systems.openrlhf.audited import audited
from tests.systems.openrlhf.launch import Assets, reinforce

if TYPE_CHECKING:
    from pathlib import Path

SHARP = 30.0
"""Weights of usual initial sizes attend to all tokens alike, and give nearly the same logits whatever is attended to."""
HEAD = 20.0
"""By how much larger the head's weights are. At 90 the policy is nearly sure of each token, and half of the rollouts hide it."""
FIRST = 2
"""Rollout that the mistake is made in first. The prompts of a rollout differ from run to run, so that four rollouts have it."""


@pytest.fixture(scope="module")
def sharp(tmp_path_factory: pytest.TempPathFactory) -> Assets:
    made = Assets.write(tmp_path_factory.mktemp("sharp"))
    model = Qwen2ForCausalLM.from_pretrained(made.model, dtype=torch.bfloat16)
    with torch.no_grad():
        model.lm_head.weight.mul_(HEAD)
        for layer in model.model.layers:
            layer.self_attn.q_proj.weight.mul_(SHARP)
    model.save_pretrained(made.model)
    return made


def test_rows_alone_are_silent_until_positions_are_wrong(sharp: Assets, extensions: Path, tmp_path: Path) -> None:
    run = audited(
        reinforce(sharp, tmp_path, rows=8 * (FIRST + 4)),
        tmp_path,
        extensions=extensions,
        environment={
            "RLSTEP_TEST_MODULE": forward_faults.MODULE,
            forward_faults.VARIABLE: f"positions_of_completion@{FIRST}",
        },
    )
    assert run.outcome.status == 0, run.outcome.tail
    values = [of for event in run.record("rank0") if isinstance(event, Measured) for of in event.rollouts]
    gaps = {of.index: of.clean_gap for of in values if of.clean_gap is not None}
    assert len(gaps) == FIRST + 4, (run.report.not_evaluated, run.outcome.tail)
    wrong = [rollout for rollout, gap in gaps.items() if gap > MEAN_TOLERANCE["reduced"]]
    assert wrong, gaps
    assert min(wrong) >= FIRST, gaps
    found = next(finding for finding in run.findings() if finding.code == "RLS314")
    assert found.where.rollout == wrong[0]
    assert "position ids: they begin again at the completion" in found.why
