"""What TRL's own parsers make of a setting that the release does not have: refused, handed on to accelerate, or dropped without a word.

Read in the wheels from 0.14.0 to 1.16.0: trl/scripts/grpo.py (the call of the parser), trl/scripts/utils.py `TrlParser`, trl/cli.py and
trl/cli/commands/training.py; the same in rloo.py.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from rlstep_hooks.launch.arguments import canonical
from rlstep_hooks.systems.engine.abbreviations import is_flag
from rlstep_hooks.systems.engine.parts import Said
from rlstep_hooks.systems.engine.request import release_of

if TYPE_CHECKING:
    from rlstep_hooks.launch.command import Command, OwnParser
    from rlstep_hooks.launch.settings import Setting

_SCRIPT = "trl/scripts/grpo.py"
_REMAINING = f"{_SCRIPT} parses with `return_remaining_strings=True` and drops what is left"


def said(command: Command, setting: Setting, version: str) -> Said | None:
    """What a release makes of a setting that it does not have; None if accelerate takes it.

    Args:
        command: The command.
        setting: An argument, a name in YAML, or a keyword of a call in a Python file.
        version: The release.
    """
    release, name = release_of(version), canonical(setting.written or setting.name)
    if setting.place.source.endswith((".py", ".ipynb")):
        callee, _, keyword = setting.name.partition(".")
        return Said(f"TypeError: {callee}.__init__() got an unexpected keyword argument '{keyword}'")
    if command.parser is not None:
        return _by_own_parser(command.parser, setting, name, release)
    if command.program.kind == "config":
        return Said("what reads this file is not known; `trl grpo` ends the run, and the script alone drops it", False)
    if command.program.name.startswith("trl ") and release >= (0, 29):
        # What is left over is for `accelerate launch` (cli/commands/training.py).
        return None if name in LAUNCH else Said(f"Accelerate launch command: error: unrecognized arguments: --{name}")
    if (0, 22) <= release < (1,):
        return Said(_REMAINING, refuses=False)
    if is_flag(setting):
        return _unknown_flag(setting)
    if release < _CHECKS_FILES:
        return _PASSES_OVER
    if release < (1,):
        return _unknown_in_file(setting, name)
    return Said(f"{_SCRIPT} parses with `fail_with_unknown_args=False`, which drops names in YAML", refuses=False)


def _by_own_parser(parser: OwnParser, setting: Setting, name: str, release: tuple[int, ...]) -> Said:
    """What the parser of a program of somebody's own makes of a name that none of its dataclasses has."""
    if parser.keeps_rest:
        return Said(f"{parser.program} parses with `return_remaining_strings=True`, which hands it back", refuses=False)
    if is_flag(setting):
        return _unknown_flag(setting)
    if release < _CHECKS_FILES:
        return _PASSES_OVER
    if parser.passes_over:
        says = f"{parser.program} parses with `fail_with_unknown_args=False`, which drops names in YAML"
        return Said(says, refuses=False)
    return _unknown_in_file(setting, name)


def _unknown_flag(setting: Setting) -> Said:
    return Said(
        f"ValueError: Some specified arguments are not used by the HfArgumentParser: ['{setting.written}', ...]"
    )


def _unknown_in_file(setting: Setting, name: str) -> Said:
    return Said(f"ValueError: Unknown arguments from config file: ['--{name}', '{setting.value}']")


_CHECKS_FILES = (0, 19)
"""The first release whose `TrlParser.parse_args_and_config` ends the run at names in YAML that no dataclass has."""
_PASSES_OVER = Said("`TrlParser.set_defaults_with_config` passes over names that no argument has", refuses=False)

