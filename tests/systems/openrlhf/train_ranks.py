"""`train_ranks.py FOLDER`, started once for each rank: trains many cases with OpenRLHF's own policy trainer under DeepSpeed, one after
the other.

Ray, engine and controller are left out, so that a case takes seconds: OpenRLHF's strategy, model, buffer, loop and loss are real, the
samples are random tokens, and what a controller would record is written by the test. The observer is the one of real runs.
"""

from __future__ import annotations

import os
import sys
import types
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from rlstep_hooks.systems.openrlhf.rehearse import cpu
from tests.cpu.openrlhf_cpu.assets import write_model, write_rows
from tests.systems.openrlhf.launch import Assets, command, reinforce

if TYPE_CHECKING:
    from collections.abc import Mapping

ROLLOUT, PROMPT, RESPONSE = 8, 3, 6
"""Samples of one rank and rollout; tokens of each."""


class Case(msgspec.Struct, frozen=True):
    """One run of two ranks."""

    name: str
    stage: int = 2
    settings: dict[str, Any] = {}
    """Flags of OpenRLHF."""
    faults: dict[str, int] = {}
    """Fault -> rollout."""
    rollouts: int = 3


class _ReadError(Exception):
    """Ends OpenRLHF's parser once the arguments are read."""


def arguments(flags: Mapping[str, Any]) -> Any:
    """What OpenRLHF makes of flags, as far as its own parser goes (cli/train_ppo_ray.py 0.11.2:627), and what it completes of it."""
    import runpy

    from openrlhf.utils import config

    plain, given = config.hierarchize, sys.argv
    read: list[Any] = []

    def keep(args: Any) -> Any:
        read.append(plain(args))
        raise _ReadError

    config.hierarchize, sys.argv = keep, command(flags)[2:]
    try:
        runpy.run_module("openrlhf.cli.train_ppo_ray", run_name="__main__")
    except _ReadError:
        pass
    finally:
        config.hierarchize, sys.argv = plain, given
    args = read[0]
    args.actor.eps_clip_low_high = (args.actor.eps_clip, args.actor.eps_clip)
    threshold = args.algo.advantage.is_correction_threshold
    args.algo.advantage.is_correction_threshold = [0.0, *threshold][-2:]
    args.critic.model_name_or_path = None
    args.local_rank = int(os.environ["LOCAL_RANK"])
    return args


def strategy_of(args: Any) -> Any:
    """OpenRLHF's strategy, set up."""
    from openrlhf.utils import get_strategy

    strategy = get_strategy(args)
    strategy.setup_distributed()
    return strategy


def trainer_of(args: Any, strategy: Any, updates: int) -> Any:
    """OpenRLHF's trainer of the policy, made as its process does (trainer/ray/ppo_actor.py 0.11.2 `init_model_from_pretrained`)."""
    from openrlhf.models import Actor
    from openrlhf.trainer.ray.ppo_actor import ActorPPOTrainer

    lora = args.ds.lora
    actor = Actor(
        args.actor.model_name_or_path,
        attn_implementation=args.ds.attn_implementation,
        param_dtype=args.ds.param_dtype,
        lora_rank=lora.rank,
        lora_alpha=lora.alpha,
        lora_dropout=lora.dropout,
        target_modules=lora.target_modules,
        ds_config=strategy.get_ds_train_config(),
        temperature=args.rollout.temperature,
    )
    of = args.actor
    settings = {
        "optim": of.optim,
        "muon": vars(of.muon),
        "adam": vars(of.adam),
        "lr_scheduler": of.lr_scheduler,
        "lr_warmup_ratio": of.lr_warmup_ratio,
        "min_lr_ratio": of.min_lr_ratio,
        "max_norm": of.max_norm,
        "scheduler_steps": updates,
    }
    model, optimizer, scheduler = strategy.prepare((actor, settings))
    return ActorPPOTrainer(
        strategy,
        model,
        ema_model=averaged_of(args, strategy) if args.train.enable_ema else None,
        ema_beta=args.train.ema_beta,
        actor_optim=optimizer,
        actor_scheduler=scheduler,
        micro_train_batch_size=args.train.micro_batch_size,
        dataloader_pin_memory=False,
        eps_clip=args.actor.eps_clip,
    )


def averaged_of(args: Any, strategy: Any) -> Any:
    """The model of averaged weights, made as OpenRLHF's process does (trainer/ray/ppo_actor.py 0.11.2:536)."""
    from openrlhf.models import Actor

    model = Actor(
        args.actor.model_name_or_path,
        attn_implementation=args.ds.attn_implementation,
        param_dtype=args.ds.param_dtype,
        ds_config=strategy.get_ds_eval_config(offload=True),
    )
    model._offload = True
    return strategy.prepare(model)


