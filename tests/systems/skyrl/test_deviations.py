"""What SkyRL does otherwise than it documents is named as such."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.systems.skyrl.tiny import trained

if TYPE_CHECKING:
    from pathlib import Path


def test_a_reference_at_temperature_1_beside_a_policy_at_another_one(home: Path, tmp_path: Path) -> None:
    report = trained(
        home, tmp_path, **{"trainer.algorithm.use_kl_loss": True, "generator.sampling_params.temperature": 1.3}
    )
    (found,) = (finding for finding in report.findings if finding.severity != "info")
    assert (found.code, found.where.rollout, found.deviation) == ("RLS414", 0, "skyrl-reference-at-temperature-1")
    assert report.verdict == "FAIL"
