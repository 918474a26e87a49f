"""The names of TRL's settings: how it refuses others, which ones a schedule does not depend on, and which its scripts alone have."""

from __future__ import annotations

from rlstep_hooks.systems.engine.declaration import Keys

OF_TRL = (
    "num_generations", "per_device_train_batch_size", "output_dir", "TrlParser.", "HfArgumentParser.", "GRPOTrainer.",
)  # fmt: skip
"""What only launches of TRL's scripts have: its users give them the names of other frameworks' programs."""

TRAINER_TAKES = frozenset((
    "model", "reward_funcs", "args", "train_dataset", "eval_dataset", "processing_class", "reward_processing_classes", "callbacks",
    "optimizers", "quantization_config", "peft_config", "tools", "rollout_func", "environment_factory",
))  # fmt: skip
"""Keywords that any release of GRPOTrainer takes (trl 0.16.1 trl/trainer/grpo_trainer.py:257 and 1.16.0:302 have the fewest and the
most)."""

KEYS = Keys(
    file="trl/keys.json",
    refusal="ValueError: Some specified arguments are not used by the HfArgumentParser: ['{written}', ...]",
    strict=(
        "executable:trl grpo",
        "executable:trl rloo",
        "module:trl.scripts.grpo",
        "module:trl.scripts.rloo",
        "script:trl/scripts/grpo.py",
        "script:trl/scripts/rloo.py",
    ),
    parsed=frozenset(
        f"trl.{name}" for name in ("GRPOConfig", "RLOOConfig", "GRPOScriptArguments", "ModelConfig", "ScriptArguments")
    ),
    abbreviated=True,
    dashed=True,
    says="rlstep_hooks.systems.trl.parser:said",
    also=("no_*", "env"),
    no_effect=(
        "output_dir",
        "run_name",
        "project",
        "report_to",
        "logging_*",
        "log_*",
        "push_to_hub",
        "hub_*",
        "bf16",
        "fp16",
        "tf32",
        "gradient_checkpointing*",
        "dataloader_num_workers",
        "dataloader_pin_memory",
        "save_total_limit",
        "save_only_model",
        "max_grad_norm",
        "weight_decay",
        "adam_*",
        "model_name_or_path",
        "attn_implementation",
        "dtype",
        "torch_dtype",
        "trust_remote_code",
        "lora_*",
        "load_in_*bit",
        "max_completion_length",
        "epsilon",
        "epsilon_high",
        "reward_weights",
        "disable_tqdm",
        "vllm_gpu_memory_utilization",
        "vllm_server_*",
        "wandb_*",
    ),
)
