"""What the source of verl beside a launch says: how long the run is, how often a prompt is repeated, and how a rollout is cut.

Two forks of the same version may end a run differently, so that what is read is the lines themselves.
"""

from __future__ import annotations

import ast
import os.path
import re
from contextlib import suppress
from typing import TYPE_CHECKING

import msgspec

from rlstep_hooks.launch.arguments import read_arguments
from rlstep_hooks.launch.checkout import Checkout, Line, find_checkout, nearest, none_known
from rlstep_hooks.launch.text import LaunchError
from rlstep_hooks.planning.reading import Formula, Note
from rlstep_hooks.systems.engine.declaration import Beside, count
from rlstep_hooks.systems.engine.own_configuration import configuration, over_releases_own
from rlstep_hooks.systems.verl.checkout.critic import read_critic
from rlstep_hooks.systems.verl.checkout.estimators import estimators_in
from rlstep_hooks.systems.verl.checkout.handed_over import run_by
from rlstep_hooks.systems.verl.checkout.imports import absent_modules
from rlstep_hooks.systems.verl.checkout.loader import read_loader, replaced
from rlstep_hooks.systems.verl.checkout.logprobs import read_logprobs
from rlstep_hooks.systems.verl.checkout.loop import Loop, read_loop
from rlstep_hooks.systems.verl.checkout.not_given import not_given
from rlstep_hooks.systems.verl.checkout.one_step_off import run_one_step_off
from rlstep_hooks.systems.verl.checkout.program import (
    COMMON_FILE,
    MARKER,
    REMEDY,
    Program,
    program_alone,
    program_of,
)
from rlstep_hooks.systems.verl.checkout.recipe import fit_of_recipe, read_recipe
from rlstep_hooks.systems.verl.checkout.run import (
    Run,
    builds_trainer,
    own_parts,
    own_shares,
    run_alone,
    run_of,
    settings_of,
    values_of,
)
from rlstep_hooks.systems.verl.checkout.v1 import read_v1
from rlstep_hooks.systems.verl.checkout.workers import Workers, read_workers
from rlstep_hooks.systems.verl.settings import ACTOR, ROLLOUT

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence
    from pathlib import Path

    from rlstep_hooks.launch.command import Command
    from rlstep_hooks.launch.settings import Setting
    from rlstep_hooks.systems.engine.declaration import System

GROUP = f"{ROLLOUT}.n"
_SCALED = f"floor({ACTOR}.ppo_mini_batch_size * {GROUP} / world_size) * world_size"
"""The samples of an update where workers multiply before they divide; `share` is what one process has of it."""
_BEFORE_V1 = "trainer/main_ppo_v0.py"
"""The program of the trainer that 0.9 has from before."""
_AS_RELEASED = ("one_step_off_policy.main_ppo", "main_ppo_sync", "main_ppo_v0")
"""Programs whose trainers are planned as the releases have them."""


def of_copy(
    system: System,
    program: Program,
    command: Command,
    folder: Path,
    given: Mapping[str, Setting],
    *,
    own_recipe: bool,
) -> Beside | None:
    """What the trainer says that a program builds, where a copy of verl lies beside it; None where it is that of a release.

    Args:
        system: verl.
        program: The program and its copy of verl.
        command: The launch.
        folder: The folder that it lies in.
        given: What it sets.
        own_recipe: Whether it is one of verl's recipes or experiments, which have trainers of their own.

    Raises:
        LaunchError: The trainer is not found, or has lines that may change the length or the sizes, and that are not known.
    """
    own = settings_of(program, command, folder, given)
    given = {**own, **given}
    values = values_of(given)
    waits = run_one_step_off(program, values) if own_recipe else None
    if waits is not None:
        return _read(_with_own_bypass(system), program, waits, own, given)
    run = run_of(program, values)
    if own_recipe and (run is None or command.program.name.endswith(_AS_RELEASED)):
        return _of_experimental(system, program, own)
    # Since 0.9 another trainer runs (trainer/ppo/v1); a copy may still choose the one before it.
    is_v1 = _has_v1(program.checkout) and values.get("trainer.use_v1") is not False
    if is_v1 and (run is None or run.is_common):
        _ask_about([*own_shares(program, values), *read_v1(program.checkout)])
        return None
    if run is None and _has_v1(program.checkout):
        # main_ppo of 0.9 hands such a run to the program of the trainer before.
        run = run_of(Program(program.checkout, _BEFORE_V1, program.checkout.source(_BEFORE_V1)), values)
    if run is None:
        raise no_trainer(command, program, REMEDY)
    return _of_run(system, program, run, own, given)


