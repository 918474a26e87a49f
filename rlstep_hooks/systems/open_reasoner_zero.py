"""Open-Reasoner-Zero: samples packed into rows of tokens, a fixed number of updates of each rollout, another one for the critic.

Read at commit 3fdd9a0 (2025-06-03): orz/exps/examples/ppo/ppo_base_exp.py `BasePPOExpConfig` (defaults), playground/orz_*.py (published
runs), orz/ppo/trainer.py `train`, `build_dataloader`, orz/ppo/actors.py `ppo_train`, orz/ppo/replay_buffer.py `split_to_n_batches`,
orz/ppo/utils.py `_validate_args`. What it calls an episode is a pass over the rows.
"""

from __future__ import annotations

from fractions import Fraction
from typing import TYPE_CHECKING, Any

from rlstep_hooks.launch.text import LaunchError
from rlstep_hooks.planning.phases import Passes, schedule_in_phases
from rlstep_hooks.planning.reading import Formula, Note, Reading
from rlstep_hooks.planning.refusal import PlanError
from rlstep_hooks.systems.reader import Reader, Request

if TYPE_CHECKING:
    from collections.abc import Mapping

    from rlstep_hooks.launch.settings import Settings
    from rlstep_hooks.planning.schedule import Schedule

_TRAINER = "Open-Reasoner-Zero 3fdd9a0 orz/ppo/trainer.py"
_ACTORS = "Open-Reasoner-Zero 3fdd9a0 orz/ppo/actors.py"
_CONFIG = "PPOExpConfig"

DEFAULTS: dict[str, Any] = {
    "exp.rollout_batch_size": 256,
    "exp.n_samples_per_prompt": 1,
    "exp.train_batch_size": 256,
    "exp.micro_train_batch_size": 8,
    "exp.micro_forward_batch_size": 32,
    "exp.max_epochs": 1,
    "exp.num_episodes": 1,
    "exp.policy_update_steps": 4,
    "exp.critic_update_steps": 4,
    "exp.freezing_actor_steps": -1,
    "exp.actor_num_nodes": 1,
    "exp.actor_num_gpus_per_node": 2,
    "exp.critic_num_nodes": 1,
    "exp.critic_num_gpus_per_node": 2,
    "exp.critic_pretrain": "example_path",
    "exp.num_warmup_steps": 5,
    "exp.save_interval": 100,
    "exp.eval_interval": -1,
    "exp.use_grpo": False,
}
"""Those of `BasePPOExpConfig`."""

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


class OpenReasonerZero(Reader):
    """Open-Reasoner-Zero's PPO (`python -m playground.orz_7b_ppo`)."""

    name = "open_reasoner_zero"
    title = "Open-Reasoner-Zero"
    version = "3fdd9a0"
    overrides = True

    def defaults(self, version: str) -> Mapping[str, Any]:
        """The defaults of `BasePPOExpConfig`."""
        return DEFAULTS

    def read(self, request: Request) -> Reading:
        """The Schedule; see the module for its sources."""
        values = _Values(request)
        _check(values)
        prompts, group = values.count("rollout_batch_size"), values.count("n_samples_per_prompt")
        epochs = values.count("max_epochs")
        rows = request.rows("exp.prompt_data", f"{_CONFIG}.prompt_data", "prompt_data")
        passes = Passes.keeping(rows.count, prompts, epochs=values.count("num_episodes"), why=rows.source)
        if passes.rows is not None:
            _check_episode(values, passes.rows, prompts, group)
        frozen = max(values.count("freezing_actor_steps", least=-1) + 1, 0)
        common: dict[str, Any] = {
            "framework": self.title,
            "version": request.version,
            "passes": passes,
            "prompts_per_rollout": prompts,
            "samples_per_prompt": group,
            "reuse_epochs": epochs,
            "remainder": "data_dependent",
        }
        critic = None
        if values.text("critic_pretrain") is not None:
            critic = schedule_in_phases(
                **common,
                algorithm="PPO",
                world_size=values.count("critic_num_nodes") * values.count("critic_num_gpus_per_node"),
                **_updates(values.count("critic_update_steps"), prompts * group, epochs),
                lags=(),
                ratio_one_updates=(),
            )
        world_size = request.world_size(values.count("actor_num_nodes") * values.count("actor_num_gpus_per_node"))
        formulas = _formulas(frozen, with_critic=critic is not None)
        schedule = schedule_in_phases(
            **common,
            algorithm="PPO" if critic is not None else "GRPO",
            world_size=world_size,
            **_updates(values.count("policy_update_steps"), prompts * group, epochs),
            frozen_rollouts=frozen,
            # Once at the start, and after every rollout, frozen or not.
            syncs="first_and_after_updates",
            reference_source="at_rollout",
            critic=critic,
            settings=values.written(),
            formulas=formulas,
        )
        return Reading(schedule=schedule, formulas=formulas, notes=_notes(schedule, values), facts=_facts(values))


