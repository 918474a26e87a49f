"""Run by torchrun: `train_ranks.py FOLDER DEPLOYMENT`. Trains cases with vLLM, as `train_many` does without it: with the server of the
environment, or with an engine in each process where a case asks for that."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rlstep_hooks import StepAuditCallback
from tests.systems.trl_ranks.train_many import main, outcome_of, settings_of
from tests.systems.trl_vllm.run import CPU, prepare, trainer_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    import torch

    from tests.systems.trl_ranks.cases import Case, Deployment, Outcome

sys.path.insert(0, str(CPU))


def _gathered(trainer: Any, alter: Callable[[torch.Tensor], torch.Tensor]) -> None:
    """Change each matrix that is gathered, whoever hands it over."""
    generation = trainer.vllm_generation
    original = generation._iter_named_params

    def iterate() -> Iterator[tuple[str, torch.Tensor]]:
        for name, tensor in original():
            yield name, alter(tensor) if tensor.dim() > 1 and "embed" not in name else tensor

    generation._iter_named_params = iterate


def parts_exchanged(trainer: Any) -> None:
    """The parts of two ranks are put together in the wrong order."""
    _gathered(trainer, lambda tensor: tensor.flatten().roll(tensor.numel() // 2).view_as(tensor))


def part_of_the_first_rank_alone(trainer: Any) -> None:
    """What rank 1 has is left out: zeros stand there."""

    def alter(tensor: torch.Tensor) -> torch.Tensor:
        found = tensor.detach().clone().flatten()
        found[found.numel() // 2 :] = 0
        return found.view_as(tensor)

    _gathered(trainer, alter)


def parts_of_the_first_sync(trainer: Any) -> None:
    """Each sync hands over what was gathered for the first one."""
    first: dict[int, torch.Tensor] = {}
    generation = trainer.vllm_generation
    original = generation._iter_named_params

    def iterate() -> Iterator[tuple[str, torch.Tensor]]:
        for place, (name, tensor) in enumerate(original()):
            yield name, first.setdefault(place, tensor.detach().clone())

    generation._iter_named_params = iterate


MISTAKES = {of.__name__: of for of in (parts_exchanged, part_of_the_first_rank_alone, parts_of_the_first_sync)}


def _connected() -> dict[str, Any]:
    """Settings with the server."""
    from vllm_server import gloo

    gloo.install()
    return {"vllm_mode": "server", "vllm_server_base_url": os.environ["SERVER"]}


def _beside() -> dict[str, Any]:
    """Settings with an engine in this process."""
    prepare()
    return {"vllm_mode": "colocate"}


def train(folder: Path, deployment: Deployment, case: Case, engines: list[Any]) -> Outcome:
    """Train a case on this rank."""
    connected = _beside() if case.settings.get("vllm_mode") == "colocate" else _connected()
    audit = StepAuditCallback(log_dir=folder / "log", listeners=())
    settings = settings_of(deployment, case.sharding) | connected | case.settings
    trainer = trainer_of(Path(os.environ["MODEL"]), folder, callbacks=[audit], **settings)
    if case.fault:
        MISTAKES[case.fault](trainer)
    trainer.train()
    return outcome_of(audit.report, trainer)


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2], train)  # type: ignore[arg-type]  # the launch gives one of them
