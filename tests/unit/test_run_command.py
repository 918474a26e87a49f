"""`rlstep run`: the command keeps its status, streams and signals, and programs without a framework are left alone."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from typing import TYPE_CHECKING

from rlstep_hooks.injection import PARENT, SITE, environment

if TYPE_CHECKING:
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
    assert done.stderr.startswith("rlstep: no plan from the command: there is no command in it\n\ntrouble\n")
    assert "NOT EVALUATED: no process recorded anything" in " ".join(done.stderr.split())


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


def test_a_signal_reaches_the_command(tmp_path: Path) -> None:
    ready = tmp_path / "ready"
    program = (
        "import pathlib, signal, sys, time\n"
        "signal.signal(signal.SIGTERM, lambda *_: sys.exit(33))\n"
        f"pathlib.Path({str(ready)!r}).touch()\n"
        "time.sleep(50)"
    )
    process = subprocess.Popen(rlstep(tmp_path, sys.executable, "-c", program), stderr=subprocess.DEVNULL)
    deadline = time.monotonic() + LIMIT
    while not ready.exists() and time.monotonic() < deadline:
        time.sleep(0.02)
    process.send_signal(signal.SIGTERM)
    assert process.wait(LIMIT) == 33


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
    assert done.stdout.split() == ["rlstep_hooks", "rlstep_hooks.injection", "rlstep_hooks.injection.hooks"]


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
