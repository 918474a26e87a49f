"""The learning rate over all rollouts of the real run, by the functions that verl builds its schedule with."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from rlstep_hooks.rehearse.messages import say
from rlstep_hooks.rehearse.rate import zero_from

if TYPE_CHECKING:
    from rlstep_hooks.planning.schedule import Schedule


def look_at_rate(config: Any, schedule: Schedule | None) -> None:
    """Say what the policy's rate is (workers/engine/fsdp/transformer_impl.py:503-534, 0.9.1: one tick a rollout).

    Args:
        config: verl's live configuration with the real settings.
        schedule: The schedule of the launch; None where it is refused.
    """
    if schedule is None:
        return
    optim = config.actor_rollout_ref.actor.optim
    warmup, kind = int(optim.get("lr_warmup_steps", -1) or -1), str(optim.get("lr_scheduler_type") or "constant")
    rollouts = schedule.rollouts
    horizon = int(schedule.lr_horizon) if schedule.lr_horizon is not None else rollouts
    if rollouts is None or not horizon:
        if warmup > 0:
            say("learning rate", "the real number of rollouts is not known: give --rows", own=False)
            return
        rollouts = horizon = 1000  # all that verl builds is in proportion to the run
        known = False
    else:
        known = True
    rates = _rates(optim, kind, warmup, horizon)
    if rates is None:
        say("learning rate", f"lr_scheduler_type={kind} is no schedule of verl", own=False)
        return
    rates = rates[:rollouts]
    first = zero_from(rates)
    share = 0.0 if first is None else (rollouts - first) / rollouts
    if first is not None and rollouts - first > 1 and share > 0.02:
        text = f"it is zero from rollout {first + 1:,} to {rollouts:,}, {share:.0%} of the run"
        say("learning rate", text, level="problem", own=False)
        return
    last = f"the last of {rollouts:,} rollouts" if known else "the last rollout, however many there are"
    say("learning rate", f"{max(rates):.3g} at its highest, {rates[-1]:.3g} at {last}", own=False)


def _rates(optim: Any, kind: str, warmup: int, horizon: int) -> list[float] | None:
    import torch
    from verl.utils.torch_functional import get_constant_schedule_with_warmup, get_cosine_schedule_with_warmup

    if warmup <= 0:
        warmup = int(float(optim.get("lr_warmup_steps_ratio") or 0) * horizon)
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=float(optim.lr))
    if kind == "constant":
        scheduler = get_constant_schedule_with_warmup(optimizer=optimizer, num_warmup_steps=warmup)
    elif kind == "cosine":
        scheduler = get_cosine_schedule_with_warmup(
            optimizer=optimizer,
            num_warmup_steps=warmup,
            num_training_steps=horizon,
            min_lr_ratio=float(optim.get("min_lr_ratio") or 0),
            num_cycles=float(optim.get("num_cycles") or 0.5),
            zero_indexed_step=bool(optim.get("zero_indexed_step", True)),
        )
    else:
        return None
    factor = scheduler.lr_lambdas[0]
    return [float(optim.lr) * float(factor(tick)) for tick in range(horizon)]
