"""verl-agent: `env.rollout.n` environments for each task; each turn of an episode is a row of its own.

Read in copies of langfengQ/verl-agent, a fork of verl between 0.3 and 0.4: verl/trainer/ppo/ray_trainer.py `fit` (the rows of the
loader are replaced by what `multi_turn_loop` gives; the last step is found before it is counted),
agent_system/multi_turn_rollout/utils.py `adjust_batch` (rows are copied until they divide), examples/data_preprocess/prepare.py (its
scripts have it write as many rows as a rollout has tasks; forks write others, with programs of their own).
"""

from rlstep_hooks.systems.engine.declaration import Check, Demand, Entry, Formula, Note, Writes, count, flag, text
from rlstep_hooks.systems.verl.family import EPISODES, MULTIPLIED_FIRST, PER_GPU, early_fork

_SOURCE = "verl-agent verl"
_ACTOR = "actor_rollout_ref.actor"

SYSTEM = early_fork(
    name="verl_agent",
    title="verl-agent",
    version="2025",
    source=_SOURCE,
    recognised=(
        Entry("verl_agent", programs=("module:verl.trainer.main_ppo",), with_key="env.rollout.n", before="tinyzero"),
        Entry("verl_agent", programs=("module:verl.trainer.main_ppo",), with_key="env.env_name"),
    ),
    sizes=MULTIPLIED_FIRST,
    settings={
        **PER_GPU,
        "env.rollout.n": count(1),
        "env.max_steps": count(None),
        "agent.agent_ids": text(None),
        "algorithm.filter_groups.enable": flag(False),
        f"{_ACTOR}.ppo_epochs": count(1),
        f"{_ACTOR}.use_kl_loss": flag(False),
        "algorithm.use_kl_in_reward": flag(False),
        "data.shuffle": flag(True),
    },
    let={
        "group": "env.rollout.n",
        "passes": f"{_ACTOR}.ppo_epochs",
        "reference_source": f"'at_rollout' if {_ACTOR}.use_kl_loss or algorithm.use_kl_in_reward else 'none'",
        "rows_reshuffled": "data.shuffle",
        "updates_bound": "'data_dependent'",
        # With the filter, groups of equal reward are left out of a batch of episodes, and further batches are added until there are
        # `samples`; none is cut (agent_system/multi_turn_rollout/rollout_loop.py `dynamic_multi_turn_loop`).
        "episodes_to": "2 * samples - group if algorithm.filter_groups.enable else samples",
        # One turn each, and as many as an episode may have.
        "updates_from": "updates_per_rollout",
        "updates_to": "passes * ceil(episodes_to * env.max_steps / samples_per_update) if env.max_steps is not None else 0",
        "updates": "unknown('each turn of an episode is a row of its own: how many there are, only the episodes show')",
        "lags": "()",
        "ratio_one_updates": "(1,)",
    },
    formulas=(
        Formula(
            "rollouts",
            "min(available, trainer.total_training_steps or available)",
            f"{_SOURCE}/trainer/ppo/ray_trainer.py fit (is_last_step)",
        ),
    ),
    checks=(
        # Forks train several agents, each with workers, sizes and rows of its own (langfengQ/DrMAS agent_system/agent/utils.py).
        Demand(
            "not given(agent.agent_ids)",
            "agent.agent_ids names agents with settings and updates of their own: how each of them trains was not read",
            about="agent.agent_ids",
        ),
        Check(
            "actor_rollout_ref.rollout.n == 1",
            "AssertionError: In verl, actor_rollout_ref.rollout.n>1 is for GRPO. In verl+env, we keep n=1, and achieve GRPO by "
            "env.rollout.n",
            fix="actor_rollout_ref.rollout.n = 1, and env.rollout.n = {actor_rollout_ref.rollout.n}",
            when="at the start",
            source=f"{_SOURCE}/trainer/main_ppo.py",
        ),
    ),
    notes=(
        Note(
            "grows",
            "algorithm.filter_groups: batches of {samples} episodes, without the groups of equal reward, are added until there are "
            "{samples}, and none is cut: a rollout has {samples} to {episodes_to} episodes",
            "algorithm.filter_groups.enable",
        ),
        Note(
            "grows",
            "each turn of an episode is a row of its own: a rollout of {samples} episodes makes {updates_per_rollout} updates if "
            "each has one turn, and more in proportion to the turns",
        ),
        Note(
            "unit",
            "ppo_mini_batch_size counts turns, not episodes; the learning rate ticks once a rollout, whatever its updates",
        ),
    ),
    always={"step_means": "1 step = 1 rollout"},
    rows_written=Writes("module:examples.data_preprocess.prepare", "train_data_size", 256),
    checkout=EPISODES,
)
