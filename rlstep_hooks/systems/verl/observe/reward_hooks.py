"""The rewards of a rollout beside its advantages, out of what verl fetches for its own metrics."""

from __future__ import annotations

import importlib
import sys
from typing import TYPE_CHECKING, Any

import msgspec

from rlstep_hooks.observe.compared import is_compared
from rlstep_hooks.observe.guard import contained
from rlstep_hooks.observe.identity import checksum_of
from rlstep_hooks.observe.kl_coefficient import Adaptation, CoefficientWatch
from rlstep_hooks.observe.processes import run_of_ray
from rlstep_hooks.observe.reward_records import RewardRecords
from rlstep_hooks.record.events import Rewarded
from rlstep_hooks.systems.verl.observe.advantages import TARGETS, AdvantageWatch
from rlstep_hooks.systems.verl.observe.correction import CorrectionWatch, why_not_compared
from rlstep_hooks.systems.verl.observe.process import folder
from rlstep_hooks.systems.verl.observe.rejection import RejectionWatch
from rlstep_hooks.systems.verl.observe.rewards import compare_groups, last_of_sessions, samples_of, spread_of
from rlstep_hooks.systems.verl.observe.rollouts import prompt_of
from rlstep_hooks.systems.verl.observe.samples import unbound
from rlstep_hooks.systems.verl.plan import is_fully_async, is_one_step_off

if TYPE_CHECKING:
    from rlstep_hooks.observe.hooks import Call, Hooks
    from rlstep_hooks.session.recorder import Recorder
    from rlstep_hooks.systems.verl.observe.rollout_hooks import FollowedRollouts

_REWARDED = ("prompts", "responses", "rm_scores", "token_level_rewards", "advantages", "response_mask", *TARGETS)
"""What the advantages of a rollout are compared by. V0 holds rewards per token in any case."""


