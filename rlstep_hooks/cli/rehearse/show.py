"""`rlstep rehearse`: the user's own launch with a tiny model on this machine."""

from __future__ import annotations

import os
import signal
import sys
from typing import TYPE_CHECKING, Any

import msgspec

from rlstep_hooks.cli.complain import complain
from rlstep_hooks.cli.plan import text_for
from rlstep_hooks.cli.rehearse.command import runnable
from rlstep_hooks.cli.rehearse.outcome import NOT_REHEARSED, Line, Outcome, outcome_of
from rlstep_hooks.cli.rehearse.run import real_refusal, rehearse
from rlstep_hooks.launch.text import LaunchError
from rlstep_hooks.planning.words import printable
from rlstep_hooks.systems.engine.installed import runs_here
from rlstep_hooks.systems.engine.launches import plan_launch

if TYPE_CHECKING:
    from rlstep_hooks.cli.rehearse.parts import Asked
    from rlstep_hooks.planning.launched import Options, Plan


def show(words: list[str], options: Options, asked: Asked, *, confirm: bool, as_json: bool, strict: bool) -> int:
    """Rehearse a launch, and print what was proved.

    Returns:
        The exit status: 0 proved, 1 something is wrong, 2 it could not be rehearsed.

    Raises:
        LaunchError: The launch cannot be read.
        OSError: It cannot be started.
    """
    stream = sys.stderr if as_json else sys.stdout
    # What a shell always has; a plan that is read elsewhere does not know it.
    own = {name: os.environ[name] for name in ("HOME", "USER") if name in os.environ}
    options = msgspec.structs.replace(options, variables={**own, **options.variables})
    command = runnable(words, options)
    plan = _plan(words, msgspec.structs.replace(options, here=runs_here(command.arguments)))
    if plan is not None:
        print(text_for(stream, plan), end="\n\n", file=stream, flush=True)
        if plan.schedule is None:
            return _refused(plan, command, asked, confirm=confirm, as_json=as_json)
    previous = signal.signal(signal.SIGTERM, _interrupt)
    try:
        rehearsed = rehearse(command, asked, told=lambda text: print(text, file=sys.stderr, flush=True))
    finally:
        signal.signal(signal.SIGTERM, previous)
    outcome = outcome_of(rehearsed, strict=strict)
    if as_json:
        print(_json(outcome))
    else:
        _print(outcome, plan)
    return outcome.status


def _interrupt(number: int, frame: Any) -> None:
    """End as at Ctrl-C, so that the child and the temporary folder go."""
    raise KeyboardInterrupt


def _plan(words: list[str], options: Options) -> Plan | None:
    try:
        return plan_launch(words, options)
    except LaunchError as error:
        complain(f"no plan from the text: {error}; the live settings give it")
        return None


def _refused(plan: Plan, command: Any, asked: Asked, *, confirm: bool, as_json: bool) -> int:
    refusal = plan.findings[-1]
    real = real_refusal(command, asked) if confirm else None
    if as_json:
        print(_json(Outcome(status=1, sentence=f"refused: {refusal.observed}", lines=()), real=real))
        return 1
    print(f"{plan.title} would refuse this launch; nothing was rehearsed.")
    if real is not None:
        print(printable(f"{plan.title} itself, with these sizes: {real or 'it takes them, so the plan is at fault'}"))
    return 1


def _json(outcome: Outcome, **more: Any) -> str:
    from rlstep_hooks.record.wire import to_json

    form = {"schema": 1, **msgspec.structs.asdict(outcome), "not_rehearsed": NOT_REHEARSED, **more}
    return to_json(form, indent=2).decode()


_STYLES = {"proved": "green", "wrong": "bold red", "doubtful": "yellow", "not proved": "dim"}


def _detail(line: Line, outcome: Outcome) -> str:
    """What a line of the table says, without what the last line says in full."""
    if line.state == "wrong" and outcome.sentence == f"{line.what}: {line.detail}":
        return "see the end"
    told = bool(outcome.cause) and outcome.cause in outcome.sentence
    return line.detail.replace(f": {outcome.cause}", "") if told else line.detail


def _print(outcome: Outcome, plan: Plan | None) -> None:
    from rich.text import Text

    from rlstep_hooks.show.console import plan_table
    from rlstep_hooks.show.terminal import Terminal

    console = Terminal(highlight=False)
    if plan is None and outcome.schedule is not None:
        console.print(plan_table(outcome.schedule), "")
    if outcome.replaced:
        console.print("in the place of the real launch:")
        for each in outcome.replaced:
            console.print(Text(f"  {each}", style="dim"), soft_wrap=True)
        console.print()
    lines = [*outcome.lines, Line(what="not in small", state="not proved", detail=", ".join(NOT_REHEARSED))]
    widest = max(len(line.what) for line in lines)
    for line in lines:
        words = Text(f"  {line.state.upper():12}", style=_STYLES[line.state])
        console.print(words.append(f"{line.what:{widest}}  {_detail(line, outcome)}", style="default"), soft_wrap=True)
    if outcome.output:
        console.print("\nthe end of the script's output:")
        for text in outcome.output[-20:]:
            console.print(Text(f"  {text}"), soft_wrap=True)
    word = {0: "PROVED", 1: "WRONG", 2: "NOT EVALUATED"}[outcome.status]
    style = _STYLES["wrong" if outcome.status else "proved"]
    console.print()
    console.print(Text(f"{word}: {outcome.sentence} ({outcome.seconds:.0f} s)", style=style), soft_wrap=True)
