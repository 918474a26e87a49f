"""The numbers of NeMo-RL's configurations, worked out anew from its source: a check of `rlstep plan` that shares no code with it.

    python -m tests.golden.nemo_rl_numbers FOLDER            compare each configuration below FOLDER, a checkout of NVIDIA-NeMo/RL
    python -m tests.golden.nemo_rl_numbers FOLDER --facts    print what is expected, as `published_scripts.json` has it

Read at 7ea279a: nemo_rl/utils/config.py (inheritance, by OmegaConf itself), algorithms/grpo.py and ppo.py `setup`, algorithms/opd.py,
models/policy/lm_policy.py and models/value/lm_value.py `__init__`, distributed/batched_data_dict.py `shard_by_batch_size`.
"""

from __future__ import annotations

import json
import os
import sys
from fractions import Fraction
from pathlib import Path
from typing import Any

from omegaconf import OmegaConf

from rlstep_hooks.launch.text import LaunchError
from rlstep_hooks.planning.launched import Options
from rlstep_hooks.systems.engine.launches import plan_launch

RESOLVERS = {
    "add": lambda a, b: a + b,
    "mul": lambda a, b: a * b,
    "div": lambda a, b: a / b,
    "max": lambda a, b: max(a, b),
}
OF_GRPO = {
    "num_prompts_per_step": 32, "num_generations_per_prompt": 16, "max_num_steps": 1_000_000, "max_num_epochs": 1,
    "use_dynamic_sampling": False, "batch_multiplier": 1.0,
}  # fmt: skip
OF_PPO = {**OF_GRPO, "max_num_steps": 100_000, "max_num_epochs": 100_000, "ppo_epochs": 4}


class RefusedError(Exception):
    """NeMo-RL ends the run."""


class NotReadError(Exception):
    """A trainer or a configuration of which no plan is expected."""


def loaded(path: Path) -> Any:
    """The configuration over its parents, unresolved (`load_config_with_inheritance`)."""
    own = OmegaConf.load(path)
    parents = own.pop("defaults", None)
    if parents is None:
        return own
    merged = OmegaConf.create({})
    for parent in [parents] if isinstance(parents, str) else parents:
        merged = laid_over(merged, loaded(path.parent / str(parent)))
    return laid_over(merged, own)


def laid_over(below: Any, above: Any) -> Any:
    for key in list(above):
        if (
            not OmegaConf.is_missing(above, key)
            and OmegaConf.is_dict(above[key])
            and above[key].get("_override_", False)
        ):
            above[key].pop("_override_")
            below.pop(key, None)
    return OmegaConf.merge(below, above)


def expected(path: Path) -> dict[str, Any]:
    """The numbers that a configuration means.

    Raises:
        RefusedError: NeMo-RL ends the run.
        NotReadError: It is not one of grpo.py or ppo.py.
    """
    tree = loaded(path)
    if "grpo" not in tree and "ppo" not in tree:
        raise NotReadError("another algorithm")
    if "async_rl" in tree:
        raise NotReadError("single controller")
    for name in ("HF_HOME", "PERSISTENT_CACHE"):  # paths of caches and models
        os.environ.setdefault(name, "/")
    for name, body in RESOLVERS.items():
        OmegaConf.register_new_resolver(name, body, replace=True)
    config = OmegaConf.to_container(tree, resolve=True)
    kind = "ppo" if "ppo" in config else "grpo"
    sizes = {**(OF_PPO if kind == "ppo" else OF_GRPO), **config[kind]}
    prompts, samples_each = sizes["num_prompts_per_step"], sizes["num_generations_per_prompt"]
    policy = config["policy"]
    batch = policy["train_global_batch_size"]
    loss = config.get("loss_fn") or {}
    asynchronous = sizes.get(f"async_{kind}") or {}
    checked(config, sizes, kind, loss, asynchronous)
    gpus = training_gpus(config, kind)
    world = processes(policy, gpus)
    spread(prompts * samples_each, batch, world, policy)
    numbers: dict[str, Any] = {
        "algorithm": kind.upper(),
        "prompts_per_rollout": prompts,
        "samples_per_prompt": samples_each,
        "samples_per_update": batch,
        "world_size": world,
        "updates_per_rollout": str(
            Fraction(prompts * samples_each, batch) * (sizes["ppo_epochs"] if kind == "ppo" else 1)
        ),
        "max_age": asynchronous.get("max_trajectory_age_steps", 1) if asynchronous.get("enabled") else 0,
    }
    if kind == "ppo":
        value = config["value"]
        spread(prompts * samples_each, value["train_global_batch_size"], processes(value, gpus), value)
        numbers["critic_samples_per_update"] = value["train_global_batch_size"]
    if sizes["max_num_steps"] < 100_000 and not sizes["use_dynamic_sampling"]:
        numbers["rollouts"] = sizes["max_num_steps"]
    return numbers


