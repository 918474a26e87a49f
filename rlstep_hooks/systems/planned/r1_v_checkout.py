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


_AGAIN = re.compile(r"\b(?:num_iterations|_buffered_inputs|steps_per_generation)\b")
"""What later trainers train a batch more than once by."""
_SAMPLER = "_get_train_sampler"
_SAMPLERS = frozenset(("RandomSampler", "SequentialSampler"))
"""Samplers of torch that give each row once an epoch."""


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
    note = Note("assumes", f"{names} beside the launch, which was read, samples as R1-V's does")
    return Beside(system, notes=(note,), of_trainer=True)


def _difference(trainer: Class) -> str:
    """What a trainer does otherwise than R1-V's; empty where nothing is found."""
    if not trainer.is_here:
        return "its code is not here"
    if not any(name.startswith("transformers.") for name in trainer.outside):
        return f"it derives from {', '.join(sorted(trainer.outside)) or 'nothing that is known'}"
    code = _code_of(trainer)
    own = trainer.methods & _SAMPLING
    if methods := sorted(own - ({_SAMPLER} if code is not None and _gives_each_row_once(code) else set())):
        return f"it has {', '.join(methods)}, which decides the schedule"
    if written := sorted(trainer.assigned & _SIZES):
        return f"it assigns {', '.join(written)}"
    text = ast.unparse(code) if code is not None else ""
    if not _REPEATED.search(text):
        return "it does not repeat each row of a batch num_generations times"
    if again := _AGAIN.search(text):
        return f"it has {again[0]}, and may train a batch more than once"
    return ""


def _code_of(trainer: Class) -> ast.ClassDef | None:
    """The class of a trainer, without what it derives from; None where it is not found."""
    classes = (node for node in parse(Path(trainer.path)).body if isinstance(node, ast.ClassDef))
    return next((node for node in classes if node.lineno == trainer.line), None)


def _gives_each_row_once(trainer: ast.ClassDef) -> bool:
    """Whether the sampler of a trainer is one of torch that goes over the rows of the data set once an epoch, in whatever order."""
    own = [node for node in trainer.body if isinstance(node, ast.FunctionDef) and node.name == _SAMPLER]
    given = [node.value for each in own for node in ast.walk(each) if isinstance(node, ast.Return)]
    return any(map(_is_plain_sampler, given)) and all(_is_nothing(each) or _is_plain_sampler(each) for each in given)


def _is_nothing(node: ast.expr | None) -> bool:
    return node is None or (isinstance(node, ast.Constant) and node.value is None)


def _is_plain_sampler(node: ast.expr | None) -> bool:
    match node:
        case ast.Call(args=[rows], keywords=words):
            name = ast.unparse(node.func).rpartition(".")[2]
            given = {word.arg for word in words}
            return name in _SAMPLERS and ast.unparse(rows) == "self.train_dataset" and given <= {"generator"}
    return False
