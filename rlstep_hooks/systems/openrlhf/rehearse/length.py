"""The length of a run in small: where the rows are loaded, because only there their number is known.

The controller loads them, or in asynchronous training the generator; both call `prepare_datasets` (trainer/ppo_trainer.py, 0.11.2).
"""

from __future__ import annotations

import functools
import math
import zlib
from typing import Any

from rlstep_hooks.planning.refusal import PlanError
from rlstep_hooks.rehearse import data
from rlstep_hooks.rehearse.columns import Named
from rlstep_hooks.rehearse.messages import CannotRehearseError, say, settings
from rlstep_hooks.rehearse.rate import zero_from
from rlstep_hooks.systems.openrlhf.plan import plan_config
from rlstep_hooks.systems.openrlhf.rehearse.arguments import TOKENS, gpus, real_sizes

_EVALUATED = 4
"""Rows of an evaluation."""


def short_rows(module: Any) -> None:
    """`openrlhf.trainer.ppo_trainer`. The functions keep their names, because actors' classes are sent with references to them."""
    prepare, blend, metrics = module.prepare_datasets, module.blending_datasets, module.compute_eval_metrics

    @functools.wraps(prepare)
    def prepare_datasets(strategy: Any, tokenizer: Any) -> Any:
        data.named = _named(strategy.args)
        return prepare(strategy, tokenizer)

    @functools.wraps(blend)
    def blending_datasets(datasets: str, probabilities: Any, strategy: Any, *args: Any, **kwargs: Any) -> Any:
        found = blend(datasets, probabilities, strategy, *args, **kwargs)
        if "max_count" not in kwargs:  # the rows of an evaluation
            return found.select(range(min(_EVALUATED, len(found))))
        return _shorten(strategy.args, found)

    @functools.wraps(metrics)
    def compute_eval_metrics(*args: Any, **kwargs: Any) -> Any:
        say("evaluated")
        return metrics(*args, **kwargs)

    module.prepare_datasets = prepare_datasets
    module.blending_datasets = blending_datasets
    module.compute_eval_metrics = compute_eval_metrics


def _named(arguments: Any) -> Named:
    """The columns that the launch names."""
    question, answer = arguments.data.input_key, arguments.data.label_key
    columns = tuple(name for name in (question, answer) if name)
    like = {question: "prompt", **({answer: "answer"} if answer else {})}
    return Named(columns, conversational=False, marked=False, like=like)


def _shorten(arguments: Any, found: Any) -> Any:
    """Cut the rows, and say what the real run is."""
    rehearsal = arguments.rehearsal
    real = rehearsal.real
    rows = _rows(len(found), most=real.data.max_samples)
    sizes, small = real_sizes(real), real_sizes(arguments)
    used = None if rows is None else min(rows, real.data.max_samples)
    whole = rehearsal.rollouts_per_epoch * small.prompts
    if used is not None and used < sizes.prompts:
        wanted = max(1, used * small.prompts // sizes.prompts)
    elif used is not None and used % sizes.prompts:
        # The last rollout of an episode is smaller, as in the real run.
        wanted = whole - small.prompts + max(1, used % sizes.prompts * small.prompts // sizes.prompts)
    else:
        wanted = whole
    if len(found) < min(wanted, small.prompts):
        text = f"the launch leaves {len(found)} of the rows, too few for a rollout"
        say("rows", text, level="impossible")
        raise CannotRehearseError(text)
    wanted = min(wanted, len(found))
    schedule = _planned(real, rows)
    arguments.data.max_samples = wanted
    made = plan_config(arguments, rows=wanted)
    say(
        "sizes",
        factor=rehearsal.factor,
        processes=gpus(real),
        group=small.group,
        real_group=sizes.group,
        samples=small.samples,
        real_samples=sizes.samples,
        rows=wanted,
        rollouts=made.rollouts,
        rollouts_per_epoch=math.ceil(wanted / small.prompts),
        updates=made.updates,
        real_updates=schedule.updates if schedule is not None else None,
        limits=_limits(arguments),
    )
    if schedule is not None:
        _look_at_rate(real, schedule)
    taken = found.select(range(wanted))
    say("set", rows=zlib.crc32("".join(repr(sorted(row.items())) for row in taken).encode()))
    return taken


def _limits(arguments: Any) -> str:
    # OpenRLHF lets an agent's turns use what is left of `data.max_len` (utils/agent.py:92).
    length = (
        "a dozen tokens in a turn" if arguments.train.agent_func_path else f"completions of {TOKENS} tokens at most"
    )
    text = f"{length}; bfloat16"
    return text if arguments.rehearsal.exact else f"{text}; fewer micro-batches in each update"


def _rows(found: int, *, most: int) -> int | None:
    """Rows of the user's set: as said, or counted; None for a made set.

    Args:
        found: Rows that were loaded.
        most: `data.max_samples`: no more are loaded, and none beyond it is used.
    """
    if settings().rows:
        return settings().rows
    if data.made:
        return None
    if found == most:
        return found
    return data.real_rows.get(found, None if data.real_rows else found)


def _planned(real: Any, rows: int | None) -> Any:
    """The real Schedule; None where the framework would refuse it, which is said."""
    from rlstep_hooks.record.wire import to_json

    try:
        schedule = plan_config(real, rows=rows)
    except PlanError as refusal:
        say("schedule", f"{refusal.message} ({refusal.when}); {refusal.fix}", level="problem")
        return None
    say("schedule", schedule=to_json(schedule).decode())
    return schedule


def _look_at_rate(real: Any, schedule: Any) -> None:
    """The learning rate over the updates of the real run, without making them."""
    known = schedule.updates is not None and schedule.lr_horizon is not None
    # All that OpenRLHF builds is in proportion to the run (utils/deepspeed/deepspeed.py:379).
    updates, horizon = (schedule.updates, schedule.lr_horizon) if known else (1000, 1000)
    if not updates or not horizon:
        return
    rates = _rates(real.actor, int(updates), int(horizon))
    if rates is None:
        say("learning rate", f"{real.actor.lr_scheduler} is not a schedule that can be read ahead", own=False)
        return
    first = zero_from(rates)
    if first is not None and len(rates) - first > 1 and (len(rates) - first) / len(rates) > 0.02:
        share = (len(rates) - first) / len(rates)
        text = f"it is zero from update {first + 1:,} to {len(rates):,}, {share:.0%} of the run"
        say("learning rate", text, level="problem", own=False)
        return
    last = f"the last of {len(rates):,} updates" if known else "the last update, however many there are"
    say("learning rate", f"{max(rates):.3g} at its highest, {rates[-1]:.3g} at {last}", own=False)


def _rates(role: Any, updates: int, horizon: int) -> list[float] | None:
    import torch
    from transformers import get_scheduler

    name = role.lr_scheduler
    more = {"min_lr_rate": role.min_lr_ratio} if name in ("cosine_with_min_lr", "cosine_warmup_with_min_lr") else {}
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=role.adam.lr)
    scheduler = get_scheduler(
        name,
        optimizer,
        num_warmup_steps=math.ceil(horizon * role.lr_warmup_ratio),
        num_training_steps=horizon,
        scheduler_specific_kwargs=more,
    )
    lambdas = getattr(scheduler, "lr_lambdas", None)
    return [role.adam.lr * float(lambdas[0](tick)) for tick in range(updates)] if lambdas else None
