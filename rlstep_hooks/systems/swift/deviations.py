"""ms-swift's known deviations, as data. Each is reproduced in a real run (tests/systems/swift)."""

from __future__ import annotations

import msgspec

from rlstep_hooks.judge.deviations import Deviation, Evidence
from rlstep_hooks.planning.words import ENDS_OF_CUT_TURNS, WEIGHTS_OF_TOKENS

_DEFAULT = "top_k 50"
"""The top_k of transformers if nothing sets it."""


def _by_default(evidence: Evidence) -> bool:
    return evidence.finding.observed == _DEFAULT and _top_k(evidence)


def _by_the_model(evidence: Evidence) -> bool:
    return evidence.finding.observed != _DEFAULT and _top_k(evidence)


def _top_k(evidence: Evidence) -> bool:
    return evidence.progress.started.facts.get("sampling_of_model") == ["top_k"]


_OF_THE_MODEL = Deviation(
    name="swift-top-k-of-the-model",
    title="--top_k -1 does not turn top_k off",
    since="4.4",
    document="top_k -1, the default, takes all tokens",
    code=(
        "without vLLM a top_k of 0 or less is handed to transformers as None, and None is filled from the model's generation_config, "
        "where it is 50 unless the model says otherwise; the loss computes log-probs of the whole distribution"
    ),
    evidence="swift/infer_engine/utils.py 4.6.0 prepare_generation_config, _set_generation_config_default_value; measured",
    workaround="--top_k with the size of the vocabulary, or --use_vllm true",
    codes=frozenset({"RLS410"}),
    applies=_by_the_model,
)

_WEIGHTS_OF_TOKENS = Deviation(
    name="swift-weights-of-tokens",
    title="rollout_importance_sampling_mode sequence_mask leaves each token a weight of its own",
    since="4.4",
    document=(
        "with a mode of sequences the weight is that of the sequence, the geometric mean over its tokens, for each of its tokens, "
        "and 0 where it is above the threshold"
    ),
    code=(
        "sequence_mask leaves out the sequences whose geometric mean is above the threshold, and multiplies each token of the others "
        "by the token's own ratio, which no threshold bounds"
    ),
    evidence="swift/rlhf_trainers/grpo_trainer.py 4.6.0 _apply_rollout_importance_sampling, against the formulas of "
    "docs/source_en/Instruction/GRPO/AdvancedResearch/training_inference_mismatch.md; measured",
    workaround="--rollout_importance_sampling_mode sequence_truncate, or token_mask",
    severity="warning",
    codes=frozenset({"RLS312"}),
    applies=lambda evidence: evidence.finding.observed == WEIGHTS_OF_TOKENS,
)

_ENDS_OF_CUT_TURNS = Deviation(
    name="swift-ends-of-cut-turns",
    title="a turn that was cut and goes on is trained with an end that nobody sampled",
    since="4.6",
    document="with a multi-turn scheduler the loss counts the tokens that were sampled, or those of the mask that `step` gives",
    code=(
        "where the chat template's end stands behind trained tokens, it is trained too; behind a turn that was cut at its length "
        "the policy did not sample it. Such rows have more trained tokens than log-probs of the engine, and "
        "rollout_importance_sampling_mode then has no effect on their micro-batch"
    ),
    evidence="swift/template/base.py 4.6.0 _add_dynamic_eos, swift/rollout/agent_loop.py; measured",
    workaround="end a conversation whose turn was cut, as check_finished does by default, or give response_loss_mask and a template "
    "whose suffix is not its chat_sep",
    codes=frozenset({"RLS518"}),
    applies=lambda evidence: evidence.finding.observed.endswith(ENDS_OF_CUT_TURNS),
)

DEVIATIONS: tuple[Deviation, ...] = (
    _OF_THE_MODEL,
    _WEIGHTS_OF_TOKENS,
    _ENDS_OF_CUT_TURNS,
    # Every run without vLLM does so, and the 50 likeliest tokens of a trained model hold nearly all of the probability.
    msgspec.structs.replace(_OF_THE_MODEL, name="swift-top-k-of-transformers", severity="info", applies=_by_default),
)
