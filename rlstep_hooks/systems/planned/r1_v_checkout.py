"""Whether the trainer beside a launch is R1-V's: other repositories took its names, and gave their trainers another batch.

R1-V's trainers (`Qwen2VLGRPOTrainer`, `Qwen2VLGRPOVLLMTrainerModified` of Deep-Agent/R1-V bbbbe3d, src/r1-v/src/open_r1/trainer, and of
Video-R1) leave the loader to transformers and repeat each row of a batch themselves. Its `vllm_grpo_trainer.py`, and repositories that
followed TRL 0.15, have a sampler that repeats the rows; R1-SGG writes the size of the batch anew.
"""

from __future__ import annotations

import ast
import re
from pathlib import Path
from typing import TYPE_CHECKING

from rlstep_hooks.launch.python_source import parse
from rlstep_hooks.launch.text import LaunchError, Place
from rlstep_hooks.planning.reading import Note
from rlstep_hooks.systems.engine.declaration import Beside
from rlstep_hooks.systems.engine.trainers import trainers_in
from rlstep_hooks.systems.engine.trains import file_of
from rlstep_hooks.systems.trl.system import DECIDING

if TYPE_CHECKING:
    from collections.abc import Mapping

    from rlstep_hooks.launch.classes import Class
    from rlstep_hooks.launch.command import Command
    from rlstep_hooks.launch.settings import Setting
    from rlstep_hooks.systems.engine.declaration import System

_SIZES = frozenset(("per_device_train_batch_size", "gradient_accumulation_steps", "num_train_epochs", "max_steps"))
"""Settings of the loader and of the length, which R1-V's trainers read and never write."""
_SAMPLING = frozenset(DECIDING) - {"_prepare_inputs"}
"""Methods that R1-V's trainers do not have. Its `_prepare_inputs` hands the batch on, or generates from it with vLLM."""
_REPEATED = re.compile(r"\[prompt for prompt in prompts for _ in range\(self\.num_generations\)\]")
"""R1-V repeats each row of a batch once its completions are there (grpo_trainer.py:424, vllm_grpo_trainer_modified.py:592)."""


def beside(system: System, command: Command, folder: Path, given: Mapping[str, Setting]) -> Beside | None:
    """What the trainers of the launch's program say; where the program is not here, that it is taken for R1-V's.

    Args:
        system: R1-V.
        command: The launch.
        folder: The folder that it lies in.
        given: What it sets.

    Raises:
        LaunchError: A trainer is not R1-V's, or its code is not here.
    """
    file = file_of(command, folder)
    if file is None:
        text = f"{command.program.name}, which is not here, has R1-V's trainer, by its name and its settings"
        return Beside(system, notes=(Note("assumes", text),))
    remedy = f"--framework {system.name} plans it as {system.title} all the same"
    used = [each.of for each in trainers_in(file, command.folder) if "GRPO" in each.of.name]
    if not used:
        raise LaunchError(f"no trainer was found in {file}, so it is not known whether it is R1-V's", remedy=remedy)
    for trainer in used:
        differs = _difference(trainer)
        if differs:
            place = Place(trainer.path, trainer.line, 1) if trainer.is_here else Place(str(file))
            raise LaunchError(f"{trainer.name} is not the trainer of R1-V: {differs}", place, remedy=remedy)
    names = " and ".join(trainer.name for trainer in used)
    return Beside(
        system, notes=(Note("assumes", f"{names} beside the launch, which was read, samples as R1-V's does"),)
    )


def _difference(trainer: Class) -> str:
    """What a trainer does otherwise than R1-V's; empty where nothing is found."""
    if not trainer.is_here:
        return "its code is not here"
    if not any(name.startswith("transformers.") for name in trainer.outside):
        return f"it derives from {', '.join(sorted(trainer.outside)) or 'nothing that is known'}"
    if methods := sorted(trainer.methods & _SAMPLING):
        return f"it has {', '.join(methods)}, which decides the schedule"
    if written := sorted(trainer.assigned & _SIZES):
        return f"it assigns {', '.join(written)}"
    if not _REPEATED.search(_text_of(trainer)):
        return "it does not repeat each row of a batch num_generations times"
    return ""


def _text_of(trainer: Class) -> str:
    """The code of a trainer's class, without its comments."""
    tree = parse(Path(trainer.path))
    return next((ast.unparse(node) for node in tree.body if getattr(node, "lineno", 0) == trainer.line), "")
