"""Shell scripts: what bash would run, and what depends on the machine."""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
from typing import TYPE_CHECKING

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rlstep_hooks.launch.shell.script import LARGEST_SCRIPT, read_script, read_text
from rlstep_hooks.launch.text import LaunchError

if TYPE_CHECKING:
    from pathlib import Path

BASH = shutil.which("bash")


def words(script: str, **variables: str) -> list[str]:
    """Program and arguments of the last command of a script."""
    command = read_text(script, "run.sh", given=variables)[-1]
    return [command.program.name, *(token.text for token in command.arguments)]


def unknown_names(script: str) -> list[str]:
    command = read_text(script, "run.sh")[-1]
    return [unknown.name for token in command.arguments for unknown in token.unknown]


# Each prints its words as bash sees them; the test runs bash and compares.
SAME_AS_BASH = [
    "X=5\ns $X '$X' \"$X\" \\$X ${X} x${X}y",
    "X='a b'\ns $X \"$X\" $X-c",
    "s ${X:-3} ${X-4} ${Y:-${X:-5}}",
    "X=\ns ${X:-3} ${X-4} end",
    ": \"${X:=7}\"\ns $X",
    "X=1\ns ${X:+set} ${Y:+unset} end",
    "A=( --a 1\n  # a comment\n  --b \"x y\" )\nA+=(--c 3)\ns \"${A[@]}\" ${A[*]} ${#A[@]} ${A[1]}",
    "A=()\ns \"${A[@]}\" end",
    "s a \\\n  b \\\n  c # d\n",
    "N=4\nP=$((N * 2 + 1))\ns $P $((N / 3)) $((-7 / 2)) $((7 % 3)) $(( (N + 1) * 2 ))",
    "X=5; if [ \"$X\" = 5 ]; then Y=yes; else Y=no; fi\ns $Y",
    "if [ -z \"$X\" ]; then X=9; fi\ns $X",
    "X=3\nif [[ $X -gt 2 && $X -lt 9 ]]; then s in; else s out; fi",
    "[ -n \"$X\" ] && Y=1\n[ -z \"$X\" ] && Y=2\ns $Y",
    "case abc in a*) s first;; *) s second;; esac",
    "X=b\ncase $X in a|b) s both;; *) s none;; esac",
    "while [[ $# -gt 0 ]]; do case $1 in --n) N=$2; shift 2;; *) shift;; esac; done\ns ${N:-none}",
    "F=/data/train.parquet\ns ${F%.parquet} ${F##*/} ${F%%/*}end ${F#/}",
    "export A=1 B=2\nunset A\ns ${A:-gone} $B",
    "X=\"line \\\"quoted\\\" \\$X\"\ns \"$X\"",
    "s $'a\\nb'",
    "X=a\nX+=b\ns $X",
    "s \"$@\" end",
]  # fmt: skip


@pytest.mark.skipif(BASH is None, reason="there is no bash to compare with")
@pytest.mark.parametrize("script", SAME_AS_BASH)
def test_words_are_those_of_bash(script: str) -> None:
    program = "s() { printf '%s\\0' s \"$@\"; }\n" + script
    assert BASH is not None
    run = subprocess.run(
        [BASH, "--norc", "-c", program], capture_output=True, check=True, env={"PATH": os.environ["PATH"]}
    )
    assert words(script) == run.stdout.decode().split("\0")[:-1]


@given(
    st.lists(
        st.text(st.characters(exclude_characters="\0", exclude_categories=("Cs",)), min_size=1), min_size=1, max_size=4
    )
)
@settings(deadline=None, max_examples=150)
def test_quoted_words_come_back_as_they_are(arguments: list[str]) -> None:
    assert words("s " + shlex.join(arguments)) == ["s", *arguments]


def read_or_refused(text: str) -> bool:
    """Whether a text gives commands, or a message that begins with the place."""
    try:
        read_text(text, "run.sh")
    except LaunchError as error:
        return str(error).startswith("run.sh")
    return True


@given(st.text(max_size=200))
@settings(deadline=None, max_examples=300)
def test_any_text_gives_commands_or_a_message(text: str) -> None:
    assert read_or_refused(text)


PIECES = st.sampled_from(
    ["if", "then", "fi", "for x in", "do", "done", "case", "esac", "$(", ")", "${", "}", "'", '"', "\\\n", "\n", ";", "&&", "|", "x=1",
     "python -m a --b", "$x", "${x:-1}", "$((", "))", "<<EOF", "EOF", "#", "(", "[[", "]]", "while true;", "function f {", "{"]
)  # fmt: skip