def of_alone(
    system: System, program: Program, command: Command, folder: Path, given: Mapping[str, Setting]
) -> Beside | None:
    """What a program has of its own that runs with a verl which is not beside it; None where it does as that one does.

    Args:
        system: verl.
        program: The program.
        command: The launch.
        folder: The folder that it lies in.
        given: What it sets.
    """
    own = settings_of(program, command, folder, given)
    part = over_releases_own(program.checkout, program.name, command, given, system) if not own else None
    given = {**(part.settings if part is not None else own), **given}
    values = values_of(given)
    run = run_alone(program, values)
    if isinstance(run, Run):
        return _of_run(system, program, run, own, given)
    _ask_about([*([run] if run is not None else []), *own_parts(program, values)])
    if command.program.name.startswith("verl.") or not builds_trainer(program, values):
        return None
    text = (
        f"{command.program.name} was read: it builds verl's trainer, whose loop is that of the verl which is installed"
    )
    return Beside(system, notes=(Note("assumes", text),), settings=own)


def _of_run(
    system: System, program: Program, run: Run, own: dict[str, Setting], given: Mapping[str, Setting]
) -> Beside:
    """What the lines of a trainer say."""
    if not run.is_common:
        _refuse_to_validate(
            not_given(program.main, run.trainer, run.source, program.checkout.source(COMMON_FILE), values_of(given))
        )
    if not run.is_common and "filter_groups" in ast.unparse(run.fit):
        return _filtering(system, program, run, own, given)
    return _read(system, program, run, own, given)


def _read(system: System, program: Program, run: Run, own: dict[str, Setting], given: Mapping[str, Setting]) -> Beside:
    """What the lines of a trainer say that trains each rollout whole."""
    checkout, source = program.checkout, run.source
    values = {**values_of(given), **estimators_in(checkout, source)}
    loop = read_loop(run.fit, source, values, source_at=program.source_at)
    workers = read_workers(checkout) if _is_fsdp(given) else None
    logprobs, unclear = read_logprobs(run.fit, source, checkout, values) if _is_fsdp(given) else (None, None)
    has_critic, no_estimator = read_critic(source, checkout, values)
    loop.unknown += [each for each in (unclear, no_estimator) if each is not None]
    loop.unknown += absent_modules(checkout, source)
    group = _group(loop, values)
    _refuse(loop, workers, run, values, group)
    known = _between(loop, checkout)
    if group != GROUP:
        system = _repeated_by(system, group)
    let = {**system.let, **(workers.let if workers is not None else {}), **has_critic}
    if loop.stop is not None:
        let["leaves_last_rollout_out"] = str(bool(loop.shortfall))
    formulas = _with_share(system)
    if logprobs is not None:
        formulas = (Formula("old_logprob_source", "'at_rollout'", logprobs.where), *formulas)
    if loop.stop is None:
        end = Formula("rollouts", "available", f"{source.at(run.fit.lineno)} fit: nothing but total_epochs ends it")
        # What ends after the validation alone still comes first.
        at = next(i for i, each in enumerate(formulas) if each.quantity == "rollouts" and "evaluates" not in each.where)
        formulas = (*formulas[:at], end, *formulas[at:])
    changed = msgspec.structs.replace(system, let=let, formulas=formulas)
    return Beside(changed, *known, notes=(Note("assumes", _said(loop, workers, logprobs, run, group)),), settings=own)


def _with_own_bypass(system: System) -> System:
    """The declaration for a recipe whose own configuration says whether the engine's log-probs are taken, as that of 0.7 does."""
    return msgspec.structs.replace(system, let={**system.let, "bypass": "algorithm.rollout_correction.bypass_mode"})


def _group(loop: Loop, values: Mapping[str, object]) -> str:
    """The setting that says how many samples a prompt has: one of a fork's own, where no other repeats it and `rollout.n` is 1."""
    others = [name for name in loop.repeats if name not in (GROUP, "1")]
    alone = len(others) == 1 and values.get(GROUP, 1) == 1
    return others[0] if alone and isinstance(values.get(others[0]), int) else GROUP


def _repeated_by(system: System, group: str) -> System:
    """The declaration where another setting than `rollout.n` says how many samples a prompt has; sizes are scaled by `rollout.n`."""
    formulas = tuple(
        msgspec.structs.replace(each, text=f"prompts * {group}") if each.quantity == "samples_per_rollout" else each
        for each in system.formulas
    )
    return msgspec.structs.replace(
        system,
        settings={**system.settings, group: count()},
        let={**system.let, "samples_per_prompt": group},
        formulas=formulas,
        notes=tuple(note for note in system.notes if "ppo_mini_batch_size count prompts" not in note.text),
    )


