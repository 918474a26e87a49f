"""Weights, the reference and the engine."""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from rlstep_hooks.planning.finding import Where
from rlstep_hooks.testing.trl_faults import alter_microbatches, replace_method
from tests.faults.fault import (
    ONCE,
    REUSED,
    WITH_REFERENCE,
    Fault,
    Settings,
    after_update,
    alter_rollouts,
    made,
    on,
    way,
    whole,
)

if TYPE_CHECKING:
    from collections.abc import Callable


def optimizer_of_copied_weights(trainer: Any) -> None:
    """The optimizer was built from parameters that the model no longer holds."""
    copies = [p.detach().clone().requires_grad_() for p in trainer.model.parameters()]
    trainer.optimizer = torch.optim.AdamW(copies, lr=trainer.args.learning_rate)


def layer_left_out_of_the_optimizer(trainer: Any) -> None:
    """Parameters are picked by name, and a layer that costs gradients is in no group."""
    picked = [value for name, value in trainer.model.named_parameters() if "layers.1" not in name]
    trainer.optimizer = torch.optim.AdamW(picked, lr=trainer.args.learning_rate)


def zero_gradients(trainer: Any) -> None:
    """Zero all gradients right before each step, as a "clean start" in the wrong place does."""

    def zero(state: Any, *, model: Any, **kwargs: Any) -> None:
        model.zero_grad()

    on(trainer, "on_pre_optimizer_step", zero)


def only_weight_decay_moves_the_weights(trainer: Any, state: Any, *, model: Any, **kwargs: Any) -> None:
    """The same, where the optimizer's decay still changes the weights."""
    model.zero_grad(set_to_none=False)


def weights_overwritten_between_updates(trainer: Any) -> None:
    """A weight sync writes an average back into the policy itself after the fifth update."""
    start: dict[str, Tensor] = {}

    def remember(state: Any, **kwargs: Any) -> None:
        with whole(trainer.model):
            start.update(copy.deepcopy(trainer.model.state_dict()))

    def average() -> None:
        with whole(trainer.model, written=True), torch.no_grad():
            for name, value in trainer.model.state_dict().items():
                value.lerp_(start[name], 0.1)

    on(
        trainer, "on_train_begin", remember
    )  # in mid-run weights may be sharded, which the first ones then have to be too
    after_update(trainer, 5, average)


def reference_follows_the_policy(trainer: Any) -> None:
    """After update 5 the policy is copied into its reference."""
    for mine, policy in zip(trainer.ref_model.parameters(), trainer.model.parameters(), strict=True):
        mine.data.copy_(policy.data)


def reference_is_the_policy(trainer: Any) -> None:
    """The policy's own object serves as its reference."""
    trainer.ref_model = trainer.model


def copy_of(model: Any) -> Any:
    """A model of its own with the same weights. Not a deep copy: later releases give models a forward that a copy shares."""
    copied = type(model)(model.config)
    with whole(model):
        copied.load_state_dict(model.state_dict())
    return copied


def reference_of_another_checkpoint(trainer: Any) -> None:
    """The reference has other weights than the policy begins with."""
    with whole(trainer.ref_model, written=True), torch.no_grad():
        for parameter in trainer.ref_model.parameters():
            parameter.mul_(1.5)


SYNCED: Settings = {
    **WITH_REFERENCE,
    "sync_ref_model": True,
    "ref_model_sync_steps": 2,
    "ref_model_mixup_alpha": 0.3,
}


"""The policy is mixed into the reference after every second update, the first of which is update 1."""


def sync_callback(trainer: Any) -> Any:
    """TRL's own, which mixes the policy into the reference."""
    return next(c for c in trainer.callback_handler.callbacks if type(c).__name__ == "SyncRefModelCallback")


def other_sync(trainer: Any, mix: Callable[[Any, Any], None]) -> None:
    """Have another mix take the place of TRL's, as `mix(reference's tensor, policy's tensor)`."""

    def sync(model: Any, target_model: Any, alpha: float) -> None:
        for mine, policy in zip(target_model.parameters(), model.parameters(), strict=True):
            mix(mine.data, policy.data)

    sync_callback(trainer).sync_target_model = sync


