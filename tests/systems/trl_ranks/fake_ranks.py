"""Run by test_many_ranks: one process is each of N ranks in turn, in torch's fake process group, and writes what it saw.

A fake group communicates nothing: a gather gives each rank its own numbers N times, and gradients are not reduced. What is real are
TRL's trainer and sampler, accelerate's sharding of the data, and the audit: schedules, group membership and counts. Nothing that is
written here says anything of gradients or weights.
"""

from __future__ import annotations

import json
import os
import sys
import warnings
from pathlib import Path
from typing import Any

import torch
from accelerate.state import AcceleratorState, GradientState, PartialState
from torch import distributed
from torch.nn.parallel import DistributedDataParallel
from torch.testing._internal.distributed import fake_pg  # noqa: F401 - it registers the backend

from rlstep_hooks import StepAuditCallback, plan
from rlstep_hooks.systems.trl.observe import callback
from rlstep_hooks.testing.tiny_trl import tiny_reward, tiny_trainer


def reduces_nothing(wrapper: Any) -> None:
    """Give DistributedDataParallel the gradients of this rank alone: the fake group's own all-reduce gives no tensor back."""

    def done(tensor: Any) -> Any:
        reduced: Any = torch.futures.Future()
        reduced.set_result(tensor)
        return reduced

    wrapper.register_comm_hook(None, lambda state, bucket: done(bucket.buffer()))


class Rows:
    """A reward function that keeps which rows were rewarded, by call."""

    __name__ = "rows"

    def __init__(self) -> None:
        self.calls: list[list[str]] = []

    def __call__(self, completions: list[str], prompts: list[str], **others: Any) -> list[float]:
        self.calls.append(list(prompts))
        return tiny_reward(completions)


def of_rank(folder: Path, rank: int, world_size: int, settings: dict[str, Any], *, train: bool) -> dict[str, Any]:
    """What one rank's loader gives, and, where it trains, what its audit saw."""
    os.environ.update(
        RANK=str(rank), LOCAL_RANK=str(rank), WORLD_SIZE=str(world_size), LOCAL_WORLD_SIZE=str(world_size)
    )
    distributed.init_process_group("fake", store=distributed.HashStore(), rank=rank, world_size=world_size)
    rows = Rows()
    audit = StepAuditCallback(log_dir=folder / "log", listeners=())
    trainer = tiny_trainer(folder / "out", callbacks=[audit] if train else [], reward=rows, **settings)
    assert (trainer.accelerator.num_processes, trainer.accelerator.process_index) == (world_size, rank)
    seen: dict[str, Any] = {"batches": [[row["prompt"] for row in batch] for batch in trainer.get_train_dataloader()]}
    if rank == 0:
        schedule = plan(trainer.args, rows=settings["rows"], world_size=world_size)
        names = (
            *("prompts_per_rollout", "samples_per_prompt", "samples_per_rollout", "rollouts_per_epoch"),
            *("microbatches_per_epoch", "microbatches_per_rollout", "rows_dropped_per_epoch", "rollouts", "updates"),
        )
        seen["plan"] = {name: int(getattr(schedule, name)) for name in names}
    if train:
        trainer.train()
        report = audit.report
        seen |= {
            "verdict": report.verdict,
            "counts": {
                name: getattr(report.counts, name) for name in ("rollouts", "samples", "microbatches", "updates")
            },
            "loud": [[found.code, found.observed] for found in report.findings if found.severity != "info"],
            "rewarded": rows.calls,
            "rules": {rule.code: rule.verdict for rule in report.rules},
        }
    distributed.destroy_process_group()
    for state in (AcceleratorState, PartialState, GradientState):
        state._reset_state()
    return seen


def main(folder: Path, world_size: int, settings: dict[str, Any], trained: list[int]) -> None:
    """Be all ranks in turn; the first one comes last, because it compares the records of the others."""
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    os.environ.update(MASTER_ADDR="localhost", MASTER_PORT="29500")
    constructed = DistributedDataParallel.__init__

    def construct(self: Any, *args: Any, **kwargs: Any) -> None:
        constructed(self, *args, **kwargs)
        reduces_nothing(self)

    DistributedDataParallel.__init__ = construct  # type: ignore[method-assign]
    # Ranks agree in the store of the group that they share; here each has one of its own.
    callback.agree_on_run = lambda rank, world_size: ("run", True)
    order = [*range(1, world_size), 0]
    seen = {rank: of_rank(folder, rank, world_size, settings, train=rank in trained) for rank in order}
    (folder / "seen.json").write_text(json.dumps(seen))


main(Path(sys.argv[1]), int(sys.argv[2]), json.loads(sys.argv[3]), json.loads(sys.argv[4]))
