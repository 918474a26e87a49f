"""Launches in a checkout of NeMo-RL or of a fork: its own loss says what it refuses."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from rlstep_hooks.launch.text import LaunchError
from tests.systems.plans.checkouts import in_checkout, schedule_of

if TYPE_CHECKING:
    from pathlib import Path

    from rlstep_hooks.planning.launched import Plan

NEMO_LOSS = """
class ClippedPGLossFn:
    def __init__(self, cfg):
        self.use_importance_sampling_correction = cfg["use_importance_sampling_correction"]
        self.truncated_importance_sampling_ratio = cfg["truncated_importance_sampling_ratio"]
        self.truncated_importance_sampling_type = cfg.get("truncated_importance_sampling_type")
        if {condition}:
            assert self.use_importance_sampling_correction, (
                "a bound is only supported with the correction"
            )
"""
BOUND = "self.truncated_importance_sampling_ratio is not None"
KIND = "self.truncated_importance_sampling_type is not None"


def in_nemo(folder: Path, *, condition: str = BOUND, more: str = "", loss: str = NEMO_LOSS) -> Plan:
    """The plan of a launch in a checkout of NeMo-RL."""
    files = {
        "nemo_rl/algorithms/grpo.py": "",
        "nemo_rl/algorithms/loss/loss_functions.py": loss.format(condition=condition),
    }
    return in_checkout(folder, files, f"uv run python examples/run_grpo.py {more}\n")


@pytest.mark.parametrize(
    ("condition", "more", "refused"),
    [
        (BOUND, "loss_fn.truncated_importance_sampling_type=tis", False),
        (BOUND, "loss_fn.truncated_importance_sampling_ratio=2", True),
        (KIND, "loss_fn.truncated_importance_sampling_type=tis", True),
        (KIND, "loss_fn.truncated_importance_sampling_ratio=2", False),
        (
            f"{BOUND} and {KIND}".replace(" and ", ":\n            if "),
            "loss_fn.truncated_importance_sampling_type=tis",
            False,
        ),
    ],
)
def test_the_loss_of_nemo_rl_refuses_what_its_own_lines_refuse(
    tmp_path: Path, condition: str, more: str, refused: bool
) -> None:
    loss = NEMO_LOSS.replace("            assert", "                assert") if ":\n" in condition else NEMO_LOSS
    plan = in_nemo(tmp_path, condition=condition, more=more, loss=loss)
    own = [finding for finding in plan.findings if "only supported with the correction" in finding.observed]
    assert bool(own) is refused
    assert (plan.schedule is None) is refused


def test_a_refusal_of_nemo_rl_that_is_not_known_is_asked_about(tmp_path: Path) -> None:
    with pytest.raises(LaunchError, match=r"it refuses .* if cfg\['strict'\] .*loss_functions.py:8.*--version 7ea279a"):
        in_nemo(tmp_path, condition="cfg['strict']")


def test_a_condition_that_is_not_known_does_not_matter_with_the_correction(tmp_path: Path) -> None:
    more = "loss_fn.use_importance_sampling_correction=true"
    assert schedule_of(in_nemo(tmp_path, condition="cfg['strict']", more=more)).updates_per_rollout == 1


def test_a_loss_of_nemo_rl_that_is_not_found_is_asked_about_where_it_may_refuse(tmp_path: Path) -> None:
    assert schedule_of(in_nemo(tmp_path, loss="")).updates_per_rollout == 1
    with pytest.raises(LaunchError, match="ClippedPGLossFn, the loss of its trainer, was not found"):
        in_nemo(tmp_path, loss="", more="loss_fn.truncated_importance_sampling_ratio=2")


def test_a_bound_of_an_older_loss_of_nemo_rl_truncates(tmp_path: Path) -> None:
    loss = NEMO_LOSS.replace(
        '        self.truncated_importance_sampling_type = cfg.get("truncated_importance_sampling_type")\n', ""
    )
    more = "loss_fn.use_importance_sampling_correction=true loss_fn.truncated_importance_sampling_ratio=2"
    assert (
        schedule_of(in_nemo(tmp_path, more=more, loss=loss)).correction
        == "token importance weights, tis from 0.0 to 2.0"
    )
    assert schedule_of(in_nemo(tmp_path, more=more)).correction == "token importance weights, without a bound"


SET_UP = """
def setup(master_config, tokenizer):
    policy_config = master_config["policy"]
    generation_config = policy_config["generation"]
    assert generation_config is not None, "needed"
    later = generation_config["never"] if tokenizer else None
    if generation_config["backend"] == "megatron" and generation_config["neither"]:
        assert policy_config["megatron_cfg"]["enabled"]
    generation_config["model_name"] = policy_config["model_name"]
    {line}
    return later
    generation_config["unreached"]
