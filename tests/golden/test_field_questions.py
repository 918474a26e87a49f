"""Questions that people asked in public: each command is planned, and what is printed must have the facts of the right answer.

`field_questions.json` has the reference, a command with the sizes of the question, the file that it runs if it runs one, and the facts
as patterns; no text of theirs. Why one launch trains unlike another is in `COMPARED`: what `rlstep diff` prints of both. What only a
run can answer is in `RULES`: the rule whose page names the cause.
"""

from __future__ import annotations

import json
import re
import shlex
from pathlib import Path
from typing import Any

import pytest

from rlstep_hooks.cli import diff
from rlstep_hooks.judge.rules.catalogue import BY_CODE
from rlstep_hooks.planning.launched import Options
from rlstep_hooks.show.plan import plan_text
from rlstep_hooks.systems.engine.launches import plan_launch

QUESTIONS: list[dict[str, Any]] = json.loads(Path(__file__).with_name("field_questions.json").read_text())


RULES = {
    "rllm-org/rllm#272": ("RLS306", "decoding a turn and encoding the whole conversation gives other ids"),
    "jingyaogong/minimind#850": ("RLS306", "join the token ids that were sampled"),
    "verl-project/verl#4248": ("RLS405", "free_cache_engine=False"),
    "vllm-project/vllm#32718": ("RLS403", "stale weights behind an equal version"),
    "areal-project/AReaL#1290": ("RLS403", "another engine"),
    "verl-project/verl#3516": ("RLS418", "discards while it sleeps come back as zeros"),
    "verl-project/verl-omni#552": ("RLS418", "bind zero modules and raise nothing"),
    "NVIDIA-NeMo/RL#3743": ("RLS403", "other kernels"),
}
"""Questions that only a run can answer: the rule that finds the cause, and what its page says of it."""


@pytest.mark.parametrize("reference", RULES)
def test_the_page_of_the_rule_that_finds_it_says_so(reference: str) -> None:
    code, words = RULES[reference]
    page = " ".join((BY_CODE[code].__doc__ or "").split())
    assert words in page
    assert reference.replace("#", "/issues/") in page