@given(st.lists(PIECES, max_size=25))
@settings(deadline=None, max_examples=300)
def test_any_pieces_of_shell_give_commands_or_a_message(pieces: list[str]) -> None:
    assert read_or_refused(" ".join(pieces))


def test_substitutions_are_text_and_never_run(tmp_path: Path) -> None:
    witness = tmp_path / "witness"
    script = f'X=$(touch {witness})\nY=`touch {witness}`\ns $(touch {witness}) "$X" $Y <(touch {witness})\neval touch {witness}\n'
    path = tmp_path / "run.sh"
    path.write_text(script)
    commands = read_script(path)
    assert not witness.exists()
    asked = [unknown for command in commands for token in command.arguments for unknown in token.unknown]
    assert {unknown.name for unknown in asked} >= {"X", "Y"}


def test_what_a_condition_decides_is_unknown_with_its_choices() -> None:
    script = "if command -v gpu; then N=8; else N=1; fi\ns --n $N"
    command = read_text(script, "run.sh")[-1]
    (unknown,) = command.arguments[1].unknown
    assert unknown.name == "N"
    assert "8 or 1" in unknown.why
    assert words(script, N="4")[-1] == "4"


def test_an_unset_variable_is_asked_for_where_it_stands() -> None:
    command = read_text("set -x\n\ns --n $N", "run.sh")[-1]
    assert str(command.arguments[1].unknown[0].place) == "run.sh:3:7"
    assert unknown_names("X=$(nproc)\ns $X") == ["X"]


def test_an_array_from_elsewhere_is_missing_and_swallows_no_flag() -> None:
    command = read_text("python train.py --colocate ${MODEL_ARGS[@]} --b 1", "run.sh")[-1]
    assert [token.text for token in command.arguments] == ["--colocate", "--b", "1"]
    assert [unknown.name for unknown in command.missing] == ["MODEL_ARGS"]


def test_an_array_from_elsewhere_may_stand_before_the_first_command() -> None:
    command = read_text('ARGS=(--b 1 "${MODEL_ARGS[@]}")\npython train.py "${ARGS[@]}"', "run.sh")[-1]
    assert [token.text for token in command.arguments] == ["--b", "1"]


def test_sourced_and_called_scripts_are_followed_when_they_are_here(tmp_path: Path) -> None:
    (tmp_path / "common.sh").write_text("BATCH=64\nARGS=(--x 1)\n")
    (tmp_path / "inner.sh").write_text("python inner.py --n ${1:-0} --b $BATCH\n")
    outer = tmp_path / "run.sh"
    outer.write_text("source common.sh\npython train.py --batch $BATCH ${ARGS[@]}\nBATCH=$BATCH bash inner.sh 5\n")
    commands = read_script(outer)
    assert [token.text for token in commands[0].arguments] == ["--batch", "64", "--x", "1"]
    assert commands[1].program.name == "inner.py"
    assert [token.text for token in commands[1].arguments] == ["--n", "5", "--b", "64"]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("python a.py \"x", "run.sh:1"),
        ("for i in 1 2; do python a.py", "run.sh:"),
        ("while true; do X=1; done", "does not end"),
        ("python a.py\0", "zero byte"),
        ("x" * (LARGEST_SCRIPT + 1), "at most 1 MiB"),
        ("if [ -f x ]; then\n" * 200 + "true\n" + "fi\n" * 200, "nested too deeply"),
    ],
    ids=["open quote", "open loop", "endless", "zero byte", "too large", "too deep"],
)  # fmt: skip
def test_text_that_is_no_script(text: str, message: str) -> None:
    with pytest.raises(LaunchError, match=r"run\.sh") as caught:
        read_text(text, "run.sh")
    assert message in str(caught.value)


def test_a_file_that_is_no_script(tmp_path: Path) -> None:
    large = tmp_path / "large.sh"
    large.write_bytes(b"# x\n" * (10 << 18))
    with pytest.raises(LaunchError, match=r"10\.0 MiB"):
        read_script(large)
    binary = tmp_path / "binary.sh"
    binary.write_bytes(b"echo\n\xff\xfe")
    with pytest.raises(LaunchError, match=r"binary\.sh:2:1: not a text file"):
        read_script(binary)