AFTER_UPDATE_1 = Where(update=1)


def reference_that_is_never_synced(trainer: Any) -> None:
    """The callback that should mix the policy into the reference holds another model."""
    sync_callback(trainer).ref_model = copy_of(trainer.model)


def reference_synced_at_every_update(trainer: Any, state: Any, **kwargs: Any) -> None:
    """A callback of somebody's own mixes the policy in after each update, beside TRL's."""
    for mine, policy in zip(trainer.ref_model.parameters(), trainer.model.parameters(), strict=True):
        mine.data.lerp_(policy.data, 0.3)


def reference_log_probs_scaled_in_the_rollout(trainer: Any) -> None:
    """The reference's log-probs are halved while the rollout is put together."""
    alter_rollouts(
        trainer, lambda rollout: rollout | {"ref_per_token_logps": rollout["ref_per_token_logps"] / 2}, after=4
    )


def reference_log_probs_moved_on_the_way(trainer: Any) -> None:
    """The reference's log-probs of each micro-batch move to the next sample."""
    alter_microbatches(
        trainer, lambda batch: batch | {"ref_per_token_logps": batch["ref_per_token_logps"].roll(1, 0)}, first=8
    )


def reference_swapped_and_put_back(trainer: Any) -> None:
    """After update 5 other weights are loaded into the reference, and its own again."""
    own = copy.deepcopy(trainer.ref_model.state_dict())
    trainer.ref_model.load_state_dict({name: value * 2 for name, value in own.items()})
    trainer.ref_model.load_state_dict(own)


def kl_added_to_the_reward(trainer: Any, original: Callable[..., Any], rows: Any) -> Any:
    """The KL penalty is added to the rewards, with the sign of a bonus."""
    trainer.beta = -trainer.beta
    try:
        return original(rows)
    finally:
        trainer.beta = -trainer.beta


def generate_with_copy(trainer: Any) -> None:
    """Let a copy of the first weights generate, from the rollout after the fourth update on."""
    serving = copy_of(trainer.model)
    after_update(trainer, 4, lambda: setattr(trainer, "model_wrapped", serving))


class EngineStandIn:
    """Stands in for TRL's vLLM engine (`trainer.vllm_generation`, 1.0 and later): a copy of the policy with its own weights."""

    def __init__(self, trainer: Any) -> None:
        self._policy = trainer.model
        self._weights = copy_of(trainer.model)
        self._tokenizer = trainer.processing_class
        self._length = trainer.max_completion_length

    def sync_weights(self) -> None:
        """Take over the policy's weights."""
        with whole(self._policy):
            weights = self._policy.state_dict()
            self.load({name: of.full_tensor() if hasattr(of, "full_tensor") else of for name, of in weights.items()})

    def load(self, weights: dict[str, Any]) -> None:
        """Put weights into the engine's memory."""
        self._weights.load_state_dict(weights)

    def generate(
        self, *, prompts: list[list[int]], **kwargs: Any
    ) -> tuple[None, list[list[int]], list[list[list[float]]], None]:
        """Completions of the prompts, with the log-prob of each of their tokens."""
        found = [self._complete(prompt) for prompt in prompts]
        return None, [tokens for tokens, _ in found], [[[value] for value in values] for _, values in found], None

    @torch.no_grad()
    def _complete(self, prompt: list[int]) -> tuple[list[int], list[float]]:
        whole, values = torch.tensor([prompt]), []
        for _ in range(self._length):
            drawn, told = self._distributions(self._weights(input_ids=whole).logits[0, -1])
            token = torch.multinomial(drawn.exp(), 1)
            values.append(float(told[token]))
            whole = torch.cat([whole, token[None]], dim=1)
            if int(token) == self._tokenizer.eos_token_id:
                break
        return whole[0, len(prompt) :].tolist(), values

    def _distributions(self, logits: Tensor) -> tuple[Tensor, Tensor]:
        """The log-probs that a token is drawn from, and those that are told, each (V,)."""
        return logits.log_softmax(-1), logits.log_softmax(-1)


