"""What the source of ROLL beside a launch says: the pipeline that its program runs, how long that goes on, and its old log-probs.

Old and forked pipelines go over epochs of the rows instead of `max_steps`, and compute old log-probs in a forward of their own,
whatever `enable_old_logprobs_recompute` says: it is a setting of later ones.
"""

from __future__ import annotations

import ast
import re
from typing import TYPE_CHECKING

import msgspec

from rlstep_hooks.launch.checkout import UNKNOWN
from rlstep_hooks.launch.python_source import parse
from rlstep_hooks.planning.reading import Note
from rlstep_hooks.systems.engine.config_program import program_of
from rlstep_hooks.systems.engine.declaration import Beside, Formula, count
from rlstep_hooks.systems.engine.own_source import (
    Fields,
    checkout_of,
    defaults_in,
    exits_of,
    not_known,
    steps_in,
    values_of,
    with_defaults,
    with_steps,
)
from rlstep_hooks.systems.engine.trains import file_of

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from rlstep_hooks.launch.checkout import Checkout, Function, Source
    from rlstep_hooks.launch.command import Command
    from rlstep_hooks.launch.settings import Setting
    from rlstep_hooks.systems.engine.declaration import System
    from rlstep_hooks.systems.engine.own_source import Step

_CHOSEN = "pipeline_cls"
"""The setting that names another pipeline than the program's own."""
_PATH = re.compile(r"roll(?:\.\w+)+\.\w*Pipeline")
_STEPS = re.compile(r"range\(self\.pipeline_config\.max_steps\)")
_PASSES = "actor_train.training_args.num_train_epochs"
_EPOCHS = re.compile(rf"range\((?:int\()?self\.pipeline_config\.{re.escape(_PASSES)}\)?\)")
_ROWS = re.compile(r"(?:tqdm\()?self\.dataloader\)?")
_LOADER = ("drop_last=True", "shuffle=True")
"""How the loader of such a pipeline is made: a last rollout that is not full is dropped, in another order in each pass."""
_SETS = re.compile(r"\.set_max_steps\(")
_OF_STEPS = re.compile(r"\.set_max_steps\((?:max_steps=)?self\.pipeline_config\.max_steps\)")
_OF_EPOCHS = re.compile(rf"^max_steps = len\(self\.dataloader\) \* self\.pipeline_config\.{re.escape(_PASSES)}$")
_RESUMED = "global_step <= self.state.step"
"""Where a run that goes on from a checkpoint leaves out what is done; a new run has no such rollout."""
_MASKED = "batch.batch['final_response_mask'].sum() == 0"
"""Where a rollout of which the masks leave no sample is not trained; `max_steps` counts it."""
_BASE = Fields("configs/base_config.py", ("BaseConfig", "PPOConfig"))
_RLVR = Fields("pipeline/rlvr/rlvr_config.py", ("RLVRConfig",))
_AGENTIC = Fields("pipeline/agentic/agentic_config.py", ("AgenticConfig",))
_OLD = re.compile(r"^batch\.batch\['old_log_probs'\] = old_log_probs\.batch\['log_probs'\]$")
_IF_ASKED = "self.pipeline_config.enable_old_logprobs_recompute"


def beside(system: System, command: Command, folder: Path, given: Mapping[str, Setting]) -> Beside | None:
    """What the pipeline of the checkout says; None where there is none, or where the launch's program is not here.

    Args:
        system: ROLL.
        command: The launch.
        folder: The folder that it lies in.
        given: What it sets.

    Raises:
        LaunchError: Which pipeline runs, how long it goes on, or where its old log-probs come from is not known.
    """
    checkout = checkout_of(system, "roll/pipeline/base_pipeline.py", folder)
    started = program_of(command)
    program = started.program if started is not None else file_of(command, folder)
    if checkout is None or program is None:
        return None
    source, name = _pipeline(system, checkout, program, given)
    builds = source.methods("__init__", of=name)
    runs = _runs(source, name)
    if not runs or not builds:
        raise not_known(system, f"{name} has no run of its own ({source.shown})")
    agentic = "/agentic/" in source.shown
    defaults = defaults_in(checkout, (_BASE, _AGENTIC if agentic else _RLVR))
    read, notes = with_defaults(with_steps(system, agentic=str(agentic)), defaults, given)
    read, loops, ends = _with_length(read, source, runs, builds[0])
    run = next(each for each in runs if loops[0] in ast.walk(each))
    known = {name: default.value for name, default in defaults.items()}
    exits = [step for loop in loops for step in exits_of(source, run, loop)]
    _ask_about_exits(system, exits, {**known, **values_of(system, given)})
    masked = [
        Note(
            "drops",
            f"a rollout of which the masks leave no sample is not trained, and counts all the same ({step.where})",
        )
        for step in exits
        if step.condition == _MASKED
    ]
    read = _with_old_log_probs(read, source, run)
    # The pipeline was read, whatever the program is called.
    read = msgspec.structs.replace(read, functions={**read.functions, "other_pipeline": lambda launch: ""})
    text = f"{name} beside the launch was read: {ends} ({source.at(loops[0].lineno)})"
    by = (Note("assumes", f"{started.script.name} beside it starts {program.name}"),) if started is not None else ()
    return Beside(read, notes=(*by, Note("assumes", text), *masked, *notes))