def checked(config: Any, sizes: Any, kind: str, loss: Any, asynchronous: Any) -> None:
    if not sizes["use_dynamic_sampling"] and sizes["batch_multiplier"] != 1:
        raise RefusedError("batch_multiplier")
    if (
        sizes.get("skip_reference_policy_logprobs_calculation")
        and kind == "grpo"
        and loss.get("reference_policy_kl_penalty", 0.01)
    ):
        raise RefusedError("skip_reference_policy_logprobs_calculation")
    total = sizes["num_prompts_per_step"] * sizes["num_generations_per_prompt"]
    if loss.get("force_on_policy_ratio") and total != config["policy"]["train_global_batch_size"]:
        raise RefusedError("force_on_policy_ratio")
    if asynchronous.get("enabled") and kind == "grpo" and not loss.get("use_importance_sampling_correction"):
        raise RefusedError("Importance sampling correction")
    if asynchronous.get("enabled") and sizes["use_dynamic_sampling"]:
        raise RefusedError("use_dynamic_sampling is not supported")


def training_gpus(config: Any, kind: str) -> int:
    cluster, generation = config["cluster"], config["policy"]["generation"]
    gpus, total = cluster["gpus_per_node"], cluster["num_nodes"]
    data = config["data"]
    parts = [part for key in ("train", "validation", "default") for part in listed(data.get(key))]
    named = [part.get("env_name") for part in parts if part]
    reward = (
        config["env"]["reward_model"]["resources"] if "reward_model" in named else {"num_nodes": 0, "gpus_per_node": 0}
    )
    nodes = total if total == 1 else total - reward["num_nodes"]
    distillation = config.get("on_policy_distillation") or {}
    apart = distillation.get("non_colocated_teachers") or {}
    if kind == "grpo" and distillation.get("enabled") and apart.get("enabled"):
        seen = set()
        for alias, model in distillation["teacher_model_by_agent_name"].items():
            if distillation.get("deduplicate_shared_teacher_checkpoints", True) and model in seen:
                continue
            seen.add(model)
            own = {
                **(apart.get("default_teacher_cfg") or {}),
                **((apart.get("teacher_overrides") or {}).get(alias) or {}),
            }
            nodes -= own.get("num_nodes", 1)
    if nodes < 1:
        raise RefusedError("policy_nodes must be > 0")
    if generation["colocated"]["enabled"]:
        return (gpus - reward["gpus_per_node"]) * nodes if total == 1 else gpus * nodes
    resources = generation["colocated"]["resources"]
    if nodes == 1:
        if not resources["gpus_per_node"]:
            raise RefusedError("must be explicitly set")
        if resources["num_nodes"] not in (None, 1):
            raise RefusedError("num_nodes must be 1")
        left = gpus - resources["gpus_per_node"] - (reward["gpus_per_node"] if total == 1 else 0)
        if left < 1:
            raise RefusedError("enough GPUs for training")
        return left
    if not resources["num_nodes"]:
        raise RefusedError("num_nodes must be > 0")
    if resources["gpus_per_node"] != gpus:
        raise RefusedError("must be explicitly set and equal")
    if nodes - resources["num_nodes"] < 1:
        raise RefusedError("train_nodes > 0")
    return gpus * (nodes - resources["num_nodes"])


