"""The names of TRL's settings: how it refuses one that it does not have, and which ones a schedule does not depend on."""

from __future__ import annotations

from rlstep_hooks.systems.engine.declaration import Keys

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
