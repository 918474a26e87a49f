"""`$(of_the_script 8 4)`: what a function of the script prints is what bash prints, or it is asked about."""

from __future__ import annotations

import shutil
import subprocess
from typing import TYPE_CHECKING

import pytest

from rlstep_hooks.launch.shell.script import read_script

if TYPE_CHECKING:
    from pathlib import Path

BASH = shutil.which("bash") or ""
KNOWN = [
    "f() { echo $(($1 / 2)); }",
    'f() { local a="${1:-}"; [[ -n "$a" ]] || fail; (( a > 0 )) || fail \\\n    \'no\'; printf \'%s\\n\' "$((a / 2))"; }',
    "f() { if [ $1 -gt 4 ]; then echo 4; else echo 2; fi; }",
    "f() { if [ $1 -gt 4 ]; then echo 4; return; fi; echo 2; }",
    "f() { case $1 in 8) echo -n 1; echo 6;; *) echo 2;; esac; }",
    "g() { echo $(($1 + 1)); }\nf() { local a; a=$(g $1); echo $a; }",
    "N=5\nf() { N=6; echo $N; }",  # what it sets stays in its own shell
    "f() { echo 'counting' >&2; echo 4; }",
    "f() { echo 4; echo 5 > /dev/null; }",
    "f() { for i in 1 2 3; do echo $i; done; }",
    "f() { echo 4 | tr 4 5; }",
    "f() { echo 4; } >&2",
    "f() { echo ${#1}; }",
    "f() { nproc; }",
    "f() { echo $1 && false || echo 3; }",
    "f() { (echo 4; exit 0); echo 5; }",
    "f() { echo 4; exit 0; echo 5; }",
    "f() { set -- 1 2 3; echo $#; }",
    "f() { [ -d /tmp ] && echo 4 || echo 5; }",
    "f() { echo 4; echo ''; echo ''; }",
    "f() { cd /; pwd; }",
    "f() { f2() { echo 7; }; f2; }",
    "f() { f; }; f() { echo 9; }",
    "f() { printf '%d\\n' 4; }",
    "f() { cat <<< 4; }",
    "f() { echo 1; echo 2 >&2; echo 3; } 2>/dev/null",
]


def read(folder: Path, text: str) -> list[str | None]:
    """The words that a script starts `train` with; None for each that is asked about."""
    (folder / "train.sh").write_text(text)
    commands = [each for each in read_script(folder / "train.sh") if each.program.name == "train"]
    return [None if each.unknown else each.text for each in commands[-1].arguments]


@pytest.mark.skipif(not BASH, reason="bash says what is right")
@pytest.mark.parametrize("function", KNOWN)
def test_a_function_prints_what_bash_prints_or_it_is_asked_about(tmp_path: Path, function: str) -> None:
    text = f'fail() {{ echo "$1" >&2; exit 1; }}\n{function}\ntrain "$(f 8)" "${{N:-none}}"\n'
    run = 'train() { for each in "$@"; do printf \'%s\\0\' "$each"; done; }\n' + text
    done = subprocess.run([BASH, "-c", run], capture_output=True, text=True, timeout=20, check=False)
    words = done.stdout.split("\0")[:-1]
    for word, known in zip(words, read(tmp_path, text), strict=True):
        assert known in (None, word)


def test_what_functions_print_is_known_where_they_work_on_text_alone(tmp_path: Path) -> None:
    for function, printed in zip(KNOWN[:8], ["4", "4", "4", "4", None, "9", "6", "4"], strict=True):
        assert read(tmp_path, f'{function}\ntrain "$(f 8)"\n') == [printed]


def test_a_function_that_starts_a_program_starts_it_in_a_substitution_too(tmp_path: Path) -> None:
    text = "f() { train 4; }\nX=$(f)\n"
    assert read(tmp_path, text) == ["4"]


def test_a_file_that_only_bash_may_source_is_read(tmp_path: Path) -> None:
    (tmp_path / "common.sh").write_text(
        'if [[ -z "${BASH_VERSION:-}" ]]; then return 1 2>/dev/null || exit 1; fi\nN=4\n'
    )
    assert read(tmp_path, "source common.sh\ntrain $N\n") == ["4"]


READING = [
    "f() { if [ \"${SMOKE:-0}\" = 1 ]; then printf '%s\\n' --steps 1; else printf '%s\\n' --epochs \"${EPOCHS:-3}\" 'a b'; fi; }",
    "f() { echo one; echo; echo 'two three'; }",
    "f() { :; }",
    "f() { nproc; }",
]


@pytest.mark.skipif(not BASH, reason="bash says what is right")
@pytest.mark.parametrize("reads", ["mapfile -t A", "readarray A", "mapfile -t -s 1 A", "read -ra A", "mapfile -d e A"])
@pytest.mark.parametrize("function", READING)
def test_what_is_printed_into_an_array_is_what_bash_reads_or_it_is_asked_about(
    tmp_path: Path, function: str, reads: str
) -> None:
    text = f"{function}\n{reads} < <(f)\ntrain start ${{A[@]}} end\n"
    run = 'train() { for each in "$@"; do printf \'%s\\0\' "$each"; done; }\n' + text
    done = subprocess.run([BASH, "-c", run], capture_output=True, text=True, timeout=20, check=False)
    known = read(tmp_path, text)
    assert known == done.stdout.split("\0")[:-1] or None in known or known == ["start", "end"]


def test_lines_that_a_function_prints_are_the_words_of_an_array(tmp_path: Path) -> None:
    text = f'{READING[0]}\nmapfile -t A < <(f)\ntrain "${{A[@]}}"\n'
    assert read(tmp_path, text) == ["--epochs", "3", "a b"]
    assert read(tmp_path, f"SMOKE=1\n{text}") == ["--steps", "1"]
