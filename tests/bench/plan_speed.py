"""Wall time of `rlstep plan` on one core, from the start of the process to its end, and of `rlstep run` until its command starts.

Exit status 1 above the goal, which is the same for both.
"""

from __future__ import annotations

import os
import shlex
import statistics
import subprocess
import sys
import tempfile
import time

GOAL_MS = 150
RUNS = 31
COMMAND = """
python3 -m verl.trainer.main_ppo algorithm.adv_estimator=grpo data.train_files=/data/gsm8k/train.parquet data.train_batch_size=1024
 data.max_prompt_length=512 data.max_response_length=1024 actor_rollout_ref.model.path=Qwen/Qwen2-7B-Instruct
 actor_rollout_ref.actor.optim.lr=1e-6 actor_rollout_ref.actor.ppo_mini_batch_size=256
 actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu=16 actor_rollout_ref.rollout.log_prob_micro_batch_size_per_gpu=16
 actor_rollout_ref.ref.log_prob_micro_batch_size_per_gpu=16 actor_rollout_ref.rollout.name=vllm actor_rollout_ref.rollout.n=5
 trainer.n_gpus_per_node=8 trainer.nnodes=1 trainer.total_epochs=15
"""


def milliseconds(words: list[str], environment: dict[str, str]) -> float:
    """One run."""
    began = time.perf_counter()
    subprocess.run(words, check=True, stdout=subprocess.DEVNULL, env=environment)
    return 1000 * (time.perf_counter() - began)


def until_started(words: list[str], environment: dict[str, str]) -> float:
    """One run of a command that prints when it started."""
    began = time.time()
    done = subprocess.run(words, check=True, capture_output=True, text=True, env=environment)
    return 1000 * (float(done.stdout) - began)


def main() -> int:
    """Print the median and the spread; the exit status."""
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})  # the processes below inherit it
    plan = [sys.executable, "-m", "rlstep_hooks", "plan", "--rows", "7473", "--", *shlex.split(COMMAND)]
    nothing = [sys.executable, "-c", "pass"]
    with tempfile.TemporaryDirectory() as compiled:
        # As on a user's machine: modules are compiled once, not in every run.
        environment = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
        environment["PYTHONPYCACHEPREFIX"] = compiled
        milliseconds(plan, environment)
        times = sorted(milliseconds(plan, environment) for _ in range(RUNS))
        empty = statistics.median(milliseconds(nothing, environment) for _ in range(RUNS))
        # The command says when it is there, in the place of the Python that would launch verl.
        launcher = os.path.join(compiled, "python3")
        with open(launcher, "w") as file:
            file.write(f"#!{sys.executable} -S\nimport time; print(time.time())\n")
        os.chmod(launcher, 0o755)
        environment["PATH"] = compiled + os.pathsep + environment["PATH"]
        run = [sys.executable, "-m", "rlstep_hooks", "run", "--dir", os.path.join(compiled, "records"), *plan[4:]]
        until_started(run, environment)
        starts = sorted(until_started(run, environment) for _ in range(RUNS))
    median = statistics.median(times)
    print(
        f"rlstep plan, a verl command, one core: median {median:.0f} ms of {RUNS} runs "
        f"(quickest {times[0]:.0f}, slowest {times[-1]:.0f}); an empty Python takes {empty:.0f} ms; goal {GOAL_MS} ms"
    )
    started = statistics.median(starts)
    print(
        f"rlstep run, the same command, until it starts: median {started:.0f} ms "
        f"(quickest {starts[0]:.0f}, slowest {starts[-1]:.0f}); goal {GOAL_MS} ms"
    )
    return 0 if max(median, started) < GOAL_MS else 1


if __name__ == "__main__":
    sys.exit(main())
