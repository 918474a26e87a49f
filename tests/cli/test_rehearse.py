"""`rlstep rehearse`, as far as it needs no framework: sizes, columns, made rows, the command, and what it leaves behind."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from fractions import Fraction
from pathlib import Path

import msgspec
import pytest

from rlstep_hooks.cli.rehearse.command import runnable
from rlstep_hooks.cli.rehearse.confine import OLDEST, scratch, version
from rlstep_hooks.cli.rehearse.outcome import outcome_of
from rlstep_hooks.cli.rehearse.parts import Part, Rehearsed
from rlstep_hooks.judge.report import Counts, Report
from rlstep_hooks.launch.text import LaunchError
from rlstep_hooks.planning.launched import Options
from rlstep_hooks.rehearse.columns import named_in
from rlstep_hooks.rehearse.messages import Rehearsal, Said
from rlstep_hooks.rehearse.messages import said as spoken
from rlstep_hooks.rehearse.places import place_here
from rlstep_hooks.rehearse.rate import zero_from
from rlstep_hooks.rehearse.rows import columns_of, made_rows
from rlstep_hooks.rehearse.tools import made_arguments, raised
from rlstep_hooks.systems.trl.rehearse.sizes import Sizes, rows_for, shrink
from tests.scripted import make_plan

LIMIT = 60


def sizes(microbatch: int, group: int, accumulation: int, slots: int, passes: int = 1) -> Sizes:
    return Sizes(microbatch=microbatch, group=group, accumulation=accumulation, slots=slots, passes=passes)


def test_sizes_that_fit_stay() -> None:
    real = sizes(8, 4, 2, 2)
    assert shrink(real, seconds=60).sizes == real
    assert shrink(real, seconds=60).factor == 1


@pytest.mark.parametrize(
    "real",
    [sizes(64, 8, 16, 16), sizes(512, 16, 4, 8, 2), sizes(1024, 64, 1, 1), sizes(96, 12, 3, 9), sizes(48, 6, 2, 8, 4)],
)
def test_sizes_are_divided_so_that_counts_stay(real: Sizes) -> None:
    small = shrink(real, seconds=5)
    assert small.factor > 1
    assert small.sizes.samples * small.factor == real.samples
    kept = (real.accumulation, real.slots, real.passes)
    assert (small.sizes.accumulation, small.sizes.slots, small.sizes.passes) == kept
    assert small.sizes.whole
    assert small.sizes.group >= 2
    assert small.sizes.prompts >= 2


def test_sizes_that_are_refused_are_not_changed() -> None:
    real = sizes(10, 8, 1, 1)
    assert shrink(real, seconds=1).sizes == real


def test_rows_keep_a_remainder() -> None:
    real = sizes(64, 8, 1, 4)
    small = shrink(real, seconds=5).sizes
    assert rows_for(small, rollouts_per_epoch=3, remainder=0, real=real) == 3 * small.prompts
    assert rows_for(small, rollouts_per_epoch=3, remainder=1, real=real) % small.prompts


SCRIPT = """
def to_prompt(x):
    return {"prompt": [{"role": "user", "content": x["question"]}], "answer": x["solution"].strip()}

def correct(prompts, completions, answer, difficulty, limit=3, **kwargs):
    return [float(c[0]["content"] == a) for c, a in zip(completions, answer)] + kwargs["weight"]

