"""Shell scripts: what bash would run, and what depends on the machine."""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rlstep_hooks.launch.shell.script import read_script, read_text
from rlstep_hooks.launch.shell.walk import LARGEST_SCRIPT
from rlstep_hooks.launch.text import LaunchError
from rlstep_hooks.planning.launched import Options
from rlstep_hooks.systems.engine.launches import plan_launch
from tests.examples import MANY

if TYPE_CHECKING:
    from pathlib import Path

BASH = shutil.which("bash")


def words(script: str, **variables: str) -> list[str]:
    """Program and arguments of the last command of a script."""
    command = read_text(script, "run.sh", given=variables)[-1]
    return [command.program.name, *(token.text for token in command.arguments)]


@pytest.mark.parametrize("condition", ["[[ a == @(a|b) ]]", "[[ 7 == [[:digit:]] ]]", "[[ a == *$(hostname)* ]]"])
def test_both_branches_are_read_where_a_pattern_is_not_known(condition: str) -> None:
    commands = read_text(f"if {condition}; then s first; else s second; fi", "run.sh")
    assert [command.arguments[0].text for command in commands] == ["first", "second"]


def test_a_pattern_that_is_not_known_leaves_the_items_of_case_before_it_out() -> None:
    commands = read_text("case b in a) s first;; $(hostname)) s second;; c) s third;; *) s rest;; esac", "run.sh")
    assert [command.arguments[0].text for command in commands] == ["second", "third", "rest"]


def unknown_names(script: str) -> list[str]:
    command = read_text(script, "run.sh")[-1]
    return [unknown.name for token in command.arguments for unknown in token.unknown]