LAUNCH = frozenset(
    (
        "accelerate_config", "aws_access_key_id", "aws_secret_access_key", "config_file", "cpu", "debug",
        "deepspeed_config_file", "deepspeed_exclusion_filter", "deepspeed_hostfile", "deepspeed_inclusion_filter",
        "deepspeed_moe_layer_cls_names", "deepspeed_multinode_launcher", "downcast_bf16", "dynamo_backend", "dynamo_mode",
        "dynamo_use_dynamic", "dynamo_use_fullgraph", "dynamo_use_regional_compilation", "enable_cpu_affinity", "env",
        "fp8_amax_compute_algo", "fp8_amax_history_len", "fp8_backend", "fp8_enable_fsdp_float8_all_gather", "fp8_format",
        "fp8_interval", "fp8_margin", "fp8_opt_level", "fp8_override_linear_precision", "fp8_pad_inner_dim",
        "fp8_use_autocast_during_eval", "fsdp_activation_checkpointing", "fsdp_activation_checkpointing_offload",
        "fsdp_auto_wrap_policy", "fsdp_backward_prefetch", "fsdp_cpu_ram_efficient_loading", "fsdp_forward_prefetch",
        "fsdp_min_num_params", "fsdp_offload_params", "fsdp_reshard_after_forward", "fsdp_sharding_strategy",
        "fsdp_state_dict_type", "fsdp_sync_module_states", "fsdp_transformer_layer_cls_to_wrap", "fsdp_use_orig_params",
        "fsdp_version", "gpu_ids", "gradient_accumulation_steps", "gradient_clipping", "log_dir", "machine_rank",
        "main_process_ip", "main_process_port", "main_training_function", "max_restarts", "megatron_lm_attention_backend",
        "megatron_lm_attention_dropout", "megatron_lm_attention_softmax_in_fp32", "megatron_lm_calculate_per_token_loss",
        "megatron_lm_context_parallel_size", "megatron_lm_decoder_last_pipeline_num_layers", "megatron_lm_eod_mask_loss",
        "megatron_lm_expert_model_parallel_size", "megatron_lm_expert_tensor_parallel_size", "megatron_lm_gradient_clipping",
        "megatron_lm_hidden_dropout", "megatron_lm_no_load_optim", "megatron_lm_no_save_optim", "megatron_lm_num_micro_batches",
        "megatron_lm_optimizer_cpu_offload", "megatron_lm_overlap_cpu_optimizer_d2h_h2d", "megatron_lm_pp_degree",
        "megatron_lm_recompute_activations", "megatron_lm_recompute_granularity", "megatron_lm_recompute_method",
        "megatron_lm_recompute_num_layers", "megatron_lm_sequence_parallelism", "megatron_lm_tp_degree",
        "megatron_lm_use_custom_fsdp", "megatron_lm_use_distributed_optimizer", "megatron_lm_use_precision_aware_optimizer",
        "megatron_lm_use_rotary_position_embeddings", "mixed_precision", "module", "monitor_interval", "mpirun_hostfile",
        "multi_gpu", "no_python", "no_tpu_cluster", "num_cpu_threads_per_process", "num_machines", "num_processes",
        "offload_optimizer_device", "offload_optimizer_nvme_path", "offload_param_device", "offload_param_nvme_path",
        "parallelism_config_cp_backend", "parallelism_config_cp_comm_strategy", "parallelism_config_cp_size",
        "parallelism_config_dp_replicate_size", "parallelism_config_dp_shard_size", "parallelism_config_sp_attn_implementation",
        "parallelism_config_sp_backend", "parallelism_config_sp_seq_length", "parallelism_config_sp_seq_length_is_variable",
        "parallelism_config_sp_size", "parallelism_config_tp_size", "quiet", "rdzv_backend", "rdzv_conf", "role", "same_network",
        "tee", "tpu", "tpu_cluster", "tpu_use_sudo", "use_deepspeed", "use_fsdp", "use_megatron_lm", "use_parallelism_config",
        "vm", "zero3_init_flag", "zero3_save_16bit_model", "zero_stage",
    )
)  # fmt: skip
"""The options of `accelerate launch` (1.15.0 commands/launch.py), and the one of TRL's own that names a configuration for it."""