data = data.map(to_prompt).rename_column("level", "difficulty").remove_columns(["source"])
"""


def test_columns_are_those_that_a_script_reads() -> None:
    named = named_in([SCRIPT])
    assert set(named.columns) == {"question", "solution", "weight", "level", "source"}
    assert named.conversational


def test_a_script_that_is_no_python_names_nothing() -> None:
    assert named_in(["def ("]).columns == ()


def test_rows_have_their_columns() -> None:
    (row, *_) = made_rows(columns_of("openai/gsm8k"), 3, marked=True)
    assert set(row) == {"question", "answer"}
    assert row["answer"].rpartition("#### ")[2].isdigit()
    (row, other) = made_rows(["prompt[]", "solution", "nums"], 2)
    assert row["prompt"][0]["role"] == "user"
    assert row != other
    assert made_rows(["prompt"], 1, conversational=True)[0]["prompt"][0]["content"]


def test_the_launcher_is_left_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("train.py").write_text("from trl import GRPOConfig\nGRPOConfig(output_dir='out')\n")
    words = ["accelerate", "launch", "--num_processes", "8", "--mixed_precision", "bf16", "train.py", "--fast"]
    command = runnable(words, Options())
    assert command.arguments[1:] == (str(tmp_path / "train.py"), "--fast")
    assert command.processes == 8
    command = runnable(
        ["trl", "grpo", "--num_processes", "4", "--learning_rate", "1e-5", "--dataset_name", "x"], Options()
    )
    assert command.arguments[1:] == ("-m", "trl.scripts.grpo", "--learning_rate", "1e-5", "--dataset_name", "x")
    assert command.processes == 4


def test_a_script_that_is_not_here_is_said() -> None:
    with pytest.raises(LaunchError, match="not here"):
        runnable(["python", "nowhere.py"], Options())


def rlstep(*words: str) -> list[str]:
    return [sys.executable, "-m", "rlstep_hooks", "rehearse", *words]


def run(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    variables = os.environ | {"TMPDIR": str(_made(folder / "tmp"))}
    here = _made(folder / "here")
    return subprocess.run(rlstep(*words), cwd=here, env=variables, capture_output=True, text=True, timeout=LIMIT)


def _made(folder: Path) -> Path:
    folder.mkdir(exist_ok=True)
    return folder


def test_a_script_that_trains_nothing_is_not_evaluated_and_leaves_nothing(tmp_path: Path) -> None:
    here = _made(tmp_path / "here")
    notes = here / "notes.txt"
    notes.write_text("mine")
    (here / "train.py").write_text(
        "import pathlib\n"
        f"open({str(notes)!r}, 'a').write('theirs')\n"
        "pathlib.Path('notes.txt').write_text('theirs')\n"
        "pathlib.Path('made').mkdir()\n"
        "pathlib.Path('made/file').write_text('theirs')\n"
        "assert pathlib.Path('notes.txt').read_text() == 'theirs'\n"
    )
    done = run(tmp_path, "--", "python", "train.py")
    assert done.returncode == 2, done.stdout + done.stderr
    assert "trained with no trainer" in done.stdout
    assert notes.read_text() == "mine"
    assert sorted(path.name for path in here.iterdir()) == ["notes.txt", "train.py"]
    assert not list((tmp_path / "tmp").iterdir())


CONFINED = pytest.mark.skipif(version() < OLDEST, reason="this system has no Landlock that lets files be moved")

OTHERS = """
import ctypes, os, subprocess, sys
there, here = sys.argv[1:]
for place in (there, here):
    try:
        os.close(os.open(f"{place}/by_number", os.O_CREAT | os.O_WRONLY))
    except PermissionError:
        pass
    assert ctypes.CDLL(None).creat(f"{place}/by_library".encode(), 0o644) < 0
    subprocess.run([sys.executable, "-S", "-E", "-c", f"open({place + '/by_child'!r}, 'w')"], stderr=subprocess.DEVNULL)
    subprocess.run(["sh", "-c", f"echo theirs > {place}/by_shell; rm -f {place}/mine; mkdir {place}/folder"], stderr=subprocess.DEVNULL)
with open("inside", "w") as file:
    file.write("theirs")
