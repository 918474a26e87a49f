"""How `rlstep run` attaches to the cookbook's loop; `boundary` has the hooks on the client below it."""

from __future__ import annotations

import os
from importlib.metadata import version
from typing import TYPE_CHECKING, Any

from packaging.version import Version

from rlstep_hooks.observe.patches import Patches
from rlstep_hooks.observe.versions import versions_of
from rlstep_hooks.session.session import Options, Run, Session
from rlstep_hooks.systems.engine import index
from rlstep_hooks.systems.tinker.observe.boundary import RUNNING
from rlstep_hooks.systems.tinker.system import SYSTEM

if TYPE_CHECKING:
    from rlstep_hooks.systems.tinker.observe.audit import Asked

_patches = Patches()
_SETTINGS_OF_SAMPLING = {"top_p": 1.0, "top_k": -1.0}
"""What the loop leaves at the client's default (tinker 0.38.0 `SamplingParams`)."""


def audit_loop(module: Any) -> None:
    """The cookbook's loop (tinker-cookbook 0.6.1 tinker_cookbook/rl/train.py): `main` calls one of these for a run."""

    async def around(wrapped: Any, instance: Any, args: Any, kwargs: Any) -> Any:
        session = _begin(module, wrapped.__name__, kwargs)
        error: BaseException | None = None
        try:
            return await wrapped(*args, **kwargs)
        except BaseException as raised:
            error = raised
            raise
        finally:
            _end(session, error)

    async def step(wrapped: Any, instance: Any, args: Any, kwargs: Any) -> Any:
        # Outside of the hooks, which contain every error: "raise" ends the run before the step that follows the error.
        if RUNNING.session is not None:
            RUNNING.session.raise_if_asked()
        return await wrapped(*args, **kwargs)

    # Patches and no hooks: one ends the run on purpose, and the others learn with which error it ends.
    _patches.wrap(module, "do_train_step_and_get_sampling_client", step)
    for name in ("do_sync_training", "do_sync_training_with_stream_minibatch", "do_async_training"):
        _patches.wrap(module, name, around)


def _begin(module: Any, loop: str, given: dict[str, Any]) -> Session | None:
    """Begin the audit of a run; None where none is asked for, or one is under way."""
    if not os.environ.get("RLSTEP_DIR") or RUNNING.session is not None:
        return None
    session = RUNNING.session = Session(Options.asked(), index.deviations_of)
    with session.beginning():
        refusal = _refusal(loop, given)
        if refusal:
            session.refuse(refusal)
        else:
            _attach(session, module, given)
    return session


def _refusal(loop: str, given: dict[str, Any]) -> str:
    from rlstep_hooks.systems.tinker.plan import sizes_of

    config, release = given["config"], version(SYSTEM.package)
    first, end = SYSTEM.observed_releases or ("0", "0")
    if not Version(first) <= Version(Version(release).base_version) < Version(end):
        return f"tinker-cookbook {release} is not supported ({first} and later, before {end}, are)"
    if loop != "do_sync_training":
        kind = "asynchronous training" if loop == "do_async_training" else "streamed mini-batches"
        return f"{kind} ({loop}) is not supported (do_sync_training is)"
    if sizes_of(config.dataset_builder) is None:
        return f"{type(config.dataset_builder).__name__} is not supported: it has no batch_size and group_size"
    return ""


def _asked(given: dict[str, Any]) -> Asked:
    from rlstep_hooks.systems.tinker.observe.audit import Asked
    from rlstep_hooks.systems.tinker.observe.penalty import Penalty
    from rlstep_hooks.systems.tinker.plan import plan_run

    config = given["config"]
    return Asked(
        schedule=plan_run(config, version(SYSTEM.package), end=given["end_batch"]),
        loss=config.training_loss_fn(),
        loss_settings=dict(config.loss_fn_config or {}),
        rate=float(config.learning_rate),
        temperature=float(config.temperature),
        penalty=Penalty(float(config.kl_penalty_coef), float(config.kl_discount_factor))
        if config.kl_penalty_coef > 0
        else None,
        without_equal=bool(config.remove_constant_reward_groups),
        begins=given["start_batch"],
    )


def _attach(session: Session, module: Any, given: dict[str, Any]) -> None:
    from rlstep_hooks.systems.tinker.observe.audit import TinkerAudit, position

    asked = _asked(given)
    facts = _facts(asked)
    if asked.begins:
        facts["position"] = position(asked)
    recorder = session.begin(
        Run(
            name="tinker",
            schedule=asked.schedule,
            versions=versions_of(SYSTEM.package, "tinker", "torch"),
            facts=facts,
            start_updates=asked.updates_before,
        )
    )
    audit = TinkerAudit(asked, given["training_client"], recorder)
    session.follow(audit)
    audit.attach(module)
    RUNNING.audit = audit


def _facts(asked: Asked) -> dict[str, Any]:
    from rlstep_hooks.systems.tinker.observe.losses import NAMED

    facts = dict[str, Any](index.link_facts(SYSTEM.name))
    not_compared = dict(facts.get("not_compared", {}))
    if asked.temperature != 1:
        not_compared["RLS403"] = (
            "at a temperature other than 1 nobody says of which distribution the sampler's log-probs are"
        )
    if asked.loss not in NAMED:
        not_compared["RLS801"] = f"the formula of {asked.loss} is not documented"
    facts["not_compared"] = not_compared
    facts["configured_sampling"] = {"temperature": asked.temperature, **_SETTINGS_OF_SAMPLING}
    facts["reference_log_probs"] = "unseen"
    facts["lr_constant"] = True
    return facts


def _end(session: Session | None, error: BaseException | None) -> None:
    """End the audit of a run."""
    if session is None:
        return
    RUNNING.audit = RUNNING.session = None
    session.end(error)
