"""Rows, the learning rate and what was configured."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch.utils.data import Sampler

from rlstep_hooks.planning.finding import Where
from rlstep_hooks.testing.trl_faults import alter_microbatches, replace_method
from tests.faults.fault import (
    EVALUATED,
    FALLING_RATE,
    ONCE,
    REUSED,
    WARMED_UP,
    WHOLE_RUN,
    WITH_REFERENCE,
    Fault,
    after_update,
    made,
    on,
    way,
)
from tests.faults.mistakes.losses import PER_SAMPLE

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


class ShuffledSampler(Sampler[int]):
    """Another sampler's indices in random order."""

    def __init__(self, ordered: Any) -> None:
        self._indices = list(ordered)

    def __iter__(self) -> Iterator[int]:
        order = torch.randperm(len(self), generator=torch.Generator().manual_seed(0))
        return iter([self._indices[i] for i in order])

    def __len__(self) -> int:
        return len(self._indices)


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


def same_prompts_for_ever(trainer: Any) -> None:
    """The loader begins anew after each rollout."""
    replace_method(trainer, "_get_train_sampler", lambda original, *args: FirstChunkSampler(original(*args)))


def one_slice_trained_twice(trainer: Any) -> None:
    """An index that is off by one trains the first half of each rollout twice and the second never."""
    seen: list[dict[str, Any]] = []

    def alter(batch: dict[str, Any]) -> dict[str, Any]:
        seen.append(batch)
        return seen[-2] if len(seen) > 7 and len(seen) % 2 == 0 else batch

    alter_microbatches(trainer, alter)


def generation_cached_by_step(trainer: Any) -> None:
    """Samples are cached by the step counter, which evaluation shares with training."""
    cache: dict[int, Any] = {}

    def prepare(original: Callable[..., Any], batch: Any) -> Any:
        prepared = original(batch)
        if trainer.model.training:
            return cache.pop(trainer.state.global_step, prepared)
        return cache.setdefault(trainer.state.global_step, prepared)

    replace_method(trainer, "_prepare_inputs", prepare)


def constant_reward(completions: list[Any], **kwargs: Any) -> list[float]:
    """What a parser gives that never matches."""
    return [0.0] * len(completions)


def answer_never_parsed(trainer: Any) -> None:
    """The reward is 0 for every completion."""
    trainer.reward_funcs = [constant_reward]


def built_for(trainer: Any, share: float) -> None:
    """Have the schedule built for a share of the run's updates."""
    replace_method(
        trainer,
        "create_scheduler",
        lambda original, num_training_steps, **kwargs: original(int(num_training_steps * share), **kwargs),
    )


def warmup_in_another_unit(trainer: Any) -> None:
    """The warm-up is given in samples, so the run ends before it does."""
    trainer.args.warmup_steps = 96


def rate_set_by_a_callback(trainer: Any, state: Any, optimizer: Any = None, **kwargs: Any) -> None:
    """A callback halves the rate of each update, and the scheduler goes on as before."""
    if state.global_step >= 5:
        for group in trainer.optimizer.param_groups:
            group["lr"] /= 2


def scheduler_stepped_twice(trainer: Any, state: Any, *, lr_scheduler: Any, **kwargs: Any) -> None:
    """A callback steps the scheduler as well as the loop, from the third update on."""
    if state.global_step >= 3:
        lr_scheduler.step()


def clip_range_exchanged(trainer: Any) -> None:
    """The trainer holds the upper range as the lower one."""
    trainer.epsilon_low, trainer.epsilon_high = trainer.epsilon_high, trainer.epsilon_low


def another_beta(trainer: Any) -> None:
    """The trainer holds another weight of the KL term."""
    trainer.beta = 0.5


def weight_decay_for_all(trainer: Any) -> None:
    """Biases and norms decay too."""
    on(trainer, "on_train_begin", lambda state, **kwargs: trainer.optimizer.param_groups[1].update(weight_decay=0.1))


def rate_of_the_second_group(trainer: Any) -> None:
    """A callback sets the rate of the second parameter group at each step."""
    on(trainer, "on_step_begin", lambda state, **kwargs: trainer.optimizer.param_groups[1].update(lr=0.1))


def optimizer_maximizes(trainer: Any) -> None:
    """The optimizer's direction is turned round after four updates."""
    after_update(trainer, 4, lambda: [group.update(maximize=True) for group in trainer.optimizer.param_groups])


# fmt: off
FAULTS = (
    # E, F: data
    Fault(loader_shuffles_again, code="RLS501", where=Where(rollout=0, update=0), report="trl#4271"),
    Fault(same_prompts_for_ever, code="RLS509", where=Where(rollout=2, update=4), report="OpenRLHF#1320", since="0.18"),
    Fault(one_slice_trained_twice, code="RLS502", where=Where(rollout=3, update=3, microbatch=7), report="ms-swift#9261",
          where_016=Where(rollout=6, update=3, microbatch=7), settings=ONCE),
    Fault(generation_cached_by_step, code="RLS503", where=Where(update=3, microbatch=6), report="trl PR#3148", settings=EVALUATED,
          since="0.18"),
    Fault(made("model_kept_in_training_mode",
               "A wrapper keeps the model in training mode, so that TRL takes evaluation batches for training ones.",
               lambda trainer: replace_method(trainer.model, "eval", lambda original: trainer.model)),
          code="RLS504", where=Where(update=3), report="unsloth PR#3609", headline="RLS101",
          settings=EVALUATED, since="0.18"),
    Fault(answer_never_parsed, code="RLS505", where=WHOLE_RUN, report="trl#3857", doubtful=True),
    # K: the learning rate
    Fault(made("schedule_without_the_passes", "The schedule's length leaves out the passes over each rollout.",
               lambda trainer: built_for(trainer, 1 / 2)),
          code="RLS601", where=WHOLE_RUN, report="OpenRLHF PR#986", settings=FALLING_RATE),
    Fault(made("rate_at_zero_in_mid_run", "The learning rate is 0 for the second half of the run.",
               lambda trainer: built_for(trainer, 1 / 2)),
          code="RLS603", where=Where(update=6), report="ROLL#407", headline="RLS601", settings=FALLING_RATE),
    Fault(warmup_in_another_unit, code="RLS604", where=WHOLE_RUN, report="maxtext PR#4225", settings=WARMED_UP, doubtful=True),
    Fault(way(on, "on_step_begin", by=rate_set_by_a_callback), code="RLS605", where=Where(update=5),
          report="TRL, a callback that sets the rate", settings=FALLING_RATE),
    Fault(way(on, "on_step_end", by=scheduler_stepped_twice), code="RLS602", where=Where(update=3), report="SkyRL#872"),
    # What was configured, and what runs
    Fault(clip_range_exchanged, code="RLS101", where=Where(update=0), report="a clip range with its ends exchanged",
          settings={**PER_SAMPLE, "epsilon": 0.05, "epsilon_high": 0.5}, since="0.18",
          cause="another value than the configuration has"),
    Fault(another_beta, code="RLS101", where=Where(update=0), report="a KL weight that is not the configured one",
          settings=WITH_REFERENCE),
    Fault(weight_decay_for_all, code="RLS101", where=Where(update=0), report="decay of biases and norms",
          settings={**REUSED, "weight_decay": 0.1}, cause="another value than the configuration has"),
    Fault(rate_of_the_second_group, code="RLS101", where=Where(update=0), report="one group with a rate of its own"),
    Fault(optimizer_maximizes, code="RLS101", where=Where(update=4), report="gradient ascent",
          cause="another value than the configuration has"),
)
# fmt: on
