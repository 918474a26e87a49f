"""Run by torchrun: `train_scored_alone.py FOLDER DEPLOYMENT...`.

Trains all cases with each deployment, and each rank leaves what it saw in FOLDER/rank<N>.json.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import sys
import time
import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from rlstep_hooks import StepAuditCallback
from rlstep_hooks.testing.tiny_trl import tiny_trainer
from tests.systems.trl.test_scored_alone import FROM, rows, sharp_model
from tests.systems.trl_ranks.train_many import (
    allow_sharding_on_the_cpu,
    digest_of,
    forget,
    gather_outside_of_the_graph,
    kept_engines,
    settings_of,
)
from tests.systems.trl_ranks.zero_faults import backward_of_a_layer_too_small

if TYPE_CHECKING:
    from collections.abc import Callable


def unchanged(trainer: Any) -> None:
    """A healthy run."""


def padding_attended(trainer: Any) -> None:
    """Every forward of the policy attends to the padding, that of generation too."""
    model, forward = trainer.model, trainer.model.forward

    def attends(*args: Any, **kwargs: Any) -> Any:
        if trainer.state.global_step >= FROM and kwargs.get("attention_mask") is not None:
            kwargs["attention_mask"] = torch.ones_like(kwargs["attention_mask"])
        return forward(*args, **kwargs)

    model.forward = attends


def reference_shifted(trainer: Any) -> None:
    """The reference's log-probs are those of the token before."""
    score = trainer._get_per_token_logps_and_entropies

    def shifted(model: Any, *args: Any, **kwargs: Any) -> Any:
        log_probs, *others = score(model, *args, **kwargs)
        wrong = model is trainer.ref_model and trainer.state.global_step >= FROM
        return (log_probs.roll(1, 1) if wrong else log_probs), *others

    trainer._get_per_token_logps_and_entropies = shifted


CASES: dict[str, tuple[Callable[[Any], None], bool]] = {
    "audited": (unchanged, True),
    "alone": (unchanged, False),
    "padding": (padding_attended, True),
    "reference": (reference_shifted, True),
    "backward": (backward_of_a_layer_too_small, True),
}
"""What is done to the trainer of each case, and whether it is audited."""


def saved(folder: Path) -> str:
    """The folder of the model, from which the trainer loads its reference. transformers lets only rank 0 write it."""
    path, written = folder / "model", folder / "model-written"
    if int(os.environ["RANK"]) == 0:
        sharp_model().save_pretrained(path)
        written.touch()
    while not written.exists():
        time.sleep(0.01)
    return str(path)


def collectives() -> int:
    """How many collectives this process has made so far, in all of its groups: gloo counts them (torch 2.13.0 ProcessGroupGloo.cpp,
    `getSequenceNumberForGroup`)."""
    groups = torch.distributed.distributed_c10d._world.pg_map
    return sum(group._get_sequence_number_for_group() for group in groups)


def train(folder: Path, deployment: Any, fault: Callable[[Any], None], *, audited: bool) -> dict[str, Any]:
    """One training; what it left."""
    torch.manual_seed(0)
    audit = StepAuditCallback(log_dir=folder / "log", listeners=())
    # Otherwise ZeRO-3 keeps parameters as small as these gathered.
    cut = {"zero": {"stage3_param_persistence_threshold": 0}} if deployment == "zero3" else {}
    trainer = tiny_trainer(
        folder / "out",
        callbacks=[audit] if audited else [],
        model=saved(folder),
        dataset=rows(),
        per_device_train_batch_size=8,
        gradient_accumulation_steps=1,
        max_steps=6,
        learning_rate=1e-3,
        beta=0.1,
        **settings_of(deployment, cut),
    )
    fault(trainer)
    before = collectives()
    trainer.train()
    left: dict[str, Any] = {"weights": digest_of(trainer), "collectives": collectives() - before}
    left["random"] = hashlib.sha256(torch.get_rng_state().numpy().tobytes()).hexdigest()
    if audited:
        report = audit.report
        left["rules"] = {rule.code: [rule.verdict, rule.checks] for rule in report.rules}
        left["found"] = [
            [finding.code, finding.where.rollout, finding.why]
            for finding in report.findings
            if finding.severity != "info"
        ]
        left["unknown"] = report.not_evaluated
    return left


def main(folder: Path, deployments: list[str]) -> None:
    """Train all cases of all deployments in one process group."""
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    engines: list[Any] = []
    allow_sharding_on_the_cpu()
    if "zero3" in deployments:
        import deepspeed

        gather_outside_of_the_graph()
        engines = kept_engines()
        deepspeed.init_distributed("gloo", auto_mpi_discovery=False)
    left: dict[str, dict[str, Any]] = {}
    for deployment in deployments:
        left[deployment] = {}
        for name, (fault, audited) in CASES.items():
            forget(engines)
            place = folder / f"{deployment}-{name}"
            place.mkdir(exist_ok=True)
            left[deployment][name] = train(place, deployment, fault, audited=audited)
    (folder / f"rank{os.environ['RANK']}.json").write_text(json.dumps(left))
    with contextlib.suppress(Exception):
        torch.distributed.destroy_process_group()
    os._exit(0)  # torch aborts or hangs now and then when the interpreter of a rank exits, after all is done


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2:])