def _with_share(system: System) -> tuple[Formula, ...]:
    """The formulas, with what one process has of an update as the workers beside the launch work it out."""
    return tuple(
        msgspec.structs.replace(each, text="share * world_size") if each.text == _SCALED else each
        for each in system.formulas
    )


def _filtering(
    system: System, program: Program, run: Run, own: dict[str, Setting], given: Mapping[str, Setting]
) -> Beside:
    """What the lines of a trainer of somebody's own say that may leave groups out of a rollout, as DAPO's recipe does."""
    workers = read_workers(program.checkout) if _is_fsdp(given) else None
    values = values_of(given)
    estimators = estimators_in(program.checkout, run.source)
    has_critic, no_estimator = read_critic(run.source, program.checkout, {**values, **estimators})
    unclear = () if no_estimator is None else (no_estimator,)
    unknown = (*run.own_parts, *(workers.unknown if workers is not None else ()), *unclear)
    does = read_recipe(run.source, run.fit, values, REMEDY, unknown)
    let = {**system.let, **(workers.let if workers is not None else {}), **has_critic, "dapo": "True"}
    cut = f"; {'; '.join(map(str, workers.lines))}" if workers is not None else ". Its workers were not read"
    text = f"{run.trainer} beside the launch was read ({run.source.shown}): {does}{cut}"
    changed = msgspec.structs.replace(system, let=let, formulas=_with_share(system))
    between = _named_between("0.3", _newest(program.checkout), program.checkout)
    return Beside(changed, *between, notes=(Note("assumes", text),), settings=own)


def of_dapo(
    system: System, command: Command, folder: Path, given: Mapping[str, Setting], recipe: tuple[Checkout, str]
) -> Beside | None:
    """What the trainer of DAPO's recipe beside a launch says; None where its file has none.

    Args:
        system: verl.
        command: The launch.
        folder: The folder that it lies in.
        given: What it sets.
        recipe: The folder of recipes and DAPO's own in it.
    """
    found = fit_of_recipe(*recipe)
    if found is None:
        return None
    checkout, inner = recipe
    source, fit = found
    own = configuration(checkout, f"{inner}/main_dapo.py", command, given)
    values = values_of({**own, **given})
    fit, elsewhere = run_by(fit, source, "RayDAPOTrainer", values)
    does = read_recipe(source, fit, values, REMEDY, elsewhere)
    text = f"the trainer of DAPO's recipe beside the launch was read ({source.shown}): {does}"
    package = nearest(folder, find_checkout(MARKER, [folder]), "verl", REMEDY)
    common = package.source(COMMON_FILE) if package is not None else None
    main = checkout.source(f"{inner}/main_dapo.py")
    _refuse_to_validate(not_given(main, "RayDAPOTrainer", source, common, values))
    # The recipe came with 0.3; none of its loops that are known leaves the last rollout out.
    between = ("0.3", "0.10") if package is None else _named_between("0.3", _newest(package), package)
    return Beside(system, *between, notes=(Note("assumes", text),), settings=own)


def _of_experimental(system: System, program: Program, own: dict[str, Setting]) -> Beside | None:
    """The settings of a program within the copy of verl that has a configuration of its own; None where that is not read.

    What its trainer does is not read: these are planned as the releases have them.
    """
    if program.main is None or program.name.startswith("..") or not own:
        return None
    text = f"the configuration beside the launch was read ({os.path.dirname(program.main.shown)}); its trainer was not"
    # Before 0.7 such programs lay in recipe/.
    between = _named_between("0.7", "0.10", program.checkout)
    return Beside(system, *between, notes=(Note("assumes", text),), settings=own)


def reads_trainer(command: Command, folder: Path) -> bool:
    """Whether the trainer that a program of another name than main_ppo builds lies beside it, and its lines are read.

    Args:
        command: The launch.
        folder: The folder that it lies in.

    Raises:
        LaunchError: There are several copies of verl.
    """
    copy = program_of(command, folder)
    program = copy or program_alone(command, folder)
    if program is None or command.program.kind == "config":
        return False
    if command.program.name.endswith(_AS_RELEASED):
        return copy is not None and run_one_step_off(copy, {}) is not None
    given: dict[str, Setting] = {}
    with suppress(LaunchError):  # an argument that is no override is refused where the launch is planned
        given, _ = read_arguments(command.arguments, overrides=True)
    values = values_of({**settings_of(program, command, folder, given), **given})
    return builds_trainer(program, values) if copy is None else run_of(program, values) is not None


def no_trainer(command: Command, program: Program, remedy: str) -> LaunchError:
    """The question which trainer a program uses, where the way to it was not found.

    Args:
        command: The launch.
        program: Its program.
        remedy: What a user does.
    """
    package = os.path.relpath(program.checkout.package, program.checkout.root)
    return LaunchError(
        f"which trainer {command.program.name or program.name} uses was not found in {package} beside the launch",
        remedy=remedy,
    )