os.mkdir("folder")
os.rename("inside", "folder/moved")
"""


@CONFINED
@pytest.mark.parametrize("apart", [False, True], ids=["own", "another"])
def test_nothing_outside_is_written_by_whatever_way(tmp_path: Path, apart: bool) -> None:
    """By descriptors, by compiled code, by other interpreters and other programs; also where none of ours is loaded."""
    here, there = _made(tmp_path / "here"), _made(tmp_path / "there")
    (here / "mine").write_text("mine")
    (there / "mine").write_text("mine")
    (here / "train.py").write_text(OTHERS)
    (here / "launch.py").write_text(
        "import subprocess, sys\nsubprocess.run([sys.executable, *['-S', '-E'], 'train.py', *sys.argv[1:]], check=True)\n"
    )
    done = run(tmp_path, "--", "python", "launch.py" if apart else "train.py", str(there), str(here))
    assert done.returncode == 2, done.stdout + done.stderr
    assert "trained with no trainer" in done.stdout
    assert "Landlock confines them" in done.stdout
    assert [path.name for path in there.iterdir()] == ["mine"]
    assert sorted(path.name for path in here.iterdir()) == ["launch.py", "mine", "train.py"]


def test_an_absolute_path_is_written_aside(tmp_path: Path) -> None:
    """A script that is healthy goes on: what it wrote outside it finds again."""
    there = _made(tmp_path / "there")
    (_made(tmp_path / "here") / "train.py").write_text(
        "import os, pathlib, sys\n"
        "out = pathlib.Path(sys.argv[1], 'a', 'b')\n"
        "for _ in range(2):\n"
        "    os.makedirs(out, exist_ok=True)\n"
        "    out.mkdir(parents=True, exist_ok=True)\n"
        "(out / 'file').write_text('theirs')\n"
        "assert (out / 'file').open().read() == 'theirs'\n"
    )
    done = run(tmp_path, "--", "python", "train.py", str(there))
    assert "trained with no trainer" in done.stdout, done.stdout + done.stderr
    assert not list(there.iterdir())


@CONFINED
def test_a_script_that_is_kept_from_writing_is_not_called_wrong(tmp_path: Path) -> None:
    (_made(tmp_path / "here") / "train.py").write_text(
        "import os, sys\nos.open(sys.argv[1], os.O_CREAT | os.O_WRONLY)\n"
    )
    done = run(tmp_path, "--", "python", "train.py", str(tmp_path / "there"))
    assert done.returncode == 2
    assert "writes where a rehearsal may not" in done.stdout


def test_a_place_that_holds_the_users_folder_is_no_scratch_place(tmp_path: Path) -> None:
    cache = _made(tmp_path / "cache")
    user = _made(cache / "user")
    variables = {"HF_HOME": str(cache), "TORCH_HOME": str(_made(tmp_path / "torch"))}
    found = scratch("python", user, variables)
    assert str(tmp_path / "torch") in found
    assert str(cache) not in found
    assert not any(user.is_relative_to(place) for place in found)


def test_where_nothing_confines_it_the_report_says_so() -> None:
    replaced = outcome_of(Rehearsed(first=Part(status=0, said=[], output=[]))).replaced
    assert any("are not confined here" in text for text in replaced)


def test_a_module_that_is_not_installed_is_no_fault_of_the_launch(tmp_path: Path) -> None:
    (_made(tmp_path / "here") / "train.py").write_text("import nowhere_to_be_found\n")
    done = run(tmp_path, "--", "python", "train.py")
    assert done.returncode == 2
    assert "nowhere_to_be_found" in done.stdout


def test_a_refusal_of_the_plan_ends_it(tmp_path: Path) -> None:
    done = run(
        tmp_path,
        "--world-size",
        "1",
        "--",
        "python",
        "-m",
        "trl.scripts.grpo",
        "--num_generations",
        "7",
        "--per_device_train_batch_size",
        "8",
    )
    assert done.returncode == 1
    assert "nothing was rehearsed" in done.stdout


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupt_leaves_no_process_and_no_folder(tmp_path: Path, number: signal.Signals) -> None:
    here, temporary = _made(tmp_path / "here"), _made(tmp_path / "tmp")
    (here / "train.py").write_text(
        "import os, subprocess, sys, time\n"
        "child = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(100)'])\n"
        "os.write(os.open('told', os.O_CREAT | os.O_WRONLY), f'{os.getpid()} {child.pid}'.encode())\n"
        "time.sleep(100)\n"
    )
    process = subprocess.Popen(
        rlstep("--", "python", "train.py"), cwd=here, env=os.environ | {"TMPDIR": str(temporary)}
    )
    until = time.monotonic() + LIMIT
    while len(pids := [pid for told in temporary.glob("*/here/told") for pid in told.read_text().split()]) != 2:
        assert time.monotonic() < until
        time.sleep(0.05)
    process.send_signal(number)
    assert process.wait(LIMIT) == 130
    assert not list(temporary.iterdir())
    for pid in pids:
        while _lives(int(pid)):
            assert time.monotonic() < until
            time.sleep(0.05)


def _lives(pid: int) -> bool:
    """Whether a process runs; one that ended and that nobody waited for does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


def test_the_last_line_is_the_scripts_own_and_not_what_other_processes_write_after_it() -> None:
    lines = ["Traceback (most recent call last):", "ValueError: 7 rows", "\x1b[36m(WorkerDict pid=7)\x1b[0m ended"]
    assert Part(status=1, said=[], output=lines).last == "ValueError: 7 rows"
    assert Part(status=1, said=[], output=["(WorkerDict pid=7) gone"]).last == "(WorkerDict pid=7) gone"
    assert Part(status=1, said=[], output=[]).last == ""


def test_a_traceback_that_ended_nothing_is_not_what_ended_the_script() -> None:
    lines = [
        "Traceback (most recent call last):",
        '  File "train.py", line 3, in <module>',
        "ValueError: 7 rows",
        "Exception ignored in: <function Pool.__del__ at 0x7>",
        "Traceback (most recent call last):",
        '  File "pool.py", line 9, in __del__',
        "TypeError: 'NoneType' object is not callable",
    ]
    part = Part(status=1, said=[], output=lines)
    assert part.last == "ValueError: 7 rows"
    assert part.story == lines[:2]
    outcome = outcome_of(Rehearsed(first=part))
    assert "ValueError: 7 rows" in outcome.sentence
    assert outcome.output == tuple(lines[:2])


