"""Run by torchrun: `train_many.py FOLDER DEPLOYMENT`. Trains the cases of FOLDER/cases.json in one process group, each rank leaves an
outcome of each case in FOLDER/<case>/rank<N>.json."""

from __future__ import annotations

import contextlib
import gc
import hashlib
import logging
import os
import sys
import time
import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

import torch

from rlstep_hooks import StepAuditCallback
from rlstep_hooks.session import session
from rlstep_hooks.testing.tiny_trl import tiny_model, tiny_tokenizer, tiny_trainer
from tests.faults.trl_faults import FAULTS
from tests.mutants.on_ranks import mistaken, with_lines
from tests.systems.trl_ranks.cases import WRITTEN, Case, Deployment, Found, Outcome
from tests.systems.trl_ranks.rank_faults import OF_CHECKPOINTS, OF_PARTS, OF_RANKS, SCALED
from tests.systems.trl_ranks.rank_loop import each_case
from tests.systems.trl_ranks.zero_faults import DRIFT, OF_WHOLE_MODELS, ZERO_FAULTS

if TYPE_CHECKING:
    from collections.abc import Callable

    from rlstep_hooks.judge.report import Report

BY_NAME = {
    fault.name: fault for fault in (*FAULTS, *ZERO_FAULTS, *OF_WHOLE_MODELS, DRIFT, SCALED, *OF_CHECKPOINTS, *OF_PARTS)
} | OF_RANKS


def allow_sharding_on_the_cpu() -> None:
    """accelerate's list of kinds of processes that FSDP shards over has no CPU (1.15.0, state.py:984); torch itself shards there."""
    from accelerate.state import AcceleratorState
    from accelerate.utils import DistributedType
    from torch.distributed.fsdp import FullyShardedDataParallel

    begin = AcceleratorState.__init__

    def begun(self: Any, *args: Any, fsdp_plugin: Any = None, **more: Any) -> None:
        begin(self, *args, fsdp_plugin=fsdp_plugin, **more)
        if fsdp_plugin is not None:
            self.fsdp_plugin = fsdp_plugin
            if self._mixed_precision != "no":
                fsdp_plugin.set_mixed_precision(self._mixed_precision)
        if (
            getattr(self, "fsdp_plugin", None) is not None
        ):  # each construction takes over the kind of the processes anew
            self.distributed_type = DistributedType.FSDP

    AcceleratorState.__init__ = begun
    wrap = FullyShardedDataParallel.__init__

    def wrapped(self: Any, *args: Any, **more: Any) -> None:
        wrap(
            self, *args, **more | {"device_id": torch.device("cpu")}
        )  # accelerate says cpu:0, which torch takes for another device

    FullyShardedDataParallel.__init__ = wrapped


def gather_outside_of_the_graph() -> None:
    """DeepSpeed before 0.19 gathers weights into views that torch 2.13 lets nobody write to while it builds a graph: with ZeRO-1 and 2
    0.18.9 breaks off on several ranks. 0.19 detaches them."""
    from deepspeed.runtime.zero import stage_1_and_2

    stage_1_and_2.all_gather_dp_groups = torch.no_grad()(stage_1_and_2.all_gather_dp_groups)


def wait_for_each_gather() -> None:
    """DeepSpeed before 0.19 waits for the last of many gathers alone (runtime/zero/partition_parameters.py 0.18.9:1983), and on gloo
    the others may still be under way: now and then a weight is not there yet, which RLS404 and RLS412 tell. 0.19 waits for all."""
    from deepspeed import comm

    gather = comm.all_gather_into_tensor

    def gathered(*args: Any, **more: Any) -> Any:
        handle = gather(*args, **more)
        if handle is not None:
            handle.wait()
        return handle

    comm.all_gather_into_tensor = gathered


def kept_engines() -> list[Any]:
    """The list that DeepSpeed's engines are added to when they are made, the policy's and the reference's."""
    import deepspeed

    engines: list[Any] = []
    real = deepspeed.initialize

    def initialize(*args: Any, **more: Any) -> Any:
        made = real(*args, **more)
        engines.append(made[0])
        return made

    deepspeed.initialize = initialize
    return engines


def settings_of(deployment: Deployment, sharding: dict[str, Any]) -> dict[str, Any]:
    """What transformers is told of the ranks."""
    if deployment.startswith("zero"):
        stage = sharding.get("stage", int(deployment[-1]))
        more = sharding.get("zero", {})
        return {"deepspeed": settings_of_deepspeed(stage, offload=bool(sharding.get("offload")), more=more)}
    found: dict[str, Any] = {"ddp_backend": "gloo"}
    if deployment != "ddp":
        shards = {"version": int(deployment[-1]), **sharding}
        if deployment == "fsdp1":
            shards["sync_module_states"] = False  # needs an accelerator; the tiny model is the same on all ranks
        found |= {"fsdp": "full_shard", "fsdp_config": shards}
    return found


def settings_of_deepspeed(stage: int, *, offload: bool, more: dict[str, Any]) -> dict[str, Any]:
    """A configuration of DeepSpeed as transformers' documentation writes it, with more of ZeRO's own settings."""
    zero: dict[str, Any] = {"stage": stage, **more}
    if offload:
        zero["offload_optimizer"] = {"device": "cpu"}
    return {
        "zero_optimization": zero,
        "bf16": {"enabled": "auto"},
        "gradient_accumulation_steps": "auto",
        "train_micro_batch_size_per_gpu": "auto",
        "train_batch_size": "auto",
        "gradient_clipping": "auto",
        "zero_allow_untested_optimizer": True,
        "zero_force_ds_cpu_optimizer": False,
    }


