"""`rlstep run`: the command keeps its status, streams and signals, and programs without a framework are left alone."""

from __future__ import annotations

import contextlib
import os
import pty
import signal
import subprocess
import sys
import threading
import time
import traceback
from typing import TYPE_CHECKING, Any

import pytest

from rlstep_hooks.cli import ahead, run
from rlstep_hooks.cli.ahead import Ahead, PlanAhead, read_ahead
from rlstep_hooks.planning.launched import Options
from rlstep_hooks.systems.injection import PARENT, SITE, environment
from rlstep_hooks.systems.injection.frames import leave_out_own

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

LIMIT = 60


def rlstep(folder: Path, *command: str, options: tuple[str, ...] = ()) -> list[str]:
    return [sys.executable, "-m", "rlstep_hooks", "run", "--dir", str(folder / "log"), *options, "--", *command]


def test_status_and_streams_are_the_commands_own(tmp_path: Path) -> None:
    program = "import sys; print(sys.stdin.read().upper()); print('trouble', file=sys.stderr); sys.exit(7)"
    done = subprocess.run(
        rlstep(tmp_path, sys.executable, "-c", program),
        input="hello",
        capture_output=True,
        text=True,
        timeout=LIMIT,
        check=False,
    )
    assert done.returncode == 7
    assert done.stdout == "HELLO\n"
    assert "rlstep: no plan from the command: there is no command in it\n" in done.stderr
    assert "trouble\n" in done.stderr
    assert "no process recorded anything before the command ended with status 7" in " ".join(done.stderr.split())


def test_a_command_that_does_not_exist_is_status_2(tmp_path: Path) -> None:
    done = subprocess.run(
        rlstep(tmp_path, "no-such-program-here"), capture_output=True, text=True, timeout=LIMIT, check=False
    )
    assert done.returncode == 2
    assert "no-such-program-here cannot be started" in done.stderr


def test_arguments_of_the_command_are_not_ours(tmp_path: Path) -> None:
    program = "import sys; print(sys.argv[1:])"
    done = subprocess.run(
        rlstep(tmp_path, sys.executable, "-c", program, "--strict", "--dir", "x", "--", "-h"),
        capture_output=True, text=True, timeout=LIMIT, check=False,
    )  # fmt: skip
    assert done.stdout == "['--strict', '--dir', 'x', '--', '-h']\n"
    assert done.returncode == 0
    assert "no process recorded anything. Is rlstep-hooks installed" in " ".join(done.stderr.split())


def test_a_signal_reaches_the_command(tmp_path: Path) -> None:
    ready = tmp_path / "ready"
    program = (
        "import pathlib, signal, sys, time\n"
        "signal.signal(signal.SIGTERM, lambda *_: sys.exit(33))\n"
        f"pathlib.Path({str(ready)!r}).touch()\n"
        "time.sleep(50)"
    )
    process = subprocess.Popen(rlstep(tmp_path, sys.executable, "-c", program), stderr=subprocess.DEVNULL)
    wait_for(ready)
    process.send_signal(signal.SIGTERM)
    assert process.wait(LIMIT) == 33


COUNTS = """
import pathlib, signal, sys, time
seen = []
def count(number, frame):
    seen.append(number)
    pathlib.Path({count!r}).write_text(str(len(seen)))
signal.signal(signal.SIGINT, count)
pathlib.Path({ready!r}).touch()
deadline = time.monotonic() + 50
while not seen and time.monotonic() < deadline:
    time.sleep(0.02)
time.sleep(0.5)
sys.exit(40 + len(seen))
"""


def wait_for(path: Path) -> None:
    deadline = time.monotonic() + LIMIT
    while not path.exists() and time.monotonic() < deadline:
        time.sleep(0.02)