def save(trainer: Any, folder: Path) -> None:
    """Save the model for others, as OpenRLHF's process does (trainer/ray/ppo_actor.py 0.11.2:609)."""
    from transformers import AutoTokenizer

    args = trainer.args
    tokenizer = AutoTokenizer.from_pretrained(args.actor.model_name_or_path)
    model = trainer.ema_model if args.train.enable_ema else trainer.actor
    trainer.strategy.save_model(model, tokenizer, str(folder / "saved"))


def sends_to_nobody(trainer: Any) -> None:
    """Give the trainer's own sync what `ActorPPOTrainer.__init__` gives it where there are engines, but none of them."""
    import torch

    trainer.vllm_engines = []
    if torch.distributed.get_rank() == 0:
        trainer._model_update_group = types.SimpleNamespace(broadcast=lambda tensor, src, stream: None)


def rollout(trainer: Any, watch: Any) -> None:
    """Put random samples with their old log-probs into the buffer, as calls of a controller do."""
    import torch
    from openrlhf.trainer.ppo_utils.experience import Experience

    length = PROMPT + RESPONSE
    sequences = torch.randint(4, 128, (ROLLOUT, length))
    attention, mask = torch.ones_like(sequences), torch.zeros(ROLLOUT, length - 1, dtype=torch.bool)
    mask[:, PROMPT - 1 :] = True
    watch.begin("refresh")
    trainer.actor.eval()
    with torch.no_grad():
        log_probs = trainer.actor(sequences, mask, attention_mask=attention)
    data = {"sequences": [sequences], "attention_mask": [attention], "action_mask": [mask]}
    watch.refreshed(data, slice(0, 1), [log_probs], watch.version)
    watch.end("refresh")
    trainer.replay_buffer.append(
        Experience(
            sequences=sequences,
            attention_mask=attention,
            action_mask=mask,
            action_log_probs=log_probs,
            base_action_log_probs=log_probs.clone(),
            rollout_log_probs=log_probs.clone(),
            advantages=torch.randn(ROLLOUT, 1).expand_as(log_probs) * mask,
            returns=torch.zeros_like(log_probs),
            kl=torch.zeros_like(log_probs),
            rewards=torch.zeros(ROLLOUT),
            response_length=torch.full((ROLLOUT,), float(RESPONSE)),
            total_length=torch.full((ROLLOUT,), float(length)),
            truncated=torch.zeros(ROLLOUT),
            info={},
        )
    )
    watch.appended()


def train(case: Case, model: Path, folder: Path) -> Any:
    """Train one case, and leave its record. OpenRLHF's trainer, when it is done."""
    import torch

    from rlstep_hooks.systems.openrlhf.observe.environment import FOLDER, RUN
    from rlstep_hooks.systems.openrlhf.observe.trainer import OpenRlhfTrainer
    from tests.systems.openrlhf.faults import FAULTS, Now

    os.environ |= {FOLDER: str(folder), RUN: "run"}
    assets = Assets(model, folder)
    flags = reinforce(assets, folder, rows=8 * case.rollouts) | {
        "train.micro_batch_size": 2,
        "ds.zero_stage": case.stage,
    }
    args = arguments(flags | case.settings)
    first = Now.training + 1
    for name, at in case.faults.items():
        FAULTS[name].apply(first + at)
    if args.ds.adam_offload:
        cpu.no_compiler(sys.modules["openrlhf.utils.deepspeed.deepspeed"])
    trainer = trainer_of(args, strategy_of(args), 2 * case.rollouts * args.train.max_epochs)
    sends_to_nobody(trainer)
    watch = OpenRlhfTrainer(trainer, "policy", trainer.actor.model)
    torch.manual_seed(torch.distributed.get_rank())
    for _ in range(case.rollouts):
        rollout(trainer, watch)
        trainer.ppo_train(args.algo.kl.init_coef)
        trainer.replay_buffer.clear()
        trainer.broadcast_to_vllm()
        save(trainer, folder)
    return trainer


def begin(folder: Path) -> None:
    """Join the ranks, with what stands in for a GPU, and a model and prompts in a folder."""
    cpu.install()
    from rlstep_hooks.record import cadence

    cadence.ALL_OF_FIRST = 1 << 30  # each rollout can have a fault
    import torch

    from tests.systems.openrlhf import faults, rank_faults

    assert rank_faults.NAMES
    faults.follow_training()
    if os.environ["RANK"] == "0":
        write_model(folder / "model")
        write_rows(folder / "prompts.jsonl", 8)
    import deepspeed

    deepspeed.init_distributed()
    torch.distributed.barrier()


def main(folder: Path) -> None:
    """Train all cases of a folder."""
    cases = msgspec.json.decode((folder / "cases.json").read_bytes(), type=list[Case])
    begin(folder)
    for case in cases:
        (folder / case.name).mkdir(exist_ok=True)
        train(case, folder / "model", folder / case.name)
        (folder / case.name / f"done{os.environ['RANK']}").touch()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
