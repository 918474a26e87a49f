"""Which algorithms are audited, and why others are not."""

from __future__ import annotations

from importlib.metadata import version
from typing import Any

import torch
from packaging.version import Version
from ray.rllib.algorithms.ppo import PPO
from ray.rllib.algorithms.ppo.torch.ppo_torch_learner import PPOTorchLearner

from rlstep_hooks.systems.rllib.system import SYSTEM

MODULE = "default_policy"
"""The name of the only module of a run with one agent (core/__init__.py `DEFAULT_MODULE_ID`)."""
_READ = ("update", "_update", "_make_batch_if_necessary", "compute_losses", "compute_loss_for_module", "compute_gradients",
         "postprocess_gradients", "apply_gradients", "configure_optimizers_for_module")  # fmt: skip


def refusal(algorithm: Any) -> str:
    """Why an algorithm cannot be audited; empty where it can. Later reasons need what the earlier ones exclude."""
    config, release = algorithm.config, version("ray")
    first, end = SYSTEM.observed_releases or ("0", "0")
    if not Version(first) <= Version(Version(release).base_version) < Version(end):
        return f"ray {release} is not supported ({first} and later, before {end}, are)"
    if type(algorithm).training_step is not PPO.training_step:
        return f"{type(algorithm).__name__} is not supported (PPO with its own training_step is)"
    if not (config.enable_rl_module_and_learner and config.enable_env_runner_and_connector_v2):
        return "the old API stack is not supported (the new one is: enable_rl_module_and_learner, enable_env_runner_and_connector_v2)"
    if algorithm.learner_group.is_remote:
        return f"num_learners={config.num_learners} is not supported: learners in processes of their own (num_learners=0 is)"
    learner = algorithm.learner_group._learner
    if list(learner.module.keys()) != [MODULE]:
        return f"several modules or agents are not supported: {', '.join(learner.module.keys())}"
    others = [name for name in _READ if getattr(type(learner), name) is not getattr(PPOTorchLearner, name)]
    if others:
        return f"{type(learner).__name__} is not supported: it has its own {', '.join(others)} (those of PPOTorchLearner are)"
    beside = {
        f"a learner on {learner.device}": torch.device(learner.device).type != "cpu",
        "a recurrent module": learner.module[MODULE].is_stateful(),
        "a learner connector of one's own": config._learner_connector,
        "a learner pipeline without its connectors": not config.add_default_connectors_to_learner_pipeline,
        "torch_compile_learner": config.torch_compile_learner,
        "a gradient scaler": config._torch_grad_scaler_class,
        "a learning-rate scheduler of torch": config._torch_lr_scheduler_classes,
    }
    return next((f"{words} is not supported" for words, there in beside.items() if there), "")
