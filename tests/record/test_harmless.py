"""Nothing that stands in a record or in a launch reaches a terminal, a page or an agent as a control character."""

from __future__ import annotations

import json
from fractions import Fraction
from typing import TYPE_CHECKING, Any, get_args

import msgspec
import pytest

from rlstep_hooks.cli.app import main
from rlstep_hooks.record.events import AnyEvent, Attached, Judged, RunEnded, RunStarted
from rlstep_hooks.record.wire import decode, encode
from tests.fuzz import views
from tests.scripted import make_plan, scripted_run
from tests.scripted_phases import PhaseCase, phase_plan, scripted_phases

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

HARM = "\x1b[31mred\x1b]0;title\x07\r\x08\x9b2J\u202egnp\u2066\u200e\u061c\x00\x7f\u2028\ufeff\U000e0041"
"""Colours, a window's title, a bell, a line overwritten, and letters in another order."""


def filled(kind: Any) -> Any:
    """A value of a type with harm in each text of it; msgspec describes the type, so new events and fields are tested unasked."""
    inspect = msgspec.inspect
    match kind:
        case inspect.IntType():
            return 1
        case inspect.FloatType():
            return 0.5
        case inspect.BoolType():
            return False
        case inspect.StrType():
            return HARM
        case inspect.AnyType():
            return {HARM: [HARM]}
        case inspect.LiteralType(values=values):
            return values[0]
        case inspect.UnionType(types=types):
            return filled(next(each for each in types if not isinstance(each, inspect.NoneType)))
        case inspect.VarTupleType(item_type=item) | inspect.ListType(item_type=item):
            return [filled(item)]
        case inspect.TupleType(item_types=items):
            return [filled(item) for item in items]
        case inspect.DictType(key_type=key, value_type=value):
            return {filled(key): filled(value)}
        case inspect.CustomType(cls=cls) if cls is Fraction:
            return Fraction(1, 2)
        case inspect.StructType(cls=cls, fields=fields):
            return cls(**{field.name: filled(field.type) for field in fields if field.name != "critic"})
    raise NotImplementedError(kind)


KINDS = get_args(AnyEvent)


def harmed(value: Any, names: tuple[str, ...] = ()) -> Any:
    """JSON data of a real event with harm behind each text that is not one of a few words."""
    if isinstance(value, dict):
        return {key: harmed(inner, (*names, key)) for key, inner in value.items()}
    if isinstance(value, list):
        return [harmed(inner, names) for inner in value]
    return value + HARM if isinstance(value, str) and not {*names} & WORDS else value


WORDS = {
    *(
        "event",
        "process",
        "purpose",
        "role",
        "old_source",
        "constants",
        "with_gradient",
        "status",
        "since",
        "verdict",
        "severity",
    ),
    *(
        "step",
        "updates_bound",
        "loop",
        "remainder",
        "syncs",
        "partial_window",
        "rows_bound",
        "old_logprob_source",
        "lr_clock",
    ),
    *(
        "reference_source",
        "step_unit",
        "critic_order",
        "updates_per_rollout",
        "data_epochs",
        "loader_epochs",
        "prompts_per_rollout",
    ),
}
"""Fields that take one of a few words, or a fraction. A phase's name is one too."""


def harmful(text: str) -> set[str]:
    """Characters of a text that are no text."""
    return {one for one in text if not (one.isprintable() or one == "\n")}


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
def test_each_text_of_each_event_is_read_harmless(kind: type) -> None:
    event = filled(msgspec.inspect.type_info(kind))
    read = decode(encode(event))
    assert type(read) is kind
    for text in texts(read):
        assert not harmful(text)
    if any(HARM in text for text in texts(event)):
        assert any("\\u001b[31mred" in text for text in texts(read))