def test_what_another_process_raised_is_said_and_not_rays_exception_about_it() -> None:
    """Found by `nox -s rehearse-openrlhf`: "it raised: ray.exceptions.RayTaskError: ray::PPOTrainer.fit()" is no cause."""
    actor = "\x1b[36mray::PPOTrainer.fit()\x1b[39m (pid=4711, ip=192.0.2.2)"
    lines = [
        "Traceback (most recent call last):",
        '  File "train_ppo_ray.py", line 188, in train',
        "    raise value.as_instanceof_cause()",
        f"ray.exceptions.RayTaskError: {actor}",
        '  File "ppo_trainer.py", line 500, in fit',
        "ray.exceptions.RayTaskError(KeyError): \x1b[36mray::PolicyModelActor.fit()\x1b[39m (pid=4712)",
        '  File "datasets.py", line 7, in preprocess',
        "KeyError: 'problem'",
        "INFO: a line of somebody's",
    ]
    assert Part(status=1, said=[], output=lines).last == "KeyError: 'problem'"
    alone = [*lines[:3], "ray.exceptions.OutOfMemoryError: task was killed", "INFO: a line of somebody's"]
    assert Part(status=1, said=[], output=alone).last == "ray.exceptions.OutOfMemoryError: task was killed"


def test_of_chained_exceptions_the_last_ended_the_script() -> None:
    lines = [
        "Traceback (most recent call last):",
        "  a",
        "KeyError: 'a'",
        "During handling of the above exception, another occurred:",
    ]
    lines += ["Traceback (most recent call last):", "  b", "ValueError: no a"]
    assert Part(status=1, said=[], output=lines).last == "ValueError: no a"


def test_an_exception_is_shown_once(tmp_path: Path) -> None:
    (_made(tmp_path / "here") / "train.py").write_text(
        "import atexit\ndef late():\n    raise TypeError('too late')\natexit.register(late)\nraise ValueError('7 rows in all')\n"
    )
    done = run(tmp_path, "--", "python", "train.py")
    assert done.returncode == 1, done.stdout + done.stderr
    assert done.stdout.count("ValueError: 7 rows in all") == 1
    assert "ValueError: 7 rows in all" in done.stdout.strip().splitlines()[-1]
    assert "too late" not in done.stdout


@pytest.mark.parametrize(
    ("ended", "complete", "said"), [(0, True, "1 data epoch"), (2, False, "2 data epochs"), (0, False, "")]
)
def test_data_epochs_are_those_that_were_made(ended: int, complete: bool, said: str) -> None:
    counts = Counts(rollouts=4, updates=8, data_epochs_ended=ended)
    schedule = make_plan(max_steps=9, accumulation=1, rows=36) if complete else None
    if schedule is not None:
        schedule = msgspec.structs.replace(schedule, data_epochs=Fraction(1))
    report = Report(verdict="PASS", counts=counts, schedule=schedule, complete=complete)
    trained = Said(topic="trained", values={"evaluates": False, "evaluations": 0, "updates": 8})
    lines = outcome_of(Rehearsed(first=Part(status=0, said=[trained], output=[], report=report))).lines
    made = next(line.detail for line in lines if line.what == "order and arithmetic of the updates")
    assert made == ", ".join(filter(None, ["4 rollouts", "8 updates", said]))


def test_a_ray_that_does_not_start_in_time_is_no_fault_of_the_launch() -> None:
    last = "Exception: The current node timed out during startup. This could happen because some of the raylet failed to startup"
    outcome = outcome_of(Rehearsed(first=Part(status=1, said=[], output=[last])))
    assert outcome.status == 2
    assert "this machine is busy" in outcome.sentence


@pytest.mark.parametrize(
    ("last", "status"),
    [
        ("TypeError: GRPOConfig.__init__() got an unexpected keyword argument 'warmup_ratio'", 1),
        ("TypeError: to_messages() got an unexpected keyword argument 'question'", 2),
        ("EOFError: EOF when reading a line", 2),
        ("FileNotFoundError: [Errno 2] No such file or directory: 'data/train.jsonl'", 2),
    ],
)
def test_only_what_made_rows_can_cause_is_put_down_to_them(last: str, status: int) -> None:
    rows = Said(topic="data", text="512 rows made", values={"columns": ["question"]})
    outcome = outcome_of(Rehearsed(first=Part(status=1, said=[rows], output=[last])))
    assert outcome.status == status