def listed(value: Any) -> list[Any]:
    return value if isinstance(value, list) else [value]


def processes(role: Any, gpus: int) -> int:
    megatron = role.get("megatron_cfg") or {}
    if megatron.get("enabled"):
        copy = (
            megatron["tensor_model_parallel_size"]
            * megatron["context_parallel_size"]
            * megatron["pipeline_model_parallel_size"]
        )
    else:
        copy = role["dtensor_cfg"]["tensor_parallel_size"] * role["dtensor_cfg"]["context_parallel_size"]
    if gpus < copy:
        raise RefusedError("insufficient for the parallelism")
    if gpus % copy:
        raise RefusedError("must be divisible by PP * CP * TP")
    return gpus // copy


def spread(samples: int, batch: int, world: int, role: Any) -> None:
    if samples % world:
        raise RefusedError("not a multiple of shards")
    if samples % batch:
        raise RefusedError("is not a multiple of batch_size")
    if batch % world:
        raise RefusedError("not a multiple of shards")
    by_tokens = role["sequence_packing"]["enabled"] or role["dynamic_batching"]["enabled"]
    if not by_tokens and (batch // world) % role["train_micro_batch_size"]:
        raise RefusedError("microbatch size")


def planned(path: Path) -> tuple[str, Any]:
    """What `rlstep plan` says: "planned" and its numbers, "refused" and why, or "not planned" and why."""
    try:
        plan = plan_launch([str(path)], Options())
    except (LaunchError, OSError) as error:
        return "not planned", str(error)
    if plan.schedule is None:
        return "refused", plan.findings[0].observed
    schedule = plan.schedule
    found: dict[str, Any] = {
        name: getattr(schedule, name)
        for name in (
            "algorithm",
            "prompts_per_rollout",
            "samples_per_prompt",
            "samples_per_update",
            "world_size",
            "rollouts",
            "max_age",
        )
    }
    found["updates_per_rollout"] = str(schedule.updates_per_rollout)
    if schedule.critic is not None:
        found["critic_samples_per_update"] = schedule.critic.samples_per_update
    return "planned", found


def stored(numbers: dict[str, Any]) -> dict[str, int]:
    """The numbers that the sweep compares."""
    names = ("prompts_per_rollout", "samples_per_prompt", "samples_per_update", "updates_per_rollout", "world_size")
    samples = numbers["prompts_per_rollout"] * numbers["samples_per_prompt"]
    return {**{name: int(numbers[name]) for name in names}, "samples_per_rollout": samples}


def main(folder: Path, *, facts: bool) -> None:
    counts: dict[str, int] = {}
    for path in sorted(folder.rglob("*.yaml")):
        name = str(path.relative_to(folder))
        try:
            wanted: Any = ("planned", expected(path))
        except RefusedError as refused:
            wanted = ("refused", str(refused))
        except NotReadError as reason:
            wanted = ("not planned", str(reason))
        except Exception as error:  # noqa: BLE001 - no configuration of NeMo-RL, or one that it cannot read either
            wanted = ("not planned", f"{type(error).__name__}: {error}".splitlines()[0])
        if facts:
            if wanted[0] == "planned":
                print(f"  {json.dumps(name)}: {json.dumps(stored(wanted[1]))},")
            continue
        kind, said = planned(path)
        agrees = kind == wanted[0]
        if agrees and kind == "planned":
            agrees = all(said[key] == value for key, value in wanted[1].items())
        elif agrees and kind == "refused":
            agrees = wanted[1].lower() in said.lower()
        outcome = (
            f"{wanted[0]}, right" if agrees else f"{wanted[0]}, but {kind}" if kind != wanted[0] else f"{kind}, wrong"
        )
        counts[outcome] = counts.get(outcome, 0) + 1
        if not agrees:
            print(f"{outcome}: {name}\n    expected {wanted[1]}\n    said     {said}")
    for outcome, number in sorted(counts.items()):
        print(f"{number:5} {outcome}")


if __name__ == "__main__":
    main(Path(sys.argv[1]), facts="--facts" in sys.argv)
