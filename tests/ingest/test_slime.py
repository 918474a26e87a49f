"""slime's and miles' torch files, to the letter of `save_debug_rollout_data`. torch is not in the environment of the fast tests."""

from __future__ import annotations

import pickle
from typing import TYPE_CHECKING, Any

import pytest

from rlstep_hooks.ingest.export import Asked, ExportError
from tests.ingest.runs import Line, found, ingested, reason_of, samples, verdict_of
from tests.ingest.test_formats import PLAN, by_rollout

if TYPE_CHECKING:
    from pathlib import Path


def as_slime(folder: Path, lines: list[Line]) -> None:
    torch = pytest.importorskip("torch", reason="torch files are read with torch")
    folder.mkdir()
    for rollout, own in by_rollout(lines).items():
        torch.save({"rollout_id": rollout, "samples": [_sample(line) for line in own]}, folder / f"{rollout}.pt")
        torch.save({"rollout_id": rollout, "samples": [_sample(own[0])]}, folder / f"eval_{rollout}.pt")


def _sample(line: Line) -> dict[str, Any]:
    tokens = line["prompt_ids"] + line["completion_ids"]
    return {
        "group_index": int(line["group"].split()[1]), "index": 0, "rollout_id": None, "prompt": "p", "tokens": tokens,
        "response": "r", "response_length": len(line["completion_ids"]), "label": None, "reward": line["reward"],
        "loss_mask": line["mask"], "weight_versions": ["3"], "rollout_log_probs": line["engine_log_probs"], "status": "completed",
        "metadata": {}, "spec_info": {"spec_verify_ct": 0},
    }  # fmt: skip


def test_a_healthy_run_is_silent(tmp_path: Path) -> None:
    as_slime(tmp_path / "dump", samples())
    report = ingested(tmp_path / "dump", asked=Asked(schedule=PLAN))
    assert (report.verdict, found(report), report.counts.samples) == ("PASS", {}, 80)
    assert "before advantages are computed" in reason_of(report, "RLS516")
    assert "not which trained on it" in reason_of(report, "RLS402")
    assert {verdict_of(report, code) for code in ("RLS501", "RLS514", "RLS522")} == {"PASS"}


def test_faults_are_found(tmp_path: Path) -> None:
    lines = samples()
    own = by_rollout(lines)
    for line in own[2]:
        line["mask"] = line["mask"][1:]
    lines.remove(own[3][0])
    as_slime(tmp_path / "dump", lines)
    report = ingested(tmp_path / "dump", asked=Asked(schedule=PLAN))
    observed = [each.observed for each in report.findings]
    assert any("mask and token ids of different lengths" in each for each in observed)
    assert any("groups of another size: 3 samples" in each for each in observed)
    assert "15 samples" in observed


class Opened:
    """What an unpickler would call."""

    def __reduce__(self) -> Any:
        return print, ("executed",)


def test_nothing_in_a_file_is_executed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    torch = pytest.importorskip("torch", reason="torch files are read with torch")
    torch.save({"rollout_id": 0, "samples": [Opened()]}, tmp_path / "0.pt")
    with pytest.raises(ExportError, match="is not loaded"):
        ingested(tmp_path / "0.pt")
    (tmp_path / "1.pt").write_bytes(pickle.dumps(Opened()))
    with pytest.raises(ExportError, match=r"1\.pt"):
        ingested(tmp_path / "1.pt")
    assert "executed" not in capsys.readouterr().out


@pytest.mark.parametrize(
    "value", [3, {"samples": 3}, {"samples": [3], "rollout_id": 0}, {"samples": [], "rollout_id": "x"}]
)
def test_other_torch_files_are_named(tmp_path: Path, value: Any) -> None:
    torch = pytest.importorskip("torch", reason="torch files are read with torch")
    torch.save(value, tmp_path / "0.pt")
    with pytest.raises(ExportError, match=r"0\.pt.*expected"):
        ingested(tmp_path / "0.pt")


def test_damaged_files_give_an_answer(tmp_path: Path) -> None:
    as_slime(tmp_path / "dump", samples())
    path = tmp_path / "dump" / "1.pt"
    whole = path.read_bytes()
    for cut in range(0, len(whole), len(whole) // 7):
        path.write_bytes(whole[:cut])
        with pytest.raises(ExportError, match=r"1\.pt"):
            ingested(tmp_path / "dump")
