"""`trl vllm-serve` on the CPU, and what trainers need to use it.

Gloo stands in for NCCL, on both sides (tests/cpu/vllm_server/gloo.py); all else is as a user has it.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import requests

from rlstep_hooks.systems.vllm_engine.environment import ENGINES
from tests.systems.ports import free_port
from tests.systems.trl_vllm.run import CPU, VARIABLES, save_model

STARTS = 240.0
"""Seconds in which the server has to start."""


class Server:
    """`trl vllm-serve` in a process of its own."""

    def __init__(self, folder: Path) -> None:
        from vllm_server import gloo

        gloo.install()
        self.model = save_model(folder)
        self.engines = folder / "engines"
        self.url = f"http://127.0.0.1:{free_port()}"
        self.log = folder / "server.log"
        command = [
            str(Path(sys.executable).parent / "trl"), "vllm-serve", "--model", str(self.model), "--host", "127.0.0.1", "--port",
            self.url.rpartition(":")[2], "--max_model_len", "512", "--gpu_memory_utilization", "0.1", "--enforce_eager", "True",
            "--dtype", "float32",
            "--worker-extension-cls", "vllm_server.faults.Faults",
        ]  # fmt: skip
        own = os.environ.get("PYTHONPATH", "")
        path = os.pathsep.join([str(CPU / "vllm_server" / "site"), str(CPU), *([own] if own else [])])
        variables = {name: value for name, value in os.environ.items() if name != "VLLM_ENABLE_V1_MULTIPROCESSING"}
        with self.log.open("wb") as log:
            self._process = subprocess.Popen(
                command,
                env=variables | VARIABLES | {"PYTHONPATH": path, ENGINES: str(self.engines)},
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        self._wait()

    def _wait(self) -> None:
        ends = time.monotonic() + STARTS
        while time.monotonic() < ends and self._process.poll() is None:
            try:
                if requests.get(f"{self.url}/health", timeout=5).ok:
                    return
            except requests.RequestException:
                time.sleep(0.5)
        self.stop()
        pytest.fail(f"the server did not start:\n{self.log.read_text(errors='replace')[-4000:]}")

    def tell(self, fault: str) -> None:
        """Have the engine's workers call one of their faults."""
        requests.post(f"{self.url}/collective_rpc", json={"method": fault}, timeout=60).raise_for_status()

    def stop(self) -> None:
        """End it with all its processes."""
        os.killpg(self._process.pid, signal.SIGTERM)
        try:
            self._process.wait(30)
        except subprocess.TimeoutExpired:
            os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()
