"""Which trainers are audited, and why others are not; and the plan of one that is."""

from __future__ import annotations

import inspect
from importlib.metadata import version
from typing import TYPE_CHECKING, Any

import msgspec
import ray
from packaging.version import Version
from skyrl.backends.skyrl_train.workers.fsdp.fsdp_worker import FSDPPolicyWorkerBase
from skyrl.backends.skyrl_train.workers.worker_dispatch import WorkerDispatch
from skyrl.train.generators.skyrl_gym_generator import SkyRLGymGenerator
from skyrl.train.trainer import RayPPOTrainer

from rlstep_hooks.systems.engine import reader
from rlstep_hooks.systems.skyrl.system import SYSTEM

if TYPE_CHECKING:
    from rlstep_hooks.planning.schedule import Schedule

_OF_TRAINER = ("train", "generate", "postprocess_generator_output", "convert_to_training_input", "fwd_logprobs_values_reward",
               "apply_reward_kl_penalty", "compute_advantages_and_returns", "_normalize_advantages", "_execute_training_step",
               "train_critic_and_policy", "_fire")  # fmt: skip
_OF_DISPATCH = ("stage_data", "forward_backward_from_staged", "optim_step", "save_weights_for_sampler")
_OF_WORKER = (
    "init_model",
    "forward_backward",
    "_forward_backward_micro",
    "optim_step",
    "forward",
    "broadcast_to_inference_engines",
)
"""Methods that the hooks rely on: a class of somebody's own with another one was not read."""


def refusal(trainer: Any) -> str:
    """Why a trainer cannot be audited; empty where it can. Later reasons need what the earlier ones exclude."""
    release = version("skyrl")
    first, last = SYSTEM.observed_releases or ("0", "0")
    if not Version(first) <= Version(Version(release).base_version) < Version(last):
        return f"skyrl {release} is not supported ({first} and later, before {last}, are)"
    if not isinstance(trainer, RayPPOTrainer):
        return f"{type(trainer).__name__} is not supported (RayPPOTrainer is)"
    if trainer.policy_model is None:
        return "a trainer without models is not supported: call build_models before the audit begins"
    settings, algorithm, generator = trainer.cfg.trainer, trainer.cfg.trainer.algorithm, trainer.cfg.generator
    beside = {
        f"trainer.strategy={settings.strategy}": settings.strategy != "fsdp",
        "training in several processes": len(trainer.policy_model._actor_handlers) > 1,
        "placement.colocate_all": settings.placement.colocate_all,
        "placement.colocate_policy_ref": settings.placement.colocate_policy_ref and trainer.ref_model is not None,
        "a critic": trainer.has_critic,
        "LoRA": settings.policy.model.lora.rank > 0,
        "fully_async": settings.fully_async.enabled,
        "dynamic_sampling": algorithm.dynamic_sampling.type is not None,
        "step_wise_trajectories": generator.step_wise_trajectories,
        "remove_microbatch_padding": settings.remove_microbatch_padding,
        "max_tokens_per_microbatch": settings.max_tokens_per_microbatch > 0,
        "update_ref_every_epoch": settings.update_ref_every_epoch,
        "fsdp_config.cpu_offload": settings.policy.fsdp_config.cpu_offload,
        "mtp": settings.mtp.enabled,
        "a vision language model": generator.vision_language_generator,
        f"param_dtype={_dtype(settings)}": _dtype(settings) not in ("fp32", "float32"),
        f"policy_loss_type={algorithm.policy_loss_type}": algorithm.policy_loss_type not in ("regular", "dual_clip"),
        "resuming": trainer.resume_mode.value != "none",
    }
    reason = next((f"{words} is not supported" for words, there in beside.items() if there), "")
    if reason:
        return reason
    others = [*_others(trainer, RayPPOTrainer, _OF_TRAINER), *_others(trainer.dispatch, WorkerDispatch, _OF_DISPATCH)]
    others += ray.get(trainer.policy_model._actor_handlers[0].__ray_call__.remote(others_of_worker))
    return f"methods of one's own are not supported: {', '.join(others)}" if others else ""


def _dtype(settings: Any) -> str:
    mixed = settings.policy.fsdp_config.mixed_precision
    return "bf16" if mixed is None else str(mixed.param_dtype)


def others_of_worker(worker: Any) -> list[str]:
    """Methods of the policy worker that were not read, and its device if that is none; in the worker's own process."""
    device = next(worker.model.model.parameters()).device.type
    return [*_others(worker, FSDPPolicyWorkerBase, _OF_WORKER), *([] if device == "cpu" else [f"a policy on {device}"])]


def _others(owner: Any, read: type, names: tuple[str, ...]) -> list[str]:
    # By their code: Ray makes methods of a worker coroutine functions around them, and may send its class by value.
    return [f"{type(owner).__name__}.{name}" for name in names if _code(type(owner), name) != _code(read, name)]


def _code(owner: type, name: str) -> Any:
    method = inspect.unwrap(getattr(owner, name))
    return getattr(method, "__code__", method)


def is_single_turn(trainer: Any) -> bool:
    """Whether each token of a completion was drawn by the engine, and counts."""
    settings, algorithm = trainer.cfg.generator, trainer.cfg.trainer.algorithm
    filtered = settings.apply_overlong_filtering or algorithm.zero_variance_filter
    plain = settings.max_turns == 1 and not settings.sampling_params.stop and settings.use_conversation_multi_turn
    return type(trainer.generator) is SkyRLGymGenerator and plain and not filtered


def plan_trainer(trainer: Any) -> tuple[Schedule, int]:
    """The Schedule of a live trainer, and the updates that its schedule of the rate counts on."""
    reading = reader.read_config(
        SYSTEM,
        reader.live_settings(SYSTEM, trainer.cfg),
        version=version("skyrl"),
        program="main_base",
        rows=len(trainer.train_dataset),
        world_size=1,
        checked=True,
    )
    planned = reading.schedule
    horizon = trainer.total_training_steps * planned.updates_per_rollout
    # A constant rate may end anywhere.
    constant = None if reading.facts.get("lr_constant") else planned.lr_horizon
    return msgspec.structs.replace(planned, lr_horizon=constant), int(horizon)
