"""Order and sizes of rollouts and updates, old log-probs and tokens."""

from __future__ import annotations

import copy
import itertools
from typing import TYPE_CHECKING, Any

import torch
from torch.utils.data import Sampler

from rlstep_hooks.planning.finding import Where
from rlstep_hooks.testing.trl_faults import (
    alter_microbatches,
    log_prob_method,
    log_probs,
    permuted_old_log_probs,
    recompute_old_log_probs,
    regenerate_every_step,
    replace_method,
)
from tests.faults.fault import (
    LARGE_ROLLOUT,
    ONCE,
    REUSED,
    TWO_EPOCHS,
    WITH_REFERENCE,
    Fault,
    after_update,
    alter_rollouts,
    made,
    on,
    take,
    way,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


def batch_raised_by_a_wrapper(trainer: Any) -> None:
    """A wrapper doubles the per-device batch after the configuration was written."""
    trainer.args.per_device_train_batch_size *= 2


def passes_doubled_on_the_trainer(trainer: Any) -> None:
    """Somebody sets the number of passes on the trainer, where the loader does not look: every second rollout is skipped."""
    trainer.num_iterations *= 2


def passes_doubled_once_training_began(trainer: Any, state: Any, **kwargs: Any) -> None:
    """The same by a callback, when the trainer was compared with its arguments: every second rollout is skipped."""
    trainer.num_iterations *= 2


def optimizer_stepped_twice(trainer: Any, state: Any, *, optimizer: Any, **kwargs: Any) -> None:
    """A callback makes the fourth update itself, and the loop steps once more: an update without a micro-batch."""
    if state.global_step == 3:
        optimizer.step()


def data_set_shrunk_below_a_rollout(trainer: Any) -> None:
    """A filter leaves fewer rows than one rollout needs; the run ends well and saves an untrained model."""
    trainer.train_dataset = trainer.train_dataset.select(range(1))


def bad_batches_skipped(trainer: Any) -> None:
    """A "skip bad batches" wrapper swallows one optimizer step; counters and learning rate go on."""
    made = itertools.count()

    def guard(state: Any, *, optimizer: Any, **kwargs: Any) -> None:
        replace_method(optimizer, "step", lambda original, *args: None if next(made) == 3 else original(*args))

    on(trainer, "on_train_begin", guard)


class ShortenedSampler(Sampler[int]):
    """The last sixth of another sampler is left out."""

    def __init__(self, whole: Any) -> None:
        self._indices = list(whole)

    def __iter__(self) -> Iterator[int]:
        return iter(self._indices[: len(self)])

    def __len__(self) -> int:
        return len(self._indices) * 5 // 6


def last_chunk_dropped(trainer: Any) -> None:
    """The loader drops the last rollout's rows of each pass."""
    replace_method(trainer, "_get_train_sampler", lambda original, *args: ShortenedSampler(original(*args)))


def old_log_probs_recomputed_in_a_copy(trainer: Any) -> None:
    """A patched loss computes old log-probs anew and hands them over in a new dict; the buffer keeps the right ones."""

    def loss(original: Callable[..., Any], model: Any, inputs: dict[str, Any], **kwargs: Any) -> Any:
        if trainer.state.global_step >= 5:
            inputs = inputs | {"old_per_token_logps": log_probs(trainer, model, inputs)}
        return original(model, inputs, **kwargs)

    replace_method(trainer, "_compute_loss" if hasattr(trainer, "_compute_loss") else "compute_loss", loss)


def buffer_refreshed_after_each_update(trainer: Any) -> None:
    """A callback brings the old log-probs of the buffer "up to date" after each update."""

    def refresh(state: Any, **kwargs: Any) -> None:
        for batch in trainer._buffered_inputs:
            batch["old_per_token_logps"].copy_(log_probs(trainer, trainer.model, batch))

    on(trainer, "on_step_end", refresh)


def old_log_probs_follow_the_policy(trainer: Any) -> None:
    """The same mistake, seen on whole rollouts and whatever the weights did."""
    buffer_refreshed_after_each_update(trainer)


def old_log_probs_computed_when_first_used(trainer: Any) -> None:
    """Old log-probs are computed lazily, when a micro-batch is first used: ppo_kl is flat 0 although updates lie between."""
    alter_microbatches(trainer, lambda batch: batch | {"old_per_token_logps": log_probs(trainer, trainer.model, batch)})


def reference_taken_for_old_policy(trainer: Any) -> None:
    """The reference model's log-probs are stored as the old ones."""
    alter_rollouts(
        trainer,
        lambda output: output | {"old_per_token_logps": log_probs(trainer, trainer.ref_model, output)},
        after=4,
    )


def old_log_probs_of_an_earlier_policy(trainer: Any) -> None:
    """Clipping is anchored to a copy of the policy that never generated the samples."""
    frozen = copy.deepcopy(trainer.model)
    alter_rollouts(
        trainer, lambda output: output | {"old_per_token_logps": log_probs(trainer, frozen, output)}, after=4
    )


def temperature_left_out_of_old_log_probs(trainer: Any, original: Callable[..., Any], rows: Any) -> Any:
    """Old log-probs are computed without the sampling temperature, the new ones with it."""
    temperature = trainer.temperature
    trainer.temperature = 1.0 if trainer.state.global_step >= 4 else temperature
    try:
        return original(rows)
    finally:
        trainer.temperature = temperature


def head_for_old_log_probs_without_temperature(trainer: Any) -> None:
    """Old log-probs come from a fused head without the sampling temperature, the new ones from one with it."""
    from trl.trainer.utils import add_fused_lm_head

    def generate(original: Callable[..., Any], rows: Any) -> Any:
        head = trainer.model.forward
        if trainer.state.global_step >= 4:
            add_fused_lm_head(trainer.model, outputs=("log_probs", "entropy"))
        try:
            return original(rows)
        finally:
            trainer.model.forward = head

    replace_method(trainer, "_generate_and_score_completions", generate)


def old_log_probs_in_another_precision(trainer: Any) -> None:
    """Old log-probs are computed under bfloat16 autocast, the new ones in float32."""

    def forward(original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=not torch.is_grad_enabled()):
            return original(*args, **kwargs)

    replace_method(trainer, log_prob_method(trainer), forward)


def dropout_left_on(trainer: Any) -> None:
    """Attention dropout is active in both forwards, each with a mask of its own."""
    for layer in trainer.model.model.layers:
        layer.self_attn.attention_dropout = 0.3


def truncated(batch: dict[str, Any], tokens: int) -> dict[str, Any]:
    """A micro-batch whose completions are cut to a length, with all that belongs to their tokens."""
    width = batch["completion_ids"].shape[1]
    return {
        name: value[:, :tokens]
        if name.startswith(("completion_", "old_per", "ref_per"))
        and isinstance(value, torch.Tensor)
        and value.shape[-1] == width
        else value
        for name, value in batch.items()
    }


def completions_reordered(trainer: Any, batch: dict[str, Any]) -> dict[str, Any]:
    """Completions are sorted by length, their advantages are not."""
    order = torch.argsort(batch["completion_mask"].sum(1), stable=True).roll(1)
    return batch | {name: batch[name][order] for name in ("completion_ids", "completion_mask")}


def samples_replayed(trainer: Any) -> None:
    """A replay buffer hands out a micro-batch of the rollout before."""
    seen: list[dict[str, Any]] = []

    def replay(batch: dict[str, Any]) -> dict[str, Any]:
        seen.append(batch)
        return seen[-3] if len(seen) > 9 else batch

    alter_microbatches(trainer, replay)


def reference_released_in_mid_run(trainer: Any) -> None:
    """A memory saver releases the reference model and sets the KL coefficient of the trainer to 0."""
    trainer.beta, trainer.ref_model = 0.0, None


def completions_moved_before_the_rollout_is_scored(trainer: Any) -> None:
    """Completions move to the next sample while the rollout is put together."""
    alter_rollouts(
        trainer,
        lambda rollout: rollout | {name: rollout[name].roll(1, 0) for name in ("completion_ids", "completion_mask")},
        after=4,
    )


def prompts_changed_before_the_rollout_is_scored(trainer: Any, rollout: dict[str, Any]) -> dict[str, Any]:
    """The last token of each prompt is another one than the policy was asked with."""
    prompts = rollout["prompt_ids"].clone()
    prompts[:, -1] = prompts[:, -2]
    return rollout | {"prompt_ids": prompts}


def prompts_overwritten_in_the_buffer(trainer: Any, batch: dict[str, Any]) -> dict[str, Any]:
    """The prompts in the sample buffer are overwritten in place."""
    batch["prompt_ids"][:, -1] = batch["prompt_ids"][:, -2]
    return batch


# fmt: off
FAULTS = (
    # B, C: sizes and settings
    Fault(batch_raised_by_a_wrapper, code="RLS101", where=Where(update=0), report="unsloth#3149"),
    Fault(made("accumulation_raised_in_mid_run", 'An "auto batch" feature raises the accumulation from 2 to 4 after four updates.',
               lambda trainer: after_update(trainer, 4, lambda: setattr(trainer.args, "gradient_accumulation_steps", 4))),
          code="RLS204", where=Where(rollout=2, update=4, microbatch=10), report="unsloth#3066", headline="RLS101", since="0.17"),
    Fault(made("accumulation_lowered_in_mid_run", 'An "auto batch" feature lowers the accumulation from 2 to 1 after four updates.',
               lambda trainer: after_update(trainer, 4, lambda: setattr(trainer.args, "gradient_accumulation_steps", 1))),
          code="RLS203", where=Where(rollout=2, update=4, microbatch=9), report="unsloth#3066", headline="RLS101", since="0.17"),
    Fault(made("group_halved_in_mid_run",
               "A curriculum lowers the trainer's group size; the sampler still repeats each prompt as often as before.",
               lambda trainer: after_update(trainer, 4, lambda: setattr(trainer, "num_generations", trainer.num_generations // 2))),
          code="RLS101", where=Where(update=4), report="trl#2672", doubtful=True),
    Fault(made("generation_period_halved_in_mid_run", "The generation period is set to one micro-batch after four updates.",
               lambda trainer: after_update(trainer, 4, lambda: setattr(trainer.args, "steps_per_generation", 1))),
          code="RLS101", where=Where(update=4), report="ms-swift#9261", since="0.18"),
    # A, F: rollouts and updates
    Fault(regenerate_every_step, code="RLS201", where=Where(update=0, microbatch=1), report="ms-swift#9261",
          where_016=Where(update=1, microbatch=2)),
    Fault(passes_doubled_on_the_trainer, code="RLS101", where=Where(rollout=0, update=0), report="verifiers PR#320"),
    Fault(way(on, "on_train_begin", by=passes_doubled_once_training_began), code="RLS202", where=Where(update=2, microbatch=4),
          report="verifiers PR#320"),
    Fault(way(on, "on_pre_optimizer_step", by=optimizer_stepped_twice), code="RLS203",
          where=Where(rollout=1, update=4, microbatch=8), report="trl#583", where_016=Where(rollout=3, update=4, microbatch=8)),
    Fault(data_set_shrunk_below_a_rollout, code="RLS209", where=Where(update=0), report="Absolute-Zero#14",
          settings={**ONCE, "max_steps": 6}),
    Fault(bad_batches_skipped, code="RLS210", where=Where(update=3), report="verl#7401"),
    Fault(last_chunk_dropped, code="RLS205", where=Where(rollout=4, update=10, microbatch=20, epoch=0), report="trl#998",
          where_016=Where(rollout=9, update=10, microbatch=20, epoch=0), settings=TWO_EPOCHS),
    Fault(made("length_rounded_down",
               "The number of updates is computed by rounding down before multiplying, so the loop ends early.",
               lambda trainer: on(trainer, "on_train_begin", lambda state, **kwargs: setattr(state, "max_steps", 9))),
          code="RLS206", where=Where(update=9), report="OpenRLHF PR#1351"),
    Fault(made("length_counted_in_rollouts",
               "The number of updates is set to the number of rollouts, so half of the run is missing; it ends where a rollout"
               " ends.",
               lambda trainer: on(trainer, "on_train_begin", lambda state, **kwargs: setattr(state, "max_steps", 6))),
          code="RLS206", where=Where(update=6), report="SkyRL#872"),
    Fault(made("samples_filtered_from_a_micro_batch", "An accuracy filter drops a sample of each micro-batch.",
               lambda trainer: alter_microbatches(trainer, lambda batch: take(batch, 3), first=9)),
          code="RLS207", where=Where(rollout=2, update=4, microbatch=9), report="OpenRLHF#717",
          where_016=Where(rollout=5, update=4, microbatch=9)),
    Fault(made("samples_dropped_from_a_rollout", "Balancing over actors drops the samples that do not divide: half of a rollout.",
               lambda trainer: alter_rollouts(trainer, lambda output: take(output, 4), after=4)),
          code="RLS207", where=Where(rollout=2, update=4, microbatch=8), report="OpenRLHF#1296", since="0.18"),
    # G, H: old log-probs and the ratio
    Fault(recompute_old_log_probs, code="RLS303", where=Where(rollout=0, update=0, microbatch=0), report="verifiers PR#320",
          where_016=Where(update=0, microbatch=0)),
    Fault(permuted_old_log_probs, code="RLS305", where=Where(update=0, microbatch=0), report="trl#454"),
    Fault(old_log_probs_recomputed_in_a_copy, code="RLS303", where=Where(update=5, microbatch=10), report="verifiers PR#320"),
    Fault(buffer_refreshed_after_each_update, code="RLS302", where=Where(update=1, microbatch=2), report="verifiers PR#320"),
    Fault(old_log_probs_follow_the_policy, code="RLS310", where=Where(update=1, microbatch=2), report="verifiers PR#320",
          headline="RLS302"),
    Fault(old_log_probs_computed_when_first_used, code="RLS302", where=Where(rollout=0, update=1, microbatch=2), report="rllm#111",
          settings=LARGE_ROLLOUT, since="0.18"),
    Fault(made("old_log_probs_not_computed",
               "A memory saver drops the pass that computes old log-probs, from the third rollout on.",
               lambda trainer: alter_rollouts(trainer, lambda output: output | {"old_per_token_logps": None}, after=4)),
          code="RLS303", where=Where(rollout=2, update=4, microbatch=8), report="trl#3120", since="0.18"),
    Fault(made("old_log_probs_lost_on_the_way",
               'A collator keeps only the keys that it knows, and old log-probs are not one: "clip never binds".',
               lambda trainer: alter_microbatches(trainer, lambda batch: batch | {"old_per_token_logps": None}, first=8)),
          code="RLS304", where=Where(update=5, microbatch=10), report="AReno#68", since="0.18"),
    Fault(reference_taken_for_old_policy, code="RLS303", where=Where(rollout=2, update=4), report="slime#774",
          where_016=Where(rollout=4, update=4), settings=WITH_REFERENCE),
    Fault(old_log_probs_of_an_earlier_policy, code="RLS303", where=Where(rollout=2, update=4), report="miles PR#1829",
          where_016=Where(rollout=4, update=4)),
    Fault(way(replace_method, "_generate_and_score_completions", by=temperature_left_out_of_old_log_probs), code="RLS301",
          where=Where(update=4, microbatch=8), report="trl PR#3029", settings={**REUSED, "temperature": 0.6}, before="1.16"),
    Fault(head_for_old_log_probs_without_temperature, code="RLS301", where=Where(update=4, microbatch=8), report="trl PR#3029",
          settings={**REUSED, "temperature": 0.6}, since="1.16"),
    Fault(made("temperature_left_out_in_bfloat16", "The same in bfloat16, whose rounding is 500 times as coarse.",
               lambda trainer: head_for_old_log_probs_without_temperature(trainer)),
          code="RLS301", where=Where(update=4, microbatch=8), report="trl PR#3029 in bfloat16",
          settings={**REUSED, "temperature": 0.6, "bf16": True}, since="1.16"),
    Fault(old_log_probs_in_another_precision, code="RLS301", where=Where(update=0, microbatch=0), report="verl#2305",
          doubtful=True),
    Fault(dropout_left_on, code="RLS301", where=Where(rollout=0, update=0, microbatch=0), report="trl PR#3234", doubtful=True),
    # Tokens
    Fault(made("completions_truncated_for_the_loss",
               "A memory saver cuts completions before the loss; rewards and advantages were given for the whole ones.",
               lambda trainer: alter_microbatches(trainer, lambda batch: truncated(batch, 4), first=6)),
          code="RLS306", where=Where(update=3, microbatch=6), report="trl#2995"),
    Fault(way(alter_microbatches, by=completions_reordered, first=9), code="RLS306", where=Where(update=4, microbatch=9),
          report="trl PR#3725", settings=ONCE),
    Fault(samples_replayed, code="RLS307", where=Where(update=4, microbatch=9), report="trl PR#3493", settings=ONCE),
    Fault(way(after_update, 4, by=reference_released_in_mid_run), code="RLS308", where=Where(rollout=2, update=4, microbatch=8),
          report="slime#774", headline="RLS101", where_016=Where(rollout=4, update=4, microbatch=8), settings=WITH_REFERENCE,
          absent=("0.18.",)),
    Fault(completions_moved_before_the_rollout_is_scored, code="RLS306", where=Where(rollout=2, update=4), report="trl PR#3725",
          where_016=Where(rollout=4, update=4), cause="between the generation and the scoring"),
    Fault(way(alter_rollouts, by=prompts_changed_before_the_rollout_is_scored, after=4), code="RLS306",
          where=Where(rollout=2, update=4), report="a template applied once more", where_016=Where(rollout=4, update=4),
          cause="between the generation and the scoring"),
    Fault(way(alter_microbatches, by=prompts_overwritten_in_the_buffer, first=8), code="RLS306",
          where=Where(update=4, microbatch=8), report="a buffer that is shared", cause="another prompt"),
)
# fmt: on
