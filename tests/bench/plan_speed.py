"""Wall time of `rlstep plan` on one core, from the start of the process to its end, and of `rlstep run` until its command starts.

Each run is followed by one of an empty Python, and the goal is a ratio to that: a machine that is slow or busy slows both. Exit status
1 above the goal, which is the same for both.
"""

from __future__ import annotations

import os
import shlex
import statistics
import subprocess
import sys
import tempfile
import time

GOAL = 11
"""Times as long as an empty Python, which takes 13 ms on the machine of BENCHMARKS.md."""
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
        environment["PYTHONPATH"] = os.pathsep.join(filter(None, (os.getcwd(), environment.get("PYTHONPATH"))))
        os.chdir(compiled)  # a folder without files: those of a checkout say more, and reading them takes longer
        milliseconds(plan, environment)
        plans = [(milliseconds(plan, environment), milliseconds(nothing, environment)) for _ in range(RUNS)]
        # The command says when it is there, in the place of the Python that would launch verl.
        launcher = os.path.join(compiled, "python3")
        with open(launcher, "w") as file:
            file.write(f"#!{sys.executable} -S\nimport time; print(time.time())\n")
        os.chmod(launcher, 0o755)
        environment["PATH"] = compiled + os.pathsep + environment["PATH"]
        run = [sys.executable, "-m", "rlstep_hooks", "run", "--dir", os.path.join(compiled, "records"), *plan[4:]]
        until_started(run, environment)
        starts = [(until_started(run, environment), milliseconds(nothing, environment)) for _ in range(RUNS)]
    within = [
        shown("rlstep plan, a verl command, one core", plans),
        shown("rlstep run, the same command, until it starts", starts),
    ]
    return 0 if all(within) else 1


def shown(title: str, pairs: list[tuple[float, float]]) -> bool:
    """Print the median, the spread and the ratio to an empty Python; whether the ratio is within the goal."""
    times, empty = zip(*pairs, strict=True)
    ratio = statistics.median(time / nothing for time, nothing in pairs)
    print(
        f"{title}: median {statistics.median(times):.0f} ms of {RUNS} runs (quickest {min(times):.0f}, slowest {max(times):.0f}); "
        f"{ratio:.1f} times an empty Python, which takes {statistics.median(empty):.0f} ms; goal {GOAL} times"
    )
    return ratio <= GOAL


if __name__ == "__main__":
    sys.exit(main())
