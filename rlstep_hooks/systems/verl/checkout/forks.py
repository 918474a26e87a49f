"""What the checkout of a single fork of verl has otherwise than its declaration, which says where its run ends."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import msgspec

from rlstep_hooks.launch.checkout import Line, first_of
from rlstep_hooks.launch.text import LaunchError
from rlstep_hooks.systems.engine.declaration import Beside
from rlstep_hooks.systems.verl.checkout.critic import read_critic
from rlstep_hooks.systems.verl.checkout.estimators import estimators_in
from rlstep_hooks.systems.verl.checkout.loop import read_loop
from rlstep_hooks.systems.verl.checkout.reading import GROUP, no_trainer, of_loader
from rlstep_hooks.systems.verl.checkout.run import run_of, settings_of, values_of
from rlstep_hooks.systems.verl.checkout.workers import read_workers
from rlstep_hooks.systems.verl.family import (
    DIVIDED_FIRST,
    DIVIDES_ALWAYS,
    DIVIDES_WITHOUT_TOKENS,
    MULTIPLIED_FIRST,
    PER_GPU,
)
from rlstep_hooks.systems.verl.settings import ACTOR, ROLLOUT

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping
    from pathlib import Path

    from rlstep_hooks.launch.checkout import Function, Source
    from rlstep_hooks.launch.command import Command
    from rlstep_hooks.launch.settings import Setting
    from rlstep_hooks.systems.engine.declaration import System
    from rlstep_hooks.systems.verl.checkout.loop import Loop
    from rlstep_hooks.systems.verl.checkout.program import Program
    from rlstep_hooks.systems.verl.checkout.run import Run
    from rlstep_hooks.systems.verl.checkout.workers import Workers


def of_fork(
    system: System,
    program: Program,
    command: Command,
    folder: Path,
    given: Mapping[str, Setting],
    known: Collection[str],
    *,
    shortfall: int,
    also: Callable[[Program, Run, Mapping[str, object]], Collection[str]] | None,
) -> Beside | None:
    """What the checkout has otherwise, as `beside.ends_early` says it.

    Args:
        program: The program of the launch and the copy of verl that it runs with.

    Raises:
        LaunchError: It ends elsewhere, or has lines that may change the length or the sizes, and that the fork has not.
    """
    remedy = f"--version {system.version} plans it as {system.title}"
    values = values_of({**settings_of(program, command, folder, given), **given})
    run = run_of(program, values)
    if run is None:
        raise no_trainer(command, program, remedy)
    checkout, source, fit = program.checkout, run.source, run.fit
    values = {**values, **estimators_in(checkout, source)}
    known = {*known, *(also(program, run, values) if also is not None else ())}
    loop = read_loop(fit, source, values, known, program.source_at)
    workers = read_workers(checkout)
    other = [*loop.unknown, *run.own_parts, *of_loader(run, values, known)]
    other = other or _differs(loop, shortfall, system, source, fit)
    other += _unknown_workers(workers, system, values) if workers is not None else []
    if other:
        raise LaunchError(
            f"the trainer beside the launch is not that of {system.title} {system.version}: {first_of(other)}",
            remedy=remedy,
        )
    let = {
        **(_sizes(system, workers) if workers is not None else {}),
        **_estimator(system, source, values.get("algorithm.adv_estimator")),
        **(read_critic(source, checkout, values)[0] if "critic" in system.let else {}),
    }
    settings = {**system.settings, **PER_GPU} if "micro" in let else system.settings
    return Beside(msgspec.structs.replace(system, let={**system.let, **let}, settings=settings)) if let else None


def _differs(loop: Loop, shortfall: int, system: System, source: Source, fit: Function) -> list[Line]:
    """What a loop whose lines are all known does otherwise than the declaration of its fork says."""
    at = source.at(fit.lineno)
    factors = system.let["group"].split(" * ")
    other = [line for name, line in loop.repeats.items() if name not in (*factors, "1")]
    # What `rollout.n` says, the engine may repeat itself; what the environment repeats, no trainer does.
    missing = [name for name in factors if name not in (GROUP, *loop.repeats) and name.startswith(f"{ROLLOUT}.")]
    other += [Line(f"nothing repeats a prompt {name} times", at) for name in missing]
    if loop.stop is None:
        other.append(Line("nothing but total_epochs ends its run", at))
    elif loop.shortfall != shortfall:
        other.append(Line(f"its run ends at {loop.stop}", at))
    return other


def _unknown_workers(workers: Workers, system: System, values: Mapping[str, object]) -> list[Line]:
    """What the workers of a checkout do that the declaration of its fork does not say."""
    reads = workers.let.get("reads_epochs") == "True"
    if values.get(f"{ACTOR}.ppo_epochs", 1) == 1 or reads == (system.let["passes"] != "1"):
        return list(workers.unknown)
    return [*workers.unknown, *workers.lines[:1]]


def _sizes(system: System, workers: Workers) -> dict[str, str]:
    """The mini-batch and the micro-batch of one process, where the workers of a checkout work them out otherwise than its fork's."""
    if workers.unknown or not workers.let:
        return {}
    own = {
        "device": workers.let["share"],
        "divides_microbatch": DIVIDES_ALWAYS if workers.divides_microbatch else DIVIDES_WITHOUT_TOKENS,
    }
    sizes = {name: size for name, size in own.items() if size != system.let.get(name, size)}
    if workers.multiplies_microbatch == (f"* {GROUP}" in system.let["micro"]):
        return sizes
    if workers.multiplies_microbatch:
        return {**sizes, "micro": f"{DIVIDED_FIRST['micro']} if {ACTOR}.ppo_micro_batch_size else None"}
    return {**sizes, "micro": MULTIPLIED_FIRST["micro"], "critic_micro": MULTIPLIED_FIRST["critic_micro"]}


def _estimator(system: System, source: Source, named: object) -> dict[str, str]:
    """The launch's `adv_estimator` as one that is known, where the trainer of the checkout compares with it: it may have added one."""
    text = re.escape(str(named))
    compared = rf"(?:adv_estimator\s*(?:==|in)[^:]*|^[ \t]+[A-Z_]+ = )[\"']{text}[\"']"
    if "estimators" not in system.let or re.search(compared, source.text, re.MULTILINE) is None:
        return {}
    return {"estimators": repr((str(named),))}
