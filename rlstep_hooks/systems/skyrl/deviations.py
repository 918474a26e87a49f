"""SkyRL's known deviations, as data. Each is reproduced in a real run (tests/systems/skyrl)."""

from __future__ import annotations

from rlstep_hooks.judge.deviations import Deviation, Evidence


def _at_another_temperature(evidence: Evidence) -> bool:
    return bool(evidence.progress.started.facts.get("temperature", 1.0) != 1.0)


DEVIATIONS = (
    Deviation(
        name="skyrl-reference-at-temperature-1",
        title="the reference is scored at temperature 1",
        since="0.3.0",
        document="algorithm.temperature scales the logits that log-probs are computed from: that of the samples, unless it is set",
        code=(
            "RefWorkerBase gives its model no temperature, and the policy's workers do: with another temperature than 1 the KL term "
            "compares two distributions at different temperatures, and is not 0 where policy and reference are the same model"
        ),
        evidence=(
            "skyrl 0.3.0 backends/skyrl_train/workers/worker.py:1503 `RefWorkerBase._forward_micro_batch`, and :885 and :1206 of the "
            "policy; measured: mean distance 0.116 at temperature 1.3 before the first update"
        ),
        workaround="sample at temperature 1 (generator.sampling_params.temperature), or train without a KL term",
        codes=frozenset({"RLS414"}),
        applies=_at_another_temperature,
    ),
)