"""
LINE = 'colocated_inference = generation_config["colocated"]["enabled"]'
CONFIG = """
grpo: {{num_prompts_per_step: 8, num_generations_per_prompt: 4, max_num_steps: 5}}
policy:
  model_name: m
  train_global_batch_size: 32
  generation: {{backend: vllm{more}}}
cluster: {{gpus_per_node: 2, num_nodes: 1}}
"""


def with_set_up(folder: Path, *, line: str = LINE, more: str = "", flags: str = "", other: str = "") -> list[str]:
    """What the plan says of a launch whose configuration lies beside a trainer with this set-up."""
    files = {
        "nemo_rl/algorithms/grpo.py": SET_UP.format(line=line),
        "nemo_rl/algorithms/loss_functions.py": "class ClippedPGLossFn:\n    def __init__(self, cfg):\n        pass\n",
        "nemo_rl/other.py": other,
        "examples/configs/own.yaml": CONFIG.format(more=more),
        "examples/run_grpo.py": "grpo_train()\n",
    }
    launch = f"uv run python examples/run_grpo.py --config examples/configs/own.yaml {flags}\n"
    plan = in_checkout(folder, files, launch)
    return [f"{finding.observed} {finding.why}" for finding in plan.findings if "KeyError" in finding.observed]


def test_a_key_that_the_set_up_reads_in_any_run_must_be_there(tmp_path: Path) -> None:
    found = with_set_up(tmp_path)
    assert len(found) == 1
    assert "KeyError: 'colocated'" in found[0]
    assert "nemo_rl/algorithms/grpo.py:10" in found[0]


@pytest.mark.parametrize(
    ("line", "more", "flags", "other"),
    [
        (LINE, ", colocated: {enabled: true}", "", ""),
        (LINE, ", colocated: null", "", ""),
        (LINE, "", "+policy.generation.colocated.enabled=true", ""),
        (LINE, "", "", 'config["colocated"] = {"enabled": True}'),
        ("pass", "", "", ""),
        ('x = generation_config.get("colocated")', "", "", ""),
        ('x = master_config["elsewhere"]["key"]', "", "", ""),
    ],
)
def test_a_key_that_may_be_there_is_not_missed(tmp_path: Path, line: str, more: str, flags: str, other: str) -> None:
    assert with_set_up(tmp_path, line=line, more=more, flags=flags, other=other) == []


def test_the_second_part_of_a_key_may_be_the_one_that_is_not_there(tmp_path: Path) -> None:
    assert "KeyError: 'enabled'" in with_set_up(tmp_path, more=", colocated: {resources: 1}")[0]


PARALLEL = """
class Policy:
    def __init__(self, config):
        tp_size = config["dtensor_cfg"]["tensor_parallel_size"]
        {line}
"""
REFUSES = 'assert tp_size < 4 or os.environ.get("NRL_IGNORE_TP_ACCURACY_CHECK"), "a known batch-variant accuracy issue"'


@pytest.mark.parametrize(("line", "refused"), [("pass", False), (REFUSES, True)])
def test_tensor_parallelism_is_refused_where_the_policy_beside_the_launch_refuses_it(
    tmp_path: Path, line: str, refused: bool
) -> None:
    files = {
        "nemo_rl/algorithms/grpo.py": "",
        "nemo_rl/algorithms/loss_functions.py": "class ClippedPGLossFn:\n    def __init__(self, cfg):\n        pass\n",
        "nemo_rl/models/policy/lm_policy.py": PARALLEL.format(line=line),
        "examples/run_grpo.py": "grpo_train()\n",
    }
    sizes = "policy.dtensor_cfg.tensor_parallel_size=4 policy.logprob_batch_size=2 cluster.gpus_per_node=8"
    plan = in_checkout(tmp_path, files, f"uv run python examples/run_grpo.py {sizes}\n")
    assert ("accuracy issue" in " ".join(finding.observed for finding in plan.findings)) is refused