def with_engine(trainer: Any) -> None:
    """Generate with a stand-in for the engine, without correction of its log-probs."""
    trainer.use_vllm = True
    trainer.args.vllm_importance_sampling_correction = False
    trainer.vllm_importance_sampling_correction = False
    trainer.vllm_generation = EngineStandIn(trainer)
    trainer._last_loaded_step = -1


def weights_not_synced(trainer: Any) -> None:
    """The weight sync is taken for done after the fourth update, and is left out."""
    trainer._last_loaded_step = trainer.state.global_step


def synced_weights_dropped_by_the_engine(trainer: Any) -> None:
    """The engine accepts the sync and wakes up with its old weights."""
    after_update(trainer, 4, lambda: replace_method(trainer.vllm_generation, "load", lambda original, weights: None))


def end_banned_by_a_processor(trainer: Any) -> None:
    """From update 4 on generation gets a processor that no setting asks for: no completion ends any more."""
    generate, end = trainer.model.generate, trainer.processing_class.eos_token_id

    def banned(ids: Tensor, scores: Tensor) -> Tensor:
        return scores.index_fill(1, torch.tensor([end]), -torch.inf)

    def generated(*args: Any, **kwargs: Any) -> Any:
        return generate(*args, **kwargs, logits_processor=[banned])

    after_update(trainer, 4, lambda: setattr(trainer.model, "generate", generated))


