"""ms-swift's known deviations, as data. Each is reproduced in a real run (tests/systems/swift)."""

from __future__ import annotations

import msgspec

from rlstep_hooks.judge.deviations import Deviation, Evidence

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

DEVIATIONS: tuple[Deviation, ...] = (
    _OF_THE_MODEL,
    # Every run without vLLM does so, and the 50 likeliest tokens of a trained model hold nearly all of the probability.
    msgspec.structs.replace(_OF_THE_MODEL, name="swift-top-k-of-transformers", severity="info", applies=_by_default),
)
