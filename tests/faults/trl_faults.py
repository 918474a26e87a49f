"""The fault corpus: mistakes out of real reports, each made on a built GRPOTrainer before it trains.

Each fault names the report it reproduces (numbers as in the reports' own trackers), the rule that must find it, and the place
of its first event. Most begin in mid-run, so that a rule which only says "somewhere" does not pass.

The common settings give six rollouts of eight samples in one data epoch. With two passes (`REUSED`) rollout r is trained by
micro-batches 4r..4r+3 and updates 2r and 2r+1; with one (`ONCE`) by micro-batches 2r, 2r+1 and update r. TRL 0.16 makes two
rollouts of four samples where later releases make one of eight.
"""

from __future__ import annotations

import copy
import itertools
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import Sampler
from transformers import TrainerCallback

from rlstep_hooks.planning.finding import Where
from rlstep_hooks.systems.trl.releases import TrlRelease, installed_release
from rlstep_hooks.testing.trl_faults import (
    alter_microbatches,
    log_prob_method,
    log_probs,
    permuted_old_log_probs,
    recompute_old_log_probs,
    regenerate_every_step,
    replace_method,
)

Apply = Callable[[Any], None]
Settings = Mapping[str, Any]

ONCE: Settings = {"rows": 12, "gradient_accumulation_steps": 2, "num_train_epochs": 1, "beta": 0.0}
"""Six rollouts, one pass over each: 12 micro-batches, 6 updates."""
REUSED: Settings = {**ONCE, "num_iterations": 2}
"""Six rollouts, two passes over each: 24 micro-batches, 12 updates."""
LARGE_ROLLOUT: Settings = {**ONCE, "rows": 24, "steps_per_generation": 4, "loss_type": "grpo"}
"""Six rollouts of sixteen samples, two updates on each: 24 micro-batches, 12 updates. Not with the default loss of 0.22 to
1.9, which is wrong by itself where a rollout is larger than an update (trl PR#6024)."""
FALLING_RATE: Settings = {**REUSED, "lr_scheduler_type": "linear"}
WARMED_UP: Settings = {**FALLING_RATE, "warmup_steps": 2}
TWO_EPOCHS: Settings = {**REUSED, "num_train_epochs": 2}
WITH_REFERENCE: Settings = {**REUSED, "beta": 0.04}
EVALUATED: Settings = {**REUSED, "evaluation_rows": 4, "eval_strategy": "steps", "eval_steps": 3}
"""Evaluates after updates 3, 6, 9 and 12; the first time in the middle of a rollout's use."""

WHOLE_RUN = Where()
"""The place of a finding about the run as a whole."""


def unchanged(trainer: Any) -> None:
    """Leave the trainer as it was built."""


@dataclass(frozen=True)
class Fault:
    """One mistake, and where it must be found."""

    name: str
    report: str
    """The report it reproduces."""
    code: str
    """The rule that names it."""
    where: Where
    """Place of the first event that is wrong; numbers left out are not compared, `WHOLE_RUN` is compared as it is."""
    apply: Apply
    where_016: Where | None = None
    """The place in TRL 0.16, which counts rollouts of one micro-batch each; as above where None."""
    cause: str = ""
    """What the finding must say of it."""
    headline: str = ""
    """The rule of the headline, where another one sees the cause itself; empty where it is `code`."""
    beside: str = ""
    """A rule that sees the same mistake in other rollouts, in which the headline's rule does not."""
    doubtful: bool = False
    """Whether it may also be meant, or be noise of a kernel, so that it is a warning and the run passes."""
    settings: Settings = field(default_factory=lambda: REUSED)
    prepare: Apply = unchanged
    """What the run without the fault needs as well."""
    since: str = "0.16"
    """First release of TRL in which the mistake can be made in this way."""
    before: str = "2"
    """First release that was read in which it can no longer."""
    absent: tuple[str, ...] = ()
    """Minor releases between them in which it cannot."""

    def expressible(self, release: TrlRelease) -> bool:
        """Whether the mistake can be made in a release."""
        return release.since(self.since) and not release.since(self.before) and not release.trl.startswith(self.absent)

    def place(self, release: TrlRelease) -> Where:
        """Where it must be found in a release."""
        return self.where_016 if self.where_016 is not None and release.generates_per_microbatch else self.where


RELEASE = installed_release()
FAULTS: list[Fault] = []


def fault(*, report: str, code: str, where: Where, **rest: Any) -> Callable[[Apply], Apply]:
    """Register a function as a fault under its own name."""

    def register(apply: Apply) -> Apply:
        FAULTS.append(Fault(name=apply.__name__, report=report, code=code, where=where, apply=apply, **rest))
        return apply

    return register


# How users and wrappers reach into a trainer


