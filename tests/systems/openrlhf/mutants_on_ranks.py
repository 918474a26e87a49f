"""`python -m tests.systems.openrlhf.mutants_on_ranks STAGE --number 60 --seed 1`: mistakes made by a machine in the source that two
ranks train OpenRLHF's policy with under ZeRO: OpenRLHF's own, and DeepSpeed's.

Ray, engine and controller are left out, as in `train_ranks.py`.
"""

from __future__ import annotations

import argparse
import functools
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rlstep_hooks.systems.openrlhf.rehearse.cpu import STUBS
from tests.mutants.on_ranks import Mistaken, Trainings, arguments_of, session, with_report
from tests.systems.openrlhf.ranks_launch import judged, variables
from tests.systems.openrlhf.train_ranks import Case
from tests.systems.trl_ranks.launching import outcomes

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from tests.systems.trl_ranks.cases import Outcome

SCRIPT = Path(__file__).with_name("train_mistaken.py")
PATIENCE = 45.0
"""Seconds that a mutant may take; ranks that wait for each other do so without end."""
ALL = (
    "openrlhf.models.actor", "openrlhf.models.loss", "openrlhf.models.utils", "openrlhf.trainer.ppo_utils.experience",
    "openrlhf.trainer.ppo_utils.replay_buffer", "openrlhf.trainer.ray.ppo_actor", "openrlhf.utils.deepspeed.deepspeed",
    "openrlhf.utils.deepspeed.deepspeed_utils", "openrlhf.utils.loss_utils", "deepspeed.runtime.engine",
    "deepspeed.runtime.utils",
)  # fmt: skip
MODULES = {
    2: ("deepspeed.runtime.zero.stage_1_and_2",),
    3: (
        "deepspeed.runtime.zero.stage3", "deepspeed.runtime.zero.partition_parameters",
        "deepspeed.runtime.zero.partitioned_param_coordinator", "deepspeed.runtime.zero.parameter_offload",
    ),
}  # fmt: skip
"""Beside those of both stages."""
RUNS: dict[str, dict[str, Any]] = {
    "clipped": {"actor.max_norm": 0.05, "actor.adam.weight_decay": 0.1, "actor.lr_warmup_ratio": 0.5},
    "terms": {
        "algo.kl.use_loss": True, "algo.kl.estimator": "k3", "algo.kl.init_coef": 0.1, "actor.entropy_coef": 0.01,
        "actor.eps_clip_low_high": (0.2, 0.28), "train.max_epochs": 2,
    },
}  # fmt: skip
ROLLOUTS = 3
sys.path.append(str(STUBS))  # a stand-in for flash_attn, which OpenRLHF imports: its source is read here


def case_of(of: Mistaken, stage: int) -> Case:
    """What the ranks train."""
    return Case(of.name, stage, RUNS[of.run], rollouts=ROLLOUTS)


def train(
    stage: int, folder: Path, wanted: Sequence[Mistaken], say: Callable[[str, list[Outcome]], None]
) -> dict[str, list[Outcome]]:
    """Train each in one launch, and judge what each recorded."""
    by_name = {of.name: of for of in wanted}
    found: dict[str, list[Outcome]] = {}

    def done(name: str, of_ranks: list[Outcome]) -> None:
        found[name] = with_report(of_ranks, lambda: judged(folder / name, case_of(by_name[name], stage)))
        say(name, found[name])

    extensions = Path(os.environ.get("TORCH_EXTENSIONS_DIR") or folder.parent / "extensions")
    outcomes(folder, str(stage), wanted, patience=PATIENCE, script=SCRIPT, environment=variables(extensions), say=done)
    return found


def main() -> int:
    """Exit status 0 if no survivor is without a judgement."""
    parser = argparse.ArgumentParser(prog="mutants")
    parser.add_argument("stage", type=int, choices=list(MODULES))
    arguments = arguments_of(parser)
    stage: int = arguments.stage
    trainings = Trainings(f"OpenRLHF, ZeRO-{stage}", ALL + MODULES[stage], tuple(RUNS), functools.partial(train, stage))
    return session(trainings, arguments)


if __name__ == "__main__":
    sys.exit(main())
