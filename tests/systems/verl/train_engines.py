"""Run by torchrun from test_engines: verl's own training workers on two ranks, one after another in one process group, without Ray.

    torchrun --nproc_per_node 2 train_engines.py FOLDER MODEL CASE...

Each rank follows its engines as it does in a run with a controller, and rank 0 joins what both recorded. A case is words joined by "-":
settings, and a fault of `tests.systems.verl.rank_faults`.
"""

from __future__ import annotations

import json
import os
import sys
import traceback
import warnings
from functools import partial
from pathlib import Path
from typing import Any

os.environ |= {"VERL_USE_EXTERNAL_MODULES": "verl_cpu.plugin", "WG_PREFIX": "test"}

import torch
import verl  # noqa: F401 - installs what stands in for a GPU
from tensordict import NonTensorData
from verl.utils import tensordict_utils
from verl.workers import engine_workers
from verl.workers.config import FSDPEngineConfig, FSDPOptimizerConfig, HFModelConfig, TrainingWorkerConfig
from verl.workers.utils.losses import sft_loss

from rlstep_hooks.judge.ranks.reduction.outcome import judge_reductions
from rlstep_hooks.judge.ranks.replicas import judge_replicas
from rlstep_hooks.observe.patches import Patches
from rlstep_hooks.record.events import Measured, RunStarted, Unobserved, UpdateValues
from rlstep_hooks.record.ledger import Record, records
from rlstep_hooks.systems.verl.observe import trainer as observed
from rlstep_hooks.systems.verl.observe import trainer_hooks
from rlstep_hooks.systems.verl.observe.environment import FOLDER
from tests.systems.verl import faults, flat_on_cpu, packed_attention

UPDATES = 4
STEPS = (
    "index",
    "left_over",
    "optimizer_off",
    "moments_lost",
    "moments_off",
    "steps_lost",
    "gradient_norm",
    "gradient_off",
    "moved_before",
    "tensors_moved",
)
"""Fields of `UpdateValues` that are told of each step."""
ROWS = 6
"""Samples of an update on one rank."""


def settings_of(words: list[str]) -> dict[str, Any]:
    """The engine of a case."""
    dtype = "bf16" if "bf16" in words else "fp32"
    return {
        "strategy": "fsdp" if "fsdp1" in words else "fsdp2",
        "use_torch_compile": False,
        "fsdp_size": 1 if "whole" in words else -1,
        "param_offload": "offload" in words,
        "optimizer_offload": "offload" in words,
        "offload_policy": "policy" in words,
        "use_orig_params": "orig" in words,
        "use_no_sync_for_gradient_accumulation": "eachsynced" not in words,
        "mixed_precision": {"param_dtype": dtype, "reduce_dtype": "bf16" if "reducedbf16" in words else "fp32"},
        "use_dynamic_bsz": "dynamic" in words,
        "max_token_len_per_gpu": 40,
        "micro_batch_size_per_gpu": 2,
        "ulysses_sequence_parallel_size": 2 if "ulysses" in words else 1,
    }


def worker_of(model: str, words: list[str]) -> Any:
    """verl's training worker of a case, with its model and optimizer."""
    lora = {"lora_rank": 4, "lora_alpha": 8, "target_modules": "all-linear"} if "lora" in words else {}
    settings = HFModelConfig(
        path=model,
        use_remove_padding="ulysses" in words,
        override_config={"attn_implementation": packed_attention.NAME if "ulysses" in words else "eager"},
        enable_gradient_checkpointing="plain" not in words,
        **lora,
    )
    critic = "critic" in words
    worker = engine_workers.TrainingWorker(
        TrainingWorkerConfig(
            model_type="value_model" if critic else "language_model",
            model_config=settings,
            engine_config=FSDPEngineConfig(**settings_of(words)),
            optimizer_config=FSDPOptimizerConfig(lr=1e-3, clip_grad=0.05, total_training_steps=UPDATES),
        )
    )
    worker.reset()
    worker.set_loss_fn(_value_loss if critic else partial(sft_loss, config=None))
    return worker