class _Values:
    """Settings from the command (`exp.NAME=VALUE`), else from the configuration class, else as the published script has them."""

    def __init__(self, request: Request) -> None:
        self._settings: Settings = request.settings
        self._script: Mapping[str, Any] = {}
        name = request.command.program.name.rpartition("/")[2].removesuffix(".py").rpartition(".")[2]
        if name in NODES and not any(
            self._settings.is_given(f"{_CONFIG}.{key}") for key in ("num_episodes", "zero_stage")
        ):
            nodes = {"exp.actor_num_nodes": NODES[name], "exp.critic_num_nodes": NODES[name]}
            self._script = PUBLISHED | nodes | ({"exp.critic_pretrain": ""} if name == "orz_7b_grpo" else {})
            debug = request.command.environment.get("DEBUG_MODE")
            if debug is not None and debug.text != "False":
                raise LaunchError(
                    "DEBUG_MODE changes the sizes of the published scripts; give them as exp.NAME=VALUE", debug.place
                )

    def _name(self, key: str) -> str:
        names = (f"exp.{key}", f"{_CONFIG}.{key}")
        return next((name for name in names if self._settings.is_given(name)), names[0])

    def _published(self, key: str) -> bool:
        return f"exp.{key}" in self._script and not self._settings.is_given(self._name(key))

    def count(self, key: str, *, least: int = 1) -> int:
        """A whole number."""
        return (
            int(self._script[f"exp.{key}"])
            if self._published(key)
            else self._settings.count(self._name(key), least=least)
        )

    def text(self, key: str) -> str | None:
        """A text, or None where it is empty."""
        return (self._script[f"exp.{key}"] or None) if self._published(key) else self._settings.text(self._name(key))

    def written(self) -> dict[str, Any]:
        """All settings of the plan with the values that hold."""
        found = {}
        for name in DEFAULTS:
            key = name.removeprefix("exp.")
            value = (
                self._script[name]
                if self._published(key)
                else self._settings.written(self._name(key)).get(self._name(key))
            )
            found[name] = DEFAULTS[name] if value is None else value
        return found


def _updates(count: int, samples: int, epochs: int) -> dict[str, Any]:
    """Updates of one role: `accumulation_steps = max(1, packs // update_steps)`, and none after the last of them.

    With a single one its samples are all of the rollout; with more they depend on how samples were packed.
    """
    if count == 1:
        return {"minibatches": (samples,)}
    reason = "how many samples a pack of tokens holds depends on the data"
    return {
        "minibatches": (),
        "updates_per_rollout": Fraction(epochs * count),
        "updates_bound": "upper",
        "not_evaluated": dict.fromkeys(
            ("samples_per_update", "samples_per_microbatch", "microbatches_per_update"), reason
        ),
    }


