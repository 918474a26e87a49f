"""Launches as nobody would write them: every reader's own programs and settings with impossible values, and broken files."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
from hypothesis import strategies as st

from rlstep_hooks.cli.plan import to_json
from rlstep_hooks.judge.timeline import expected_events
from rlstep_hooks.launch.text import LaunchError
from rlstep_hooks.planning.launched import Options
from rlstep_hooks.show.markdown import plan_markdown
from rlstep_hooks.show.plan import plan_text
from rlstep_hooks.systems.engine import index
from rlstep_hooks.systems.engine.launches import plan_launch
from tests.fuzz.limits import time_limit

if TYPE_CHECKING:
    from rlstep_hooks.planning.schedule import Schedule

SCRIPTS = sorted((Path(__file__).parents[1] / "golden" / "scripts").glob("*.sh"))
EVENTS_LOOKED_AT = 300
SECONDS = 10
"""Processor time after which an answer counts as hanging; the slowest real launch takes a hundredth of it."""

NUMBERS = st.one_of(
    st.integers(0, 16),
    st.sampled_from([32, 64, 128, 256, 1024, 8192]),
    st.sampled_from([-1, 10**6, 10**9, 10**18, 10**40]),
    st.integers(-(2**70), 2**70),
)
VALUES = st.one_of(
    NUMBERS.map(str),
    NUMBERS.map(str),
    st.sampled_from(
        ["", "null", "none", "true", "False", "0.5", "1e3", "1e400", "-0.0", "nan", "inf", "1/3", "[1,2]", "{a:1}", "[", "${x}",
         "$((1/0))", "grpo", "gae", "???", "auto", "1_000", "\u0664", "0x10", "a,b", "[[]]", "${n_gpus}", "no/such.parquet"]
    ),
    st.text(max_size=6),
)  # fmt: skip
SHELL_PIECES = (
    "$(", ")", "`", "<<EOF\n", "EOF\n", "${", "}", "\\\n", "for i in 1 2; do\n", "done\n", "'", '"', "\0", "$((", "))", "=", " -- ",
    "if [ ", "; then\n", "fi\n", "case x in\n", "esac\n", "&& ", "| ", "()", "{ ", "python -m ", "${a:-", "${!a}", "[@]", "\t", "\r\n",
    "eval ", "exec ", "source ", "$@", "$0", "10**9", "999999999999", "-1", "\ud7ff", "set -e\n", "export A=", "declare -a b=(",
)  # fmt: skip


def words_of(pattern: str) -> list[str]:
    """A command that a pattern of the catalogue fits."""
    kind, _, name = pattern.partition(":")
    plain = name.replace("*", "some")
    return {"module": ["python", "-m", plain], "script": ["python", plain]}.get(kind, plain.split())


@st.composite
def commands(draw: st.DrawFn) -> list[str]:
    """One reader's program with settings that it knows and a few that nobody does."""
    entry = draw(st.sampled_from(index.entries()))
    words = words_of(draw(st.sampled_from(entry.programs))) if entry.programs else ["python", "train.py"]
    reader = index.system_of(entry.name)
    known = [name for name in (*reader.defaults(reader.version), *entry.keys, entry.with_key) if name]
    names = draw(st.lists(st.sampled_from(known) | st.text(max_size=4), max_size=8)) if known else []
    for name in names:
        value = draw(VALUES)
        if reader.overrides:
            words.append(f"{draw(st.sampled_from(['', '', '', '+', '++', '~']))}{name}={value}")
        else:
            words += draw(st.sampled_from([[f"--{name}", value], [f"--{name}={value}"], [f"--{name}"]]))
    if draw(st.integers(0, 3)) == 0:
        words[:0] = draw(
            st.sampled_from([["torchrun", "--nproc_per_node", draw(VALUES)], ["env", "A=1"], ["accelerate", "launch"]])
        )
    return words


@st.composite
def broken(draw: st.DrawFn, text: str) -> str:
    """A text with pieces of it cut out, repeated or replaced."""
    for _ in range(draw(st.integers(1, 4))):
        at = draw(st.integers(0, len(text)))
        end = draw(st.integers(at, min(at + 40, len(text))))
        piece = draw(st.one_of(st.just(""), st.just(text[at:end] * 2), st.sampled_from(SHELL_PIECES), VALUES))
        text = text[:at] + piece + text[end:]
    return text


@st.composite
def config_files(draw: st.DrawFn) -> tuple[str, str]:
    """A configuration or Python file of some reader: its ending and its text, often broken."""
    entry = draw(st.sampled_from(index.entries()))
    reader = index.system_of(entry.name)
    known = [name for name in (*reader.defaults(reader.version), *entry.keys) if name]
    given = {name: draw(VALUES) for name in draw(st.lists(st.sampled_from(known), max_size=8))} if known else {}
    ending = draw(st.sampled_from([".yaml", ".toml", ".py"]))
    if ending == ".py":
        call = draw(st.sampled_from(entry.calls)) if entry.calls else "dict"
        fields = [f"{name.rpartition('.')[2]} = {value}" for name, value in given.items()]
        text = "\n".join([*fields, f"{call}({', '.join(fields)})\n"])
    elif ending == ".toml":
        text = "".join(f"{name} = {value}\n" for name, value in given.items())
    else:
        text = "".join(f"{name}: {value}\n" for name, value in given.items())
        if draw(st.booleans()):
            text = json.dumps(_nested(given))
    return ending, draw(st.one_of(st.just(text), broken(text)))


def _nested(flat: dict[str, str]) -> dict[str, object]:
    nested: dict[str, object] = {}
    for name, value in flat.items():
        *parents, last = name.split(".")
        at = nested
        for parent in parents:
            inner = at.setdefault(parent, {})
            if not isinstance(inner, dict):
                break
            at = inner
        else:
            at[last] = value
    return nested


def options() -> st.SearchStrategy[Options]:
    """What `rlstep plan` can be given beside the launch; the command line checks numbers before."""
    counts = st.none() | st.sampled_from([1, 7, 8532, 10**9])
    return st.builds(
        Options,
        framework=st.none() | st.none() | st.sampled_from([*index.names(), "none such"]),
        version=st.none() | st.none() | st.sampled_from(["0.16.1", "0.9.1", "9999", "x", ""]),
        rows=counts,
        world_size=counts,
        line=st.none() | st.none() | st.integers(-1, 30),
        variables=st.dictionaries(st.sampled_from(["a", "n_gpus", "trainer.total_epochs"]), VALUES, max_size=1),
    )


def check_launch(words: list[str], given: Options) -> None:
    """A plan is made, printed in every form and begun, or a documented error says why not. Nothing else, and in bounded time."""
    with time_limit(SECONDS):
        try:
            plan = plan_launch(words, given)
        except (LaunchError, OSError) as error:
            if "is at fault" in str(error):
                raise AssertionError(str(error)) from error
            return
        plan_text(plan, 100, explain=True, width=100, coloured=True)
        plan_markdown(plan, 100)
        msgspec.json.decode(to_json(plan, 100))
        if plan.schedule is not None:
            begin(plan.schedule)


def begin(schedule: Schedule) -> None:
    """The first events of the plan's timeline."""
    for _ in zip(range(EVENTS_LOOKED_AT), expected_events(schedule), strict=False):
        pass


def check_file(folder: Path, ending: str, text: str, given: Options) -> None:
    """The same for a file."""
    path = folder / f"launch{ending}"
    path.write_text(text, encoding="utf-8", errors="surrogatepass", newline="")
    check_launch([str(path)], given)