def on(trainer: Any, event: str, act: Callable[..., None]) -> None:
    """Add a callback that acts on one of transformers' events, called as `act(state, **kwargs)`."""
    callback = TrainerCallback()

    def handle(args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        act(state, **kwargs)

    setattr(callback, event, handle)
    trainer.add_callback(callback)


def after_update(trainer: Any, updates: int, act: Callable[[], None]) -> None:
    """Act once, when that many updates are made."""

    def once(state: Any, **kwargs: Any) -> None:
        if state.global_step == updates:
            act()

    on(trainer, "on_step_end", once)


def alter_rollouts(trainer: Any, alter: Callable[[dict[str, Any]], dict[str, Any]], *, after: int) -> None:
    """Change what a generation phase returns, from the one after that many updates on."""

    def generate(original: Callable[..., Any], rows: Any) -> Any:
        output = original(rows)
        return alter(output) if trainer.state.global_step >= after else output

    replace_method(trainer, "_generate_and_score_completions", generate)


def take(batch: dict[str, Any], samples: int) -> dict[str, Any]:
    """The first samples of a batch."""
    size = batch["completion_ids"].shape[0]
    return {
        name: value[:samples] if isinstance(value, torch.Tensor) and value.dim() and value.shape[0] == size else value
        for name, value in batch.items()
    }


# B, C: sizes and settings


@fault(report="unsloth#3149", code="RLS101", where=Where(update=0))
def batch_raised_by_a_wrapper(trainer: Any) -> None:
    """A wrapper doubles the per-device batch after the configuration was written."""
    trainer.args.per_device_train_batch_size *= 2


@fault(
    report="unsloth#3066",
    code="RLS204",
    headline="RLS101",
    where=Where(rollout=2, update=4, microbatch=10),
    since="0.17",
)
def accumulation_raised_in_mid_run(trainer: Any) -> None:
    """An "auto batch" feature raises the accumulation from 2 to 4 after four updates."""
    after_update(trainer, 4, lambda: setattr(trainer.args, "gradient_accumulation_steps", 4))


@fault(
    report="unsloth#3066",
    code="RLS203",
    headline="RLS101",
    where=Where(rollout=2, update=4, microbatch=9),
    since="0.17",
)
def accumulation_lowered_in_mid_run(trainer: Any) -> None:
    """An "auto batch" feature lowers the accumulation from 2 to 1 after four updates."""
    after_update(trainer, 4, lambda: setattr(trainer.args, "gradient_accumulation_steps", 1))


@fault(report="trl#2672", code="RLS101", where=Where(update=4), doubtful=True)
def group_halved_in_mid_run(trainer: Any) -> None:
    """A curriculum lowers the trainer's group size; the sampler still repeats each prompt as often as before."""
    after_update(trainer, 4, lambda: setattr(trainer, "num_generations", trainer.num_generations // 2))


@fault(report="ms-swift#9261", code="RLS101", where=Where(update=4), since="0.18")
def generation_period_halved_in_mid_run(trainer: Any) -> None:
    """The generation period is set to one micro-batch after four updates."""
    after_update(trainer, 4, lambda: setattr(trainer.args, "steps_per_generation", 1))


# A, F: rollouts and updates


FAULTS.append(
    Fault(
        name="regenerate_every_step",
        report="ms-swift#9261",
        code="RLS201",
        where=Where(update=0, microbatch=1),
        where_016=Where(update=1, microbatch=2),
        apply=regenerate_every_step,
    )
)


@fault(report="verifiers PR#320", code="RLS101", where=Where(rollout=0, update=0))
def passes_doubled_on_the_trainer(trainer: Any) -> None:
    """Somebody sets the number of passes on the trainer, where the loader does not look: every second rollout is skipped."""
    trainer.num_iterations *= 2


@fault(report="verifiers PR#320", code="RLS202", where=Where(update=2, microbatch=4))
def passes_doubled_once_training_began(trainer: Any) -> None:
    """The same by a callback, when the trainer was compared with its arguments: every second rollout is skipped."""

    def double(state: Any, **kwargs: Any) -> None:
        trainer.num_iterations *= 2

    on(trainer, "on_train_begin", double)


@fault(
    report="trl#583",
    code="RLS203",
    where=Where(rollout=1, update=4, microbatch=8),
    where_016=Where(rollout=3, update=4, microbatch=8),
)
def optimizer_stepped_twice(trainer: Any) -> None:
    """A callback makes the fourth update itself, and the loop steps once more: an update without a micro-batch."""

    def step(state: Any, *, optimizer: Any, **kwargs: Any) -> None:
        if state.global_step == 3:
            optimizer.step()

    on(trainer, "on_pre_optimizer_step", step)


@fault(report="Absolute-Zero#14", code="RLS209", where=Where(update=0), settings={**ONCE, "max_steps": 6})
def data_set_shrunk_below_a_rollout(trainer: Any) -> None:
    """A filter leaves fewer rows than one rollout needs; the run ends well and saves an untrained model."""
    trainer.train_dataset = trainer.train_dataset.select(range(1))


@fault(report="verl#7401", code="RLS210", where=Where(update=3))
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


@fault(
    report="trl#998",
    code="RLS205",
    where=Where(rollout=4, update=10, microbatch=20, epoch=0),
    where_016=Where(rollout=9, update=10, microbatch=20, epoch=0),
    settings=TWO_EPOCHS,
)
def last_chunk_dropped(trainer: Any) -> None:
    """The loader drops the last rollout's rows of each pass."""
    replace_method(trainer, "_get_train_sampler", lambda original, *args: ShortenedSampler(original(*args)))


@fault(report="OpenRLHF PR#1351", code="RLS206", where=Where(update=9))
def length_rounded_down(trainer: Any) -> None:
    """The number of updates is computed by rounding down before multiplying, so the loop ends early."""
    on(trainer, "on_train_begin", lambda state, **kwargs: setattr(state, "max_steps", 9))


@fault(report="SkyRL#872", code="RLS206", where=Where(update=6))
def length_counted_in_rollouts(trainer: Any) -> None:
    """The number of updates is set to the number of rollouts, so half of the run is missing; it ends where a rollout ends."""
    on(trainer, "on_train_begin", lambda state, **kwargs: setattr(state, "max_steps", 6))


@fault(
    report="OpenRLHF#717",
    code="RLS207",
    where=Where(rollout=2, update=4, microbatch=9),
    where_016=Where(rollout=5, update=4, microbatch=9),
)
def samples_filtered_from_a_micro_batch(trainer: Any) -> None:
    """An accuracy filter drops a sample of each micro-batch."""
    alter_microbatches(trainer, lambda batch: take(batch, 3), first=9)


@fault(report="OpenRLHF#1296", code="RLS207", where=Where(rollout=2, update=4, microbatch=8), since="0.18")
def samples_dropped_from_a_rollout(trainer: Any) -> None:
    """Balancing over actors drops the samples that do not divide: half of a rollout."""
    alter_rollouts(trainer, lambda output: take(output, 4), after=4)


# G, H: old log-probs and the ratio


FAULTS.append(
    Fault(
        name="recompute_old_log_probs",
        report="verifiers PR#320",
        code="RLS303",
        where=Where(rollout=0, update=0, microbatch=0),
        apply=recompute_old_log_probs,
        where_016=Where(update=0, microbatch=0),
    )
)
FAULTS.append(
    Fault(
        name="permuted_old_log_probs",
        report="trl#454",
        code="RLS305",
        where=Where(update=0, microbatch=0),
        apply=permuted_old_log_probs,
    )
)


@fault(report="verifiers PR#320", code="RLS303", where=Where(update=5, microbatch=10))
def old_log_probs_recomputed_in_a_copy(trainer: Any) -> None:
    """A patched loss computes old log-probs anew and hands them over in a new dict; the buffer keeps the right ones."""

    def loss(original: Callable[..., Any], model: Any, inputs: dict[str, Any], **kwargs: Any) -> Any:
        if trainer.state.global_step >= 5:
            inputs = inputs | {"old_per_token_logps": log_probs(trainer, model, inputs)}
        return original(model, inputs, **kwargs)

    replace_method(trainer, "_compute_loss" if hasattr(trainer, "_compute_loss") else "compute_loss", loss)


@fault(report="verifiers PR#320", code="RLS302", where=Where(update=1, microbatch=2))
def buffer_refreshed_after_each_update(trainer: Any) -> None:
    """A callback brings the old log-probs of the buffer "up to date" after each update."""

    def refresh(state: Any, **kwargs: Any) -> None:
        for batch in trainer._buffered_inputs:
            batch["old_per_token_logps"].copy_(log_probs(trainer, trainer.model, batch))

    on(trainer, "on_step_end", refresh)


@fault(report="verifiers PR#320", code="RLS310", headline="RLS302", where=Where(update=1, microbatch=2))
def old_log_probs_follow_the_policy(trainer: Any) -> None:
    """The same mistake, seen on whole rollouts and whatever the weights did."""
    buffer_refreshed_after_each_update(trainer)


@fault(
    report="rllm#111",
    code="RLS302",
    where=Where(rollout=0, update=1, microbatch=2),
    settings=LARGE_ROLLOUT,
    since="0.18",
)
def old_log_probs_computed_when_first_used(trainer: Any) -> None:
    """Old log-probs are computed lazily, when a micro-batch is first used: ppo_kl is flat 0 although updates lie between."""
    alter_microbatches(trainer, lambda batch: batch | {"old_per_token_logps": log_probs(trainer, trainer.model, batch)})


@fault(report="trl#3120", code="RLS303", where=Where(rollout=2, update=4, microbatch=8), since="0.18")
def old_log_probs_not_computed(trainer: Any) -> None:
    """A memory saver drops the pass that computes old log-probs, from the third rollout on."""
    alter_rollouts(trainer, lambda output: output | {"old_per_token_logps": None}, after=4)


@fault(report="AReno#68", code="RLS304", where=Where(update=5, microbatch=10), since="0.18")
def old_log_probs_lost_on_the_way(trainer: Any) -> None:
    """A collator keeps only the keys that it knows, and old log-probs are not one: "clip never binds"."""
    alter_microbatches(trainer, lambda batch: batch | {"old_per_token_logps": None}, first=8)


@fault(
    report="slime#774",
    code="RLS303",
    where=Where(rollout=2, update=4),
    where_016=Where(rollout=4, update=4),
    settings=WITH_REFERENCE,
)
def reference_taken_for_old_policy(trainer: Any) -> None:
    """The reference model's log-probs are stored as the old ones."""
    alter_rollouts(
        trainer,
        lambda output: output | {"old_per_token_logps": log_probs(trainer, trainer.ref_model, output)},
        after=4,
    )


@fault(report="miles PR#1829", code="RLS303", where=Where(rollout=2, update=4), where_016=Where(rollout=4, update=4))
def old_log_probs_of_an_earlier_policy(trainer: Any) -> None:
    """Clipping is anchored to a copy of the policy that never generated the samples."""
    frozen = copy.deepcopy(trainer.model)
    alter_rollouts(
        trainer, lambda output: output | {"old_per_token_logps": log_probs(trainer, frozen, output)}, after=4
    )


@fault(
    report="trl PR#3029",
    code="RLS301",
    where=Where(update=4, microbatch=8),
    settings={**REUSED, "temperature": 0.6},
    before="1.16",
)
def temperature_left_out_of_old_log_probs(trainer: Any) -> None:
    """Old log-probs are computed without the sampling temperature, the new ones with it."""

    def generate(original: Callable[..., Any], rows: Any) -> Any:
        temperature = trainer.temperature
        trainer.temperature = 1.0 if trainer.state.global_step >= 4 else temperature
        try:
            return original(rows)
        finally:
            trainer.temperature = temperature

    replace_method(trainer, "_generate_and_score_completions", generate)


@fault(
    report="trl PR#3029",
    code="RLS301",
    where=Where(update=4, microbatch=8),
    settings={**REUSED, "temperature": 0.6},
    since="1.16",
)
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


@fault(
    report="trl PR#3029 in bfloat16",
    code="RLS301",
    where=Where(update=4, microbatch=8),
    settings={**REUSED, "temperature": 0.6, "bf16": True},
    since="1.16",
)
def temperature_left_out_in_bfloat16(trainer: Any) -> None:
    """The same in bfloat16, whose rounding is 500 times as coarse."""
    head_for_old_log_probs_without_temperature(trainer)


@fault(report="verl#2305", code="RLS301", where=Where(update=0, microbatch=0), doubtful=True)
def old_log_probs_in_another_precision(trainer: Any) -> None:
    """Old log-probs are computed under bfloat16 autocast, the new ones in float32."""

    def forward(original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=not torch.is_grad_enabled()):
            return original(*args, **kwargs)

    replace_method(trainer, log_prob_method(trainer), forward)


@fault(report="trl PR#3234", code="RLS301", where=Where(rollout=0, update=0, microbatch=0), doubtful=True)
def dropout_left_on(trainer: Any) -> None:
    """Attention dropout is active in both forwards, each with a mask of its own."""
    for layer in trainer.model.model.layers:
        layer.self_attn.attention_dropout = 0.3


# Tokens


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


@fault(report="trl#2995", code="RLS306", where=Where(update=3, microbatch=6))
def completions_truncated_for_the_loss(trainer: Any) -> None:
    """A memory saver cuts completions before the loss; rewards and advantages were given for the whole ones."""
    alter_microbatches(trainer, lambda batch: truncated(batch, 4), first=6)


@fault(report="trl PR#3725", code="RLS306", where=Where(update=4, microbatch=9), settings=ONCE)
def completions_reordered(trainer: Any) -> None:
    """Completions are sorted by length, their advantages are not."""

    def alter(batch: dict[str, Any]) -> dict[str, Any]:
        order = torch.argsort(batch["completion_mask"].sum(1), stable=True).roll(1)
        return batch | {name: batch[name][order] for name in ("completion_ids", "completion_mask")}

    alter_microbatches(trainer, alter, first=9)


@fault(report="trl PR#3493", code="RLS307", where=Where(update=4, microbatch=9), settings=ONCE)
def samples_replayed(trainer: Any) -> None:
    """A replay buffer hands out a micro-batch of the rollout before."""
    seen: list[dict[str, Any]] = []

    def replay(batch: dict[str, Any]) -> dict[str, Any]:
        seen.append(batch)
        return seen[-3] if len(seen) > 9 else batch

    alter_microbatches(trainer, replay)


@fault(
    report="slime#774",
    code="RLS308",
    headline="RLS101",
    where=Where(rollout=2, update=4, microbatch=8),
    where_016=Where(rollout=4, update=4, microbatch=8),
    settings=WITH_REFERENCE,
    absent=("0.18.",),
)
def reference_released_in_mid_run(trainer: Any) -> None:
    """A memory saver releases the reference model and sets the KL coefficient of the trainer to 0."""

    def release() -> None:
        trainer.beta, trainer.ref_model = 0.0, None

    after_update(trainer, 4, release)


@fault(
    report="trl PR#3725",
    code="RLS306",
    where=Where(rollout=2, update=4),
    where_016=Where(rollout=4, update=4),
    cause="between the generation and the scoring",
)
def completions_moved_before_the_rollout_is_scored(trainer: Any) -> None:
    """Completions move to the next sample while the rollout is put together."""
    alter_rollouts(
        trainer,
        lambda rollout: rollout | {name: rollout[name].roll(1, 0) for name in ("completion_ids", "completion_mask")},
        after=4,
    )


@fault(
    report="a template applied once more",
    code="RLS306",
    where=Where(rollout=2, update=4),
    where_016=Where(rollout=4, update=4),
    cause="between the generation and the scoring",
)
def prompts_changed_before_the_rollout_is_scored(trainer: Any) -> None:
    """The last token of each prompt is another one than the policy was asked with."""

    def alter(rollout: dict[str, Any]) -> dict[str, Any]:
        prompts = rollout["prompt_ids"].clone()
        prompts[:, -1] = prompts[:, -2]
        return rollout | {"prompt_ids": prompts}

    alter_rollouts(trainer, alter, after=4)


@fault(report="a buffer that is shared", code="RLS306", where=Where(update=4, microbatch=8), cause="another prompt")
def prompts_overwritten_in_the_buffer(trainer: Any) -> None:
    """The prompts in the sample buffer are overwritten in place."""

    def alter(batch: dict[str, Any]) -> dict[str, Any]:
        batch["prompt_ids"][:, -1] = batch["prompt_ids"][:, -2]
        return batch

    alter_microbatches(trainer, alter, first=8)


# E, J: weights and the sampler


@fault(report="OpenRLHF#1297", code="RLS401", headline="RLS407", where=Where(update=0))
def optimizer_of_copied_weights(trainer: Any) -> None:
    """The optimizer was built from parameters that the model no longer holds."""
    copies = [p.detach().clone().requires_grad_() for p in trainer.model.parameters()]
    trainer.optimizer = torch.optim.AdamW(copies, lr=trainer.args.learning_rate)


@fault(report="OpenRLHF#1297", code="RLS407", where=Where(update=0))
def optimizer_with_tensors_of_another_model(trainer: Any) -> None:
    """The same mistake, named by its cause."""
    optimizer_of_copied_weights(trainer)


@fault(report="OpenRLHF#1297", code="RLS407", where=Where(update=0), doubtful=True)
def layer_left_out_of_the_optimizer(trainer: Any) -> None:
    """Parameters are picked by name, and a layer that costs gradients is in no group."""
    picked = [value for name, value in trainer.model.named_parameters() if "layers.1" not in name]
    trainer.optimizer = torch.optim.AdamW(picked, lr=trainer.args.learning_rate)


def zero_gradients(trainer: Any) -> None:
    """Zero all gradients right before each step, as a "clean start" in the wrong place does."""

    def zero(state: Any, *, model: Any, **kwargs: Any) -> None:
        model.zero_grad()

    on(trainer, "on_pre_optimizer_step", zero)


@fault(report="OpenRLHF#1297", code="RLS406", headline="RLS810", where=Where(update=0))
def gradients_zeroed_before_the_step(trainer: Any) -> None:
    """Nothing is ever learned, and every count is right."""
    zero_gradients(trainer)


@fault(
    report="OpenRLHF#1297",
    code="RLS406",
    headline="RLS810",
    where=Where(update=0),
    settings={**REUSED, "weight_decay": 0.1},
)
def only_weight_decay_moves_the_weights(trainer: Any) -> None:
    """The same, where the optimizer's decay still changes the weights."""

    def zero(state: Any, *, model: Any, **kwargs: Any) -> None:
        model.zero_grad(set_to_none=False)

    on(trainer, "on_pre_optimizer_step", zero)


@fault(report="SkyRL#1680", code="RLS404", where=Where(update=5))
def weights_overwritten_between_updates(trainer: Any) -> None:
    """A weight sync writes an average back into the policy itself after the fifth update."""
    start = copy.deepcopy(trainer.model.state_dict())

    def average() -> None:
        with torch.no_grad():
            for name, value in trainer.model.state_dict().items():
                value.lerp_(start[name], 0.1)

    after_update(trainer, 5, average)


@fault(
    report="OpenRLHF, a reference that follows",
    code="RLS411",
    where=Where(rollout=3, update=6),
    where_016=Where(rollout=6, update=6),
    settings=WITH_REFERENCE,
)
def reference_follows_the_policy(trainer: Any) -> None:
    """After update 5 the policy is copied into its reference."""

    def follow() -> None:
        for mine, policy in zip(trainer.ref_model.parameters(), trainer.model.parameters(), strict=True):
            mine.data.copy_(policy.data)

    after_update(trainer, 5, follow)


@fault(
    report="TRL, one model for policy and reference",
    code="RLS411",
    where=Where(rollout=0, update=0),
    settings=WITH_REFERENCE,
    since="0.24",  # before, other rules see that the loss computes its reference with the policy
)
def reference_is_the_policy(trainer: Any) -> None:
    """The policy's own object serves as its reference."""
    trainer.ref_model = trainer.model


def copy_of(model: Any) -> Any:
    """A model of its own with the same weights. Not a deep copy: later releases give models a forward that a copy shares."""
    copied = type(model)(model.config)
    copied.load_state_dict(model.state_dict())
    return copied


@fault(
    report="TRL, a reference of another checkpoint",
    code="RLS414",
    where=Where(update=0, microbatch=0),
    settings=WITH_REFERENCE,
)
def reference_of_another_checkpoint(trainer: Any) -> None:
    """The reference has other weights than the policy begins with."""
    with torch.no_grad():
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


@fault(
    report="TRL, sync_ref_model",
    code="RLS411",
    where=AFTER_UPDATE_1,
    settings=SYNCED,
    cause="was not synced",
)
def reference_that_is_never_synced(trainer: Any) -> None:
    """The callback that should mix the policy into the reference holds another model."""
    sync_callback(trainer).ref_model = copy_of(trainer.model)


@fault(report="TR-DPO, its alpha", code="RLS411", where=AFTER_UPDATE_1, settings=SYNCED, cause="the other way round")
def reference_mixed_the_other_way_round(trainer: Any) -> None:
    """The share of the policy is taken for that of the reference."""
    other_sync(trainer, lambda mine, policy: mine.lerp_(policy, 0.7))


@fault(
    report="TR-DPO, hard updates", code="RLS411", where=AFTER_UPDATE_1, settings=SYNCED, cause="a copy of the policy"
)
def reference_replaced_instead_of_mixed(trainer: Any) -> None:
    """The policy is copied where it should be mixed."""
    other_sync(trainer, lambda mine, policy: mine.copy_(policy))


@fault(report="a callback added twice", code="RLS411", where=AFTER_UPDATE_1, settings=SYNCED, cause="was synced twice")
def reference_synced_twice(trainer: Any) -> None:
    """The callback that syncs the reference is registered a second time."""
    trainer.callback_handler.callbacks.append(copy.copy(sync_callback(trainer)))


@fault(report="TRL, another share", code="RLS411", where=AFTER_UPDATE_1, settings=SYNCED)
def reference_mixed_with_another_share(trainer: Any) -> None:
    """A tenth of the policy is mixed in, not three."""
    other_sync(trainer, lambda mine, policy: mine.lerp_(policy, 0.1))


@fault(
    report="TRL, a sync at every update",
    code="RLS411",
    where=AFTER_UPDATE_1,
    settings=SYNCED,
)
def reference_synced_at_every_update(trainer: Any) -> None:
    """A callback of somebody's own mixes the policy in after each update, beside TRL's."""

    def mix(state: Any, **kwargs: Any) -> None:
        for mine, policy in zip(trainer.ref_model.parameters(), trainer.model.parameters(), strict=True):
            mine.data.lerp_(policy.data, 0.3)

    on(trainer, "on_step_end", mix)


@fault(
    report="log-probs of another unit",
    code="RLS311",
    where=Where(rollout=2, update=4),
    where_016=Where(rollout=4, update=4),
    settings=WITH_REFERENCE,
    absent=("0.18.",),
    cause="while the rollout was put together",
)
def reference_log_probs_scaled_in_the_rollout(trainer: Any) -> None:
    """The reference's log-probs are halved while the rollout is put together."""
    alter_rollouts(
        trainer, lambda rollout: rollout | {"ref_per_token_logps": rollout["ref_per_token_logps"] / 2}, after=4
    )


@fault(
    report="trl#454",
    code="RLS311",
    where=Where(update=4, microbatch=8),
    settings=WITH_REFERENCE,
    absent=("0.18.",),
)
def reference_log_probs_moved_on_the_way(trainer: Any) -> None:
    """The reference's log-probs of each micro-batch move to the next sample."""
    alter_microbatches(
        trainer, lambda batch: batch | {"ref_per_token_logps": batch["ref_per_token_logps"].roll(1, 0)}, first=8
    )


@fault(
    report="averages swapped in",
    code="RLS411",
    where=Where(rollout=3, update=6),
    where_016=Where(rollout=6, update=6),
    settings=WITH_REFERENCE,
    cause="have their values again",
    doubtful=True,
)
def reference_swapped_and_put_back(trainer: Any) -> None:
    """After update 5 other weights are loaded into the reference, and its own again."""

    def swap() -> None:
        own = copy.deepcopy(trainer.ref_model.state_dict())
        trainer.ref_model.load_state_dict({name: value * 2 for name, value in own.items()})
        trainer.ref_model.load_state_dict(own)

    after_update(trainer, 5, swap)


@fault(
    report="RLOO, KL left out of the reward",
    code="RLS516",
    where=Where(rollout=1, update=2),
    settings={**REUSED, "algorithm": "RLOO", "beta": 0.5},
    since="0.24",
    cause="with the KL penalty added",
)
def kl_added_to_the_reward(trainer: Any) -> None:
    """The KL penalty is added to the rewards, with the sign of a bonus."""

    def generate(original: Callable[..., Any], rows: Any) -> Any:
        trainer.beta = -trainer.beta
        try:
            return original(rows)
        finally:
            trainer.beta = -trainer.beta

    replace_method(trainer, "_generate_and_score_completions", generate)


def generate_with_copy(trainer: Any) -> None:
    """Let a copy of the first weights generate, from the rollout after the fourth update on."""
    serving = copy_of(trainer.model)
    after_update(trainer, 4, lambda: setattr(trainer, "model_wrapped", serving))


@fault(
    report="ms-swift PR#4584",
    code="RLS402",
    where=Where(rollout=4, update=4),
    where_016=Where(rollout=8, update=4),
    settings=ONCE,
)
def generation_by_a_stale_copy(trainer: Any) -> None:
    """A serving copy generates, and nobody syncs weights into it."""
    generate_with_copy(trainer)


@fault(report="trl#5312", code="RLS402", where=Where(rollout=2, update=4), where_016=Where(rollout=4, update=4))
def generation_by_a_stale_copy_with_old_log_probs(trainer: Any) -> None:
    """The same where the policy computes old log-probs, so that it runs in every rollout although it samples nothing."""
    generate_with_copy(trainer)


class EngineStandIn:
    """Stands in for TRL's vLLM engine (`trainer.vllm_generation`, 1.0 and later): a copy of the policy with its own weights."""

    def __init__(self, trainer: Any) -> None:
        self._policy = trainer.model
        self._weights = copy_of(trainer.model)
        self._tokenizer = trainer.processing_class
        self._length = trainer.max_completion_length

    def sync_weights(self) -> None:
        """Take over the policy's weights."""
        self.load(self._policy.state_dict())

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


@fault(report="rllm#291", code="RLS402", where=Where(rollout=2, update=4), prepare=with_engine, since="1.0")
def weights_not_synced(trainer: Any) -> None:
    """The weight sync is taken for done after the fourth update, and is left out."""

    def synced() -> None:
        trainer._last_loaded_step = trainer.state.global_step

    after_update(trainer, 4, synced)


@fault(
    report="trl#5312", code="RLS403", where=Where(rollout=2, update=4), prepare=with_engine, since="1.0", doubtful=True
)
def synced_weights_dropped_by_the_engine(trainer: Any) -> None:
    """The engine accepts the sync and wakes up with its old weights."""
    after_update(trainer, 4, lambda: replace_method(trainer.vllm_generation, "load", lambda original, weights: None))


@fault(
    report="trl#4159",
    code="RLS410",
    where=Where(rollout=2, update=4),
    where_016=Where(rollout=4, update=4),
)
def sampler_cooled_down(trainer: Any) -> None:
    """A curriculum lowers the temperature of generation in mid-run, and the loss goes on with the configured one."""
    after_update(trainer, 4, lambda: setattr(trainer.generation_config, "temperature", 0.3))


@fault(
    report="completions that end before the configured length",
    code="RLS410",
    where=Where(rollout=2, update=4),
    where_016=Where(rollout=4, update=4),
    cause="max_new_tokens 5",
)
def completions_cut_by_the_sampler(trainer: Any) -> None:
    """A speed-up lowers the length of generation in mid-run; nothing says that completions are cut."""
    after_update(trainer, 4, lambda: setattr(trainer.generation_config, "max_new_tokens", 5))


@fault(
    report="a processor of logits from another script",
    code="RLS410",
    where=Where(rollout=2, update=4),
    where_016=Where(rollout=4, update=4),
    cause="logits_processors 1",
)
def end_banned_by_a_processor(trainer: Any) -> None:
    """From update 4 on generation gets a processor that no setting asks for: no completion ends any more."""
    generate, end = trainer.model.generate, trainer.processing_class.eos_token_id

    def banned(ids: Tensor, scores: Tensor) -> Tensor:
        return scores.index_fill(1, torch.tensor([end]), -torch.inf)

    def generated(*args: Any, **kwargs: Any) -> Any:
        return generate(*args, **kwargs, logits_processor=[banned])

    after_update(trainer, 4, lambda: setattr(trainer.model, "generate", generated))


# E, F: data


class ShuffledSampler(Sampler[int]):
    """Another sampler's indices in random order."""

    def __init__(self, ordered: Any) -> None:
        self._indices = list(ordered)

    def __iter__(self) -> Iterator[int]:
        order = torch.randperm(len(self), generator=torch.Generator().manual_seed(0))
        return iter([self._indices[i] for i in order])

    def __len__(self) -> int:
        return len(self._indices)


@fault(report="trl#4271", code="RLS501", where=Where(rollout=0, update=0))
def loader_shuffles_again(trainer: Any) -> None:
    """The loader shuffles what TRL's sampler had put into groups."""
    replace_method(trainer, "_get_train_sampler", lambda original, *args: ShuffledSampler(original(*args)))


class FirstChunkSampler(Sampler[int]):
    """The first sixth of another sampler, six times."""

    def __init__(self, whole: Any) -> None:
        self._indices = list(whole)

    def __iter__(self) -> Iterator[int]:
        return iter(self._indices[: len(self) // 6] * 6)

    def __len__(self) -> int:
        return len(self._indices)


@fault(report="OpenRLHF#1320", code="RLS509", where=Where(rollout=2, update=4), since="0.18")
def same_prompts_for_ever(trainer: Any) -> None:
    """The loader begins anew after each rollout."""
    replace_method(trainer, "_get_train_sampler", lambda original, *args: FirstChunkSampler(original(*args)))


@fault(
    report="ms-swift#9261",
    code="RLS502",
    where=Where(rollout=3, update=3, microbatch=7),
    where_016=Where(rollout=6, update=3, microbatch=7),
    settings=ONCE,
)
def one_slice_trained_twice(trainer: Any) -> None:
    """An index that is off by one trains the first half of each rollout twice and the second never."""
    seen: list[dict[str, Any]] = []

    def alter(batch: dict[str, Any]) -> dict[str, Any]:
        seen.append(batch)
        return seen[-2] if len(seen) > 7 and len(seen) % 2 == 0 else batch

    alter_microbatches(trainer, alter)


@fault(report="trl PR#3148", code="RLS503", where=Where(update=3, microbatch=6), settings=EVALUATED, since="0.18")
def generation_cached_by_step(trainer: Any) -> None:
    """Samples are cached by the step counter, which evaluation shares with training."""
    cache: dict[int, Any] = {}

    def prepare(original: Callable[..., Any], batch: Any) -> Any:
        prepared = original(batch)
        if trainer.model.training:
            return cache.pop(trainer.state.global_step, prepared)
        return cache.setdefault(trainer.state.global_step, prepared)

    replace_method(trainer, "_prepare_inputs", prepare)


@fault(report="unsloth PR#3609", code="RLS504", where=Where(update=3), settings=EVALUATED, since="0.18")
def model_kept_in_training_mode(trainer: Any) -> None:
    """A wrapper keeps the model in training mode, so that TRL takes evaluation batches for training ones."""
    replace_method(trainer.model, "eval", lambda original: trainer.model)


def constant_reward(completions: list[Any], **kwargs: Any) -> list[float]:
    """What a parser gives that never matches."""
    return [0.0] * len(completions)


@fault(report="trl#3857", code="RLS505", where=WHOLE_RUN, doubtful=True)
def answer_never_parsed(trainer: Any) -> None:
    """The reward is 0 for every completion."""
    trainer.reward_funcs = [constant_reward]


# K: the learning rate


def built_for(trainer: Any, share: float) -> None:
    """Have the schedule built for a share of the run's updates."""
    replace_method(
        trainer,
        "create_scheduler",
        lambda original, num_training_steps, **kwargs: original(int(num_training_steps * share), **kwargs),
    )


@fault(report="OpenRLHF PR#986", code="RLS601", where=WHOLE_RUN, settings=FALLING_RATE)
def schedule_without_the_passes(trainer: Any) -> None:
    """The schedule's length leaves out the passes over each rollout."""
    built_for(trainer, 1 / 2)


@fault(report="ROLL#407", code="RLS603", headline="RLS601", where=Where(update=6), settings=FALLING_RATE)
def rate_at_zero_in_mid_run(trainer: Any) -> None:
    """The learning rate is 0 for the second half of the run."""
    built_for(trainer, 1 / 2)


@fault(report="maxtext PR#4225", code="RLS604", where=WHOLE_RUN, settings=WARMED_UP, doubtful=True)
def warmup_in_another_unit(trainer: Any) -> None:
    """The warm-up is given in samples, so the run ends before it does."""
    trainer.args.warmup_steps = 96


@fault(report="TRL, a callback that sets the rate", code="RLS605", where=Where(update=5), settings=FALLING_RATE)
def rate_set_by_a_callback(trainer: Any) -> None:
    """A callback halves the rate of each update, and the scheduler goes on as before."""

    def halve(state: Any, optimizer: Any = None, **kwargs: Any) -> None:
        if state.global_step >= 5:
            for group in trainer.optimizer.param_groups:
                group["lr"] /= 2

    on(trainer, "on_step_begin", halve)


@fault(report="SkyRL#872", code="RLS602", where=Where(update=3))
def scheduler_stepped_twice(trainer: Any) -> None:
    """A callback steps the scheduler as well as the loop, from the third update on."""

    def tick(state: Any, *, lr_scheduler: Any, **kwargs: Any) -> None:
        if state.global_step >= 3:
            lr_scheduler.step()

    on(trainer, "on_step_end", tick)


# A: advantages


@fault(report="trl#2995", code="RLS516", where=Where(rollout=2, update=4), since="0.24")
def advantages_shifted_by_a_sample(trainer: Any) -> None:
    """Each sample gets the advantage of the sample before it."""
    alter_rollouts(trainer, lambda rollout: rollout | {"advantages": rollout["advantages"].roll(1)}, after=4)


@fault(report="TRL, a cost taken for a reward", code="RLS516", where=Where(rollout=2, update=4), since="0.24")
def advantages_of_the_wrong_sign(trainer: Any) -> None:
    """Advantages are those of costs."""
    alter_rollouts(trainer, lambda rollout: rollout | {"advantages": -rollout["advantages"]}, after=4)


@fault(report="trl#3857", code="RLS516", where=Where(rollout=2, update=4), since="0.24")
def advantages_of_another_scale(trainer: Any) -> None:
    """The standard deviation of the whole rollout takes the place of the group's."""

    def generate(original: Callable[..., Any], rows: Any) -> Any:
        configured = trainer.scale_rewards
        trainer.scale_rewards = "batch" if trainer.state.global_step >= 4 else configured
        try:
            return original(rows)
        finally:
            trainer.scale_rewards = configured

    replace_method(trainer, "_generate_and_score_completions", generate)


@fault(report="verl#1224", code="RLS516", where=Where(rollout=2, update=4), since="0.24")
def advantages_of_groups_across_prompts(trainer: Any) -> None:
    """Rewards are laid out with the prompts inside, and grouped as if the samples were."""

    def across(advantages: torch.Tensor, rewards: torch.Tensor) -> torch.Tensor:
        columns = rewards.nansum(1).view(trainer.num_generations, -1)
        return ((columns - columns.mean(0)) / (columns.std(0) + 1e-4)).flatten()[: len(advantages)]

    computed: list[torch.Tensor] = []

    def rewards_of(original: Callable[..., Any], *args: Any) -> Any:
        computed.append(original(*args))
        return computed[-1]

    replace_method(trainer, "_calculate_rewards", rewards_of)
    alter_rollouts(
        trainer, lambda rollout: rollout | {"advantages": across(rollout["advantages"], computed[-1])}, after=4
    )


@fault(report="TRL, a buffer written by a wrapper", code="RLS517", where=Where(update=4, microbatch=8))
def advantages_negated_on_the_way(trainer: Any) -> None:
    """Advantages change their sign between the rollout and the loss."""
    alter_microbatches(trainer, lambda batch: batch | {"advantages": -batch["advantages"]}, first=8)


# A: masks


def masked(change: Callable[[torch.Tensor], torch.Tensor]) -> Callable[[dict[str, Any]], dict[str, Any]]:
    """A change of a rollout's mask."""
    return lambda rollout: rollout | {"completion_mask": change(rollout["completion_mask"])}


@fault(report="verl#3210", code="RLS518", where=Where(rollout=2, update=4), where_016=Where(rollout=4, update=4))
def last_token_left_out_of_the_mask(trainer: Any) -> None:
    """The mask ends one token early."""

    def shorten(mask: torch.Tensor) -> torch.Tensor:
        return mask * (mask.cumsum(1) < mask.sum(1, keepdim=True))

    alter_rollouts(trainer, masked(shorten), after=4)


@fault(report="verl#3210", code="RLS804", where=Where(update=4, microbatch=8))
def last_token_masked_on_the_way(trainer: Any) -> None:
    """The mask ends one token early in the loss."""

    def shorten(batch: dict[str, Any]) -> dict[str, Any]:
        mask = batch["completion_mask"]
        return batch | {"completion_mask": mask * (mask.cumsum(1) < mask.sum(1, keepdim=True))}

    alter_microbatches(trainer, shorten, first=8)


MASKED: Settings = {**REUSED, "mask_truncated_completions": True}


@fault(
    report="TRL, mask_truncated_completions left out",
    code="RLS518",
    where=Where(rollout=2, update=4),
    settings=MASKED,
    since="0.18",
)
def truncated_completions_trained(trainer: Any) -> None:
    """Completions without an end are trained, although they are to be left out."""
    alter_rollouts(trainer, masked(torch.ones_like), after=4)


# M: the scale of the loss


@fault(
    report="ms-swift#10116",
    code="RLS801",
    where=Where(update=2, microbatch=4),
)
def loss_divided_twice(trainer: Any) -> None:
    """A loss that is already divided by the accumulation is divided once more."""

    def loss(original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        value = original(*args, **kwargs)
        return value / 2 if trainer.state.global_step >= 2 else value

    replace_method(trainer, "compute_loss", loss)


@fault(report="ms-swift#10117", code="RLS805", where=Where(update=0, microbatch=0))
def accelerate_divides_too(trainer: Any) -> None:
    """accelerate is told the accumulation as well, and its backward divides by it once more."""
    trainer.accelerator.gradient_accumulation_steps = 2


@fault(report="textbook PPO", code="RLS802", where=Where(update=4, microbatch=8))
def advantages_scaled_by_a_learned_factor(trainer: Any) -> None:
    """Advantages are multiplied by a parameter that is trained with the policy."""
    factor = torch.nn.Parameter(torch.ones(()))
    alter_microbatches(trainer, lambda batch: batch | {"advantages": batch["advantages"] * factor}, first=8)


@fault(report="ms-swift#10117", code="RLS805", where=Where(update=2, microbatch=4))
def backward_of_a_quarter(trainer: Any) -> None:
    """A wrapped backward multiplies each loss by a quarter."""

    def backward(original: Callable[..., Any], loss: Any, **kwargs: Any) -> Any:
        return original(loss / 4 if trainer.state.global_step >= 2 else loss, **kwargs)

    replace_method(trainer.accelerator, "backward", backward)


# What a loss teaches, where its value is right


def inner_loss(trainer: Any) -> str:
    """The method that computes the loss; of its own from 0.17 on."""
    return "_compute_loss" if hasattr(trainer, "_compute_loss") else "compute_loss"


def within_losses(trainer: Any, alter: Callable[[dict[str, Any]], dict[str, Any]], *, first: int = 4) -> None:
    """Change what the loss is computed from behind all that could look at it, from one update on."""

    def loss(original: Callable[..., Any], model: Any, inputs: dict[str, Any], **kwargs: Any) -> Any:
        return original(model, alter(dict(inputs)) if trainer.state.global_step >= first else inputs, **kwargs)

    replace_method(trainer, inner_loss(trainer), loss)


WHOLE_GROUPS: Settings = {**ONCE, "loss_type": "dr_grpo"}


def of_one_length(trainer: Any) -> None:
    """All completions end at the limit: the loss of a micro-batch with whole groups is 0 at lag 0, whatever its mask is."""
    trainer.generation_config.min_new_tokens = trainer.max_completion_length


@fault(report="a backward pass left out", code="RLS805", where=Where(update=4, microbatch=9), cause="no gradient of it")
def every_second_backward_left_out(trainer: Any) -> None:
    """A memory saver skips the backward pass of each window's second micro-batch."""
    calls = itertools.count()

    def backward(original: Callable[..., Any], loss: Any, **kwargs: Any) -> Any:
        number = next(calls)
        return original(loss, **kwargs) if number < 8 or number % 2 == 0 else None

    replace_method(trainer.accelerator, "backward", backward)


@fault(
    report="a mask that ends one token early, in completions of one length",
    code="RLS805",
    beside="RLS801",
    where=Where(update=4, microbatch=8),
    settings=WHOLE_GROUPS,
    prepare=of_one_length,
    since="0.18",
    cause="at some token",
)
def last_token_masked_within_the_loss(trainer: Any) -> None:
    """The mask ends one token early, and the loss has the same value with it."""

    def cut(batch: dict[str, Any]) -> dict[str, Any]:
        mask = batch["completion_mask"]
        return batch | {"completion_mask": mask * (mask.cumsum(1) < mask.sum(1, keepdim=True))}

    within_losses(trainer, cut)


@fault(
    report="advantages of other samples, where they add up to 0",
    code="RLS805",
    where=Where(update=4, microbatch=8),
    settings=WHOLE_GROUPS,
    prepare=of_one_length,
    since="0.18",
    cause="at some token",
)
def advantages_rolled_within_the_loss(trainer: Any) -> None:
    """Each sample is trained with the advantage of another."""
    within_losses(trainer, lambda batch: batch | {"advantages": batch["advantages"].roll(1, 0)})


@fault(
    report="a surrogate whose value is right",
    code="RLS805",
    where=Where(update=4, microbatch=8),
    since="0.18",  # in 0.16 and 0.17 the terms of the first loss cancel, and RLS801 names the loss of twice the size
    cause="at some token",
)
def loss_taught_twice(trainer: Any) -> None:
    """The loss has its value, and twice its gradient."""

    def loss(original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        value = original(*args, **kwargs)
        return 2 * value - value.detach() if trainer.state.global_step >= 4 else value

    replace_method(trainer, inner_loss(trainer), loss)


@fault(
    report="a trust region of one's own, without its value",
    code="RLS805",
    where=Where(update=4, microbatch=8),
    cause="at some token",
)
def gradients_of_log_probs_cut(trainer: Any) -> None:
    """A hook on the log-probs leaves gradients of the smaller half out."""

    def computed(original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        found = original(*args, **kwargs)
        log_probs = found[0] if isinstance(found, tuple) else found
        if trainer.state.global_step >= 4 and log_probs.requires_grad:
            log_probs.register_hook(lambda gradient: gradient * (gradient.abs() > gradient.abs().median()))
        return found

    replace_method(trainer, log_prob_method(trainer), computed)


@fault(
    report="a fused kernel without its backward",
    code="RLS805",
    where=Where(update=4, microbatch=8),
    settings=ONCE,
    cause="the log-probs are right",
)
def late_log_probs_detached(trainer: Any) -> None:
    """The method that computes log-probs detaches those of the last tokens."""

    def computed(original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        found = original(*args, **kwargs)
        log_probs = found[0] if isinstance(found, tuple) else found
        if trainer.state.global_step < 4 or not log_probs.requires_grad:
            return found
        cut = torch.cat([log_probs[:, :-3], log_probs[:, -3:].detach()], dim=1)
        return (cut, *found[1:]) if isinstance(found, tuple) else cut

    replace_method(trainer, log_prob_method(trainer), computed)


@fault(report="a layer under no_grad", code="RLS408", where=Where(update=4), cause="these matrices learn nothing")
def layer_detached_in_mid_run(trainer: Any) -> None:
    """The first layer's output is detached from one update on: only the last layer learns."""

    def cut(module: Any, inputs: Any, output: Any) -> Any:
        if trainer.state.global_step < 4 or not torch.is_grad_enabled():
            return output
        return output.detach() if isinstance(output, torch.Tensor) else (output[0].detach(), *output[1:])

    trainer.model.model.layers[0].register_forward_hook(cut)


# M: the formula of the loss


def in_losses(trainer: Any, *, first: int, **values: Any) -> None:
    """Give the trainer other settings while it computes its losses, from one update on."""

    def loss(original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        before = {name: getattr(trainer, name) for name in values}
        if trainer.state.global_step >= first:
            vars(trainer).update(values)
        try:
            return original(*args, **kwargs)
        finally:
            vars(trainer).update(before)

    replace_method(trainer, "_compute_loss", loss)


PER_SAMPLE: Settings = {**REUSED, "loss_type": "grpo"}


@fault(
    report="trl#3120",
    code="RLS801",
    where=Where(rollout=2, update=5, microbatch=10),
    settings=PER_SAMPLE,
    since="0.18",
    cause="old log-probs equal to the current ones",
)
def old_log_probs_taken_out_by_the_loss(trainer: Any) -> None:
    """A patched loss takes old log-probs out of what it got."""

    def loss(original: Callable[..., Any], model: Any, inputs: dict[str, Any]) -> Any:
        if trainer.state.global_step >= 4:
            inputs = inputs | {"old_per_token_logps": None}
        return original(model, inputs)

    replace_method(trainer, "_compute_loss", loss)


@fault(
    report="TRL, a clip that does not clip",
    code="RLS801",
    where=Where(rollout=2, update=5),
    settings={**PER_SAMPLE, "epsilon": 0.05},
    since="0.18",
    cause="without the clip",
)
def clip_range_lost_in_the_loss(trainer: Any) -> None:
    """The loss has no clip."""
    in_losses(trainer, first=4, epsilon_low=1e9, epsilon_high=1e9)


@fault(
    report="trl PR#6024",
    code="RLS801",
    where=Where(update=3, microbatch=6),
    settings={**LARGE_ROLLOUT},
    since="0.24",
    cause="steps_per_generation and not by the accumulation",
)
def divided_by_the_generation_period(trainer: Any) -> None:
    """The loss takes the generation period for the accumulation."""
    in_losses(trainer, first=3, current_gradient_accumulation_steps=4)


@fault(
    report="ms-swift#10116",
    code="RLS801",
    where=Where(update=4, microbatch=8),
    settings={**REUSED, "loss_type": "dr_grpo"},
    since="0.18",
    cause="averaged over the tokens of the micro-batch",
)
def averaged_over_tokens_instead(trainer: Any) -> None:
    """The loss is normalised as another type is."""
    in_losses(trainer, first=4, loss_type="bnpo")


OF_WINDOW: Settings = {**REUSED, "loss_type": "dapo"}
"""A loss that is divided by the tokens of the window."""


@fault(
    report="tokens counted with their padding",
    code="RLS801",
    where=Where(update=4, microbatch=8),
    settings=OF_WINDOW,
    since="0.24",
    cause="another number of tokens than the masks",
)
def window_counted_with_padding(trainer: Any) -> None:
    """The tokens that the loss is divided by are those of the padded completions."""

    def alter(rollout: dict[str, Any]) -> dict[str, Any]:
        padded = torch.tensor(rollout["completion_ids"].numel() + 8)
        return rollout | {"num_items_in_batch": padded}

    alter_rollouts(trainer, alter, after=4)


@fault(
    report="tokens of one micro-batch for those of the window",
    code="RLS801",
    where=Where(update=4, microbatch=8),
    settings=OF_WINDOW,
    since="0.24",
    cause="another number of tokens than the masks",
)
def window_counted_by_the_micro_batch(trainer: Any) -> None:
    """Each loss is divided by its own tokens alone."""
    alter_microbatches(trainer, lambda batch: batch | {"num_items_in_batch": batch["completion_mask"].sum()}, first=8)


@fault(
    report="TRL, KL left out",
    code="RLS801",
    where=Where(rollout=2, update=4, microbatch=8),
    settings={**PER_SAMPLE, "beta": 0.5},
    since="0.24",
    cause="without its KL term",
)
def kl_left_out_of_the_loss(trainer: Any) -> None:
    """The loss is computed with beta 0."""
    in_losses(trainer, first=4, beta=0.0)


@fault(
    report="TRL, KL left out at the usual coefficient",
    code="RLS801",
    where=Where(rollout=2, update=4, microbatch=8),
    settings=WITH_REFERENCE,
    since="1.0",
    cause="without its KL term",
)
def small_kl_left_out_of_the_loss(trainer: Any) -> None:
    """The loss is computed with beta 0 for 0.04: 1 % of it, in every micro-batch."""
    in_losses(trainer, first=4, beta=0.0)


@fault(
    report="GSPO, ratios of tokens",
    code="RLS801",
    where=Where(rollout=2, update=5),
    settings={**REUSED, "importance_sampling_level": "sequence"},
    since="1.0",
    cause="that of ratios of each token",
)
def ratios_of_tokens_for_those_of_sequences(trainer: Any) -> None:
    """The loss takes the ratio of each token for that of its sequence."""
    in_losses(trainer, first=4, importance_sampling_level="token")


@fault(
    report="CISPO, its constant",
    code="RLS801",
    where=Where(rollout=2, update=5),
    settings={**REUSED, "loss_type": "cispo", "epsilon_high": 1.05},
    since="1.0",
    cause="old log-probs equal to the current ones",
)
def cispo_without_old_log_probs(trainer: Any) -> None:
    """A CISPO loss whose ratio is always 1."""
    old_log_probs_taken_out_by_the_loss(trainer)


# N: gradient and optimizer


def before_steps(trainer: Any, act: Callable[[], None], *, first: int) -> None:
    """Act right before each step of the optimizer, from one update on."""

    def step(state: Any, **kwargs: Any) -> None:
        if state.global_step >= first:
            act()

    on(trainer, "on_pre_optimizer_step", step)


SMALL_LIMIT: Settings = {**REUSED, "max_grad_norm": 1e-3}


@fault(report="TRL, clipping left out", code="RLS808", where=Where(update=0), settings=SMALL_LIMIT)
def clip_that_only_measures(trainer: Any) -> None:
    """The clip returns the norm and leaves the gradients as they are."""

    def measure(original: Callable[..., Any], parameters: Any, *args: Any, **kwargs: Any) -> Any:
        return original(parameters, float("inf"))

    replace_method(trainer.accelerator, "clip_grad_norm_", measure)


@fault(report="TRL, gradients changed after the clip", code="RLS808", where=Where(update=4), settings=SMALL_LIMIT)
def gradients_doubled_after_the_clip(trainer: Any) -> None:
    """A callback multiplies the gradients right before the step."""

    def double() -> None:
        for parameter in trainer.model.parameters():
            if parameter.grad is not None:
                parameter.grad.mul_(2)

    before_steps(trainer, double, first=4)


@fault(report="trl#583", code="RLS803", where=Where(update=1))
def gradients_never_cleared(trainer: Any) -> None:
    """The loop's zero_grad does nothing, so each update steps along all gradients so far."""
    replace_method(trainer.model, "zero_grad", lambda original, *args, **kwargs: None)


@fault(report="a guard against NaN", code="RLS809", where=Where(update=5), settings=ONCE)
def one_update_zeroed_by_a_guard(trainer: Any) -> None:
    """A guard zeroes the gradients of the last update; momentum goes on."""

    def zero(state: Any, *, model: Any, **kwargs: Any) -> None:
        if state.global_step == 5:
            for parameter in model.parameters():
                if parameter.grad is not None:
                    parameter.grad.mul_(0)

    on(trainer, "on_pre_optimizer_step", zero)


@fault(report="an average swapped in for an evaluation", code="RLS404", where=Where(update=6), doubtful=True)
def weights_swapped_and_put_back(trainer: Any) -> None:
    """After update 5 the first weights are swapped in, and out again before anybody looks."""
    first = [p.detach().clone() for p in trainer.model.parameters()]

    def swap() -> None:
        with torch.no_grad():
            for parameter, value in zip(trainer.model.parameters(), first, strict=True):
                current = parameter.clone()
                parameter.copy_(value)
                parameter.copy_(current)

    after_update(trainer, 6, swap)


@fault(report="OpenRLHF#1297", code="RLS807", where=Where(update=4))
def moments_cleared_at_every_update(trainer: Any) -> None:
    """Adam begins anew at every update."""

    def clear() -> None:
        optimizer = trainer.optimizer
        while hasattr(optimizer, "optimizer"):
            optimizer = optimizer.optimizer
        optimizer.state.clear()

    before_steps(trainer, clear, first=4)


@fault(report="a smaller optimizer state", code="RLS807", where=Where(update=4), cause="the step itself was right")
def moments_flattened_after_the_step(trainer: Any) -> None:
    """A hook replaces the second moments of each tensor by their mean, right after each step."""
    create = trainer.create_optimizer

    def flatten(optimizer: Any, *args: Any) -> None:
        if trainer.state.global_step >= 4:
            for state in optimizer.state.values():
                state["exp_avg_sq"].fill_(state["exp_avg_sq"].mean())

    def created(*args: Any, **kwargs: Any) -> Any:
        made = create(*args, **kwargs)
        made.register_step_post_hook(flatten)
        return made

    trainer.create_optimizer = created


@fault(
    report="an optimizer whose steps are counted anew", code="RLS807", where=Where(update=4), cause="1 - beta**steps"
)
def steps_of_adam_counted_anew(trainer: Any) -> None:
    """Adam's count of its steps is set to 0 before each step; its moments stay."""

    def reset() -> None:
        optimizer = trainer.optimizer
        while hasattr(optimizer, "optimizer"):
            optimizer = optimizer.optimizer
        for state in optimizer.state.values():
            state["step"].zero_()

    before_steps(trainer, reset, first=4)


@fault(report="Megatron, a step made in part", code="RLS806", where=Where(update=4))
def half_of_each_step_taken_back(trainer: Any) -> None:
    """A wrapped step averages the new weights with the old ones."""

    def place(state: Any, **kwargs: Any) -> None:
        optimizer = trainer.optimizer
        while hasattr(optimizer, "optimizer"):
            optimizer = optimizer.optimizer
        held = [p for group in optimizer.param_groups for p in group["params"]]
        before: list[torch.Tensor] = []

        def remember(*_: Any) -> None:
            before[:] = [p.detach().clone() for p in held]

        def take_back(*_: Any) -> None:
            if trainer.state.global_step >= 4:
                for parameter, old in zip(held, before, strict=True):
                    parameter.data.lerp_(old, 0.5)

        optimizer.register_step_pre_hook(remember)
        optimizer.register_step_post_hook(take_back)
        optimizer._optimizer_step_post_hooks.move_to_end(
            next(reversed(optimizer._optimizer_step_post_hooks)), last=False
        )

    on(trainer, "on_train_begin", place)


@fault(report="trl#5312", code="RLS412", where=Where(rollout=2, update=4), where_016=Where(rollout=4, update=4))
def frozen_weights_swapped_in_for_generation(trainer: Any) -> None:
    """Generation runs with the first weights, which are swapped in and out again before anyone looks."""
    first = [p.detach().clone() for p in trainer.model.parameters()]

    def generate(original: Callable[..., Any], rows: Any) -> Any:
        if trainer.state.global_step < 4:
            return original(rows)
        current = [p.detach().clone() for p in trainer.model.parameters()]
        set_weights(trainer.model, first)
        output = original(rows)
        set_weights(trainer.model, current)
        return output

    replace_method(trainer, "_generate_and_score_completions", generate)


def set_weights(model: Any, values: list[torch.Tensor]) -> None:
    """Write weights in a way that torch does not count."""
    for parameter, value in zip(model.parameters(), values, strict=True):
        parameter.data.copy_(value)


# N: gradients between the backward passes and the step


@fault(
    report="a hook on one parameter", code="RLS810", where=Where(update=0), cause="11 times as much in model.layers.1"
)
def one_gradient_scaled_by_a_hook(trainer: Any) -> None:
    """A hook multiplies the gradients of one matrix in the last layer."""
    weight = trainer.model.model.layers[-1].mlp.down_proj.weight
    weight.register_hook(lambda gradient: gradient * 11)


@fault(
    report="a backward hook of a module",
    code="RLS810",
    where=Where(update=0, microbatch=0),
    cause="a backward hook of model.norm",
)
def gradients_tripled_by_a_module(trainer: Any) -> None:
    """A backward hook of the last norm returns three times the gradients that it got."""
    trainer.model.model.norm.register_full_backward_hook(
        lambda module, to_inputs, to_outputs: tuple(None if of is None else of * 3 for of in to_inputs)
    )


@fault(
    report="a frozen embedding, by a hook",
    code="RLS810",
    where=Where(update=0),
    cause="0 times as much in model.embed_tokens",
)
def embedding_frozen_by_a_hook(trainer: Any) -> None:
    """A hook zeroes the gradients of the embedding."""
    trainer.model.get_input_embeddings().weight.register_hook(torch.zeros_like)


@fault(report="clip_grad_value_ in the place of clip_grad_norm_", code="RLS810", where=Where(update=0))
def gradients_clipped_by_value(trainer: Any) -> None:
    """The clip cuts each value, so that all directions change."""

    def cut(original: Callable[..., Any], parameters: Any, *args: Any, **kwargs: Any) -> Any:
        torch.nn.utils.clip_grad_value_(list(parameters), 1e-4)
        return torch.ones(())

    replace_method(trainer.accelerator, "clip_grad_norm_", cut)


@fault(report="trl#583", code="RLS810", where=Where(update=0))
def gradients_cleared_between_micro_batches(trainer: Any) -> None:
    """Each backward pass begins with a zero_grad, so an update sees its last micro-batch alone."""

    def backward(original: Callable[..., Any], loss: Any, **kwargs: Any) -> Any:
        trainer.model.zero_grad()
        return original(loss, **kwargs)

    replace_method(trainer.accelerator, "backward", backward)


@fault(report="an auxiliary loss of one's own", code="RLS810", where=Where(update=4), cause="a further backward pass")
def further_backward_pass(trainer: Any) -> None:
    """A wrapper adds the gradients of another loss."""

    def backward(original: Callable[..., Any], loss: Any, **kwargs: Any) -> Any:
        original(loss, **kwargs)
        if trainer.state.global_step >= 4:
            (0.1 * sum((parameter**2).sum() for parameter in trainer.model.parameters())).backward()

    replace_method(trainer.accelerator, "backward", backward)


@fault(
    report="a guard that halves gradients",
    code="RLS810",
    where=Where(update=4),
    settings={**REUSED, "max_grad_norm": 0.0},
    cause="all gradients of the update were scaled",
)
def gradients_halved_before_the_step(trainer: Any) -> None:
    """A callback halves all gradients right before the step; no clip is configured."""

    def halve() -> None:
        for parameter in trainer.model.parameters():
            if parameter.grad is not None:
                parameter.grad.mul_(0.5)

    before_steps(trainer, halve, first=4)


@fault(report="layers frozen in mid-run", code="RLS408", where=Where(update=4), cause="require no gradient any more")
def layer_frozen_in_mid_run(trainer: Any) -> None:
    """The first layer stops to be trained after four updates."""
    after_update(trainer, 4, lambda: trainer.model.model.layers[0].requires_grad_(False))


# A: rewards on their way to the advantages


def alter_rewards(trainer: Any, alter: Callable[[torch.Tensor], torch.Tensor], *, after: int) -> None:
    """Change what the trainer's collection of rewards gives, from the rollout after that many updates on."""

    def calculate(original: Callable[..., Any], *args: Any) -> Any:
        rewards = original(*args)
        return alter(rewards) if trainer.state.global_step >= after else rewards

    replace_method(trainer, "_calculate_rewards", calculate)


@fault(report="verl#1224", code="RLS515", where=Where(rollout=2, update=4), since="0.24")
def rewards_gathered_in_another_order(trainer: Any) -> None:
    """The rewards of all processes are gathered in another order than the samples."""
    alter_rewards(trainer, lambda rewards: rewards.roll(1, 0), after=4)


@fault(report="rewards stored as whole numbers", code="RLS515", where=Where(rollout=2, update=4), since="0.24")
def rewards_rounded(trainer: Any) -> None:
    """Rewards lose what a cast to integers takes."""
    alter_rewards(trainer, lambda rewards: (rewards / 2).floor() * 2, after=4)


@fault(report="trl PR#3725", code="RLS515", where=Where(rollout=2, update=4), since="0.24")
def completions_scored_in_another_order(trainer: Any) -> None:
    """The reward functions get the texts of the samples beside them."""

    def calculate(original: Callable[..., Any], rows: Any, prompts: Any, completions: Any, *args: Any) -> Any:
        if trainer.state.global_step >= 4:
            completions = completions[1:] + completions[:1]
        return original(rows, prompts, completions, *args)

    replace_method(trainer, "_calculate_rewards", calculate)


# What was configured, and what runs


@fault(
    report="a clip range with its ends exchanged",
    code="RLS101",
    where=Where(update=0),
    settings={**PER_SAMPLE, "epsilon": 0.05, "epsilon_high": 0.5},
    since="0.18",
    cause="another value than the configuration has",
)
def clip_range_exchanged(trainer: Any) -> None:
    """The trainer holds the upper range as the lower one."""
    trainer.epsilon_low, trainer.epsilon_high = trainer.epsilon_high, trainer.epsilon_low


@fault(
    report="a KL weight that is not the configured one", code="RLS101", where=Where(update=0), settings=WITH_REFERENCE
)
def another_beta(trainer: Any) -> None:
    """The trainer holds another weight of the KL term."""
    trainer.beta = 0.5


@fault(
    report="decay of biases and norms",
    code="RLS101",
    where=Where(update=0),
    settings={**REUSED, "weight_decay": 0.1},
    cause="another value than the configuration has",
)
def weight_decay_for_all(trainer: Any) -> None:
    """Biases and norms decay too."""
    on(trainer, "on_train_begin", lambda state, **kwargs: trainer.optimizer.param_groups[1].update(weight_decay=0.1))


@fault(report="one group with a rate of its own", code="RLS101", where=Where(update=0))
def rate_of_the_second_group(trainer: Any) -> None:
    """A callback sets the rate of the second parameter group at each step."""
    on(trainer, "on_step_begin", lambda state, **kwargs: trainer.optimizer.param_groups[1].update(lr=0.1))


@fault(report="gradient ascent", code="RLS101", where=Where(update=4), cause="another value than the configuration has")
def optimizer_maximizes(trainer: Any) -> None:
    """The optimizer's direction is turned round after four updates."""
    after_update(trainer, 4, lambda: [group.update(maximize=True) for group in trainer.optimizer.param_groups])


# E: random numbers


@fault(report="a seed in the reward function", code="RLS514", where=Where(rollout=1), cause="same random numbers")
def one_seed_for_every_rollout(trainer: Any) -> None:
    """A seed is set before each generation."""

    def generate(original: Callable[..., Any], rows: Any) -> Any:
        torch.manual_seed(3)
        return original(rows)

    replace_method(trainer, "_generate_and_score_completions", generate)


# E: text that the policy did not write

LONG: Settings = {**REUSED, "max_completion_length": 64}
"""Completions long enough for a rollout to show by itself that it was drawn from something else."""


def sharpened(trainer: Any) -> None:
    """Give the tiny model, whose distributions are nearly uniform, some that a temperature changes."""
    with torch.no_grad():
        trainer.model.get_input_embeddings().weight.mul_(8)


def alter_generation(trainer: Any, generate: Callable[..., Any], *, after: int) -> None:
    """Have `generate(original, *args, **kwargs)` take the place of the policy's own, from the rollout after that many updates on."""

    def chosen(original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        return generate(original, *args, **kwargs) if trainer.state.global_step >= after else original(*args, **kwargs)

    replace_method(trainer.model, "generate", chosen)


@fault(
    report="trl#4159",
    code="RLS413",
    headline="RLS410",
    where=Where(rollout=2, update=4),
    settings=LONG,
    prepare=sharpened,
    since="0.24",
)
def logits_cooled_by_a_processor(trainer: Any) -> None:
    """A processor of logits divides them once more; all settings are as configured."""

    def generate(original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        return original(*args, **kwargs, logits_processor=[lambda ids, scores: scores / 0.3])

    alter_generation(trainer, generate, after=4)


@fault(
    report="prime-rl PR#697",
    code="RLS413",
    headline="RLS410",
    where=Where(rollout=2, update=4),
    settings=LONG,
    prepare=sharpened,
    since="0.24",
)
def logits_truncated_by_a_processor(trainer: Any) -> None:
    """A processor of logits leaves the three most probable tokens."""

    def cut(ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        return scores.masked_fill(scores < scores.topk(3).values[:, -1:], float("-inf"))

    def generate(original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        return original(*args, **kwargs, logits_processor=[cut])

    alter_generation(trainer, generate, after=4)


@fault(
    report="a sampler of another model",
    code="RLS413",
    where=Where(rollout=2, update=4),
    settings=LONG,
    prepare=sharpened,
    since="0.24",
)
def tokens_of_a_foreign_sampler(trainer: Any) -> None:
    """The policy generates, and its tokens are replaced by those of something else."""

    def generate(original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        tokens = original(*args, **kwargs)
        others = torch.randint(
            3, len(trainer.processing_class), tokens.shape, generator=torch.Generator().manual_seed(0)
        )
        width = kwargs["input_ids"].shape[1]
        return torch.where((torch.arange(tokens.shape[1]) >= width) & (tokens > 2), others, tokens)

    alter_generation(trainer, generate, after=4)


@fault(
    report="tokens in another order than they were sampled in",
    code="RLS413",
    where=Where(rollout=2, update=4),
    settings=LONG,
    prepare=sharpened,
    since="0.24",
)
def tokens_swapped_after_generation(trainer: Any) -> None:
    """The tokens of each completion are mixed up before they are scored."""

    def generate(original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        tokens = original(*args, **kwargs)
        width = kwargs["input_ids"].shape[1]
        mixed = tokens.clone()
        for row in mixed:
            real = (row > 2).nonzero().flatten()
            real = real[real >= width]
            row[real] = row[real[torch.randperm(len(real), generator=torch.Generator().manual_seed(0))]]
        return mixed

    alter_generation(trainer, generate, after=4)


def copied_rows(trainer: Any, copied: Callable[[torch.Tensor], torch.Tensor]) -> None:
    """Have the completions of a generation replaced by those of the rows that `copied` gives."""

    def generate(original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        tokens = original(*args, **kwargs)
        width = kwargs["input_ids"].shape[1]
        rows = copied(torch.arange(len(tokens)))
        return torch.cat([tokens[:, :width], tokens[rows, width:]], 1)

    alter_generation(trainer, generate, after=4)


@fault(
    report="one seed for each request of an engine",
    code="RLS519",
    where=Where(rollout=2, update=4),
    settings=LONG,
    since="0.24",
)
def completions_of_each_group_are_one(trainer: Any) -> None:
    """All completions of a prompt are the first one."""
    copied_rows(trainer, lambda rows: rows // trainer.num_generations * trainer.num_generations)


@fault(
    report="a buffer that samples share", code="RLS519", where=Where(rollout=2, update=4), settings=LONG, since="0.24"
)
def completions_of_another_prompt(trainer: Any) -> None:
    """The completions of the first prompt stand in for those of the others."""
    copied_rows(trainer, lambda rows: rows % trainer.num_generations)


@fault(report="an index that stays", code="RLS519", where=Where(rollout=2, update=4), settings=LONG, since="0.24")
def one_completion_written_over_another(trainer: Any) -> None:
    """One of the completions is written over the one after it."""
    copied_rows(trainer, lambda rows: torch.where(rows == 5, 4, rows))


# E: a training forward that is not the one that sampled, where TRL computes no old log-probs

AS_SAMPLED: dict[str, Any] = {
    "code": "RLS313",
    "where": Where(rollout=3, update=3),
    "where_016": Where(rollout=6, update=3),
    "settings": ONCE,
}


def in_training_forwards(trainer: Any, module: Any, alter: Callable[[Any, Any], Any]) -> None:
    """Have `alter(what a module was given, what it gave)` replace its output in forwards with a gradient, from update 3 on."""

    def altered(_: Any, given: Any, output: Any) -> Any:
        return alter(given, output) if torch.is_grad_enabled() and trainer.state.global_step >= 3 else None

    module.register_forward_hook(altered)


@fault(report="autocast around the loss alone", **AS_SAMPLED, doubtful=True)
def loss_under_autocast(trainer: Any) -> None:
    """The forward of the loss runs in bfloat16, and generation does not."""

    def loss(original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=trainer.state.global_step >= 3):
            return original(*args, **kwargs)

    replace_method(trainer, "compute_loss", loss)


@fault(report="NEFTune left on", **AS_SAMPLED, doubtful=True)
def noise_on_embeddings_in_training(trainer: Any) -> None:
    """Embeddings get noise where a gradient is taken."""
    generator = torch.Generator().manual_seed(0)
    in_training_forwards(
        trainer,
        trainer.model.get_input_embeddings(),
        lambda _, output: output + 0.05 * torch.randn(output.shape, generator=generator) * output.std().detach(),
    )


@fault(report="stochastic depth", **AS_SAMPLED)
def layer_skipped_in_training(trainer: Any) -> None:
    """A layer hands on what it was given."""

    def skipped(given: Any, output: Any) -> Any:
        return (given[0], *output[1:]) if isinstance(output, tuple) else given[0]

    in_training_forwards(trainer, trainer.model.model.layers[-1], skipped)


@fault(report="a fused kernel's norm with another epsilon", **AS_SAMPLED, doubtful=True)
def norm_of_another_epsilon_in_training(trainer: Any) -> None:
    """The last norm divides by a little more."""
    in_training_forwards(trainer, trainer.model.model.norm, lambda _, output: output * 0.99)


EXPRESSIBLE = [entry for entry in FAULTS if RELEASE is not None and entry.expressible(RELEASE)]
"""The faults that can be made in the installed release."""
