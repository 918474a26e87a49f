"""`train_mistaken.py FOLDER STAGE`, started once for each rank: trains OpenRLHF's policy with mistakes of a machine in its source, one
after the other, each in the configuration that it was drawn for."""

from __future__ import annotations

import os
import sys
from pathlib import Path

from tests.mutants.on_ranks import Mistaken, mistaken, with_lines
from tests.mutants.training import digest
from tests.systems.openrlhf import train_ranks
from tests.systems.openrlhf.mutants_on_ranks import case_of
from tests.systems.trl_ranks.cases import Outcome
from tests.systems.trl_ranks.rank_loop import each_case


def main(folder: Path, stage: int) -> None:
    """Train all cases that have no outcome yet."""
    train_ranks.begin(folder)

    def train(place: Path, of: Mistaken) -> Outcome:
        with mistaken(of.mutation):
            trainer = with_lines(
                place, of.traced, lambda: train_ranks.train(case_of(of, stage), folder / "model", place)
            )
            # ZeRO-3 keeps the part of this rank beside each parameter.
            return Outcome(
                trained=digest(getattr(held, "ds_tensor", held) for held in trainer.actor.model.parameters())
            )

    each_case(folder, Mistaken, train)
    os._exit(0)  # torch aborts or hangs now and then when the interpreter of a rank exits, after all is done


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]))
