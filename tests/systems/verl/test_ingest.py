"""`rlstep ingest` of what verl's own writers write."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from rlstep_hooks.ingest.export import Asked
from tests.ingest.runs import found, ingested, samples
from tests.ingest.test_formats import PLAN, by_rollout

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path


def _writers() -> dict[str, Callable[..., None]]:
    from verl.trainer.ppo.ray_trainer import RayPPOTrainer
    from verl.trainer.ppo.v1 import trainer_base

    newer: Any = next(
        kind for kind in vars(trainer_base).values() if isinstance(kind, type) and "_write_generations" in vars(kind)
    )
    return {"ray_trainer": RayPPOTrainer._write_generations, "trainer_base": newer._write_generations}


@pytest.mark.parametrize("writer", ["ray_trainer", "trainer_base"])
@pytest.mark.parametrize("lost", [False, True])
def test_dumps_of_verls_own_writers_are_read(tmp_path: Path, writer: str, lost: bool) -> None:
    write, folder = _writers()[writer], tmp_path / "dumps"
    for rollout, own in by_rollout(samples()).items():
        kept = own[:-1] if lost and rollout == 2 else own
        extra = {"acc": [line["reward"] for line in kept]}
        if writer == "trainer_base":
            extra["uid"] = [f"{line['group']}_{line['sample'].rpartition('.')[2]}_0" for line in kept]
        write(
            [f"prompt {line['prompt_ids']}" for line in kept],
            [f"answer {line['completion_ids']}" for line in kept],
            [None] * len(kept),
            [line["reward"] for line in kept],
            extra,
            str(folder),
            rollout + 1,
        )
    report = ingested(folder, asked=Asked(schedule=PLAN))
    if lost:
        assert found(report)["RLS207"] == "15 samples"
        assert report.verdict == "FAIL"
    else:
        assert (report.verdict, found(report), report.counts.samples) == ("PASS", {}, 80)
