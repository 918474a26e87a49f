"""`train_mistaken.py FOLDER STAGE`, started once for each rank: trains OpenRLHF's policy with mistakes of a machine in its source, one
after the other, each in the configuration that it was drawn for."""

from __future__ import annotations

import hashlib
import os
import sys
from pathlib import Path
from typing import Any

from tests.mutants.on_ranks import Mistaken, mistaken, with_lines
from tests.systems.openrlhf import train_ranks
from tests.systems.openrlhf.mutants_on_ranks import case_of
from tests.systems.trl_ranks.cases import Outcome
from tests.systems.trl_ranks.rank_loop import each_case


def digest_of(model: Any) -> str:
    """A digest of what this rank holds of the trained weights: ZeRO-3 keeps its part beside each parameter (`ds_tensor`)."""
    import torch

    digest = hashlib.sha256()
    for parameter in model.parameters():
        held = getattr(parameter, "ds_tensor", parameter).detach()
        digest.update(held.contiguous().flatten().view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()


def main(folder: Path, stage: int) -> None:
    """Train all cases that have no outcome yet."""
    train_ranks.begin(folder)

    def train(place: Path, of: Mistaken) -> Outcome:
        with mistaken(of.mutation):
            trainer = with_lines(
                place, of.traced, lambda: train_ranks.train(case_of(of, stage), folder / "model", place)
            )
            return Outcome(trained=digest_of(trainer.actor.model))

    each_case(folder, Mistaken, train)
    os._exit(0)  # torch aborts or hangs now and then when the interpreter of a rank exits, after all is done


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]))
