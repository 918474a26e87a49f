"""The sweep over folders of scripts: its kinds, its table, and the numbers that are known of published scripts."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from rlstep_hooks.planning.launched import Options
from rlstep_hooks.planning.schedule import Schedule
from tests.sweep import facts
from tests.sweep.__main__ import files_below, reasons, repositories, row, table
from tests.sweep.outcomes import KINDS, Kind, outcome_of

if TYPE_CHECKING:
    from pathlib import Path

SIZES = "trainer.train_batch_size=1024 trainer.policy_mini_batch_size=256"
LAUNCH = "python -m skyrl.train.entrypoints.main_base generator.n_samples_per_prompt=5 trainer.epochs=20"


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        (f"{LAUNCH} {SIZES}", "planned"),
        (f"{LAUNCH} {SIZES} trainer.micro_train_batch_size_per_gpu=60", "refused"),
        (f"{LAUNCH} trainer.train_batch_size=$B", "asks"),
        (f"{LAUNCH} trainer.train_batch_size=many", "unreadable"),
        ("pip install x", "unknown"),
    ],
)  # fmt: skip
def test_each_kind_of_outcome(tmp_path: Path, text: str, kind: Kind) -> None:
    script = tmp_path / "run.sh"
    script.write_text(text)
    assert outcome_of(script, Options(rows=7473)).kind == kind


def test_a_crash_is_an_outcome(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object) -> None:
        raise KeyError("x")

    monkeypatch.setattr("tests.sweep.outcomes.plan_launch", broken)
    assert outcome_of(tmp_path / "run.sh", Options()).kind == "crashed"


def test_the_table_has_a_row_for_each_repository(tmp_path: Path) -> None:
    for name in ("one", "two"):
        (tmp_path / name / "scripts").mkdir(parents=True)
        (tmp_path / name / "scripts" / "run.sh").write_text("ls")
        (tmp_path / name / "config.yaml").write_text("a: 1")
    assert [folder.name for folder in repositories([tmp_path])] == ["one", "two"]
    files = files_below(tmp_path / "one", (".sh",))
    found = [outcome_of(file, Options()) for file in files]
    assert row("one", found)[:2] == ["one", "1"]
    assert (
        len({len(line) for line in table([["folder", *KINDS], row("one", found)[: len(KINDS) + 1]]).splitlines()}) == 1
    )
    assert "none of these starts a known trainer" in reasons(found, 3)


def test_the_known_numbers_hold_together() -> None:
    known = facts.repositories()
    assert sum(len(each.scripts) for each in known) >= 150
    for each in known:
        assert len(each.commit) == 40
        for path, numbers in each.scripts.items():
            assert set(numbers) <= set(Schedule.__struct_fields__), path
            product = numbers["prompts_per_rollout"] * numbers["samples_per_prompt"]
            assert product == numbers["samples_per_rollout"], path


def test_a_plan_with_other_numbers_than_are_known_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "owner+name"
    folder.mkdir()
    (folder / "run.sh").write_text(f"{LAUNCH} {SIZES}")
    found = [outcome_of(folder / "run.sh", Options(rows=7473))]

    def known(prompts: int) -> tuple[int, list[str]]:
        script = {"run.sh": {"prompts_per_rollout": prompts}}
        monkeypatch.setattr(facts, "repositories", lambda: [facts.Repository("owner/name", "", script)])
        return facts.compared(folder, found)

    assert known(1024) == (1, [])
    right, (wrong,) = known(512)
    assert right == 0
    assert "prompts_per_rollout is 1024, 512 is known" in wrong