# Each prints its words as bash sees them; the test runs bash and compares.
SAME_AS_BASH = [
    # Assignments on a line above a command are the script's, and those on its own line are the command's alone.
    "X=4\nX=8 Y=1\ns $X $Y",
    "X=4\nX=8 Y=1  # a remark\n\nY=2 s $X $Y",
    "X=4 Y=0\nX=8 Y=1 \\\n  s $X $Y",
    "f() {\nX=$1 Y=2\ns $X $Y\n}\nf 3",
    "X=5\ns $X '$X' \"$X\" \\$X ${X} x${X}y",
    "X='a b'\ns $X \"$X\" $X-c",
    # The words of an array by numbers that are worked out.
    "L=(a b c)\nN=1\ns \"${!L[@]}\" \"${!L[*]}\" ${L[$N]} ${L[N]} ${L[$((N - 1))]} ${L[-1]}",
    "A= L=(a b)\nfor i in \"${!L[@]}\"; do A=\"$A $i ${L[$i]}\"; done\ns $A",
    "L=()\ns \"${!L[@]}\" end",
    # Blanks between the parts of a text are its own.
    "X=1 Y=2\ns \"$X $Y\" \"${X}  ${Y}\" \"$(echo a) $(echo b) $((X + 1)) $((Y + 1))\"",
    "X='--a 1' Y=2\nZ=\"$X $Y\"\nZ=\"$Z $Z\"\ns $Z",
    "X=1 Y=2\ns \"${Z:-$X $Y}\" ${Z:-a $X $Y} \"${U:=3} ${V:=4} $U$V\"",
    "X='a b' Y=/x/y.z\ns $(printf %q $Y) \"--n $(printf '%q' \"$Y\") $(printf '%q' \"$Y\")\"",
    "s ${X:-3} ${X-4} ${Y:-${X:-5}}",
    "X=\ns ${X:-3} ${X-4} end",
    ": \"${X:=7}\"\ns $X",
    "X=1\ns ${X:+set} ${Y:+unset} end",
    "A=( --a 1\n  # a comment\n  --b \"x y\" )\nA+=(--c 3)\ns \"${A[@]}\" ${A[*]} ${#A[@]} ${A[1]}",
    "A=()\ns \"${A[@]}\" end",
    "s a \\\n  b \\\n  c # d\n",
    "a=3\nb=2\nP=$(( $((a*b)) * (1 + $((a-1)) ) ))\ns $P $(( $(echo 4) + 1 ))",
    "N=4\nP=$((N * 2 + 1))\ns $P $((N / 3)) $((-7 / 2)) $((7 % 3)) $(( (N + 1) * 2 ))",
    "X=5; if [ \"$X\" = 5 ]; then Y=yes; else Y=no; fi\ns $Y",
    "if [ -z \"$X\" ]; then X=9; fi\ns $X",
    "X=3\nif [[ $X -gt 2 && $X -lt 9 ]]; then s in; else s out; fi",
    "[ -n \"$X\" ] && Y=1\n[ -z \"$X\" ] && Y=2\ns $Y",
    "case abc in a*) s first;; *) s second;; esac",
    "X=b\ncase $X in a|b) s both;; *) s none;; esac",
    # Without arguments `getopts` ends its loop at once.
    "while getopts ':n:m' option; do case $option in n) N=$OPTARG;; esac; done\ns ${N:-16}",
    # Patterns: what stands in quotes is itself, and what a variable without quotes holds is a pattern.
    "X=q-7B\nif [[ \"$X\" == *\"32B\"* ]]; then s 32; elif [[ \"$X\" == *\"7B\"* ]]; then s 7; else s none; fi",
    "X=q-7B K=32B A=\n[[ $X == *$K* ]] && A=${A}1\n[[ $X != *\"$K\" ]] && A=${A}2\ns a$A",
    "X=q-7B K='*B' A=\n[[ $X == \"$K\" ]] && A=${A}1\n[[ $X == $K ]] && A=${A}2\n[[ $X == '*'B ]] && A=${A}3\ns a$A",
    "X=q-7B A=\n[[ $X = *'8B'* ]] && A=${A}1\n[[ $X = q* ]] && A=${A}2\n[[ $X == [^a-c]-?B ]] && A=${A}3\ns a$A",
    "X=q-7B A=\n[ \"$X\" == 'q*' ] && A=${A}1\n[ $X == q-7B ] && A=${A}2\ns a$A",
    "X=q-7B K=q\ncase $X in *\"32B\"*) s 32;; (\"$K\"-8*|*$K*\"7B\") s 7;; *) s none;; esac",
    "X='*'\ncase $X in '*'a|\"b\"*) s a;; \\*) s star;; *) s none;; esac",
    "N=0\nfor K in x 7B y; do if [[ q-7B == *\"$K\"* ]]; then F=$K; ((N++)); fi; done\ns $F $N",
    "while [[ $# -gt 0 ]]; do case $1 in --n) N=$2; shift 2;; *) shift;; esac; done\ns ${N:-none}",
    "F=/data/train.parquet\ns ${F%.parquet} ${F##*/} ${F%%/*}end ${F#/}",
    "export A=1 B=2\nunset A\ns ${A:-gone} $B",
    "X=\"line \\\"quoted\\\" \\$X\"\ns \"$X\"",
    "s $'a\\nb'",
    "X=a\nX+=b\ns $X",
    "read -ra A <<< \"a b c\"\ns ${A[@]} ${#A[@]}",
    "s \"$@\" end",
    "B=1; : \"${A:=$(( B * (4 + 1) ))}\" \"${U:=['a','b']}\"\ns $A $U \"${V:-['c']}\" ${W:-'d e'}",
    "B=2\nC=3\n: \"${A:=$(( B * (C + 1) ))}\"\nX=${Y:=5}\ns $A $X $Y ${Z:-$((B+1))}",
    "f() { local n=$1; shift; s $n \"$@\"; }\nf 1 'a b' c",
    "f() { N=$1; return; N=9; }\nf 4\ns $N",
    "CMD=\"s a\"\nCMD=\"$CMD --b '1 2'\"\neval \"$CMD\"",
    "read -r -d '' T <<EOF\n a $HOME-x \\\n  b\nEOF\nHOME=h; read -r L <<< 'one two'\ns $L",
    "X=3\nT=$(cat <<EOF\nn=$X \\$X\nEOF\n)\nU=$(cat <<'EOF'\n$X\nEOF\n)\ns \"$T\" \"$U\"",
    "i=1; ((i++)); ((i += 3)); let_i=$((i > 2 ? i * 2 : 0))\ns $i $let_i $((2 ** 5)) $((!i))",
    "for ((i = 0; i < 3; i++)); do X+=$i; done\ns $X",
    "for i in 1 2 3 4; do [ $i = 2 ] && continue; if [ $i -eq 4 ]; then break; fi; X+=$i; done\ns $X",
    "N=; while true; do N=${N}x; if [ ${#N} -ge 3 ]; then break; fi; done\ns $N",
    "[ -n \"$X\" ] && A=1 || A=2\n[ 1 = 1 ] && B=1 || B=2\ns $A $B",
    "cd / || exit 1\ns $(pwd) $PWD",
    "P=/data/models/Qwen-7B.tar\ns $(basename $P .tar) $(dirname \"$P\") $(basename \"$(dirname $P)\") $(realpath -m /a/b/../c)",
    "D=0,1,2\ns $(echo $D | tr ',' '\\n' | wc -l) $(echo $D | awk -F, '{print NF}') $(echo $D | cut -d, -f2) $(expr 7 / 2)",
    "D=0,1,2\ns $(awk -F, '{print NF}' <<<\"${D}\") $(tr ',' ' ' <<< $D | wc -w) $(wc -l <<< 'a b')",
    "s=; for i in $(seq 2 3); do s=$s$i; done\ns $s",
    "X=a/b/c\ns ${X//\\//_} ${X/a/z} ${X:2} ${X:0:1} ${X^^} ${X: -1}",
    "N=X; X=5\ns ${!N}",
    "set -- a 'b c'\ns $# \"$2\"",
    "if [ -z \"$A\" ] && [ -z \"$B\" ]; then C=1; else C=2; fi\nif [ 1 = 2 ] || (( 3 > 2 )); then D=1; fi\ns $C $D",
    "(X=1; cd /)\ns ${X:-gone}",
    "X=1 ; s $X $EMPTY end",
    "for i in {1..3} {9..5..2}; do X+=$i; done\ns $X {2..4}",
    "f() { local -n out=$1; out=(a 'b c'); out+=(d); }\nA=()\nf A\ns \"${A[@]}\"",
    "f() { declare -n out=\"$1\"; out=$((out + 1)); unset 'x'; }\nN=3; out=kept\nf N\ns $N $out",
    "g() { local -n o=$2; o=($1); }\nf() { local -n o=$1; local -a m=(); g x m; o=(y); o+=(${m[@]}); }\nf A\ns ${A[@]} ${m[@]} end",
    "typeset -n R=X\nX=5\nR+=6\ns $R ${X} ${!R}",
    "N=3; M=4\nf() { local N=9 M; M=5; K=$N$M; }\nf\ns $N $M $K",
    "N=3\nf() { local N=${N}1; local -a L; L+=($N); declare -g G=$N; s_N=${L[0]}; }\nf\ns $N $G $s_N ${L[@]} end",
    "f() { local N=2; g; }\ng() { N=7; K=$N; }\nN=1\nf\ns $N $K",
    "A=(a b c)\nA[1]=x\nA[${#A[@]}]='y z'\nA[0]+=q\ns \"${A[1]}\" \"${A[3]}\"",
    "mapfile -t A <<EOF\na b\nc\nEOF\nreadarray -t B <<< 'd e'\ns \"${A[@]}\" \"${B[@]}\"",
    "N=X; U=Y; X=5\ns ${!N:-1} ${!U:-3} \"${!U-4}\" ${!N:+set} ${!U:+set} end",
    "A=(a 'b c'); N='A[@]'; M=A\ns \"${!N}\" ${!M}",
    "f() { if [ -d / ]; then N=1; return; fi; N=2; exit 1; }\nf\ns $N",
    "f() { if [ -d /nowhere ]; then N=1; exit 1; else return 0; fi; N=2; }\nN=3\nf\ns $N",
    "if [ -d /nowhere ]; then N=1; exit 1; fi\ns ${N:-2}",
    "f() { return; N=1; }\nif [ -d / ]; then f; M=2; else M=2; fi\ns ${N:-unset} $M",
    "D=0,1,2,3; IFS=',' read -ra G <<< \"$D\"\nA='a b'\ns ${#G[@]} ${G[1]} \"${G[*]}\" $A",
    "D=0,1,,2,; IFS=, read -r -a G <<< $D\ns ${#G[@]} \"${G[@]}\"",
    "OLD=$IFS; IFS=,; D=0,1; G=($D); J=\"${G[*]}\"; IFS=$OLD; A='a b'\ns ${#G[@]} \"$J\" $A",
    "D='a : b:c d'; IFS=': '; X=($D); unset IFS; s \"${X[@]}\" $D",
    "D='a b'; IFS=; s $D",
    "s a \\\n  `# why (>= b)` \\\n  b `# and c` \\\n  c ' `# d` '",
    # Variables in brackets, and words that go on in the next line.
    "X=1 Y=/y\nZ=[$Y/a,$Y/b]\nexport U=[a,$X,b]\ns $Z $U files=[c,$X,d] +n=[$Y/a,$Y/b] m=[[$X],[$X,2]]",
    "X=1\\\n2\nY=[a,\\\n$X,\\\nb]\ns $X $Y",
    "s --a=[1,\\\n2] \\\n  --b 3\\\n4\n",
    "s a,\\\nb 'x\\\ny\nz' \"c\\\nd\" \\\ne",
    "T=$(cat <<'EOF'\na\\\nb\nEOF\n)\ns \"$T\" c\\\nd",
    "let X=2*3 Y=X+1\nlet \"Z = (X + Y) % 5\"\ns $X $Y $Z",
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
@MANY
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
@MANY
def test_any_text_gives_commands_or_a_message(text: str) -> None:
    assert read_or_refused(text)


PIECES = st.sampled_from(
    ["if", "then", "fi", "for x in", "do", "done", "case", "esac", "$(", ")", "${", "}", "'", '"', "\\\n", "\n", ";", "&&", "|", "x=1",
     "python -m a --b", "$x", "${x:-1}", "$((", "))", "<<EOF", "EOF", "#", "(", "[[", "]]", "while true;", "function f {", "{"]
)  # fmt: skip


@given(st.lists(PIECES, max_size=25))
@MANY
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


@pytest.mark.parametrize(
    "array",
    ['read -ra A <<< "$(python args.py "x" y)"', 'L="$(args x)" || exit 1\nread -r -a A <<< "${L}"', "A=($(args x))"],
)
def test_an_array_that_a_command_prints_is_missing_and_swallows_no_flag(array: str) -> None:
    command = read_text(f"{array}\ns --colocate ${{A[@]}} --n 4", "run.sh")[-1]
    assert [token.text for token in command.arguments] == ["--colocate", "--n", "4"]
    assert ["the output of" in missing.why for missing in command.missing] == [True]


@pytest.mark.parametrize(
    ("script", "asked"),
    [
        ("A=($(scontrol show hostnames $L))\nN=${#A[@]}\ns --n $((N * 4))", "N"),
        ("A=($(scontrol show hostnames $L) own)\ns --n ${A[1]}", ""),
        ("A=($X)\ns --n ${#A[@]}", "X"),
        ("A=($(scontrol show hostnames))\ns --n ${#A[@]}", ""),
        ("IFS=, read -ra A <<< $X\ns --n ${#A[@]}", "X"),
        ("A=(a b)\nread -ra A < nodes.txt\ns --n ${#A[@]}", "A"),
        ("A=()\nmapfile -t A < <(scontrol show hostnames)\ns --n ${#A[@]}", "A"),
        ('A=(0 1 2 3)\nB=("${A[@]:0:2}")\nN=${#B[@]}\ns --n $N', "N"),
        ("if gpus; then A=(0 1); else A=(0); fi\ns --n ${#A[@]}", "A"),
        ("N=0; for node in $(nodes); do N=$((N + 1)); done\ns --n $N", "N"),
    ],
)
def test_words_of_an_unknown_number_are_not_counted(script: str, asked: str) -> None:
    command = read_text(script, "run.sh")[-1]
    assert [unknown.name for token in command.arguments for unknown in token.unknown] == [asked]


def test_quoted_unknown_words_are_counted() -> None:
    assert words('A=("$X" "$(nproc)")\ns ${#A[@]}') == ["s", "2"]


def test_what_a_command_prints_is_the_value_of_a_flag() -> None:
    command = read_text("s --n $(nproc) --m 4", "run.sh")[-1]
    assert [bool(token.unknown) for token in command.arguments] == [False, True, False, False]


def test_an_array_from_elsewhere_may_stand_before_the_first_command() -> None:
    command = read_text('ARGS=(--b 1 "${MODEL_ARGS[@]}")\npython train.py "${ARGS[@]}"', "run.sh")[-1]
    assert [token.text for token in command.arguments] == ["--b", "1"]


def test_lines_below_a_word_that_goes_on_keep_their_numbers() -> None:
    commands = read_text("X=[a,\\\nb]\ns first \\\n  c,\\\nd \\\n  e\ns second\n", "run.sh")
    assert [command.place.line for command in commands] == [3, 7]


def test_a_backslash_at_the_end_of_a_file_is_left_out() -> None:
    assert words("s a \\\n b=1 \\") == words("s a \\\n b=1 \\\n") == ["s", "a", "b=1"]


@pytest.mark.parametrize(
    "script",
    [
        "s --out <OUTPUT_DIR> \\\n  --model <PATH-TO-Qwen2-VL-2B> \\\n  --steps 2",
        "s --out <OUTPUT_DIR> \\\n  --model=<your model> --steps 2\n",
    ],
)
def test_a_placeholder_is_asked_for_and_swallows_no_argument(script: str) -> None:
    command = read_text(script, "run.sh")[-1]
    flags = [token.text.partition("=")[0] for token in command.arguments if token.text.startswith("--")]
    assert flags == ["--out", "--model", "--steps"]
    first, *_ = (unknown for token in command.arguments for unknown in token.unknown)
    assert (first.name, first.why) == ("OUTPUT_DIR", "<OUTPUT_DIR> is a placeholder")
    assert words(script, OUTPUT_DIR="/x")[1:3] == ["--out", "/x"]


@pytest.mark.parametrize(
    "script", ["s --a 1 <in.txt >out.txt", "s --a 1 <in 2> err", "s --a 1 < in > out", "s --a '<b>' 1"]
)
def test_a_redirection_is_no_placeholder(script: str) -> None:
    assert unknown_names(script) == []


def test_a_guard_is_not_the_end_of_the_script() -> None:
    for guard in (
        'if [ -z "$X" ]; then echo "set X"; exit 1; fi',
        '[ -z "${X:-}" ] && { echo "set X" >&2; exit 1; }',
        '[[ -n "$X" ]] || exit 1',
        "if [ $# -lt 1 ]; then usage; exit 1; fi",
        ': "${X:?set it}"',
        'for v in X; do [[ -z "${!v:-}" ]] && { echo "missing ${v}" >&2; exit 1; }; done',
    ):
        command = read_text(f"{guard}\npython train.py --n $X --m 1", "run.sh")[-1]
        assert command.program.name == "train.py"
        assert [unknown.name for unknown in command.arguments[1].unknown] == ["X"], guard
        assert words(f"{guard}\npython train.py --n $X", X="4")[-1] == "4"


@pytest.mark.parametrize(
    "value",
    ["${!HOLDER:-}", "${!HOLDER}", "$OTHER", "${OTHER:-}", "${HOLDER:?Set HOLDER}"],
)
def test_a_guard_of_a_value_taken_from_another_variable_is_not_the_end(value: str) -> None:
    script = f'''
HOLDER=${{HOLDER:?Set HOLDER}}
URL={value}
if [ -z "$URL" ]; then echo "Set OTHER or $HOLDER."; exit 1; fi
train --url "$URL"'''
    assert words(script)[:2] == ["train", "--url"]


@pytest.mark.parametrize(
    ("guard", "is_the_end"),
    [
        ('M=${M:-/path/to}\nif [[ "$M" == /path/to ]]; then echo "set M"; exit 1; fi', False),
        ('M=${M:-0}\n[ "$M" -ne 0 ] || { echo "set M"; exit 1; }', False),
        ('if [ "${M:-none}" != train ]; then usage; exit; fi', False),
        ('M=${M:-0}\nM=1\nif [ "$M" = 1 ]; then echo "done"; exit; fi', True),
        ('M=0\nif [ "$M" = 0 ]; then echo "done"; exit; fi', True),
        ('M=${M:-0}\nif [ "$M" = 0 ]; then python data.py; exit; fi', True),
    ],
)
def test_a_default_at_which_a_script_ends_is_one_to_replace(guard: str, is_the_end: bool) -> None:
    commands = read_text(f"{guard}\npython train.py", "run.sh")
    assert all(command.program.name != "train.py" for command in commands) is is_the_end


def test_a_here_document_may_go_into_a_pipe_with_its_errors() -> None:
    script = "python3 - <<'PY' 2>&1 | tee -a log\nimport os\nPY\ntrain --n 1 2>&1 | tee log"
    found = [command for command in read_text(script, "run.sh") if command.program.name == "train"]
    assert [[token.text for token in command.arguments] for command in found] == [["--n", "1"]]


def test_a_variable_named_by_another_is_asked_for_by_its_own_name() -> None:
    assert unknown_names("HOLDER=URL\ntrain --url ${!HOLDER}") == ["URL"]
    assert unknown_names("train --url ${!HOLDER}") == ["HOLDER"]
    assert words("HOLDER=URL\ntrain --url ${!HOLDER}", URL="http") == ["train", "--url", "http"]


def test_a_reference_that_only_the_run_knows_is_refused() -> None:
    script = "f() { local -n out=$1; out=(--steps 5); }\nA=()\nf $(pick-one)\ntrain ${A[@]}"
    with pytest.raises(LaunchError, match="out stands for another variable, and which one is known only when it runs"):
        read_text(script, "run.sh")


def test_a_function_that_is_not_called_refers_to_nothing() -> None:
    assert words("f() { local -n out=$1; out=(--steps 5); }\nA=(--n 1)\ntrain ${A[@]}") == ["train", "--n", "1"]


def test_an_element_that_only_the_run_knows_is_an_unknown_word() -> None:
    assert unknown_names("A=(--n 1)\nA[$(pick)]=--steps\ntrain ${A[@]}") == ["A"]


def test_lines_of_a_command_are_missing() -> None:
    (command,) = read_text("A=()\nmapfile -t A < <(print-args)\ntrain ${A[@]} --n 1", "run.sh")[-1:]
    assert [token.text for token in command.arguments] == ["--n", "1"]
    assert [(missing.name, missing.why) for missing in command.missing] == [
        ("A", "A is the output of a command that the script runs")
    ]


def test_what_a_function_sets_before_a_return_that_only_the_run_knows_may_hold() -> None:
    script = "f() { N=1; if [ -f there ]; then return; fi; N=2; }\nf\ntrain --n $N --m 3"
    (unknown,) = (one for token in read_text(script, "run.sh")[-1].arguments for one in token.unknown)
    assert unknown.why == "N is 1 or 2, depending on a condition in the script"


def test_an_end_that_no_variable_decides_is_one() -> None:
    assert [c.program.name for c in read_text("python a.py\nif [ 1 = 1 ]; then exit 1; fi\npython b.py", "run.sh")] == [
        "a.py"
    ]
    assert [c.program.name for c in read_text('[ -z "$X" ] && { python a.py; exit; }\npython b.py', "run.sh")] == [
        "a.py"
    ]


def test_a_loop_that_waits_is_passed_and_one_that_watches_is_the_end() -> None:
    waits = "while true; do curl x; if [ $? -eq 0 ]; then break; fi; sleep 1; done\nuntil nc -z h 1; do sleep 1; done\npython a.py"
    assert words(waits) == ["a.py"]
    watches = "python a.py &\nwhile true; do sleep 60; done\npython b.py"
    assert "b.py" not in [command.program.name for command in read_text(watches, "run.sh")]


def test_the_environment_holds_what_is_exported() -> None:
    command = read_text("export NPROC_PER_NODE=4\nA=1\nexport B\nB=2\nC=3 swift rlhf", "run.sh")[-1]
    assert {name: token.text for name, token in command.environment.items()} == {
        "NPROC_PER_NODE": "4",
        "B": "2",
        "C": "3",
    }


def test_a_job_knows_what_its_sbatch_lines_say() -> None:
    head = "#!/bin/bash\n#SBATCH --nodes=4\n#SBATCH -n 8\n#SBATCH --gres=gpu:h100:8\n#SBATCH --mem 5G\n"
    launch = "python train.py $SLURM_NNODES $SLURM_JOB_NUM_NODES $SLURM_NTASKS $SLURM_GPUS_ON_NODE"
    assert words(head + launch) == ["train.py", "4", "4", "8", "8"]
    assert words(head + launch, SLURM_NNODES="2")[1] == "2"
    assert unknown_names("#SBATCH --nodes=2-4\npython train.py --n $SLURM_NNODES") == ["SLURM_NNODES"]


def test_deepspeed_takes_the_visible_devices() -> None:
    for script, count in (
        ("export CUDA_VISIBLE_DEVICES=0,1,2\ndeepspeed train.py", 3),
        ("CUDA_VISIBLE_DEVICES=4 deepspeed train.py", 1),
        ("export CUDA_VISIBLE_DEVICES=0,1,2\ndeepspeed --num_gpus 2 train.py", 2),
        ("deepspeed train.py", None),
    ):
        processes = read_text(script, "run.sh")[-1].processes
        assert processes is not None
        assert processes.count == count, script


@pytest.mark.parametrize(
    ("wrapper", "program"),
    [
        ("docker run --gpus all -v /a:/b --rm org/image:1 bash -c 'cd /w && python train.py --n 1'", "train.py"),
        ("docker exec -it box python train.py --n 1", "train.py"),
        ("singularity exec --nv image.sif python train.py --n 1", "train.py"),
        ("srun --container-workdir /w -N 2 bash -c 'python train.py --n 1'", "train.py"),
        ("apptainer exec --env UV_CACHE_DIR=/stage/.cache/uv --nv my.sif bash -c 'python train.py --n 1'", "train.py"),
        ("sbatch -N 2 --wrap 'python train.py --n 1'", "train.py"),
        ("sbatch --wrap=\"srun python train.py --n 1\"", "train.py"),
        ("ssh host <<'EOF'\npython train.py --n 1\nEOF", "train.py"),
        ("bash <<EOF\npython train.py --n 1\nEOF", "train.py"),
        ("bash -c \"python train.py --n 1\"", "train.py"),
        ("cat > /tmp/x/inner.sh <<'EOF'\npython train.py --n ${1:-1}\nEOF\nbash /tmp/x/inner.sh", "train.py"),
        ("python mason.py --gpus 8 -- source setup.sh \\&\\& python train.py --n 1", "train.py"),
        ("coverage run -a --source=x train.py --n 1", "train.py"),
        ("L=(uv run --extra vllm python3)\n\"${L[@]}\" train.py --n 1", "train.py"),
        ("run() { python train.py --n $1; }\nrun 1", "train.py"),
        ("run() { python train.py --n 1; }\nparallel run", "train.py"),
    ],
)  # fmt: skip
def test_commands_in_other_words(wrapper: str, program: str) -> None:
    found = [command for command in read_text(wrapper, "run.sh") if command.program.name == program]
    assert [[token.text for token in command.arguments] for command in found] == [["--n", "1"]]


def test_a_script_finds_its_own_folder_and_its_repository(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / ".git").mkdir()
    folder = tmp_path / "examples" / "a"
    folder.mkdir(parents=True)
    (folder / "common.env").write_text("N=3\n")
    (tmp_path / "examples" / "base.sh").write_text("python base.py --n ${N:-0} --m $1\n")
    script = folder / "run.sh"
    monkeypatch.chdir("/")
    for start in (
        'D="$( cd -- "$(dirname "${BASH_SOURCE[0]}")" &> /dev/null && pwd )"',
        'D="$(cd -- "$(dirname -- "${BASH_SOURCE[0]}")" >/dev/null 2>&1 && pwd)"',
        'D=$(dirname $(realpath "$0"))',
    ):
        script.write_text(f"{start}\nsource $D/common.env\nexport N\nbash examples/base.sh 2\npython $D/own.py\n")
        base, own = read_script(script)
        assert [token.text for token in base.arguments] == ["--n", "3", "--m", "2"]
        assert own.program.name == str(folder / "own.py")


def test_a_sourced_file_knows_itself_and_the_script(tmp_path: Path) -> None:
    (tmp_path / "common.env").write_text(
        "NAME=$(basename $0 .sh)\nHERE=$(basename ${BASH_SOURCE[0]})\nC=$(echo tests/$NAME.yaml | sed 's#tests#examples#')\n"
    )
    script = tmp_path / "run.sh"
    script.write_text("source $(dirname $0)/common.env\npython train.py $NAME $HERE $C\n")
    assert [token.text for token in read_script(script)[-1].arguments] == ["run", "common.env", "examples/run.yaml"]


def test_a_function_of_a_sourced_file_assigns_and_is_shown_where_it_is_written(tmp_path: Path) -> None:
    (tmp_path / "common.sh").write_text('build() {\n  : "${N:=128}"\n  A+=(--n $N --m $M)\n}\n')
    (tmp_path / "run.sh").write_text("# A comment so that places differ.\nsource common.sh\nbuild\ntrain ${A[@]}\n")
    command = read_script(tmp_path / "run.sh")[-1]
    assert [token.text for token in command.arguments[:2]] == ["--n", "128"]
    (unknown,) = command.arguments[3].unknown
    assert str(unknown.place).startswith(f"{tmp_path / 'common.sh'}:3")


def test_what_bash_reads_as_another_command_is_pointed_at() -> None:
    for lost in (
        "python train.py \\\n  a.b=1\n  c.d=2 \\\n  e.f=3",
        "python train.py \\\n  a.b=1 \\\n  # c.d=1 \\\n  c.d=2",
        "python train.py \\\n  --a 1 \\ \n  --b 2",
        "python train.py --a 1\n\n  +c.d=2",
    ):
        (command,) = (found for found in read_text(lost, "run.sh") if found.program.name == "train.py")
        assert "is missing at the end of" in command.cut_off, lost
    assert "run.sh:2, so `c.d=2` on line 3" in read_text("python train.py \\\n  a.b=1\n  c.d=2", "run.sh")[0].cut_off
    whole = read_text("python train.py a.b=1\nX=1\n--odd\necho done", "run.sh")
    assert not any(command.cut_off for command in whole)


def test_words_that_a_condition_decides_on_are_unknown_one_by_one() -> None:
    script = "A=(x.y=1)\nif [ -f /etc/a ]; then A+=(z=2); fi\nif [ -f /etc/b ]; then E='--k 3'; fi\ns ${A[@]} $E"
    command = read_text(script, "run.sh")[-1]
    assert [(token.text, bool(token.unknown)) for token in command.arguments] == [
        ("x.y=1", False),
        ("z=2", True),
        ("--k", True),
        ("3", True),
    ]


def test_a_condition_is_asked_for_by_its_own_variable() -> None:
    script = "DEVICE=$(probe)\nif [ $DEVICE = npu ]; then N=16; else N=8; fi\ns $N"
    (unknown,) = read_text(script, "run.sh")[-1].arguments[0].unknown
    assert unknown.name == "DEVICE"
    assert "16 or 8" in unknown.why
    assert words(script, DEVICE="gpu")[-1] == "8"


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


@pytest.mark.parametrize(
    "behind",
    [
        "max_turns=10 2>&1 | tee x.log",
        "max_turns=10 \\\n  2>&1 | tee x.log\n",
        "a=1 b=2 > x.log\n",
        "a=1 >> logs/x.log 2>&1\n",
    ],
)
def test_redirections_behind_assignments_alone_are_shell(behind: str) -> None:
    """A comment among continued lines ends the command, and leaves the assignments behind it over."""
    found = read_text(f"python train.py size=4 \\\n  # other=1 \\\n{behind}", "run.sh")
    assert [token.text for token in found[0].arguments] == ["size=4"]
    assert read_text("a=1 python train.py --log 3 2>&1\n", "run.sh")[0].program.name == "train.py"


@pytest.mark.parametrize("first", ["#!/bin/bash", "#!/usr/bin/env bash", "#! /bin/sh -e", "#!/usr/bin/env -S zsh"])
def test_a_file_whose_first_line_names_a_shell_is_a_script(first: str, tmp_path: Path) -> None:
    inner = tmp_path / "train.slrm"
    inner.write_text(f"{first}\n#SBATCH --gres gpu:1\ntrl grpo --num_generations 4 --per_device_train_batch_size 8\n")
    (tmp_path / "run.sh").write_text("sbatch ./train.slrm\n")
    for words in ([str(inner)], ["sbatch", str(inner)], [str(tmp_path / "run.sh")]):
        schedule = plan_launch(words, Options(rows=100)).schedule
        assert schedule is not None
        assert schedule.samples_per_prompt == 4
    inner.write_text("#!/usr/bin/env python\ntrl grpo --num_generations 4\n")
    with pytest.raises(LaunchError, match="none of these starts a known trainer"):
        plan_launch([str(inner)])


def test_a_file_that_is_no_script(tmp_path: Path) -> None:
    large = tmp_path / "large.sh"
    large.write_bytes(b"# x\n" * (10 << 18))
    with pytest.raises(LaunchError, match=r"10\.0 MiB"):
        read_script(large)
    binary = tmp_path / "binary.sh"
    binary.write_bytes(b"echo\n\xff\xfe")
    with pytest.raises(LaunchError, match=r"binary\.sh:2:1: not a text file"):
        read_script(binary)


@pytest.mark.parametrize(
    ("script", "why"),
    [
        ("X=${X}\ns $X", "$X is not set in the script"),
        ("X=$Y\ns $X", "X depends on $Y, which is not set in the script"),
        ("X=$((Y * 2))\ns $X", "X depends on $Y, which is not set in the script"),
        ("X=$Y\nZ=$X\ns $Z", "Z depends on X, and X depends on $Y, which is not set in the script"),
        ("X=$(nproc)\ns $X", "X is the output of $(nproc)"),
    ],
)
def test_why_a_variable_is_unknown_is_said_in_whole_sentences(script: str, why: str) -> None:
    command = read_text(script, "run.sh")[-1]
    assert [unknown.why for token in command.arguments for unknown in token.unknown] == [why]


@pytest.mark.parametrize(
    ("text", "launched", "line"),
    [
        ("a | b | c\npython x.py --y 1 2>&1 | tee log", ("x.py", "--y", "1"), 2),
        ("a | b | c # why\n\n# and this\npython x.py > log", ("x.py",), 4),
        ("a |\n  b |\n  c 'd\ne' f\nX=2\npython x.py --y $X > log 2>&1 &", ("x.py", "--y", "2"), 6),
        ("run() {\n  a | b | c\n  python x.py --y ${Y:=3} 2>&1 | tee log\n}\nrun", ("x.py", "--y", "3"), 3),
        ("a | b | python x.py --y \\\n  4 2>&1 | tee log", ("x.py", "--y", "4"), 1),
    ],
)
def test_a_command_ends_with_its_line_behind_a_pipeline_too(text: str, launched: tuple[str, ...], line: int) -> None:
    """The grammar takes the words of the next line for arguments of a third command, where that line has a redirection."""
    [command] = [each for each in read_text(text, "run.sh") if each.program.name == "x.py"]
    assert (command.program.name, *(token.text for token in command.arguments)) == launched
    assert command.place.line == line


@pytest.mark.parametrize(
    ("script", "words"),
    [
        ("declare -A M=([a]=1 [b]=2)\nk=b\ns ${M[$k]} ${M[a]}", ["2", "1"]),
        ('declare -A M=([a-b]="x y" [c]=)\ns "${M[a-b]}" ${M[c]:-4}', ["x y", "4"]),
        ("declare -A M\nM[a]=1\nk=b\nM[$k]=2\nM[a]=3\ns ${M[a]}", ["3"]),
        ("declare -A M=([a]=1)\nM+=([b]=2)\ns ${M[b]} ${M[c]:-none}", ["2", "none"]),
        ('run() {\n  local -A M=([a]=1)\n  s "${M[$1]}" "${M[@]}"\n}\nrun a', ["1", "1"]),
        ("M=(5 6)\nunset M\ndeclare -A M=([0]=7)\ns ${M[0]}", ["7"]),
    ],
)
def test_words_at_the_keys_of_an_associative_array(script: str, words: list[str]) -> None:
    command = read_text(script, "run.sh")[-1]
    assert [token.text for token in command.arguments] == words
    assert not any(token.unknown for token in command.arguments)


@pytest.mark.parametrize(
    ("script", "name"),
    [
        ("declare -A M=([a]=1)\ns n=${M[$TASK]}", "TASK"),
        ("declare -A M=([a]=1 [b]=$SIZE)\ns n=${M[b]}", "SIZE"),
        ("declare -A M=([a]=1)\nM[$TASK]=2\ns n=${M[a]}", ""),
        ("declare -A M=([$TASK]=1 [a]=2)\ns n=${M[a]}", ""),
        ('declare -A M=([a]=1 [b]=2)\ns n="${M[*]}"', ""),
        ("declare -A M=([a]=1)\ns n=${M[b]}", "M[b]"),
    ],
)
def test_words_of_an_associative_array_that_only_the_run_knows(script: str, name: str) -> None:
    """The order of all its words is bash's own."""
    assert unknown_names(script) == [name]


@pytest.mark.parametrize(
    ("script", "names"),
    [
        ('declare -A M=([a]=1 [b]=2)\nfor k in "${!M[@]}"; do s n=$k; done', ["k"]),
        ("L=(a b)\nL[5]=c\ns n=${!L[@]}", [""]),
        ("L=(a b)\ns n=${L[$TASK]}", ["TASK"]),
        ("L=($(words))\ns n=${!L[@]}", [""]),
    ],
)
def test_numbers_of_an_array_that_are_not_known(script: str, names: list[str]) -> None:
    assert unknown_names(script) == names


@pytest.mark.parametrize(
    ("call", "followed"),
    [("bash inner.sh", True), ("./inner.sh", True), ("inner.sh", False), ("PATH=.:$PATH\ninner.sh", True)],
)
def test_a_script_without_a_folder_is_looked_for_along_the_path(tmp_path: Path, call: str, followed: bool) -> None:
    (tmp_path / "inner.sh").write_text("#!/bin/bash\npython train.py\n")
    (tmp_path / "outer.sh").write_text(f"{call}\n")
    names = [command.program.name for command in read_script(tmp_path / "outer.sh")]
    assert names == (["train.py"] if followed else ["inner.sh"])


@pytest.mark.parametrize(
    "script",
    [
        "if python train.py --n 1; then echo done; else echo again; fi",
        "if ! python train.py --n 1; then exit 1; fi",
        "if python train.py --n 1 2>&1 | tee log; then echo done; fi",
        "until python train.py --n 1; do sleep 5; done",
        "while ! python train.py --n 1; do sleep 5; done",
        "run() { python train.py --n $1; }\nif run 1; then echo done; fi",
        "if [ -f x ]; then echo; elif python train.py --n 1; then echo done; fi",
    ],
)
def test_a_condition_that_is_a_command_is_run(script: str) -> None:
    found = [command for command in read_text(script, "run.sh") if command.program.name == "train.py"]
    assert [[token.text for token in command.arguments] for command in found] == [["--n", "1"]]


@pytest.mark.parametrize(
    "command",
    [
        'ssh node1 "cd /x && python train.py --n 1"',
        'ssh -o StrictHostKeyChecking=no -p 22 "$NODE" "source env.sh; nohup bash -c \'python train.py --n 1\' > log 2>&1 &"',
        "ssh me@node1 python train.py --n 1",
    ],
)
def test_what_ssh_is_given_behind_the_host_is_read_by_the_shell_there(command: str) -> None:
    found = [each for each in read_text(command, "run.sh") if each.program.name == "train.py"]
    assert [[token.text for token in each.arguments] for each in found] == [["--n", "1"]]


WRITES = "cat > /x/inner.sh << 'EOF'\nexport HOST=here\npython train.py --n $N --at $HOST\nEOF\n"


@pytest.mark.parametrize(
    ("edit", "found"),
    [
        ("", ["--n", "4", "--at", "here"]),
        ("sed -i 's|$N|8|g' /x/inner.sh\n", ["--n", "8", "--at", "here"]),
        ('sed -i "s|HOST=here|HOST=$(hostname)|" /x/inner.sh\n', ["--n", "4", "--at", "$HOST"]),
        ('sed -i "s|train.py|$(hostname)|" /x/inner.sh\n', None),
        ("sed -i 's/--n .*//' /x/inner.sh\n", None),
    ],
)
def test_a_script_that_a_script_writes_is_followed_on_another_machine_too(edit: str, found: list[str] | None) -> None:
    text = f'export N=4\n{WRITES}{edit}ssh node1 "bash /x/inner.sh"\n'
    commands = [each for each in read_text(text, "run.sh") if each.program.name == "train.py"]
    assert [[token.text for token in each.arguments] for each in commands] == ([found] if found else [])


def test_two_branches_that_start_the_same_have_one_plan(tmp_path: Path) -> None:
    start = "trl grpo --model_name_or_path m --num_generations 4 --per_device_train_batch_size 8 --max_steps {steps}"
    text = "if command -v stdbuf; then\n  stdbuf -oL {one}\nelse\n  {other}\nfi\n"
    script = tmp_path / "run.sh"
    script.write_text(text.format(one=start.format(steps=5), other=start.format(steps=5)))
    plan = plan_launch([str(script)], Options())
    assert "the commands of lines 2 and 4 are the same: this is the plan of each" in [note.text for note in plan.notes]
    script.write_text(text.format(one=start.format(steps=5), other=start.format(steps=6)))
    with pytest.raises(LaunchError, match=r"there are 2 training commands: line 2 \(trl\), line 4 \(trl\)"):
        plan_launch([str(script)], Options())


@pytest.mark.parametrize("task", ["SLURM_PROCID", "SLURM_NODEID"])
def test_a_task_of_srun_may_be_the_one_that_trains(task: str) -> None:
    """The first task of a job may serve a judge, and another one train."""
    text = f"if [ ${{{task}:-0}} = 1 ]; then\n  python train.py --n 4\nelse\n  sleep 9\nfi\n"
    started = [each for each in read_text(f"srun -N 2 bash -c '{text}'", "run.sh") if each.program.name == "train.py"]
    assert [each.arguments[-1].text for each in started] == ["4"]
    (command,) = read_text(f"srun -N 2 bash -c 'train --n $((${task} * 2 + 1))'", "run.sh")
    assert command.arguments[-1].unknown
    assert not [each for each in read_text(text, "run.sh") if each.program.name == "train.py"]
