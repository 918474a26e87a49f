"""Where NeMo-RL's formulas and checks were read: commit 7ea279a (2026-08-22). "{part}" is the trainer, grpo or ppo."""

from __future__ import annotations

COMMIT = "NeMo-RL 7ea279a"
SETUP = f"{COMMIT} nemo_rl/algorithms/{{part}}.py setup"
TRAIN = f"{COMMIT} nemo_rl/algorithms/{{part}}.py {{part}}_train"
DATA = f"{COMMIT} nemo_rl/distributed/batched_data_dict.py"
WORKER = f"{COMMIT} nemo_rl/models/policy/workers/dtensor_policy_worker_v2.py train"
POLICY = f"{COMMIT} nemo_rl/models/policy/lm_policy.py Policy.__init__"
TRUNCATED = "truncated importance sampling"
"""How the message begins with which the loss refuses a bound or a kind of it without the correction."""