# fmt: off
FAULTS = (
    # E, J: weights and the sampler
    Fault(optimizer_of_copied_weights, code="RLS401", where=Where(update=0), report="OpenRLHF#1297", headline="RLS407"),
    Fault(made("optimizer_with_tensors_of_another_model", "The same mistake, named by its cause.",
               lambda trainer: optimizer_of_copied_weights(trainer)),
          code="RLS407", where=Where(update=0), report="OpenRLHF#1297"),
    Fault(layer_left_out_of_the_optimizer, code="RLS407", where=Where(update=0), report="OpenRLHF#1297", doubtful=True),
    Fault(made("gradients_zeroed_before_the_step", "Nothing is ever learned, and every count is right.",
               lambda trainer: zero_gradients(trainer)),
          code="RLS406", where=Where(update=0), report="OpenRLHF#1297", headline="RLS810"),
    Fault(way(on, "on_pre_optimizer_step", by=only_weight_decay_moves_the_weights), code="RLS406", where=Where(update=0),
          report="OpenRLHF#1297", headline="RLS810", settings={**REUSED, "weight_decay": 0.1}),
    Fault(weights_overwritten_between_updates, code="RLS404", where=Where(update=5), report="SkyRL#1680"),
    Fault(way(after_update, 5, by=reference_follows_the_policy), code="RLS411", where=Where(rollout=3, update=6),
          report="OpenRLHF, a reference that follows", where_016=Where(rollout=6, update=6), settings=WITH_REFERENCE),
    Fault(reference_is_the_policy, code="RLS411", where=Where(rollout=0, update=0),
          report="TRL, one model for policy and reference", settings=WITH_REFERENCE, since="0.24"),
    Fault(reference_of_another_checkpoint, code="RLS414", where=Where(update=0, microbatch=0),
          report="TRL, a reference of another checkpoint", settings=WITH_REFERENCE),
    Fault(reference_that_is_never_synced, code="RLS411", where=AFTER_UPDATE_1, report="TRL, sync_ref_model", settings=SYNCED,
          cause="was not synced"),
    Fault(made("reference_mixed_the_other_way_round", "The share of the policy is taken for that of the reference.",
               lambda trainer: other_sync(trainer, lambda mine, policy: mine.lerp_(policy, 0.7))),
          code="RLS411", where=AFTER_UPDATE_1, report="TR-DPO, its alpha", settings=SYNCED, cause="the other way round"),
    Fault(made("reference_replaced_instead_of_mixed", "The policy is copied where it should be mixed.",
               lambda trainer: other_sync(trainer, lambda mine, policy: mine.copy_(policy))),
          code="RLS411", where=AFTER_UPDATE_1, report="TR-DPO, hard updates", settings=SYNCED, cause="a copy of the policy"),
    Fault(made("reference_synced_twice", "The callback that syncs the reference is registered a second time.",
               lambda trainer: trainer.callback_handler.callbacks.append(copy.copy(sync_callback(trainer)))),
          code="RLS411", where=AFTER_UPDATE_1, report="a callback added twice", settings=SYNCED, cause="was synced twice"),
    Fault(made("reference_mixed_with_another_share", "A tenth of the policy is mixed in, not three.",
               lambda trainer: other_sync(trainer, lambda mine, policy: mine.lerp_(policy, 0.1))),
          code="RLS411", where=AFTER_UPDATE_1, report="TRL, another share", settings=SYNCED),
    Fault(way(on, "on_step_end", by=reference_synced_at_every_update), code="RLS411", where=AFTER_UPDATE_1,
          report="TRL, a sync at every update", settings=SYNCED),
    Fault(reference_log_probs_scaled_in_the_rollout, code="RLS311", where=Where(rollout=2, update=4),
          report="log-probs of another unit", where_016=Where(rollout=4, update=4), settings=WITH_REFERENCE, absent=("0.18.",),
          cause="while the rollout was put together"),
    Fault(reference_log_probs_moved_on_the_way, code="RLS311", where=Where(update=4, microbatch=8), report="trl#454",
          settings=WITH_REFERENCE, absent=("0.18.",)),
    Fault(way(after_update, 5, by=reference_swapped_and_put_back), code="RLS411", where=Where(rollout=3, update=6),
          report="averages swapped in", where_016=Where(rollout=6, update=6), settings=WITH_REFERENCE,
          cause="have their values again", doubtful=True),
    Fault(way(replace_method, "_generate_and_score_completions", by=kl_added_to_the_reward), code="RLS516",
          where=Where(rollout=1, update=2), report="RLOO, KL left out of the reward",
          settings={**REUSED, "algorithm": "RLOO", "beta": 0.5}, since="0.24", cause="with the KL penalty added"),
    Fault(made("generation_by_a_stale_copy", "A serving copy generates, and nobody syncs weights into it.",
               lambda trainer: generate_with_copy(trainer)),
          code="RLS402", where=Where(rollout=4, update=4), report="ms-swift PR#4584", where_016=Where(rollout=8, update=4),
          settings=ONCE),
    Fault(made("generation_by_a_stale_copy_with_old_log_probs",
               "The same where the policy computes old log-probs, so that it runs in every rollout although it samples "
               "nothing.",
               lambda trainer: generate_with_copy(trainer)),
          code="RLS402", where=Where(rollout=2, update=4), report="trl#5312", where_016=Where(rollout=4, update=4)),
    Fault(way(after_update, 4, by=weights_not_synced), code="RLS402", where=Where(rollout=2, update=4), report="rllm#291",
          prepare=with_engine, since="1.0"),
    Fault(synced_weights_dropped_by_the_engine, code="RLS403", where=Where(rollout=2, update=4), report="trl#5312",
          prepare=with_engine, since="1.0", doubtful=True),
    Fault(made("sampler_cooled_down",
               "A curriculum lowers the temperature of generation in mid-run, and the loss goes on with the configured one.",
               lambda trainer: after_update(trainer, 4, lambda: setattr(trainer.generation_config, "temperature", 0.3))),
          code="RLS410", where=Where(rollout=2, update=4), report="trl#4159", where_016=Where(rollout=4, update=4)),
    Fault(made("completions_cut_by_the_sampler",
               "A speed-up lowers the length of generation in mid-run; nothing says that completions are cut.",
               lambda trainer: after_update(trainer, 4, lambda: setattr(trainer.generation_config, "max_new_tokens", 5))),
          code="RLS410", where=Where(rollout=2, update=4), report="completions that end before the configured length",
          where_016=Where(rollout=4, update=4), cause="max_new_tokens 5"),
    Fault(end_banned_by_a_processor, code="RLS410", where=Where(rollout=2, update=4),
          report="a processor of logits from another script", where_016=Where(rollout=4, update=4), cause="logits_processors 1"),
)
# fmt: on
