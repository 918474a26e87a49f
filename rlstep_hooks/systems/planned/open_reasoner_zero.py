"""Open-Reasoner-Zero: samples packed into rows of tokens, a fixed number of updates of each rollout, another one for the critic.

Read at commit 3fdd9a0 (2025-06-03): orz/exps/examples/ppo/ppo_base_exp.py `BasePPOExpConfig` (defaults), playground/orz_*.py (published
runs), orz/ppo/trainer.py `train`, `build_dataloader`, orz/ppo/actors.py `ppo_train`, orz/ppo/replay_buffer.py `split_to_n_batches`,
orz/ppo/utils.py `_validate_args`. What it calls an episode is a pass over the rows.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from rlstep_hooks.launch.text import LaunchError
from rlstep_hooks.systems.engine.declaration import Check, Entry, Formula, Note, System, count, flag, text

if TYPE_CHECKING:
    from rlstep_hooks.systems.engine.request import Request

_TRAINER = "Open-Reasoner-Zero 3fdd9a0 orz/ppo/trainer.py"
_ACTORS = "Open-Reasoner-Zero 3fdd9a0 orz/ppo/actors.py"
_CONFIG = "PPOExpConfig"

SETTINGS = {
    "exp.rollout_batch_size": count(256),
    "exp.n_samples_per_prompt": count(1),
    "exp.train_batch_size": count(256),
    "exp.micro_train_batch_size": count(8),
    "exp.micro_forward_batch_size": count(32),
    "exp.max_epochs": count(1),
    "exp.num_episodes": count(1),
    "exp.policy_update_steps": count(4),
    "exp.critic_update_steps": count(4),
    "exp.freezing_actor_steps": count(-1, least=-1),
    "exp.actor_num_nodes": count(1),
    "exp.actor_num_gpus_per_node": count(2),
    "exp.critic_num_nodes": count(1),
    "exp.critic_num_gpus_per_node": count(2),
    "exp.critic_pretrain": text(None),  # an empty text is no critic, so its default is in `_defaults`
    "exp.num_warmup_steps": count(5, least=0),
    "exp.save_interval": count(100, least=-1),
    "exp.eval_interval": count(-1, least=-1),
    "exp.use_grpo": flag(False),
}
"""Settings of `BasePPOExpConfig`, with their defaults."""

PUBLISHED: dict[str, Any] = {
    "exp.rollout_batch_size": 128,
    "exp.n_samples_per_prompt": 64,
    "exp.micro_train_batch_size": 1,
    "exp.micro_forward_batch_size": 1,
    "exp.num_episodes": 20,
    "exp.policy_update_steps": 1,
    "exp.critic_update_steps": 12,
    "exp.actor_num_gpus_per_node": 1,
    "exp.critic_num_gpus_per_node": 1,
    "exp.num_warmup_steps": 50,
    "exp.save_interval": 50,
    "exp.eval_interval": 10,
}
"""What all scripts of playground/ set."""

NODES = {
    "orz_0p5b_ppo": 8,
    "orz_0p5b_ppo_1gpu": 1,
    "orz_1p5b_ppo": 16,
    "orz_7b_ppo": 32,
    "orz_7b_grpo": 32,
    "orz_14m_ppo_mini": 32,
    "orz_32b_ppo": 32,
}
"""Processes of the published scripts, one GPU on each node."""


def _defaults(launch: Request) -> dict[str, Any]:
    """Values without an override (`exp.NAME=VALUE`): those of the file's own configuration class, else of the published script.

    Raises:
        LaunchError: The script has other sizes in its debug mode.
    """
    settings = launch.settings
    found: dict[str, Any] = {"exp.critic_pretrain": "example_path"}
    script = launch.command.program.name.rpartition("/")[2].removesuffix(".py").rpartition(".")[2]
    if script in NODES and not settings.is_given(f"{_CONFIG}.num_episodes", f"{_CONFIG}.zero_stage"):
        debug = launch.command.environment.get("DEBUG_MODE")
        if debug is not None and debug.text != "False":
            raise LaunchError(
                "DEBUG_MODE changes the sizes of the published scripts; give them as exp.NAME=VALUE", debug.place
            )
        found |= PUBLISHED | {"exp.actor_num_nodes": NODES[script], "exp.critic_num_nodes": NODES[script]}
        if script == "orz_7b_grpo":
            found["exp.critic_pretrain"] = ""
    for name in SETTINGS:
        in_class = name.replace("exp", _CONFIG, 1)
        if not settings.is_given(name) and settings.is_given(in_class):
            found[name] = settings.value(in_class)
    return found


_PACKED = "unknown('how many samples a pack of tokens holds depends on the data')"

SYSTEM = System(
    name="open_reasoner_zero",
    title="Open-Reasoner-Zero",
    version="3fdd9a0",
    recognised=(
        Entry(
            "open_reasoner_zero",
            programs=("module:playground.*", "script:playground/orz_*.py", "script:orz_*.py"),
            keys=("PPOExpConfig.policy_update_steps", "exp.policy_update_steps", "exp.critic_update_steps"),
        ),
    ),
    overrides=True,
    rows_from=("exp.prompt_data", f"{_CONFIG}.prompt_data", "prompt_data"),
    settings=SETTINGS,
    defaults_of=_defaults,
    shown=tuple(SETTINGS),
    let={
        "prompts_per_rollout": "exp.rollout_batch_size",
        "samples_per_prompt": "exp.n_samples_per_prompt",
        "processes": "exp.actor_num_nodes * exp.actor_num_gpus_per_node",
        "critic": "exp.critic_pretrain is not None",
        "critic.world_size": "exp.critic_num_nodes * exp.critic_num_gpus_per_node",
        "algorithm": "'PPO' if critic else 'GRPO'",
        "reuse_epochs": "exp.max_epochs",
        # A single update takes all samples of the rollout; the sizes of several depend on how samples were packed.
        "minibatches": "(samples_per_rollout,) if exp.policy_update_steps == 1 else ()",
        "samples_per_update": f"samples_per_rollout if exp.policy_update_steps == 1 else {_PACKED}",
        "updates_bound": "'exact' if exp.policy_update_steps == 1 else 'upper'",
        "critic.minibatches": "(samples_per_rollout,) if exp.critic_update_steps == 1 else ()",
        "critic.samples_per_update": f"samples_per_rollout if exp.critic_update_steps == 1 else {_PACKED}",
        "critic.updates_bound": "'exact' if exp.critic_update_steps == 1 else 'upper'",
        "samples_per_microbatch": _PACKED,
        "microbatches_per_update": _PACKED,
    },
    always={
        "loader": "keeps",
        "remainder": "data_dependent",
        "syncs": "first_and_after_updates",  # after frozen rollouts too
        "reference_source": "at_rollout",
        "critic.lags": (),
        "critic.ratio_one_updates": (),
    },
    formulas=(
        Formula(
            "samples_per_rollout", "exp.rollout_batch_size * exp.n_samples_per_prompt", f"{_TRAINER} make_experience"
        ),
        # `accumulation_steps = max(1, packs // update_steps)`, and no update after the last of them.
        Formula(
            "updates_per_rollout", "exp.max_epochs * exp.policy_update_steps", f"{_ACTORS} PolicyRayActorBase.ppo_train"
        ),
        Formula(
            "critic.updates_per_rollout",
            "exp.max_epochs * exp.critic_update_steps",
            f"{_ACTORS} CriticRayActorBase.ppo_train",
        ),
        Formula(
            "rollouts_per_epoch",
            "ceil(rows / exp.rollout_batch_size)",
            f"{_TRAINER} build_dataloader (keeps the last batch)",
        ),
        Formula("rollouts", "rollouts_per_epoch * exp.num_episodes", f"{_TRAINER} train"),
        Formula(
            "frozen_rollouts",
            "exp.freezing_actor_steps + 1",
            f"{_TRAINER} ppo_local_train_policy: global_steps > freezing_actor_steps, from 0 on",
            where="exp.freezing_actor_steps >= 0",
        ),
    ),
    checks=(
        Check(
            "exp.micro_forward_batch_size == 1 and exp.micro_train_batch_size == 1",
            "AssertionError: micro_forward_batch_size and micro_train_batch_size should be 1 when packing samples is True",
            fix="exp.micro_forward_batch_size=1 exp.micro_train_batch_size=1",
            when="at the start",
            source="Open-Reasoner-Zero 3fdd9a0 orz/ppo/utils.py _validate_args",
        ),
        # Rollouts of an episode as `train` computes them, to find where to begin; it divides by them.
        Check(
            "rows * exp.n_samples_per_prompt // exp.train_batch_size * exp.max_epochs * exp.train_batch_size // exp.max_epochs "
            "// exp.rollout_batch_size // exp.n_samples_per_prompt > 0",
            "ZeroDivisionError: integer division or modulo by zero",
            fix="exp.rollout_batch_size = {rows} or smaller, and exp.train_batch_size = {samples_per_rollout} or smaller",
            when="after models and engines were started",
            source=f"{_TRAINER} train: num_rollouts_per_episodes",
        ),
    ),
    notes=(
        Note("unit", "policy_update_steps and critic_update_steps are numbers of updates in each pass, not sizes"),
        Note("pads", "packs are repeated at random until every process has the same number"),
        Note(
            "ignores",
            "train_batch_size does not size an update: it is read only to count rollouts when training resumes",
        ),
        *(
            Note(
                "drops",
                f"each process of the {role} accumulates floor(packs / {{{steps}}}) packs and stops after {{{steps}}} updates: up to "
                f"{{{steps} - 1}} packs are left out in each pass, and with fewer packs than {{{steps}}} there are fewer updates",
                f"{steps} > 1 and {there}",
            )
            for role, steps, there in (
                ("policy", "exp.policy_update_steps", "True"),
                ("critic", "exp.critic_update_steps", "critic"),
            )
        ),
        Note(
            "shrinks",
            "the last rollout of each pass has {rows % exp.rollout_batch_size} prompts, in as many updates",
            "rows % exp.rollout_batch_size",
        ),
    ),
    facts={
        "lr_constant": "True",
        "lr_warmup": "exp.num_warmup_steps",
        "save_every": "exp.save_interval if exp.save_interval > 0 else None",
        "eval_every": "exp.eval_interval if exp.eval_interval > 0 else None",
    },
)
