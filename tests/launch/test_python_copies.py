"""Keywords that a Python file copies, or keeps as far as a class takes them, before it hands them on."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from rlstep_hooks.launch.text import LaunchError
from rlstep_hooks.planning.launched import Options, Plan
from rlstep_hooks.systems.engine.launches import plan_launch
from tests.systems.plans.checkouts import schedule_of

if TYPE_CHECKING:
    from pathlib import Path

CONFIG = "grpo:\n  per_device_train_batch_size: 8\n  num_generations: 4\n  max_steps: 10\n  {more}\n"
TRAIN = """
import copy, dataclasses, inspect, yaml
from trl import GRPOConfig, GRPOTrainer
cfg = yaml.safe_load(open("c.yaml"))
{text}
trainer = GRPOTrainer(model="m", args=GRPOConfig(**kw))
trainer.train()
"""
FILTER = "{k: v for k, v in cfg['grpo'].items() if k in TAKEN}"
SIGNATURE = "inspect.signature(GRPOConfig.__init__).parameters"
COPIES = (
    "dict(cfg['grpo'])",
    "cfg['grpo'].copy()",
    "copy.deepcopy(cfg['grpo'])",
    "{**cfg['grpo']}",
    "copy.copy(cfg['grpo'])",
)
TAKEN = (
    f"taken = {SIGNATURE}\nkw = {FILTER.replace('TAKEN', 'taken')}\n",
    f"taken = set(inspect.signature(GRPOConfig).parameters)\nkw = {FILTER.replace('TAKEN', 'taken')}\n",
    f"taken = {{f.name for f in dataclasses.fields(GRPOConfig)}}\nkw = {FILTER.replace('TAKEN', 'taken')}\n",
    f"kw = {FILTER.replace('TAKEN', SIGNATURE)}\n",
)


def planned(folder: Path, text: str, more: str = "") -> Plan:
    (folder / "c.yaml").write_text(CONFIG.format(more=more))
    (folder / "train.py").write_text(TRAIN.format(text=text))
    return plan_launch([str(folder / "train.py")], Options(rows=1000, world_size=1))


@pytest.mark.parametrize("copied", COPIES)
@pytest.mark.parametrize(
    ("change", "more", "size"),
    [("", "", 4), ("kw['num_generations'] = 2", "", 2), ("kw.pop('own', None)", "own: 3", 4)],
)
def test_a_copy_of_a_section_is_what_it_is_then_made_of(
    tmp_path: Path, copied: str, change: str, more: str, size: int
) -> None:
    plan = planned(tmp_path, f"kw = {copied}\n{change}", more)
    assert schedule_of(plan).samples_per_prompt == size
    assert not [finding for finding in plan.findings if finding.code in ("RLS110", "RLS116")]


@pytest.mark.parametrize("copied", COPIES)
def test_a_copy_of_a_section_that_the_file_changes_is_asked_about(tmp_path: Path, copied: str) -> None:
    with pytest.raises(LaunchError):
        planned(tmp_path, f"cfg['grpo'] = of_the_run()\nkw = {copied}")


@pytest.mark.parametrize("text", TAKEN)
def test_keywords_that_the_class_does_not_take_are_left_out(tmp_path: Path, text: str) -> None:
    plan = planned(tmp_path, text, "own: 3")
    assert schedule_of(plan).samples_per_prompt == 4
    assert not [finding for finding in plan.findings if finding.code in ("RLS110", "RLS116")]


@pytest.mark.parametrize("text", TAKEN)
def test_what_is_changed_behind_a_filter_counts(tmp_path: Path, text: str) -> None:
    assert schedule_of(planned(tmp_path, f"{text}kw['num_generations'] = 2")).samples_per_prompt == 2
    with pytest.raises(LaunchError):
        planned(tmp_path, f"{text}kw.update(of_the_run())")


@pytest.mark.parametrize(
    "text",
    [
        "kw = {k: v for k, v in cfg['grpo'].items() if k in names()}",
        f"kw = {{k: v for k, v in cfg['grpo'].items() if k not in {SIGNATURE}}}",
        f"kw = {{k: v * 2 for k, v in cfg['grpo'].items() if k in {SIGNATURE}}}",
        "kw = dict(of_the_run())",
        "first = dict(kw)\nkw = dict(first)",
    ],
)
def test_other_mappings_are_asked_about(tmp_path: Path, text: str) -> None:
    with pytest.raises(LaunchError):
        planned(tmp_path, text)
