"""The names of verl's settings: how verl refuses one that it does not have, and which ones a schedule does not depend on."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rlstep_hooks.systems.engine.declaration import Keys
from rlstep_hooks.systems.engine.parts import Until

if TYPE_CHECKING:
    from collections.abc import Mapping

    from rlstep_hooks.launch.settings import Setting

_SHIPPED = (
    "ppo_trainer", "ppo_megatron_trainer", "ppo_torchtitan_trainer", "ppo_veomni_trainer", "dapo_trainer", "dapo_megatron_trainer",
)  # fmt: skip


def has_own_configuration(given: Mapping[str, Setting]) -> bool:
    """Whether the launch names a configuration that verl does not ship, whose keys are then not known."""
    name = given.get("config_name")
    return name is not None and str(name.value).removesuffix(".yaml") not in _SHIPPED


KEYS = Keys(
    file="verl/keys.json",
    refusal="Could not override '{name}'. To append to your config use +{name}=...",
    strict=(
        "module:verl.trainer.main_ppo",
        "module:verl.trainer.main_ppo_sync",
        "script:verl/trainer/main_ppo.py",
        "module:recipe.dapo.*",
    ),
    unless="rlstep_hooks.systems.verl.names:has_own_configuration",
    # workers/config/rollout.py 0.7.0 RolloutConfig.__post_init__; 0.6.1 takes it.
    until={
        "actor_rollout_ref.rollout.mode": Until(
            "sync",
            "0.7.0",
            "ValueError: Rollout mode 'sync' has been removed. Please set `actor_rollout_ref.rollout.mode=async` or remove the mode "
            "setting entirely.",
        )
    },
    # Flags of Hydra, and what DAPO's recipe adds (recipe/dapo/config/dapo_trainer.yaml).
    also=(
        "config_name",
        "config_path",
        "config_dir",
        "cn",
        "cp",
        "hydra.*",
        "hydra/*",
        "model_engine",
        "data.gen_batch_size",
        "algorithm.filter_groups.*",
        "reward_model.overlong_buffer.*",
        "reward.reward_kwargs.*",
    ),
    open=(
        "ray_kwargs.ray_init.*",  # ray.init(**...), trainer/main_ppo.py 0.7.0 run_ppo
        "ray_init.*",  # the same up to 0.5
        "*.fsdp_config.mixed_precision",
        "*.fsdp_config.mixed_precision.*",  # .get("mixed_precision"), workers/fsdp_workers.py 0.4:270
        "*.engine_kwargs.*",
        "*.val_kwargs.repetition_penalty",
        "*.rollout.repetition_penalty",
        "reward_model.reward_kwargs.*",  # **config.reward_model.get("reward_kwargs"), trainer/main_ppo.py
        "custom_reward_function.reward_kwargs.*",  # trainer/ppo/reward.py 0.7.0:92
        "reward.custom_reward_function.reward_kwargs.*",
        "reward_model.model.rm_tokenizer",
        # What the data set looks for (utils/dataset/rl_dataset.py, .get(...)).
        "data.cache_dir",
        "data.chat_template_func",
        "data.need_tools_kwargs",
        "data.filter_prompts",
    ),
    own_code={
        "data.*": "data.custom_cls.path",
        "reward_model.*": "custom_reward_function.path",
        "custom_reward_function.*": "custom_reward_function.path",
        "reward.*": "reward.custom_reward_function.path",
    },
    forked=True,
    no_effect=(
        "trainer.project_name",
        "trainer.experiment_name",
        "trainer.logger",
        "trainer.log_val_generations",
        "trainer.val_generations_to_log_to_wandb",
        "trainer.default_local_dir",
        "trainer.default_hdfs_dir",
        "trainer.rollout_data_dir",
        "trainer.validation_data_dir",
        "trainer.max_actor_ckpt_to_keep",
        "trainer.max_critic_ckpt_to_keep",
        "trainer.del_local_ckpt_after_load",
        "trainer.ray_wait_register_center_timeout",
        "trainer.device",
        "data.val_files",
        "data.val_batch_size",
        "data.prompt_key",
        "data.reward_fn_key",
        "data.image_key",
        "data.video_key",
        "data.max_response_length",
        "data.return_raw_*",
        "data.trust_remote_code",
        "data.tokenizer",
        "data.dataloader_num_workers",
        "actor_rollout_ref.hybrid_engine",
        "actor_rollout_ref.model.path",
        "actor_rollout_ref.model.use_remove_padding",
        "actor_rollout_ref.model.enable_gradient_checkpointing",
        "actor_rollout_ref.model.enable_activation_offload",
        "actor_rollout_ref.model.use_shm",
        "actor_rollout_ref.model.trust_remote_code",
        "actor_rollout_ref.model.lora_*",
        "actor_rollout_ref.model.target_modules",
        "actor_rollout_ref.*.fsdp_config.*offload",
        "actor_rollout_ref.*.fsdp_config.fsdp_size",
        "actor_rollout_ref.*.fsdp_config.forward_prefetch",
        "actor_rollout_ref.actor.optim.lr",
        "actor_rollout_ref.actor.optim.weight_decay",
        "actor_rollout_ref.actor.optim.betas",
        "actor_rollout_ref.actor.grad_clip",
        "actor_rollout_ref.actor.clip_ratio*",
        "actor_rollout_ref.actor.entropy_coeff",
        "actor_rollout_ref.actor.kl_loss_coef",
        "actor_rollout_ref.actor.kl_loss_type",
        "actor_rollout_ref.actor.loss_agg_mode",
        "actor_rollout_ref.actor.use_torch_compile",
        "actor_rollout_ref.actor.checkpoint.*",
        "actor_rollout_ref.rollout.name",
        "actor_rollout_ref.rollout.gpu_memory_utilization",
        "actor_rollout_ref.rollout.enforce_eager",
        "actor_rollout_ref.rollout.dtype",
        "actor_rollout_ref.rollout.load_format",
        "actor_rollout_ref.rollout.max_num_batched_tokens",
        "actor_rollout_ref.rollout.max_num_seqs",
        "actor_rollout_ref.rollout.max_model_len",
        "actor_rollout_ref.rollout.enable_chunked_prefill",
        "actor_rollout_ref.rollout.disable_log_stats",
        "actor_rollout_ref.rollout.val_kwargs.*",
        "critic.model.path",
        "critic.model.use_remove_padding",
        "critic.model.enable_gradient_checkpointing",
        "critic.model.fsdp_config.*offload",
        "critic.optim.lr",
        "critic.optim.weight_decay",
        "critic.grad_clip",
        "critic.cliprange_value",
        "algorithm.gamma",
        "algorithm.lam",
        "algorithm.kl_ctrl.*",
        "algorithm.kl_penalty",
        "algorithm.norm_adv_by_std_in_grpo",
        "custom_reward_function.*",
        "reward.custom_reward_function.*",
        "reward_model.overlong_buffer.*",
    ),
)
"""Settings that no schedule depends on, looked at in the trainers and workers of 0.6.1 to 0.9.1."""
