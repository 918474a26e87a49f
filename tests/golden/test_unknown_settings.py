"""Settings that nobody knows: a made-up one is never said to have no effect, and a misspelled one is named with what is near it."""

from __future__ import annotations

import shlex
from functools import lru_cache
from typing import TYPE_CHECKING

import msgspec
import pytest

from rlstep_hooks.launch.text import LaunchError
from rlstep_hooks.planning.launched import Options
from rlstep_hooks.systems.engine import index
from rlstep_hooks.systems.engine.launches import plan_launch
from tests.golden import plan_dump

if TYPE_CHECKING:
    from rlstep_hooks.planning.launched import Plan

ACTOR = "actor_rollout_ref.actor"
MAIN = (
    f"python3 -m verl.trainer.main_ppo data.train_batch_size=128 {ACTOR}.ppo_mini_batch_size=64 {ACTOR}.ppo_micro_batch_size=8 "
    "critic.ppo_micro_batch_size=8 "
)
LAUNCHES = {
    "search_r1": f"{MAIN} actor_rollout_ref.rollout.n_agent=5",
    "deepscaler": f"{MAIN} trainer.project_name=deepscaler",
    "logic_rl": f"{MAIN} trainer.project_name=GRPO_logic_KK",
    "prime": f"{MAIN} data.n_samples=4 algorithm.adv_estimator=rloo",
    "skywork_or1": f"{MAIN} trainer.rejection_sample=True",
    "verl_agent": f"{MAIN} env.env_name=alfworld env.rollout.n=8",
    "torl": f"{MAIN} actor_rollout_ref.rollout.num_llm_calls_available=1",
    "verl_tool": f"python3 -m verl_tool.trainer.main_ppo {ACTOR}.use_dynamic_bsz=True",
    **{
        f"verl_{name}": f"python3 -m recipe.{name}.{program} {ACTOR}.use_dynamic_bsz=True algorithm.adv_estimator=grpo"
        for name, program in (
            ("entropy", "main_entropy"),
            ("sppo", "main_sppo"),
            ("gvpo", "gvpo_main_ppo"),
            ("flowrl", "main_flowrl"),
            ("prime", "main_prime"),
        )
    },
    "easyr1": "python3 -m verl.trainer.main worker.rollout.n=5",
    "ragen": "python train.py --config-name _2_sokoban",
    "r1_v": "torchrun --nproc_per_node=8 src/open_r1/grpo.py --max_pixels 401408 --num_generations 8 --per_device_train_batch_size 1",
    "vlm_r1": "torchrun --nproc_per_node=8 src/open_r1/grpo_jsonl.py --num_generations 8 --per_device_train_batch_size 1",
}
"""Of systems that the stored launches have only with files of their own."""


def plan(words: list[str], **options: object) -> Plan:
    return plan_launch(words, Options(**options))  # type: ignore[arg-type]


@lru_cache(maxsize=1)
def stored() -> dict[str, tuple[list[str], dict[str, object]]]:
    """For each system one launch that is accepted."""
    found: dict[str, tuple[list[str], dict[str, object]]] = {
        name: (shlex.split(launch), {}) for name, launch in LAUNCHES.items()
    }
    for line in plan_dump.STORED.read_bytes().splitlines():
        case = msgspec.json.decode(line, type=plan_dump.Case)
        words, options = case.launch.words, case.launch.options
        if case.system in found or case.launch.files or len(words) < 2 or any("{" in word for word in words):
            continue
        try:
            planned = plan(words, **options)
        except (LaunchError, OSError):
            continue
        if planned.schedule is not None and planned.framework == case.system:
            found[case.system] = (words, options)
    return found


def misspelled(name: str, words: list[str], version: str) -> str:
    """A setting of a system that the launch does not give, with two letters the other way round."""
    given = {word.lstrip("-+").partition("=")[0].replace("-", "_") for word in words}
    given |= {key.rpartition(".")[2] for key in given}
    for key in index.system_of(name).defaults(version):
        last = key.rpartition(".")[2]
        if len(last) > 7 and key not in given and last not in given and last[-2] != last[-3]:
            return f"{key[:-3]}{key[-2]}{key[-3]}{key[-1]}"
    return ""


@pytest.mark.parametrize("name", [name for name in index.names() if name not in ("trinity_rft", "verifiers")])
def test_a_setting_that_nobody_knows(name: str) -> None:
    if name not in stored():
        pytest.skip("its launches need files")
    words, options = stored()[name]
    overrides = index.system_of(name).overrides
    before = plan(words, **options)
    assert before.framework == name

    def with_setting(key: str) -> Plan:
        return plan([*words, *([f"{key}=3"] if overrides else [f"--{key}", "3"])], **options)

    made_up = "made_up.key_of_nobody" if overrides else "made_up_key_of_nobody"
    after = with_setting(made_up)
    assert made_up in {setting.name for setting in after.unused}
    assert made_up not in after.no_effect
    typo = misspelled(name, words, before.version)
    if not typo:
        return
    said = with_setting(typo)
    texts = [note.text for note in said.notes] + [
        f"{finding.observed} {finding.why} {finding.fix}" for finding in said.findings
    ]
    right = typo[:-3] + typo[-2] + typo[-3] + typo[-1]
    assert any(f"did you mean {right}?" in text and typo in text for text in texts), texts
