"""verl-tool: verl 0.6.1's trainer with an agent loop of its own, which asks servers of tools between the turns of a sample.

Read at TIGER-AI-Lab/verl-tool 980962b (2026-06-08): verl_tool/trainer/main_ppo.py and verl_tool/trainer/ppo/ray_trainer.py
(`AgentRayPPOTrainer` replaces the validation and the agent loop of verl's RayPPOTrainer, and not its `fit`),
verl_tool/agent_loop, and the verl in its own folder, which says 0.7.0.dev. As to what a schedule depends on, its
trainer/ppo/ray_trainer.py, workers/fsdp_workers.py, workers/actor/dp_actor.py and workers/critic/dp_critic.py are those of 0.6.1, but
that old log-probs are always computed again (no algorithm.rollout_correction). The formulas are verl's.
"""

from rlstep_hooks.systems.verl.copies import copy

SYSTEM = copy(
    "verl_tool",
    "verl-tool on verl",
    "0.6.1",
    ("0.6.1", "0.7"),
    "verl_tool.trainer.main_ppo",
    "*AgentRayPPOTrainer",
    let={"bypass": "False"},
    without=("algorithm.rollout_correction.bypass_mode",),  # which came later
)
