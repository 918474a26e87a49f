"""Seconds and memory of `rlstep ingest` over an export of 100 000 samples in the interchange schema.

    python -m tests.bench.ingest_speed [--samples N] [--tokens N]

Each sample has token ids, a mask, and the log-probs of engine and trainer. The command runs in a process of its own, once over the
whole export and once over a tenth of it: where memory is constant, both take as much.
"""

from __future__ import annotations

import argparse
import json
import random
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from tests.ingest.runs import HEADER, float32, grpo

PROMPTS, EACH = 64, 16
"""Prompts of a rollout, and samples of a prompt."""


def write(path: Path, samples: int, tokens: int) -> None:
    """Write an export. Token lists are drawn from some that were made before, so that this takes less time than reading."""
    source = random.Random(0)
    lists = []
    for _ in range(64):
        trainer = [float32(-source.expovariate(1.0)) for _ in range(tokens)]
        engine = [min(value + float32(source.gauss(0, 0.003)), 0.0) for value in trainer]
        lists.append(
            f'"mask": {[1] * tokens}, "trainer_log_probs": {json.dumps(trainer)}, "engine_log_probs": {json.dumps(engine)}'
        )
    header = HEADER | {
        "prompts_per_rollout": PROMPTS,
        "samples_per_prompt": EACH,
        "rollouts": None,
        "end_token_ids": [],
    }
    with path.open("w") as file:
        file.write(json.dumps(header) + "\n")
        for number in range(samples // EACH):
            rollout = number // PROMPTS
            rewards = [source.choice([0.0, 1.0]) for _ in range(EACH)]
            for reward, advantage in zip(rewards, grpo(rewards), strict=True):
                ids = [number, *(source.randrange(32_000) for _ in range(7))] * (tokens // 8)
                named = {
                    "rollout": rollout,
                    "group": number,
                    "completion_ids": ids,
                    "reward": reward,
                    "advantage": advantage,
                }
                versions = {"sampler_version": rollout, "policy_version": rollout}
                file.write(f"{json.dumps(named | versions)[:-1]}, {source.choice(lists)}}}\n")


def ingest(path: Path, folder: Path) -> tuple[float, int, str]:
    """Seconds, bytes of the largest memory of any command so far, and the verdict."""
    begun = time.perf_counter()
    command = [sys.executable, "-m", "rlstep_hooks", "ingest", str(path), "--dir", str(folder)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=600, check=False)
    memory = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss * 1024
    return time.perf_counter() - begun, memory, done.stdout.partition(" ")[0]


def main() -> None:
    """Print the figures."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--samples", type=int, default=100_000)
    parser.add_argument("--tokens", type=int, default=256, help="tokens of each sample, a multiple of 8")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as made:
        folder = Path(made)
        for samples in (
            given.samples // 10,
            given.samples,
        ):  # the smaller one first: memory is that of the largest so far
            path = folder / f"{samples}.jsonl"
            whole = samples // (PROMPTS * EACH) * PROMPTS * EACH
            write(path, whole, given.tokens)
            seconds, memory, verdict = ingest(path, folder / f"records-{samples}")
            size = path.stat().st_size / 1e9
            print(
                f"{whole} samples of {given.tokens} tokens, {size:.2f} GB: {verdict}, {seconds:.1f} s, {memory / 1e6:.0f} MB"
            )


if __name__ == "__main__":
    main()