def _check(values: _Values) -> None:
    """The assertion of `_validate_args` on packed samples.

    Raises:
        PlanError: It does not hold.
    """
    if values.count("micro_forward_batch_size") != 1 or values.count("micro_train_batch_size") != 1:
        raise PlanError(
            "AssertionError: micro_forward_batch_size and micro_train_batch_size should be 1 when packing samples is True",
            when="at the start",
            fix="exp.micro_forward_batch_size=1 exp.micro_train_batch_size=1",
            source="Open-Reasoner-Zero 3fdd9a0 orz/ppo/utils.py _validate_args",
        )


def _check_episode(values: _Values, rows: int, prompts: int, group: int) -> None:
    """Rollouts of an episode, as `train` works them out to find where to begin.

    Raises:
        PlanError: There are none, and it divides by them.
    """
    batch, epochs = values.count("train_batch_size"), values.count("max_epochs")
    if rows * group // batch * epochs * batch // epochs // prompts // group == 0:
        raise PlanError(
            "ZeroDivisionError: integer division or modulo by zero",
            when="after models and engines were started",
            fix=f"exp.rollout_batch_size = {rows} or smaller, and exp.train_batch_size = {prompts * group} or smaller",
            source=f"{_TRAINER} train: num_rollouts_per_episodes",
        )


def _formulas(frozen: int, *, with_critic: bool) -> tuple[Formula, ...]:
    formulas = [
        Formula(
            "samples_per_rollout", "exp.rollout_batch_size * exp.n_samples_per_prompt", f"{_TRAINER} make_experience"
        ),
        Formula(
            "updates_per_rollout", "exp.max_epochs * exp.policy_update_steps", f"{_ACTORS} PolicyRayActorBase.ppo_train"
        ),
        Formula(
            "rollouts_per_epoch",
            "ceil(rows / exp.rollout_batch_size)",
            f"{_TRAINER} build_dataloader (keeps the last batch)",
        ),
        Formula("rollouts", "rollouts_per_epoch * exp.num_episodes", f"{_TRAINER} train"),
    ]
    if with_critic:
        source = f"{_ACTORS} CriticRayActorBase.ppo_train"
        formulas.append(Formula("critic.updates_per_rollout", "exp.max_epochs * exp.critic_update_steps", source))
    if frozen:
        source = f"{_TRAINER} ppo_local_train_policy: global_steps > freezing_actor_steps, from 0 on"
        formulas.append(Formula("frozen_rollouts", "exp.freezing_actor_steps + 1", source))
    return tuple(formulas)


def _notes(schedule: Schedule, values: _Values) -> tuple[Note, ...]:
    notes = [
        Note("unit", "policy_update_steps and critic_update_steps are numbers of updates in each pass, not sizes"),
        Note("pads", "packs are repeated at random until every process has the same number"),
        Note(
            "ignores",
            "train_batch_size does not size an update: it is read only to count rollouts when training resumes",
        ),
    ]
    roles = [("policy", values.count("policy_update_steps"))]
    if schedule.critic is not None:
        roles.append(("critic", values.count("critic_update_steps")))
    for role, count in roles:
        if count > 1:
            notes.append(
                Note(
                    "drops",
                    f"each process of the {role} accumulates floor(packs / {count}) packs and stops after {count} updates: up to "
                    f"{count - 1} packs are left out in each pass, and with fewer packs than {count} there are fewer updates",
                )
            )
    if schedule.samples_of_last_rollout:
        prompts = schedule.samples_of_last_rollout // schedule.samples_per_prompt
        notes.append(Note("shrinks", f"the last rollout of each pass has {prompts} prompts, in as many updates"))
    return tuple(notes)


def _facts(values: _Values) -> dict[str, Any]:
    facts: dict[str, Any] = {"lr_constant": True, "lr_warmup": values.count("num_warmup_steps", least=0)}
    for fact, key in (("save_every", "save_interval"), ("eval_every", "eval_interval")):
        every = values.count(key, least=-1)
        if every > 0:
            facts[fact] = every
    return facts


READER = OpenReasonerZero()