def texts(value: Any) -> Iterator[str]:
    """All texts of a value, keys too."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, msgspec.Struct):
        for name in value.__struct_fields__:
            yield from texts(getattr(value, name))
    elif isinstance(value, dict):
        for key, inner in value.items():
            yield from texts(key)
            yield from texts(inner)
    elif isinstance(value, list | tuple):
        for inner in value:
            yield from texts(inner)


def records() -> dict[str, dict[str, list[bytes]]]:
    """A loader's run, and one of a controller with two trainers; in each all texts are harmed, and each kind of event occurs."""
    of_loader = {"rank0": [encode(event) for event in scripted_run(make_plan(iterations=2, max_steps=8))]}
    of_phases: dict[str, list[bytes]] = {}
    plan = phase_plan(world_size=2, samples=8, minibatches=(4, 4))
    for process, event in scripted_phases(PhaseCase(schedule=plan)):
        of_phases.setdefault(process, []).append(encode(event))
    for found in (of_loader, of_phases):
        for process, lines in found.items():
            for at, line in enumerate(lines):
                event = harmed(json.loads(line))
                if event["event"] in ("phase", "phase_ended"):
                    event = json.loads(line)
                lines[at] = json.dumps(event).encode() + b"\n"
            more = [
                encode(filled(msgspec.inspect.type_info(kind))) for kind in KINDS if kind not in (RunStarted, Attached)
            ]
            ended = [encode(RunEnded(status="raised", updates=8, error=f"ValueError: {HARM}"))]
            judged = filled(msgspec.inspect.type_info(Judged))
            found[process] = [*lines[:-1], *more, *ended, encode(judged)]
    return {"loader": of_loader, "phases": of_phases}


@pytest.mark.parametrize("which", ["loader", "phases"])
def test_no_view_of_a_record_shows_a_control_character(tmp_path: Path, which: str) -> None:
    record, whole = tmp_path / "record", tmp_path / "whole"
    record.mkdir()
    whole.mkdir()
    for process, lines in records()[which].items():
        (record / f"run.{process}.jsonl").write_bytes(b"".join(lines))
    (record / f"run{HARM.translate({0: None})}.rank0.jsonl").write_bytes(b"{}\n")
    for event in scripted_run(make_plan(iterations=2, max_steps=8)):
        with (whole / "whole.rank0.jsonl").open("ab") as file:
            file.write(encode(event))
    shown = {name: views.shown(name, record, whole, tmp_path / "out") for name in views.names()}
    assert {name: harmful(text) for name, text in shown.items() if harmful(text)} == {}
    for name in ("report", "report as JSON", "report as Markdown", "page", "trace", "diff", "answer of report"):
        assert "u001b" in shown[name], f"{name} does not show it at all"


LAUNCH = """python3 -m verl.trainer.main_ppo data.train_batch_size=64 actor_rollout_ref.actor.ppo_mini_batch_size=24 \\
    trainer.project_name='{harm}' actor_rollout_ref.model.path='{harm}' +trainer.nosuch='{harm}' trainer.n_gpus_per_node=8 \\
    data.train_files='{harm}'
"""

OF_LAUNCHES = {
    "plan": ("plan", "{launch}"),
    "explained": ("plan", "--explain", "{launch}"),
    "plan as Markdown": ("plan", "--markdown", "{launch}"),
    "plan as JSON": ("plan", "--json", "{launch}"),
    "fixes": ("plan", "--fix", "{launch}"),
    "releases": ("plan", "--all-versions", "{launch}"),
    "check": ("check", "{launch}", "--sarif", "{out}"),
    "check as JUnit": ("check", "{launch}", "--junit", "{out}"),
    "check as Markdown": ("check", "--markdown", "{launch}"),
    "convert": ("convert", "--to", "trl", "{launch}"),
    "a launch that is not there": ("plan", "nosuch" + HARM.translate({0: None}) + ".sh"),
    "a record that is not there": ("report", "nosuch" + HARM.translate({0: None})),
}


@pytest.mark.parametrize("name", OF_LAUNCHES)
def test_no_view_of_a_launch_shows_a_control_character(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str
) -> None:
    launch, out = tmp_path / "launch.sh", tmp_path / "out"
    launch.write_text(LAUNCH.format(harm=HARM.translate({0: None})), encoding="utf-8")
    with pytest.raises(SystemExit):
        main([word.format(launch=launch, out=out) for word in OF_LAUNCHES[name]])
    printed = capsys.readouterr()
    text = printed.out + printed.err + (out.read_text() if out.exists() else "")
    assert text.strip()
    assert harmful(text) == set()
