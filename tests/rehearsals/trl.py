"""Launches of TRL: healthy ones, those of its own repository, and broken ones."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.rehearsals import broken, healthy
from tests.rehearsals.case import Case, Published

if TYPE_CHECKING:
    from pathlib import Path

_ZERO3 = "accelerate launch --config_file examples/accelerate_configs/deepspeed_zero3.yaml examples/scripts"
SCRIPTS = {
    "gspo.py": f"{_ZERO3}/gspo.py --model_name_or_path Qwen/Qwen3-0.6B --output_dir gspo-Qwen3-0.6B --learning_rate 1e-5"
    " --dtype bfloat16 --max_completion_length 1024 --use_peft --lora_target_modules q_proj v_proj --log_completions"
    " --per_device_train_batch_size 8 --num_generations 8 --importance_sampling_level sequence --epsilon 3e-4 --epsilon_high 4e-4"
    " --beta 0.0 --loss_type grpo --gradient_accumulation_steps 2 --steps_per_generation 8",
    "rloo.py": f"{_ZERO3}/rloo.py",
    "grpo_agent.py": "python examples/scripts/grpo_agent.py --model_name_or_path Qwen/Qwen3-1.7B --output_dir grpo_biogrid_qwen_3g-1.7b"
    " --push_to_hub True --use_vllm True --vllm_mode colocate --max_completion_length 1024 --report_to trackio --log_completions True"
    " --max_steps 400",
    "grpo_2048.py": "python examples/scripts/grpo_2048.py",
}
"""Scripts of TRL 1.9.0 (github.com/huggingface/trl), with the commands that they name themselves."""


def cases(checkout: Path | None) -> dict[str, Case]:
    """All launches by name."""
    published = {name: Published(checkout, command) for name, command in SCRIPTS.items()} if checkout else {}
    return {**healthy.HEALTHY, **published, "healthy": broken.HEALTHY, **broken.BROKEN}
