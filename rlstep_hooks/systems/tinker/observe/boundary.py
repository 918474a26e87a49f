"""The hooks on Tinker's client, and who looks at its calls in this process.

The client's methods are wrapped when their module is imported, and look only while a run is audited: whatever a program puts around
them later stands outside, so what is seen is what the client is really asked for. Verified in tinker 0.38.0; its deprecated `..._async`
methods call these.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from rlstep_hooks.observe.hooks import Hooks, LateRecorder
from rlstep_hooks.observe.patches import Patches

if TYPE_CHECKING:
    from collections.abc import Callable

    from rlstep_hooks.observe.hooks import Call
    from rlstep_hooks.session.session import Session
    from rlstep_hooks.systems.tinker.observe.audit import TinkerAudit
    from rlstep_hooks.systems.tinker.observe.client_audit import ClientAudit


class Running:
    """The run that is audited in this process."""

    audit: TinkerAudit | ClientAudit | None = None
    session: Session | None = None
    raises: bool = False
    """Whether an error ends the run out of forward_backward, because nothing else of the program is known."""
    other: Callable[[str, Call], None] | None = None
    """Looks at calls while no run is audited."""


RUNNING = Running()
_patches = Patches()
_hooks = Hooks(LateRecorder(lambda: RUNNING.session.recorder if RUNNING.session is not None else None), _patches)
_PLACES = "tinker.lib.public_interfaces"
_placed: set[str] = set()


def _look(name: str) -> Callable[[Call], None]:
    """What looks at a call once it has returned, by the name of a method of the audit."""

    def look(call: Call) -> None:
        if RUNNING.audit is not None:
            looks = getattr(RUNNING.audit, name, None)
            if looks is not None:
                looks(call)
        elif RUNNING.session is None and RUNNING.other is not None:
            RUNNING.other(name, call)

    return look


def _raise(wrapped: Any, instance: Any, args: Any, kwargs: Any) -> Any:
    """Outside of the hooks, which contain every error."""
    result = wrapped(*args, **kwargs)
    if RUNNING.raises and RUNNING.session is not None:
        RUNNING.session.raise_if_asked()
    return result


def observe_training(module: Any) -> None:
    """The training client (lib/public_interfaces/training_client.py)."""
    client = module.TrainingClient
    _placed.add("training_client")
    # Gives MicroBatch.
    _hooks.wrap(client, "forward_backward", after=_look("passed"), topics=("order", "samples", "log_ratio"))
    _hooks.wrap(client, "forward_backward_custom", after=_look("passed_otherwise"), topics=("order",))
    _patches.wrap(client, "forward_backward", _raise)
    # Gives old log-probs that a loop computes after it has sampled.
    _hooks.wrap(client, "forward", after=_look("forwarded"), topics=("refresh",))
    # Gives Update.
    _hooks.wrap(client, "optim_step", after=_look("stepped"), topics=("order", "updates", "learning_rate"))
    # Give WeightSync, and the version of what a client samples.
    sampler = ("sampler", "versions")
    _hooks.wrap(client, "save_weights_and_get_sampling_client", after=_look("weights_for_client"), topics=sampler)
    _hooks.wrap(client, "save_weights_for_sampler", after=_look("weights_for_path"), topics=sampler)
    _hooks.wrap(client, "create_sampling_client", after=_look("client_of_path"), topics=sampler)
    # `load_state` and `load_state_with_optimizer` end here.
    _hooks.wrap(client, "_load_state_impl", after=_look("reloaded"), topics=("versions",))


def observe_sampling(module: Any) -> None:
    """The sampling client (lib/public_interfaces/sampling_client.py)."""
    _placed.add("sampling_client")
    # Gives the samples of Rollout. `sample_async` calls it; `compute_logprobs` does not.
    _hooks.wrap(module.SamplingClient, "sample", after=_look("sampled"), topics=("samples", "sampler"))
    _hooks.wrap(module.SamplingClient, "compute_logprobs", after=_look("scored"), topics=("refresh",))


def observe_service(module: Any) -> None:
    """The service client (lib/public_interfaces/service_client.py)."""
    _placed.add("service_client")
    _hooks.wrap(module.ServiceClient, "create_sampling_client", after=_look("client_of_base"), topics=("sampler",))


def place() -> bool:
    """Place the hooks in a process that was not started by `rlstep run`; whether they were not there."""
    if _placed:
        return False
    observe_training(import_module(f"{_PLACES}.training_client"))
    observe_sampling(import_module(f"{_PLACES}.sampling_client"))
    observe_service(import_module(f"{_PLACES}.service_client"))
    return True


def detach() -> list[str]:
    """Leave the client as it was; names that somebody else has wrapped since are returned."""
    _placed.clear()
    return _patches.restore()