@pytest.mark.parametrize("stdin_of_the_terminal", [True, False])
def test_ctrl_c_in_a_terminal_reaches_the_command_once(tmp_path: Path, stdin_of_the_terminal: bool) -> None:
    """The terminal interrupts the command too, also where it does not read from the terminal."""
    program = COUNTS.format(count=str(tmp_path / "count"), ready=str(tmp_path / "ready"))
    words = rlstep(tmp_path, sys.executable, "-c", program)
    process, terminal = pty.fork()
    if process == 0:
        if not stdin_of_the_terminal:
            os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        os.execv(words[0], words)
    wait_for(tmp_path / "ready")
    os.write(terminal, b"\x03")
    with contextlib.suppress(OSError):  # the terminal is gone with its last process
        while os.read(terminal, 4096):
            pass
    _, status = os.waitpid(process, 0)
    os.close(terminal)
    assert os.waitstatus_to_exitcode(status) == 41
    assert (tmp_path / "count").read_text() == "1"


def test_an_interrupt_of_rlstep_alone_is_passed_on(tmp_path: Path) -> None:
    program = COUNTS.format(count=str(tmp_path / "count"), ready=str(tmp_path / "ready"))
    process = subprocess.Popen(
        rlstep(tmp_path, sys.executable, "-c", program), stderr=subprocess.DEVNULL, start_new_session=True
    )
    wait_for(tmp_path / "ready")
    process.send_signal(signal.SIGINT)
    assert process.wait(LIMIT) == 41


def test_what_nohup_ignores_the_command_ignores_too(tmp_path: Path) -> None:
    program = "import signal; print(signal.getsignal(signal.SIGHUP).name, signal.getsignal(signal.SIGTERM).name)"
    command = ["sh", "-c", "trap '' HUP; exec \"$@\"", "sh", *rlstep(tmp_path, sys.executable, "-c", program)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=LIMIT, check=True)
    assert done.stdout == "SIG_IGN SIG_DFL\n"


def test_a_command_that_a_signal_ends_has_the_shells_status(tmp_path: Path) -> None:
    program = "import os, signal; os.kill(os.getpid(), signal.SIGKILL)"
    done = subprocess.run(
        rlstep(tmp_path, sys.executable, "-c", program), stderr=subprocess.DEVNULL, timeout=LIMIT, check=False
    )
    assert done.returncode == 128 + signal.SIGKILL


