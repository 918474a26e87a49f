"""lm-human-preferences: exact divisions, batches over all processes, one learning-rate tick a rollout.

Read at commit cbfd210: launch.py (experiments, 8 MPI processes), lm_human_preferences/train_policy.py (`PpoHParams`, `nupdates`,
`PPOTrainer`), lm_human_preferences/utils/core.py (`exact_div`, `ceil_div`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from rlstep_hooks.launch.text import LaunchError
from rlstep_hooks.systems.engine.declaration import Check, Entry, Formula, Note, System, count, flag

if TYPE_CHECKING:
    from rlstep_hooks.systems.engine.request import Request

_TRAIN = "lm-human-preferences cbfd210 lm_human_preferences/train_policy.py"
_VALIDATE = f"{_TRAIN} HParams.validate, train"
_BUILT = "when the trainer is built"

EXPERIMENTS = {"sentiment": 512, "descriptiveness": 512, "cnndm": 32, "tldr": 32}
"""ppo.batch_size of the experiments of launch.py; each asks for 1,000,000 episodes."""


def _of_experiment(launch: Request) -> dict[str, Any]:
    """The sizes of the experiment that `launch.py train_policy EXPERIMENT NAME` names."""
    words = [token.text for token in launch.command.arguments]
    if words[:1] != ["train_policy"]:
        return {}
    name = words[1] if len(words) > 1 else ""
    if name not in EXPERIMENTS:
        raise LaunchError(f"Couldn't find experiment {name!r}; there are {', '.join(EXPERIMENTS)}")
    return {"ppo.batch_size": EXPERIMENTS[name], "ppo.total_episodes": 1_000_000}


def _inexact(value: int, by: int) -> str:
    """The message of `exact_div` (lm_human_preferences/utils/core.py)."""
    return f"Inexact division: {value} / {by} = {value / by}"


SYSTEM = System(
    name="lm_human_preferences",
    title="lm-human-preferences",
    version="cbfd210",
    recognised=(
        Entry(
            "lm_human_preferences", keys=("ppo.noptepochs", "ppo.nminibatches", "ppo.total_episodes", "ppo.batch_size")
        ),
    ),
    defaults_of=_of_experiment,
    settings={
        "ppo.batch_size": count(64),
        "ppo.total_episodes": count(2_000_000),
        "ppo.nminibatches": count(1),
        "ppo.noptepochs": count(4),
        "ppo.whiten_rewards": flag(True),
        "mpi": count(8),
    },
    shown=("ppo.batch_size", "ppo.total_episodes", "ppo.nminibatches", "ppo.noptepochs"),
    functions={"inexact": _inexact},
    let={
        "processes": "mpi",
        "rows": "rows if known(rows) else unknown('queries are drawn without end')",
        "prompts_per_rollout": "ppo.batch_size",
        "of_rank": "ppo.batch_size // (ppo.nminibatches * world_size)",
        "reuse_epochs": "ppo.noptepochs",
        "samples_per_microbatch": "samples_per_update",
    },
    always={
        "algorithm": "PPO",
        "samples_per_prompt": 1,
        "loader": "wraps",
        "old_logprob_source": "at_rollout",
        "reference_source": "at_rollout",
        "lr_clock": "rollout",
        "step_unit": "rollout",
        "step_means": "global_step = rollouts of {updates_per_rollout} updates; elapsed episodes grow by {ppo.batch_size}",
    },
    formulas=(
        Formula("samples_per_rollout", "ppo.batch_size", f"{_TRAIN} PPOTrainer"),
        Formula("samples_per_update", "ppo.batch_size / ppo.nminibatches", f"{_TRAIN} PPOTrainer"),
        Formula("updates_per_rollout", "ppo.noptepochs * ppo.nminibatches", f"{_TRAIN} PPOTrainer.train"),
        Formula("rollouts", "ceil(ppo.total_episodes / ppo.batch_size)", f"{_TRAIN} nupdates"),
        Formula("lr_ticks", "rollouts", f"{_TRAIN} policy_frac"),
    ),
    checks=(
        Check(
            "ppo.batch_size % ppo.nminibatches == 0",
            "{inexact(ppo.batch_size, ppo.nminibatches)}",
            fix="ppo.nminibatches = {nearest(min(ppo.nminibatches, ppo.batch_size + 1), ppo.batch_size % it == 0)}",
            when=_BUILT,
            source=_VALIDATE,
        ),
        Check(
            "ppo.batch_size % world_size == 0",
            "{inexact(ppo.batch_size, world_size)}",
            fix="ppo.batch_size = {multiples(ppo.batch_size, world_size)}",
            when=_BUILT,
            source=_VALIDATE,
        ),
        Check(
            "ppo.batch_size % (ppo.nminibatches * world_size) == 0",
            "{inexact(ppo.batch_size, ppo.nminibatches * world_size)}",
            fix="ppo.batch_size = {multiples(ppo.batch_size, ppo.nminibatches * world_size)}",
            when=_BUILT,
            source=_VALIDATE,
        ),
        Check(
            "of_rank >= 8 or not ppo.whiten_rewards",
            "Per-rank minibatch size {of_rank} is insufficient for whitening",
            fix="ppo.batch_size = {8 * ppo.nminibatches * world_size}, fewer processes (--mpi), or ppo.whiten_rewards = False",
            when=_BUILT,
            source=_VALIDATE,
        ),
    ),
    notes=(
        Note(
            "grows",
            "the run ends at {rollouts * ppo.batch_size} episodes, not {ppo.total_episodes}: rollouts are whole",
            "rollouts * ppo.batch_size != ppo.total_episodes",
        ),
    ),
    facts={"lr_constant": "False"},
)