class RewardHooks:
    """Follows the rewards of one trainer.

    Args:
        trainer: verl's, or one that stands on it.
        rollouts: The rollouts of the run.
        recorder: Where events go.
    """

    def __init__(self, trainer: Any, rollouts: FollowedRollouts, recorder: Recorder) -> None:
        self._trainer = trainer
        self._rollouts = rollouts
        self.recorder = recorder
        """Where events go."""
        self._v1 = False
        self._scores = RewardRecords(folder(), run_of_ray())
        self._seen = 0
        """Rollouts whose rewards were seen."""
        config = trainer.config
        self._watch = AdvantageWatch(config, _ends(trainer))
        self._correction = CorrectionWatch(config)
        self._rejection = RejectionWatch(config)
        self._coefficient = _coefficient_of(config.algorithm)
        """The coefficient of the KL penalty in the rewards."""
        unweighed = why_not_compared(config.algorithm)
        if unweighed:
            recorder.cannot("correction", unweighed)
        if self._watch.reason:
            recorder.cannot("advantages", self._watch.reason)

    def place(self, hooks: Hooks, *, v1: bool) -> None:
        """Put the hooks into the module of the trainer.

        Args:
            hooks: What takes them off again.
            v1: Whether it is a trainer of `verl.trainer.ppo.v1`.
        """
        self._v1 = v1
        if v1:
            # Verified in 0.9.1 V1: fetches rewards and advantages of a rollout for verl's metrics (trainer_base.py:1885).
            module = sys.modules["verl.trainer.ppo.v1.trainer_base"]
            name = "get_metric_data_with_optional_routed_experts"
            hooks.wrap(module, name, after=self._metric_data, topics=("rewards",))
            # Verified in 0.9.1 V1: makes advantages of the rewards of a rollout (trainer_base.py:1775).
            advantages = "compute_advantage_for_multi_trajectories"
        else:
            # Verified in 0.9.1 V0: gets the whole batch, rewards and advantages included, once it is trained (ray_trainer.py:1768).
            # The trainers of verl.experimental have names of their own for the same functions (separation/ray_trainer.py:621, 739).
            own = "verl.experimental.separation.ray_trainer"
            config = self._trainer.config
            apart = is_one_step_off(config) or is_fully_async(config)
            module = sys.modules[own if apart else "verl.trainer.ppo.ray_trainer"]
            hooks.wrap(module, "compute_data_metrics", before=self._data_metrics, topics=("rewards",))
            # Verified in 0.9.1 V0: the same as above (ray_trainer.py:1667).
            advantages = "compute_advantage"
        hooks.wrap(module, advantages, after=self._advantages, topics=("advantages",))
        # Verified in 0.9.1: takes tokens out of the masks before advantages are computed; V1's module has the function under its own
        # name (trainer_base.py:65), V0 looks it up where it stands (ray_trainer.py:1655, separation/ray_trainer.py:609).
        if self._rejection.rejects:
            of_masks = module if v1 else importlib.import_module("verl.trainer.ppo.rollout_corr_helper")
            hooks.wrap(of_masks, "compute_rollout_correction_and_add_to_batch", before=self._rejects, topics=("mask",))
            hooks.wrap(module, advantages, after=lambda call: self._rejection.compared(call.result), topics=("mask",))
        hooks.wrap(
            module, advantages, after=lambda call: self._correction.compared(call.result), topics=("correction",)
        )

    def _advantages(self, call: Call) -> None:
        data, coefficient = call.result, self._coefficient
        self._watch.compared(data, call.kwargs.get("batch_keys"), coefficient.now)
        control = getattr(self._trainer, "kl_ctrl_in_reward", None)
        if self._trainer.config.algorithm.use_kl_in_reward and control is not None:
            # Verified in 0.9.1: the controller is updated where the penalty is taken off, before advantages (ray_trainer.py:112).
            self._watch.follows(coefficient.penalised(self._watch.divergence(data), len(data), float(control.value)))

    def _rejects(self, call: Call) -> None:
        self._rejection.begins(call.argument("batch", 0))

    def _metric_data(self, call: Call) -> None:
        data, keys = call.result, list(call.kwargs["keys"])
        rows = [row for row in last_of_sessions(keys) if not keys[row].startswith("pad")]
        fields = {name: unbound(data[name]) for name in data.keys() if name in _REWARDED}  # noqa: SIM118 - a TensorDict
        self._rewarded(
            [prompt_of(keys[row]) for row in rows], fields, rows, [keys[row] for row in rows], fields["prompts"]
        )

    def _data_metrics(self, call: Call) -> None:
        batch = call.argument("batch", 0)
        lengths = batch.batch["attention_mask"][:, batch.batch["prompts"].shape[1] :].sum(1).tolist()
        fields = {
            name: [
                row if name == "prompts" else row[:length]
                for row, length in zip(batch.batch[name], lengths, strict=True)
            ]
            for name in _REWARDED
            if name in batch.batch.keys()  # noqa: SIM118 - a TensorDict iterates over its rows
        }
        rows = list(range(len(batch)))
        uids, names = [str(uid) for uid in batch.non_tensor_batch["uid"]], [str(row) for row in rows]
        padding = batch.batch["prompts"].shape[1] - batch.batch["attention_mask"][
            :, : batch.batch["prompts"].shape[1]
        ].sum(1)
        whole = [row[before:] for row, before in zip(batch.batch["prompts"], padding.tolist(), strict=True)]
        self._rewarded(uids, fields, rows, names, whole)

    def _rewarded(
        self,
        prompts: list[str],
        fields: dict[str, list[Any]],
        rows: list[int],
        names: list[str],
        prompt_tokens: list[Any],
    ) -> None:
        rewards = fields["token_level_rewards" if "token_level_rewards" in fields else "rm_scores"]
        chosen = {name: [field[row] for row in rows] for name, field in {**fields, "rewards": rewards}.items()}
        samples = samples_of(
            prompts,
            # An agent loop of one's own may give each session another prompt.
            [0 if self._rollouts.own_loop else checksum_of(row) for row in chosen["prompts"]],
            chosen["rewards"],
            chosen["advantages"],
            chosen["response_mask"],
        )
        estimator = str(self._trainer.config.algorithm.adv_estimator)
        found, spread = compare_groups(samples, estimator), spread_of(samples, estimator)
        event = Rewarded(
            at=self.recorder.now(),
            rollout=self._rollouts.trained,
            **msgspec.structs.asdict(found),
            **msgspec.structs.asdict(spread),
        )
        compared: dict[str, Any] = {}
        for part in (
            self._compare_advantages(names, chosen),
            self._compare_scores([prompt_tokens[row] for row in rows], chosen),
            self._compare_weights(),
            self._compare_masks(),
        ):
            compared |= part or {}
        self._rollouts.rewarded(msgspec.structs.replace(event, **compared))

    # Each gives the fields of `Rewarded` that it fills.

    @contained("advantages")
    def _compare_advantages(self, names: list[str], chosen: dict[str, list[Any]]) -> dict[str, Any]:
        """Compare the advantages with those of the documented formula."""
        # A loop of one's own on V0 makes the masks too.
        follows = not self._rollouts.several_turns and (self._v1 or not self._rollouts.own_fit)
        tokens = chosen.get("responses") if follows else None
        targets = [chosen[name] for name in TARGETS if name in chosen]
        targets = targets if len(targets) == len(TARGETS) else []
        masks, scores = chosen["response_mask"], chosen.get("rm_scores")
        return msgspec.structs.asdict(self._watch.take(names, chosen["advantages"], tokens, masks, targets, scores))

    @contained("samples")
    def _compare_scores(self, prompts: list[Any], chosen: dict[str, list[Any]]) -> dict[str, Any]:
        """Compare the rewards with what the processes that score samples told of these."""
        self._scores.collect()
        looks, self._seen = is_compared(self._seen), self._seen + 1
        if not looks or "rm_scores" not in chosen or "responses" not in chosen:
            return {}
        sequences = zip(prompts, chosen["responses"], strict=True)
        checksums = [checksum_of(completion, checksum_of(prompt)) for prompt, completion in sequences]
        rewards = (row.float().tolist() for row in chosen["rm_scores"])
        given = self._scores.compare(zip(checksums, rewards, strict=True))
        return {
            "scores_compared": given.compared,
            "scores_unseen": given.unseen,
            "scores_moved": given.moved,
            "asked_wrong": given.asked_wrong,
            "asked_like": given.asked_like,
        }

    @contained("correction")
    def _compare_weights(self) -> dict[str, Any]:
        """Compare the importance weights with those of the documented formula."""
        return msgspec.structs.asdict(self._correction.take())

    @contained("mask")
    def _compare_masks(self) -> dict[str, Any]:
        """Compare the tokens that were taken out of the masks with the documented ones."""
        looks, rejected = self._rejection.looks, self._rejection.take()
        return msgspec.structs.asdict(rejected) if looks else {}


def _coefficient_of(algorithm: Any) -> CoefficientWatch:
    """What follows the coefficient of the KL penalty in the rewards, as it is configured (core_algos.py 0.9.1:193)."""
    control = algorithm.get("kl_ctrl") or {}
    adapts = control.get("type", "fixed") == "adaptive"
    adaptation = Adaptation(float(control["target_kl"]), float(control["horizon"])) if adapts else None
    return CoefficientWatch(float(control.get("kl_coef", 0.0)), adaptation)


def _ends(trainer: Any) -> list[int]:
    """Tokens that end a completion; none where completions may go on behind them, have several turns, or lose samples to a filter."""
    config = trainer.config
    rollout = config.actor_rollout_ref.rollout
    rejects = (config.algorithm.get("rollout_correction") or {}).get("rollout_rs") is not None
    if rollout.get("ignore_eos") or (rollout.get("multi_turn") or {}).get("enable") or rejects:
        return []
    end = getattr(trainer.tokenizer, "eos_token_id", None)
    return [] if end is None else [int(end)]