def _runs(source: Source, name: str) -> list[Function]:
    """The method that runs a pipeline, and those of the same class that it calls."""
    run = source.methods("run", of=name)
    called = {
        node.func.attr
        for node in ast.walk(run[0] if run else ast.Module([], []))
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr.startswith("_")
    }
    return [*run, *(method for each in sorted(called) for method in source.methods(each, of=name))]


def _ask_about_exits(system: System, exits: list[Step], values: Mapping[str, object]) -> None:
    """Ask about what may end the run, or leave a rollout untrained.

    Raises:
        LaunchError: There is such a line, and it is not known that the launch does not come to it.
    """
    for step in exits:
        if step.condition not in (_RESUMED, _MASKED) and (holds := step.holds(values)) is not False:
            when = f", if {step.condition}" if holds is UNKNOWN and step.condition else ""
            raise not_known(system, f"{ast.unparse(step.statement)} within a rollout{when} ({step.where})")


def _pipeline(system: System, checkout: Checkout, program: Path, given: Mapping[str, Setting]) -> tuple[Source, str]:
    """The file and the name of the class that a program runs."""
    chosen = given.get(_CHOSEN)
    paths = [str(chosen.value)] if chosen is not None and chosen.value else sorted(_pipelines(program))
    if len(paths) != 1:
        raise not_known(system, f"{program.name} names {len(paths)} pipelines ({', '.join(paths) or 'none'})")
    module, _, name = paths[0].rpartition(".")
    package, _, inner = module.partition(".")
    source = checkout.source(f"{inner.replace('.', '/')}.py") if package == checkout.package.name else None
    if source is None:
        raise not_known(system, f"the pipeline {paths[0]} is not in it")
    return source, name


def _pipelines(program: Path) -> set[str]:
    """The import paths of the pipelines that a program imports, or names in a text that it imports from."""
    found: set[str] = set()
    for node in ast.walk(parse(program)):
        if isinstance(node, ast.ImportFrom):
            found |= {f"{node.module}.{alias.name}" for alias in node.names}
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            found.add(node.value)
        elif isinstance(node, ast.ClassDef):
            found |= {f"{program.stem}.{node.name}" for base in node.bases if "Pipeline" in ast.unparse(base)}
    return {path for path in found if _PATH.fullmatch(path) or path.startswith(f"{program.stem}.")}


def _with_length(
    system: System, source: Source, runs: list[Function], build: Function
) -> tuple[System, tuple[ast.For, ...], str]:
    """ROLL with the length of the pipeline's run, the loops that its rollouts are in, and what ends it."""
    loops = {ast.unparse(node.iter): node for run in runs for node in ast.walk(run) if isinstance(node, ast.For)}
    sets = steps_in(source, build, _SETS)
    by_steps = [loop for over, loop in loops.items() if _STEPS.fullmatch(over)]
    if by_steps and len(steps_in(source, build, _OF_STEPS)) == len(sets):
        return system, (by_steps[0],), "it goes on for max_steps rollouts"
    outer = [loop for over, loop in loops.items() if _EPOCHS.fullmatch(over)]
    by_rows = [loop for loop in (outer[0].body if outer else ()) if isinstance(loop, ast.For)]
    if (
        len(outer) != 1
        or len(by_rows) != 1
        or not _ROWS.fullmatch(ast.unparse(by_rows[0].iter))
        or len(steps_in(source, build, _OF_EPOCHS)) != len(sets)
        or not all(word in source.text for word in _LOADER)
    ):
        over = " and over ".join(list(loops)[:3]) or "nothing that is known"
        raise not_known(system, f"its run goes over {over} ({source.at(runs[0].lineno)})")
    ends = "it goes over the rows num_train_epochs times, whatever max_steps says"
    return _by_epochs(system, source.at(outer[0].lineno)), (outer[0], by_rows[0]), ends


def _by_epochs(system: System, where: str) -> System:
    """ROLL with a run of whole passes over the rows; the schedule of the learning rate is as long."""
    own = {
        "rollouts": Formula("rollouts", f"{_PASSES} * rollouts_per_epoch", where),
        "rollouts_per_epoch": Formula("rollouts_per_epoch", "floor(rows / rollout_batch_size)", where),
    }
    others = tuple(
        msgspec.structs.replace(each, text=each.text.replace("max_steps", "rollouts"))
        for each in system.formulas
        if each.quantity not in own
    )
    settings = {name: typed for name, typed in system.settings.items() if name != "max_steps"}
    return msgspec.structs.replace(
        with_steps(system, loader="'drops'", rows_reshuffled="True"),
        formulas=(*own.values(), *others),
        # transformers TrainingArguments: three epochs, if none are given.
        settings={**settings, _PASSES: count(3)},
        shown=tuple(name for name in (*(system.shown or ()), _PASSES) if name != "max_steps"),
    )


def _with_old_log_probs(system: System, source: Source, run: Function) -> System:
    """ROLL with old log-probs of a forward of their own, where the pipeline computes them in each case."""
    steps = steps_in(source, run, _OLD)
    if not steps:
        raise not_known(system, f"where its old log-probs come from was not found ({source.at(run.lineno)})")
    conditions = {step.condition for step in steps}
    if "" in conditions:
        return with_steps(system, own_forward="True")
    if conditions - {_IF_ASKED}:
        raise not_known(system, f"old log-probs are computed if {steps[0].condition} ({steps[0].where})")
    return system