def test_the_sitecustomize_that_was_there_still_runs(tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text("import builtins\nbuiltins.own_sitecustomize = __file__\n")
    variables = environment(tmp_path, os.environ | {"PYTHONPATH": str(tmp_path)})
    program = "import sys; print(own_sitecustomize, sys.modules['sitecustomize'].__file__)"
    done = subprocess.run(
        [sys.executable, "-c", program], env=variables, capture_output=True, text=True, timeout=LIMIT, check=True
    )
    assert done.stdout.split() == [str(tmp_path / "sitecustomize.py")] * 2


def test_a_program_without_a_framework_imports_nothing_more_than_the_hooks(tmp_path: Path) -> None:
    program = "import sys; print(*sorted(m for m in sys.modules if m.split('.')[0] in ('rlstep_hooks', 'torch', 'msgspec', 'rich')))"
    done = subprocess.run(
        [sys.executable, "-c", program],
        env=environment(tmp_path, os.environ), capture_output=True, text=True, timeout=LIMIT, check=True,
    )  # fmt: skip
    assert done.stdout.split() == [
        "rlstep_hooks",
        "rlstep_hooks.record",
        "rlstep_hooks.record.variables",
        "rlstep_hooks.systems",
        "rlstep_hooks.systems.injection",
        "rlstep_hooks.systems.injection.frames",
        "rlstep_hooks.systems.injection.hooks",
    ]


HOOKED = """
import sys
from rlstep_hooks.observe.patches import Patches
class Trainer:
    def train(self):
        try:
            {}["mine"]
        except KeyError as error:
            raise ValueError("my reward is broken") from error
def hook(wrapped, instance, args, kwargs):
    return wrapped(*args, **kwargs)
Patches().wrap(Trainer, "train", hook)
Trainer().train()
"""


def test_a_traceback_is_printed_once_and_without_our_frames(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(HOOKED)
    plain = subprocess.run(
        [sys.executable, "train.py"], cwd=tmp_path, capture_output=True, text=True, timeout=LIMIT, check=False
    )
    assert "patches.py" in plain.stderr, "without `rlstep run` nothing is changed"
    audited = subprocess.run(
        rlstep(tmp_path, sys.executable, "train.py"),
        cwd=tmp_path, capture_output=True, text=True, timeout=LIMIT, check=False,
    )  # fmt: skip
    assert audited.returncode == plain.returncode == 1
    assert "patches.py" not in audited.stderr
    assert audited.stderr.count("ValueError: my reward is broken") == 1
    assert [line for line in audited.stderr.splitlines() if "in train" in line] == [
        line for line in plain.stderr.splitlines() if "in train" in line
    ]


def test_a_fault_of_our_own_is_printed_whole() -> None:
    def ours() -> None:
        exec(compile("raise KeyError(1)", str(SITE.parents[2] / "observe" / "made_up.py"), "exec"))

    with pytest.raises(KeyError) as raised:
        ours()
    before = len(traceback.extract_tb(raised.value.__traceback__))
    leave_out_own(raised.value)
    assert len(traceback.extract_tb(raised.value.__traceback__)) == before


def test_wrappers_and_children_without_a_framework_write_nothing(tmp_path: Path) -> None:
    program = "import os, sys; print(os.environ['RLSTEP_DIR'], 'torch' in sys.modules)"
    (tmp_path / "script.sh").write_text(f'{sys.executable} -c "{program}"\n')
    before = sorted(tmp_path.iterdir())
    done = subprocess.run(
        rlstep(tmp_path, "env", "A=1", "bash", str(tmp_path / "script.sh")),
        cwd=tmp_path, capture_output=True, text=True, timeout=LIMIT, check=True,
    )  # fmt: skip
    assert done.stdout == f"{tmp_path / 'log'} False\n"
    assert sorted(tmp_path.iterdir()) == before


def test_an_environment_without_this_package_is_left_alone(tmp_path: Path) -> None:
    # -I hides the user's site and PYTHONPATH; the site folder is then the only thing that reaches the process.
    program = f"import sys; sys.path.insert(0, {str(SITE)!r}); sys.modules['rlstep_hooks'] = None; import sitecustomize; print('on')"
    done = subprocess.run(
        [sys.executable, "-S", "-c", program], capture_output=True, text=True, timeout=LIMIT, check=True
    )
    assert done.stdout == "on\n"


def test_the_environment_keeps_what_was_there(tmp_path: Path) -> None:
    variables = environment(tmp_path / "log", {"PYTHONPATH": f"/a{os.pathsep}{SITE}{os.pathsep}/b", "HOME": "/home/me"})
    assert variables["PYTHONPATH"].split(os.pathsep) == [str(SITE), "/a", "/b"]
    assert variables["HOME"] == "/home/me"
    assert variables["RLSTEP_DIR"] == str(tmp_path / "log")
    assert variables[PARENT] == str(os.getpid())


# The plan before the command

VERL = [
    "python3",
    "-m",
    "verl.trainer.main_ppo",
    "algorithm.adv_estimator=grpo",
    "data.train_batch_size=1024",
    "actor_rollout_ref.rollout.n=5",
    "actor_rollout_ref.actor.ppo_mini_batch_size=256",
    "actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu=16",
    "actor_rollout_ref.rollout.log_prob_micro_batch_size_per_gpu=16",
    "trainer.n_gpus_per_node=8",
    "trainer.nnodes=1",
    "trainer.total_training_steps=7",
]


@pytest.fixture
def told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> Callable[..., tuple[int, str, str]]:
    """Runs a program in the place of a launch command's Python, which this machine need not have; however slow it is."""
    (tmp_path / "bin").mkdir()
    program = tmp_path / "bin" / "python3"
    program.write_text("#!/bin/sh\necho started >&2\necho own output\nexit 9\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setattr(run, "LIMIT", LIMIT)

    def make(command: list[str], **options: Any) -> tuple[int, str, str]:
        status = run.run(command, lambda: Options(**options), folder=tmp_path / "log", strict=False)
        return status, *capfd.readouterr()

    return make


def test_the_plan_comes_before_the_command_and_beside_its_output(told: Callable[..., tuple[int, str, str]]) -> None:
    status, out, err = told(VERL, rows=7473)
    assert (status, out) == (9, "own output\n")
    plan, started, _ = err.partition("started\n")
    assert started
    assert plan.startswith("verl 0.9.1 · GRPO · 8 processes · from the launch command\n")
    assert "7 rollouts · 28 updates" in plan


def test_a_launch_that_its_framework_refuses_is_run_all_the_same(told: Callable[..., tuple[int, str, str]]) -> None:
    refused = [word.replace("ppo_mini_batch_size=256", "ppo_mini_batch_size=2048") for word in VERL]
    status, out, err = told(refused)
    assert (status, out) == (9, "own output\n")
    assert "RLS110" in err
    assert "rlstep: warning: verl would refuse this configuration. The command runs anyway." in err


def test_a_plan_that_needs_an_option_takes_it(told: Callable[..., tuple[int, str, str]]) -> None:
    command = ["bash", "-c", " ".join([*VERL[:-1], "trainer.total_training_steps=${STEPS}"])]
    assert read_ahead(command, Options).schedule is None
    _, _, err = told(command, variables={"STEPS": "3"}, rows=7473)
    assert "3 rollouts · 12 updates" in err


@pytest.mark.parametrize(
    ("command", "reason"),
    [
        (["true"], "none of these starts a known trainer: true"),
        (["python", "-c", "pass"], "there is no command in it"),
        (["bash", "not-here.sh"], "not-here.sh"),
        (["trl", "grpo", "--config", "broken.yaml"], "broken.yaml"),
    ],
)
def test_a_command_without_a_plan_is_told_in_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, command: list[str], reason: str
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "broken.yaml").write_text("a: [")
    text = read_ahead(command, Options).text
    assert text.startswith("rlstep: no plan from the command: ")
    assert reason in text
    assert "\n" not in text
    assert len(text) < 300


def test_a_fault_of_a_reader_is_a_plan_that_is_not_there(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object) -> None:
        raise RuntimeError("two\nlines")

    monkeypatch.setattr("rlstep_hooks.systems.engine.launches.plan_launch", broken)
    assert read_ahead(VERL, Options).text == "rlstep: no plan from the command: RuntimeError: two lines"


def test_a_command_does_not_wait_for_a_slow_plan(monkeypatch: pytest.MonkeyPatch) -> None:
    release = threading.Event()

    def slow(*_: object) -> Ahead:
        release.wait(LIMIT)
        return Ahead("the plan")

    monkeypatch.setattr(ahead, "read_ahead", slow)
    began = time.monotonic()
    plan = PlanAhead(VERL, Options)
    assert plan.wait(0.1) is None
    assert time.monotonic() - began < 1
    release.set()
    late = plan.wait(LIMIT)
    assert late is not None
    assert late.text == "the plan"


def test_nothing_heavy_is_imported_before_the_command_starts() -> None:
    program = (
        "import sys; from rlstep_hooks.cli import app, run; from rlstep_hooks.cli.ahead import read_ahead\n"
        f"from rlstep_hooks.systems.engine.launches import Options; read_ahead({VERL!r}, Options)\n"
        "print(*{name.split('.')[0] for name in sys.modules} & {'rich', 'torch', 'hydra', 'pyarrow', 'numpy'})\n"
        "print('rlstep_hooks.judge.judge' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=LIMIT, check=True)
    assert done.stdout == "\nFalse\n"