def _value_loss(model_output: Any, data: Any, dp_group: Any = None) -> Any:
    values, mask = model_output["values"].values(), data["loss_mask"].values()
    return ((values - 1.0) ** 2 * mask).sum() / data["batch_num_tokens"] * data["dp_size"], {}


def samples(update: int, vocabulary: int, words: list[str]) -> Any:
    """Those of one rank in one update, of uneven lengths. Ranks that share sequences have the same."""
    rank, ranks = (0, 1) if "ulysses" in words else (int(os.environ["RANK"]), 2)
    draw = torch.Generator().manual_seed(1000 * update + rank)
    lengths = [int(torch.randint(5, 16, (), generator=draw)) for _ in range(ROWS)]
    rows = [torch.randint(5, vocabulary, (length,), generator=draw) for length in lengths]
    nested = partial(torch.nested.as_nested_tensor, layout=torch.jagged)
    data = tensordict_utils.get_tensordict(
        tensor_dict={
            "input_ids": nested(rows),
            "position_ids": nested([torch.arange(length) for length in lengths]),
            "loss_mask": nested([torch.ones(length) for length in lengths]),
        },
        non_tensor_dict={"temperature": 1.0, "global_batch_size": ranks * ROWS, "pad_token_id": 0},
    )
    tensordict_utils.assign_non_tensor(data, update_lr_scheduler=True, global_token_num=NonTensorData(lengths))
    return data


def train(folder: Path, model: str, number: int, case: str) -> dict[str, Any]:
    """Train a case; what rank 0 tells of it."""
    words = case.split("-")
    os.environ[FOLDER] = str(folder / case)
    observed.run_of_ray = lambda: f"case{number}"
    trainer_hooks._trainer = None
    faults._Now.rollout = number
    worker = worker_of(model, words)
    # What a worker does with each sync of weights, of which the first comes before the first rollout.
    trainer = trainer_hooks._trainer
    if trainer is not None:
        trainer.synced(None)
    for update in range(UPDATES):
        worker.train_batch(samples(update, 200, words))
    if trainer is not None:
        trainer.send_numbers()
        trainer.synced(None)
    torch.distributed.barrier()
    found = records(folder / case)[f"case{number}"]
    started = RunStarted(run=f"case{number}", rank=0, world_size=2, schedule=None)
    reductions, outcomes = judge_reductions(found, started)
    replicas, of_replicas = judge_replicas(found, started)
    gaps = [event for event in found[0].events() if isinstance(event, Unobserved)]
    return {
        "findings": [[f.code, f.severity, f.where.rank, f.where.update, f.observed] for f in (*reductions, *replicas)],
        "rules": {
            rule.code: [rule.verdict, rule.checks, rule.missed, rule.reason] for rule in (*outcomes, *of_replicas)
        },
        "not_observed": {event.what: event.why for event in gaps},
        "steps": [
            {name: getattr(values, name) for name in STEPS} for record in found for values in _update_values(record)
        ],
    }


def _update_values(record: Record) -> list[UpdateValues]:
    """What a trainer recorded of its optimizer's steps."""
    measured = [event for event in record.events() if isinstance(event, Measured) and record.rank is not None]
    return [values for event in measured for values in event.updates]


def main(folder: Path, model: str, cases: list[str]) -> None:
    """Train all cases on this rank."""
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    flat_on_cpu.place()
    packed_attention.install()
    for number, case in enumerate(cases):
        for word in case.split("-"):
            if word in faults.FAULTS:
                faults.FAULTS[word].apply(number)
    # The hooks stand above the faults, as they do where verl loads its plugins.
    trainer_hooks.place_hooks(Patches(), engine_workers)
    results: dict[str, Any] = {}
    for number, case in enumerate(cases):
        try:
            results[case] = train(folder, model, number, case)
        except Exception:  # noqa: BLE001 - the test shows it, and the other cases go on
            results[case] = {"error": traceback.format_exc()}
        (folder / f"rank{os.environ['RANK']}.json").write_text(json.dumps(results))
    torch.distributed.destroy_process_group()


main(Path(sys.argv[1]), sys.argv[2], sys.argv[3:])
