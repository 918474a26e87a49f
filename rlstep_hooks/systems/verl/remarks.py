"""What verl's settings say beside the schedule: the reference of an adapter, the shapes of log-prob forwards, code of others."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rlstep_hooks.launch.text import LaunchError
from rlstep_hooks.planning.reading import Note
from rlstep_hooks.systems.remarks import BASE_MODEL, SHAPES

if TYPE_CHECKING:
    from collections.abc import Iterator

    from rlstep_hooks.planning.schedule import Schedule
    from rlstep_hooks.systems.quantities import Quantities

_MODEL, _ACTOR, _ROLLOUT = (f"actor_rollout_ref.{part}" for part in ("model", "actor", "rollout"))
_EXTERNAL = "VERL_USE_EXTERNAL_MODULES"


def remarks(launch: Quantities, schedule: Schedule) -> Iterator[Note]:
    """Notes on a launch of verl."""
    if schedule.reference_source != "none" and _has_adapter(launch):
        # trainer/ppo/ray_trainer.py 0.9.1:356-360, ref_in_actor; so since LoRA came with 0.4.
        yield Note("reference", BASE_MODEL)
    sizes = _shapes(launch)
    if sizes is not None and schedule.old_logprob_source == "recompute":
        yield Note("ratio", SHAPES.format(before=sizes[0], after=sizes[1]))
    loaded = launch.request.command.environment.get(_EXTERNAL)
    own = loaded is not None and "rlstep_hooks" in loaded.text and "," not in loaded.text
    if loaded is not None and loaded.text and not own:
        yield Note(
            "assumes",
            f"{_EXTERNAL}={loaded.text} loads code of somebody else, which may replace the trainer or add rows to a rollout: the "
            "updates of a rollout then follow its rows, and are not fixed by the settings",
        )


def _has_adapter(launch: Quantities) -> bool:
    names = (f"{_MODEL}.lora_rank", f"{_MODEL}.lora.rank", f"{_MODEL}.lora_adapter_path")
    return any(_value(launch, name) not in (None, 0, "", "0", "null") for name in names)


def _shapes(launch: Quantities) -> tuple[int, int] | None:
    """Samples of a micro-batch of old log-probs and of the update, where both are fixed and differ."""
    if _value(launch, f"{_ACTOR}.use_dynamic_bsz") or _value(launch, f"{_ROLLOUT}.log_prob_use_dynamic_bsz"):
        return None
    before = _value(launch, f"{_ROLLOUT}.log_prob_micro_batch_size_per_gpu")
    after = _value(launch, f"{_ACTOR}.ppo_micro_batch_size_per_gpu")
    return (before, after) if isinstance(before, int) and isinstance(after, int) and before != after else None


def _value(launch: Quantities, name: str) -> object:
    """A setting that the launch gives; None where it does not, or where only the run knows it."""
    settings = launch.request.settings
    if not settings.is_given(name):
        return None
    try:
        value: object = settings.value(name)
    except LaunchError:
        return None
    return value
