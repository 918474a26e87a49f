"""Keys that older weights left in vLLM's prefix cache (RLS422): none in healthy rollouts, and named at the sync that kept them."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from tests.systems import cache_faults
from tests.systems.openrlhf.audited import alarms, audited
from tests.systems.openrlhf.launch import Assets, reinforce

if TYPE_CHECKING:
    from pathlib import Path

ROWS = 8 * 4


def with_common_beginning(assets: Assets) -> None:
    """Prompts begin with the same tokens, more of them than a block of the cache has, which is 128 on a CPU."""
    rows = [json.loads(line) for line in assets.prompts.read_text().splitlines()]
    longer = [json.dumps({**row, "input": "0123456789" * 15 + row["input"]}) for row in rows]
    assets.prompts.write_text("\n".join(longer) + "\n")


@pytest.mark.thorough
def test_keys_of_older_weights_are_found_at_the_sync_that_kept_them(extensions: Path, tmp_path: Path) -> None:
    assets = Assets.write(tmp_path, rows=ROWS)
    with_common_beginning(assets)
    run = audited(
        reinforce(assets, tmp_path, rows=ROWS) | {"data.max_len": 256, "vllm.enable_prefix_caching": True},
        tmp_path,
        extensions=extensions,
        environment={"RLSTEP_TEST_MODULE": cache_faults.MODULE},
    )
    assert run.outcome.status == 0, run.outcome.tail
    (found,) = alarms(run.report)
    assert found.code == "RLS422"
    assert f"computed after sync {cache_faults.KEPT}" in found.expected
    assert f"the oldest after sync {cache_faults.KEPT - 1}" in found.observed
    (rule,) = [rule for rule in run.report.rules if rule.code == "RLS422"]
    assert rule.checks == 3, "after each sync that requests followed"
