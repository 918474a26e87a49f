"""Tiny runs of AReaL's own PPOTrainer: its rollout engine, its FSDP2 engine over gloo, its workflow and its loop, unchanged.

What stands in is the server that vLLM would be (`server`). Attention is torch's own, in float32, since there is no flash-attention on a
CPU; each sample is then a micro-batch of its own, because AReaL tells torch's attention nothing of the samples in a pack.
"""

from __future__ import annotations

import os
import random
from contextlib import nullcontext
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from areal.api import cli_args
from areal.trainer.rl_trainer import PPOTrainer
from areal.utils import name_resolve
from areal.utils.data import concat_padded_tensors
from areal.workflow.rlvr import RLVRWorkflow

from rlstep_hooks import StepAuditAReaL
from tests.cpu.sampling_server import served
from tests.systems.areal.server import Service

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from rlstep_hooks.judge.report import Report

ROWS = [
    {"messages": [{"role": "user", "content": f"{a}+{b}="}], "answer": str(a + b)} for a in range(3) for b in range(4)
]
WORKFLOW = "areal.workflow.rlvr.RLVRWorkflow"


def reward(prompt: str, completion: str, prompt_ids: list[int], completion_ids: list[int], **row: Any) -> float:
    """How many of the drawn tokens have an even number, by a quarter."""
    return sum(token % 2 == 0 for token in completion_ids) / 4


class OneOrTwo(RLVRWorkflow):
    """A workflow of somebody's own: an episode may be two samples, and the last token but one does not count."""

    async def arun_episode(self, engine: Any, data: dict[str, Any]) -> dict[str, torch.Tensor]:
        """Draw one sample or two."""
        made = [await super().arun_episode(engine, data)]
        if float(made[0]["rewards"]) > 1:
            made.append(await super().arun_episode(engine, data))
        for sample in made:
            sample["loss_mask"][:, -2] = 0
        return concat_padded_tensors(made)


def config(home: Path, place: Path, *, reference: bool = False, **changes: Any) -> Any:
    """Rollouts of 4 prompts with 4 samples each, in 4 mini-batches; other settings of `changes`, by their dotted names, replace these.

    Args:
        home: Has the model.
        place: A new folder for what AReaL writes.
        reference: Whether there is a reference, the model itself.
        changes: Settings.
    """
    names = {"experiment_name": "tests", "trial_name": place.name.replace("-", "x")}
    files, model = names | {"fileroot": str(place)}, str(home / "model")
    made = cli_args.GRPOConfig(
        **names,
        tokenizer_path=model,
        cluster=cli_args.ClusterSpecConfig(
            fileroot=str(place), name_resolve=cli_args.NameResolveConfig(nfs_record_root=str(place / "names"))
        ),
        gconfig=cli_args.GenerationHyperparameters(n_samples=4, max_new_tokens=8),
        rollout=cli_args.InferenceEngineConfig(**files, backend="vllm:d1", consumer_batch_size=4, tokenizer_path=model),
        actor=cli_args.PPOActorConfig(
            **names,
            backend="fsdp:d1",
            path=model,
            attn_impl="sdpa",
            dtype="float32",
            weight_update_mode="disk",
            optimizer=cli_args.OptimizerConfig(lr=3e-3, warmup_steps_proportion=0.0),
            kl_ctl=0.0,
            recompute_logprob=True,
            reward_norm=cli_args.NormConfig(mean_level="group", std_level="group", group_size=4),
            mb_spec=cli_args.MicroBatchSpec(max_tokens_per_mb=40),
        ),
        vllm=cli_args.vLLMConfig(dtype="float32"),
        train_dataset=cli_args.TrainDatasetConfig(path="rows", type="rl", batch_size=4),
        saver=cli_args.SaverConfig(**files),
        evaluator=cli_args.EvaluatorConfig(**files),
        recover=cli_args.RecoverConfig(**files),
        stats_logger=cli_args.StatsLoggerConfig(**files),
    )
    if reference:
        made.ref = cli_args.PPOActorConfig(
            **names,
            backend="fsdp:d1",
            path=model,
            attn_impl="sdpa",
            dtype="float32",
            mb_spec=cli_args.MicroBatchSpec(max_tokens_per_mb=40),
        )
    for name, value in changes.items():
        *sections, last = name.split(".")
        owner = made
        for section in sections:
            owner = getattr(owner, section)
        setattr(owner, last, value)
    return made


def trained(
    home: Path,
    place: Path,
    breaks: Callable[[Any], None] = lambda trainer: None,
    finally_: Callable[[Any], None] = lambda trainer: None,
    *,
    audited: bool = True,
    keeps: bool = False,
    workflow: str = WORKFLOW,
    options: dict[str, Any] | None = None,
    **changes: Any,
) -> Report:
    """Train with the audit, and return its report.

    Args:
        home: Has the model.
        place: A new folder for what AReaL writes.
        breaks: Changes the trainer before the audit is attached.
        finally_: Looks at the trainer once the audit has ended.
        audited: Whether there is an audit; there is no report else.
        keeps: Whether the server keeps the weights that it began with.
        workflow: What makes episodes.
        options: Of the audit.
        changes: Of `config`.
    """
    random.seed(1), np.random.seed(1), torch.manual_seed(1)
    settings = config(home, place, **changes)
    name_resolve.reconfigure(settings.cluster.name_resolve)
    with served(Service(home / "model", keeps=keeps)) as address:
        os.environ["AREAL_LLM_SERVER_ADDRS"] = address
        with PPOTrainer(settings, train_dataset=ROWS) as trainer:
            breaks(trainer)
            given = {"log_dir": None, "listeners": ()} | (options or {})
            audit: Any = StepAuditAReaL(trainer, **given) if audited else nullcontext()
            asked = {
                "reward_fn": "tests.systems.areal.tiny.reward",
                "gconfig": settings.gconfig,
                "tokenizer": settings.tokenizer_path,
            }
            with audit:
                trainer.train(workflow=workflow, workflow_kwargs=asked)
            finally_(trainer)
    return audit.report if audited else None
