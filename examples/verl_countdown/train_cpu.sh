#!/usr/bin/env bash
# The same run without a GPU, in about a minute: a tiny model with random weights, and this repository's tests/cpu in place of
# CUDA and vLLM. It shows the audit at work; such a model learns nothing.
set -euo pipefail

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
FOLDER=$(mkdir -p "${FOLDER:-countdown}" && cd "${FOLDER:-countdown}" && pwd)
export FOLDER MODEL=$FOLDER/model

export PYTHONPATH="$here/../../tests/cpu${PYTHONPATH:+:$PYTHONPATH}"
python -c "from pathlib import Path; from verl_cpu.assets import write_model; write_model(Path('$MODEL'))"

export VERL_PLATFORM=cpu VERL_ENGINE_DEVICE=cuda VERL_USE_EXTERNAL_MODULES=verl_cpu.plugin
export OMP_NUM_THREADS=1 TOKENIZERS_PARALLELISM=false HF_HUB_OFFLINE=1 RAY_USAGE_STATS_ENABLED=0

no_cuda=(
  actor_rollout_ref.model.use_remove_padding=False
  +actor_rollout_ref.model.override_config.attn_implementation=eager
  actor_rollout_ref.actor.strategy=fsdp2
  actor_rollout_ref.actor.use_torch_compile=False
  actor_rollout_ref.actor.fsdp_config.use_torch_compile=False
  +actor_rollout_ref.actor.fsdp_config.mixed_precision.param_dtype=fp32
  actor_rollout_ref.rollout.name=hf_cpu
  actor_rollout_ref.rollout.dtype=float32
  critic.strategy=fsdp2
  critic.model.tokenizer_path="$MODEL"
  critic.model.use_remove_padding=False
  +critic.model.override_config.attn_implementation=eager
  critic.fsdp.use_torch_compile=False
  +critic.fsdp.mixed_precision.param_dtype=fp32
  trainer.device=cpu
  +ray_kwargs.ray_init.num_gpus=1
)
small=(
  # The tiny model reads bytes, and answers with a few.
  data.max_prompt_length=320
  data.max_response_length=16
  data.dataloader_num_workers=0
  actor_rollout_ref.actor.optim.lr=1e-3
  actor_rollout_ref.rollout.agent.num_workers=1
  reward.num_workers=1
  transfer_queue.backend.SimpleStorage.num_data_storage_units=1
  ray_kwargs.ray_init.num_cpus=8
  +ray_kwargs.ray_init.include_dashboard=False
  +ray_kwargs.ray_init.address=local
)
exec bash "$here/train.sh" "${no_cuda[@]}" "${small[@]}" "$@"
