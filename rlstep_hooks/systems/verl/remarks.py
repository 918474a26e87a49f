"""What verl's settings say beside the schedule: the reference of an adapter, the shapes of log-prob forwards, code of others."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rlstep_hooks.launch.text import LaunchError
from rlstep_hooks.planning.reading import Note
from rlstep_hooks.systems.engine.remarks import BASE_MODEL, other_shapes
from rlstep_hooks.systems.verl.settings import ACTOR, ROLLOUT

if TYPE_CHECKING:
    from rlstep_hooks.systems.engine.request import Request

_MODEL = "actor_rollout_ref.model"
_EXTERNAL = "VERL_USE_EXTERNAL_MODULES"


def _clip_without_effect(role: str, trained: str) -> Note:
    """The limit of the gradient norm that an engine does not read (workers/engine/fsdp/transformer_impl.py 0.9.1:795-811)."""
    acts = f"(1 if {role}.optim.clip_grad is None else {role}.optim.clip_grad)"
    return Note(
        "ignores",
        f"{role}.grad_clip = {{decimal({role}.grad_clip)}} has no effect: the norm of the gradients is limited by "
        f"{role}.optim.clip_grad, which is {{decimal({acts})}}",
        f"release >= (0, 9) and {trained} and {role}.grad_clip is not None and {role}.grad_clip != {acts}",
    )


REMARKS = (
    _clip_without_effect(ACTOR, "not evaluates_only"),
    _clip_without_effect("critic", "critic"),
    # trainer/ppo/ray_trainer.py 0.9.1:356-360, ref_in_actor; so since LoRA came with 0.4.
    Note("reference", BASE_MODEL, "reference_source != 'none' and trains_adapter(launch)"),
    other_shapes("samples_before(launch)", "samples_after(launch)", "old_logprob_source == 'recompute'"),
    Note(
        "assumes",
        f"{_EXTERNAL}={{loaded_code(launch)}} loads code of somebody else, which may replace the trainer or add rows to a rollout: the "
        "updates of a rollout then follow its rows, and are not fixed by the settings",
        "loaded_code(launch)",
    ),
)
"""Notes of a declaration that has `FUNCTIONS`."""


def _trains_adapter(launch: Request) -> bool:
    names = (f"{_MODEL}.lora_rank", f"{_MODEL}.lora.rank", f"{_MODEL}.lora_adapter_path")
    return any(_value(launch, name) not in (None, 0, "", "0", "null") for name in names)


def _samples_before(launch: Request) -> int | None:
    """Samples of a process in a micro-batch of old log-probs, where the launch says them."""
    return _fixed(launch, f"{ROLLOUT}.log_prob_micro_batch_size_per_gpu", f"{ROLLOUT}.log_prob_use_dynamic_bsz")


def _samples_after(launch: Request) -> int | None:
    """Samples of a process in a micro-batch of an update, where the launch says them."""
    return _fixed(launch, f"{ACTOR}.ppo_micro_batch_size_per_gpu", f"{ACTOR}.use_dynamic_bsz")


def _fixed(launch: Request, size: str, dynamic: str) -> int | None:
    value = _value(launch, size)
    by_tokens = _value(launch, dynamic) or _value(launch, f"{ACTOR}.use_dynamic_bsz")
    return value if isinstance(value, int) and not by_tokens else None


def _loaded_code(launch: Request) -> str:
    """Modules that verl imports before it starts, but for this package's own."""
    loaded = launch.command.environment.get(_EXTERNAL)
    modules = loaded.text.split(",") if loaded is not None else []
    return ",".join(module for module in modules if not module.startswith("rlstep_hooks"))


def _value(launch: Request, name: str) -> object:
    """A setting that the launch gives; None where it does not, or where only the run knows it."""
    if not launch.settings.is_given(name):
        return None
    try:
        value: object = launch.settings.value(name)
    except LaunchError:
        return None
    return value


FUNCTIONS = {
    "trains_adapter": _trains_adapter,
    "samples_before": _samples_before,
    "samples_after": _samples_after,
    "loaded_code": _loaded_code,
}
"""The functions that the conditions of the notes may call, by name."""