@pytest.mark.parametrize("question", QUESTIONS, ids=lambda question: question["ref"])
def test_what_is_printed_answers(question: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for name, text in question.get("files", {}).items():
        Path(name).write_text(text)
    options = Options(
        **{name: question[name] for name in ("rows", "version", "world_size", "framework") if name in question}
    )
    plan = plan_launch(shlex.split(question["command"]), options)
    said = plan_text(plan, None, explain=False, width=400, coloured=False)
    missing = [fact for fact in question["says"] if not re.search(fact, said)]
    assert not missing, said


FULLY_ASYNC = """\
python3 -m verl.experimental.fully_async_policy.fully_async_main algorithm.adv_estimator=grpo data.train_batch_size=0 \
    actor_rollout_ref.actor.ppo_mini_batch_size=32 actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu=2 \
    actor_rollout_ref.rollout.n=8 trainer.n_gpus_per_node=1 trainer.total_epochs=1 rollout.total_rollout_steps=6400 \
    async_training.staleness_threshold={threshold} async_training.trigger_parameter_sync_step={trigger}
"""
MAIN_PPO = """\
python3 -m verl.trainer.main_ppo algorithm.adv_estimator=grpo data.train_batch_size={prompts} \
    actor_rollout_ref.actor.ppo_mini_batch_size={minibatch} actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu=2 \
    actor_rollout_ref.rollout.n=8 trainer.n_gpus_per_node={gpus} trainer.total_epochs=1
"""
TRINITY = """\
algorithm: {{algorithm_type: grpo, repeat_times: 8}}
cluster: {{node_num: 1, gpu_per_node: 8}}
buffer:
  batch_size: 96
  total_epochs: 1
  explorer_input: {{taskset: {{path: gsm8k}}, default_workflow_type: math_workflow}}
explorer: {{rollout_model: {{engine_num: 2, tensor_parallel_size: 1}}}}
synchronizer: {{sync_interval: {interval}, sync_offset: {offset}}}
"""


def diff_says(a: str, b: str, rows: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> str:
    """What `rlstep diff` prints of two launches; A and B are scripts, or YAML files where the text is one."""
    monkeypatch.setenv("COLUMNS", "200")
    places = []
    for name, text in (("a", a), ("b", b)):
        file = Path(f"{name}.sh" if text.startswith("python3") else f"{name}.yaml")
        file.write_text(text)
        places.append(str(file))
    assert diff.show(places, [], Options(rows=rows)) == 1
    return capsys.readouterr().out


def row(name: str, a: str, b: str) -> str:
    """The pattern of a line of the table."""
    return rf"(?m)^ {re.escape(name)} +{a} +{b} *$"


SYNCHRONOUS = MAIN_PPO.format(prompts=32, minibatch=32, gpus=2)
COMPARED = [
    # verl-project/verl#6780: on-policy fully_async trains as often as main_ppo, on other processes and against other old log-probs.
    pytest.param(
        FULLY_ASYNC.format(threshold=0, trigger=1),
        SYNCHRONOUS,
        6400,
        (
            row("world_size", "1", "2"),
            row("microbatches_per_update", "128", "64"),
            row("old_logprob_source", "engine", "recompute"),
        ),
        ("updates", "rollouts", "max_age", "samples_per_update", "updates_per_rollout", "lr_clock"),
        id="verl-project/verl#6780 on-policy",
    ),
    # The same with the sync of its published recipes: fewer versions, older samples, larger batches.
    pytest.param(
        FULLY_ASYNC.format(threshold=0.5, trigger=4),
        SYNCHRONOUS,
        6400,
        (
            row("samples_per_rollout", "1 024", "256"),
            row("updates_per_rollout", "4", "1"),
            row("max_age", "1", "0"),
            row("lags", "0 1 2 3", "0"),
            row("rollouts", "50", "200"),
            row("  async_training.trigger_parameter_sync_step", "4", ""),
            row("  async_training.staleness_threshold", r"0\.5", ""),
        ),
        ("updates", "samples_per_update"),
        id="verl-project/verl#6780 off-policy",
    ),
    # agentscope-ai/Trinity-RFT#426: one step off, against the engine's log-probs, on the GPUs that the explorer leaves.
    pytest.param(
        MAIN_PPO.format(prompts=96, minibatch=96, gpus=8),
        TRINITY.format(interval=1, offset=1),
        7473,
        (
            row("world_size", "8", "6"),
            row("max_age", "0", "1"),
            row("  synchronizer.sync_offset", "", "1"),
            row("old_logprob_source", "recompute", "engine"),
            row("rows_dropped_per_epoch", "81", "0"),
        ),
        ("updates", "samples_per_update", "updates_per_rollout"),
        id="agentscope-ai/Trinity-RFT#426",
    ),
    # The same with verl's usual smaller mini-batch: other batches, and so clipping in verl only.
    pytest.param(
        MAIN_PPO.format(prompts=96, minibatch=48, gpus=8),
        TRINITY.format(interval=1, offset=0),
        7473,
        (
            row("samples_per_update", "384", "768"),
            row("updates_per_rollout", "2", "1"),
            row("lags", "0 1", "0"),
            row("updates", "154", "77"),
        ),
        ("max_age", "rollouts", "samples_per_rollout"),
        id="agentscope-ai/Trinity-RFT#426 batches",
    ),
]
"""Two launches, the rows of the data, lines that `rlstep diff` must print, and quantities that are the same in both."""


@pytest.mark.parametrize(("a", "b", "rows", "says", "same"), COMPARED)
def test_why_one_launch_trains_unlike_another(
    a: str,
    b: str,
    rows: int,
    says: tuple[str, ...],
    same: tuple[str, ...],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    said = diff_says(a, b, rows, monkeypatch, capsys)
    assert not [line for line in says if not re.search(line, said)], said
    assert not [name for name in same if re.search(rf"(?m)^ {name} ", said)], said