def forget(engines: list[Any]) -> None:
    """Let the next trainer begin as in a process of its own, but for the process group."""
    from accelerate.state import AcceleratorState, GradientState

    while engines:  # the next engine finds hooks and groups of this one otherwise
        with contextlib.suppress(Exception):
            engines.pop().destroy()
    AcceleratorState._reset_state()
    GradientState._reset_state()
    for name in [name for name in os.environ if name.startswith(("ACCELERATE_", "FSDP_"))]:
        del os.environ[name]
    gc.collect()


def digest_of(trainer: Any) -> str:
    """A digest of what this rank holds of the trained weights: ZeRO-3 keeps its part beside each parameter (`ds_tensor`)."""
    digest = hashlib.sha256()
    for parameter in trainer.model.parameters():
        held = getattr(parameter, "ds_tensor", parameter).detach()
        held = held.to_local() if hasattr(held, "to_local") else held
        digest.update(held.contiguous().flatten().view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()


def outcome_of(report: Report, trainer: Any) -> Outcome:
    """What a report says."""
    alarms = [finding for finding in report.findings if finding.severity != "info"]
    return Outcome(
        verdict=report.verdict,
        found=[Found(f.code, f.severity, f.where, f"{f.observed}; {f.why}", f.deviation) for f in alarms],
        rules={rule.code: (rule.verdict, rule.reason) for rule in report.rules},
        not_evaluated=dict(report.not_evaluated),
        updates=int(trainer.state.global_step),
        trained=digest_of(trainer),
    )


def saved_model(folder: Path) -> str:
    """The folder of the tiny model, from which the trainer loads its reference. transformers lets only rank 0 write it."""
    path, written = folder / "model", folder / "model-written"
    if int(os.environ["RANK"]) == 0:
        tiny_model(tiny_tokenizer()).save_pretrained(path)
        written.touch()
    while not written.exists():
        time.sleep(0.01)
    return str(path)


def train(folder: Path, deployment: Deployment, case: Case, engines: list[Any]) -> Outcome:
    """Train a case of the corpus, or a healthy run, on this rank."""
    audit = StepAuditCallback(log_dir=folder / "log", listeners=())
    fault = BY_NAME[case.fault] if case.fault else None
    own = {name: value for name, value in fault.settings.items() if not isinstance(value, WRITTEN)} if fault else {}
    settings: dict[str, Any] = settings_of(deployment, case.sharding) | own | case.settings
    if settings.get("beta"):
        settings["model"] = saved_model(folder)
    if case.resumes_after:
        settings |= {"save_strategy": "steps", "save_steps": case.resumes_after}
        records = folder / ("log-before" if case.records_elsewhere else "log")
        before = StepAuditCallback(log_dir=records, listeners=())
        tiny_trainer(folder / "out", callbacks=[before], **settings).train()
        forget(engines)
    trainer = tiny_trainer(folder / "out", callbacks=[audit], **settings)
    if fault is not None:
        fault.prepare(trainer)
        if not case.healthy:
            fault.apply(trainer)
    at = str(folder / "out" / f"checkpoint-{case.resumes_after}")
    trainer.train(resume_from_checkpoint=at if case.resumes_after else None)
    return outcome_of(audit.report, trainer)


def train_draw(folder: Path, deployment: Deployment, case: Case) -> Outcome:
    """Train a random configuration on this rank."""
    from tests.systems.trl.random_runs.draws import Draw
    from tests.systems.trl.random_runs.training import configuration, train_with

    audit = StepAuditCallback(log_dir=folder / "log", listeners=())
    drawn = Draw.from_json(case.draw)
    config = configuration(drawn, str(folder / "out"), settings_of(deployment, case.sharding))
    outcome = train_with(drawn, config, folder, audit)
    if outcome.ending != "trained":
        return Outcome(error=f"{outcome.ending}: {outcome.why}")
    report = audit.report
    rules = {rule.code: (rule.verdict, rule.reason) for rule in report.rules}
    return Outcome(
        verdict=report.verdict, false=outcome.findings, rules=rules, not_evaluated=dict(report.not_evaluated)
    )


TrainCase: TypeAlias = "Callable[[Path, Deployment, Case, list[Any]], Outcome]"
"""Trains a case on this rank: its folder, the deployment, the case, and the engines of DeepSpeed that are made."""


def any_case(folder: Path, deployment: Deployment, case: Case, engines: list[Any]) -> Outcome:
    """Train a case of TRL."""
    with mistaken(case.mutation):
        if case.draw:
            return train_draw(folder, deployment, case)
        return with_lines(folder, case.traced, lambda: train(folder, deployment, case, engines))


def main(folder: Path, deployment: Deployment, train_case: TrainCase) -> None:
    """Train all cases that have no outcome yet."""
    warnings.simplefilter("ignore")
    logging.disable(logging.WARNING)
    torch.set_num_threads(1)
    import datasets

    datasets.disable_progress_bars()
    session.INTERVAL = 0.0  # as in a run whose rollouts take longer than a second
    if deployment.startswith("fsdp"):
        allow_sharding_on_the_cpu()
    engines: list[Any] = []
    if deployment.startswith("zero"):
        import deepspeed

        gather_outside_of_the_graph()
        wait_for_each_gather()
        engines = kept_engines()
        # A configuration that is refused would leave a group of which DeepSpeed's own module knows nothing.
        deepspeed.init_distributed("gloo", auto_mpi_discovery=False)

    def one_case(place: Path, case: Case) -> Outcome:
        forget(engines)
        return train_case(place, deployment, case, engines)

    each_case(folder, Case, one_case)
    with contextlib.suppress(Exception):
        torch.distributed.destroy_process_group()
    os._exit(0)  # torch aborts or hangs now and then when the interpreter of a rank exits, after all is done


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2], any_case)  # type: ignore[arg-type]  # the launch gives one of them