def _is_fsdp(given: Mapping[str, Setting]) -> bool:
    """Whether the workers are those for FSDP: the strategy decides, and where it is not known the name of the configuration."""
    strategy = f"{ACTOR}.strategy"
    names = (strategy, "model_engine") if strategy in given else ("config_name", "model_engine")
    said = [str(given[name].value) for name in names if name in given]
    return all(name in ("fsdp", "fsdp2", "dp") or "ppo_trainer" in name for name in said)


def _said(loop: Loop, workers: Workers | None, logprobs: Line | None, run: Run, group: str) -> str:
    if loop.stop is None:
        ends = f"nothing but total_epochs ends the run ({run.source.at(run.fit.lineno)})"
    else:
        fewer = ", so that the last rollout never comes" if loop.shortfall else ""
        ends = f"the run ends at {loop.stop}{fewer}"
    lines = [*(workers.lines if workers is not None else ()), *([logprobs] if logprobs is not None else [])]
    cut = f"; {'; '.join(map(str, lines))}" if workers is not None else ". Its workers were not read"
    return f"the trainer beside the launch was read: {ends}; {loop.repeats[group]}{cut}"


def _refuse(loop: Loop, workers: Workers | None, run: Run, values: Mapping[str, object], group: str) -> None:
    """Ask where something in the loop is not known.

    Raises:
        LaunchError: It is not.
    """
    unknown = [*loop.unknown, *run.own_parts, *(workers.unknown if workers is not None else ())]
    # One of a fork's own stands for the group only where `rollout.n` is 1, which repeats nothing.
    others = [line for name, line in loop.repeats.items() if name not in (group, GROUP, "1")]
    if loop.is_read and group not in loop.repeats and not others:
        others = [Line(f"nothing repeats a prompt {GROUP} times", run.source.at(run.fit.lineno))]
    unknown += others
    unknown += of_loader(run, values)
    _ask_about(unknown)


def _ask_about(unknown: Sequence[Line]) -> None:
    if unknown:
        raise none_known("the trainer", unknown, REMEDY)


def _refuse_to_validate(line: Line | None) -> None:
    """Refuse a launch whose program does not give its trainer what the validation uses.

    Raises:
        LaunchError: There is such a line.
    """
    if line is not None:
        raise LaunchError(
            str(line), remedy="trainer.val_before_train=False trainer.test_freq=-1 leaves the validation out"
        )


def of_loader(run: Run, values: Mapping[str, object], known: Collection[str] = ()) -> list[Line]:
    """What in the loader or in the total of steps of a trainer is not known, which may stand in a class that it extends."""
    if run.loader is None:
        return replaced(run.source, run.fit, values)
    source, owner = run.loader
    anew = [line for each in dict.fromkeys((source, run.source)) for line in replaced(each, run.fit, values)]
    return [*anew, *read_loader(source, owner, values, known)]


def _between(loop: Loop, checkout: Checkout) -> tuple[str, str]:
    """The first release that has such lines, and the first later one that does not."""
    # 0.2 counts its step up and then compares it (`releases.DIFFERENCES`).
    newest = _newest(checkout)
    if loop.stop is None:
        return _named_between("0.2", newest, checkout)
    return ("0.2", "0.3") if loop.shortfall else _named_between("0.3", newest, checkout)


def _has_v1(checkout: Checkout) -> bool:
    """Whether a copy has the trainers of 0.9 beside those before."""
    return (checkout.package / "trainer/ppo/v1").is_dir()


def _newest(checkout: Checkout) -> str:
    """The first release that has other workers: 0.8 has no fsdp_workers.py of its own any more."""
    if _has_v1(checkout):
        return "0.10"
    return "0.8" if (checkout.package / "workers/fsdp_workers.py").is_file() else "0.9"


def _named_between(first: str, end: str, checkout: Checkout) -> tuple[str, str]:
    """The releases that the checkout's own version may be, where they are some of those that have such lines; else all of these."""
    named = checkout.source("version/version")
    found = re.match(r"\s*0\.(\d+)\.(\d+)(\.dev)?", named.text) if named is not None else None
    if found is None or not int(first[2:]) <= int(found[1]) < int(end[2:]):
        return first, end
    minor = int(found[1])
    # What is developed after 0.3.0 is called 0.3.1.dev, whatever it becomes: it may have all that 0.4 has.
    later = 2 if found[3] and int(found[2]) else 1
    return f"0.{minor}", min(f"0.{minor + later}", end, key=lambda each: int(each[2:]))