IMPORTS = """
import site, sys
site.getsitepackages = lambda: [sys.argv[1]]
from rlstep_hooks.rehearse import child
child._guard_bytecode()
sys.dont_write_bytecode = False
sys.path[:0] = sys.argv[1:]
import theirs, users
"""


def test_bytecode_is_kept_beside_packages_and_not_beside_the_users_files(tmp_path: Path) -> None:
    installed, own = tmp_path / "installed", tmp_path / "own"
    for folder, name in ((installed, "theirs"), (own, "users")):
        folder.mkdir()
        (folder / f"{name}.py").write_text("")
    subprocess.run([sys.executable, "-c", IMPORTS, str(installed), str(own)], check=True, timeout=LIMIT)
    assert (installed / "__pycache__").is_dir()
    assert not (own / "__pycache__").exists()


def test_a_file_below_a_folder_of_a_container_is_found_by_the_end_of_its_path(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "examples" / "python").mkdir(parents=True)
    (tmp_path / "examples" / "python" / "reward.py").touch()
    (tmp_path / "reward.py").touch()
    monkeypatch.chdir(tmp_path)
    here = str(tmp_path / "examples" / "python" / "reward.py")
    assert place_here("/nowhere/examples/python/reward.py") == here
    assert place_here("/nowhere/reward.py") == "/nowhere/reward.py"  # a name alone may be another file
    assert place_here("/nowhere/python/reward.py") == "/nowhere/python/reward.py"
    assert place_here("examples/python/other.py") == "examples/python/other.py"
    assert place_here(here) == here


@pytest.mark.parametrize(
    ("schema", "arguments"),
    [
        ({}, {}),
        (
            {"properties": {"answer": {"type": "string"}, "unit": {"enum": ["C", "F"]}}, "required": ["answer"]},
            {"answer": "42"},
        ),
        (
            {"properties": {"unit": {"type": "string", "enum": ["C", "F"]}, "days": {"type": ["integer", "null"]}}},
            {"unit": "C", "days": 3},
        ),
        (
            {
                "properties": {
                    "at": {"type": "object", "properties": {"x": {"type": "number"}}},
                    "all": {"type": "array", "items": {"type": "boolean"}},
                }
            },
            {"at": {"x": 3.0}, "all": [True]},
        ),
    ],
)
def test_arguments_of_a_tool_fit_its_schema(schema: dict[str, object], arguments: dict[str, object]) -> None:
    assert made_arguments(schema) == arguments


def test_a_tool_that_raises_is_a_doubt_and_turns_after_an_answer_are_not_proved() -> None:
    said = [
        Said(topic="tool", text="called once with {}: '26'", values={"name": "weather", "answered": True}),
        Said(topic="tool", text="raised TypeError", level="warning", values={"name": "map", "answered": False}),
        Said(topic="tool", text="raised ValueError", values={"name": "sql", "answered": False}),
    ]
    outcome = outcome_of(Rehearsed(first=Part(status=0, said=said, output=[])))
    assert [(line.what, line.state) for line in outcome.lines if "tool" in line.what] == [
        ("the tool weather", "proved"),
        ("the tool map", "doubtful"),
        ("the tool sql", "not proved"),
        ("turns after a tool's answer", "not proved"),
    ]


@pytest.mark.parametrize(
    ("error", "level"), [(TypeError("no such argument"), "warning"), (ValueError("no such city"), "fact")]
)
def test_what_a_tool_raises_is_a_doubt_where_its_code_is_wrong(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: Exception, level: str
) -> None:
    rehearsal = Rehearsal(rehearsed_by="", folder=str(tmp_path), user_folder=str(tmp_path))
    monkeypatch.setattr("rlstep_hooks.rehearse.messages.settings", lambda: rehearsal)
    raised("weather", {"city": "42"}, error)
    assert [(each.level, each.values["answered"]) for each in spoken(rehearsal)] == [(level, False)]


@pytest.mark.parametrize(
    ("rates", "tick"), [([], None), ([1.0, 0.5], None), ([0.0, 1.0, 0.0], 2), ([1.0, 0.0, 0.0], 1), ([0.0, 0.0], 0)]
)
def test_the_tick_from_which_on_the_rate_is_zero(rates: list[float], tick: int | None) -> None:
    assert zero_from(rates) == tick


def test_the_rates_of_a_long_run_are_looked_at_once() -> None:
    began = time.monotonic()
    assert zero_from([1.0] * 1_000_000) is None
    assert time.monotonic() - began < 5
