"""The quantities that a declaration states -> Schedule. Other quantities are derived in `rlstep_hooks.planning.phases`."""

from __future__ import annotations

from fractions import Fraction
from typing import TYPE_CHECKING, Any, get_args

import msgspec

from rlstep_hooks.planning.formula import FormulaError, Unknown
from rlstep_hooks.planning.phases import Loader, Passes, equal_minibatches, fields_in_phases, minibatches_of
from rlstep_hooks.planning.schedule import Schedule

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    Said = Callable[[str], Any]
    """The value of a quantity, `Unknown`, or None if the declaration does not state it."""

_DERIVED_FROM = (
    "algorithm", "prompts_per_rollout", "samples_per_prompt", "minibatches", "reuse_epochs", "samples_per_rollout",
    "samples_per_microbatch", "microbatches_per_update", "updates_per_rollout", "updates_bound", "updates", "remainder", "flush",
    "samples_added_per_rollout", "samples_dropped_per_rollout", "frozen_rollouts", "max_age", "max_age_updates", "correction",
    "correction_inert", "correction_biased", "syncs", "rows_bound",
    "rows_reshuffled", "old_logprob_source", "lags", "ratio_one_updates", "reference_source", "lr_clock", "lr_horizon", "step_unit",
    "step_means", "critic_order",
)  # fmt: skip
"""Fields of the Schedule from which `fields_in_phases` derives the others."""
_OF_BOTH_ROLES = (
    "algorithm", "prompts_per_rollout", "samples_per_prompt", "samples_per_rollout", "reuse_epochs", "samples_per_update",
    "samples_per_microbatch", "microbatches_per_update", "updates_per_rollout", "minibatches", "updates_bound", "remainder",
    "samples_added_per_rollout", "samples_dropped_per_rollout", "max_age", "rows_bound", "rows_reshuffled", "lr_clock", "lr_horizon",
)  # fmt: skip
"""Quantities that a critic takes from the policy unless the declaration states them."""
_OF_ROWS = ("rows_dropped_per_epoch", "rollouts_per_epoch", "data_epochs", "loader_epochs")
"""Quantities that a critic takes from the loader, which serves both roles."""
_CALLED = {"samples_added_per_rollout": "samples_added", "samples_dropped_per_rollout": "samples_dropped"}
_ELSEWHERE = {
    "framework",
    "version",
    "rows",
    "rollouts",
    "rollouts_per_epoch",
    "samples_per_update",
    "world_size",
    "critic",
}


def shaped(
    said: Said,
    *,
    framework: str,
    version: str,
    rows: int | Unknown,
    world_size: int,
    declared: Iterable[str],
    settings: dict[str, Any],
    sources: dict[str, str],
) -> Schedule:
    """The Schedule of a launch.

    Args:
        said: The value of a quantity, as the declaration states it.
        framework: Name of the framework as people write it.
        version: The release of the framework.
        rows: Rows of the training set.
        world_size: Data-parallel processes.
        declared: Names of all quantities that the declaration states.
        settings: The settings behind the plan.
        sources: For each formula used, where it was read.

    Raises:
        FormulaError: A quantity that every plan needs is missing, or rows are dropped and `rows_reshuffled` is not stated.
        TooManyError: The plan would list more than any run has.
    """
    if said("loop") == "loader":
        schedule = _in_loader(
            said, framework=framework, version=version, rows=rows, world_size=world_size, declared=declared
        )
        return msgspec.structs.replace(schedule, settings=settings, sources=sources)
    policy = _role(said)
    passes = _passes(said, rows, Fraction(policy["prompts_per_rollout"]))
    shared = {"framework": framework, "version": version, "passes": passes}
    critic = None
    if said("critic"):

        def of_critic(name: str) -> Any:
            own = said(f"critic.{name}")
            return said(name) if own is None and name in (*_OF_BOTH_ROLES, *_OF_ROWS) else own

        critic = _made(
            of_critic,
            {**shared, **_role(of_critic), "world_size": of_critic("world_size") or world_size},
            (*_OF_ROWS, *_fields(name.removeprefix("critic.") for name in declared if name.startswith("critic."))),
        )
    made = {**shared, **policy, "world_size": world_size, "critic": critic, "settings": settings}
    return msgspec.structs.replace(_made(said, made, _fields(declared)), sources=sources)


_IN_LOADER = (
    "samples_per_microbatch", "microbatches_per_rollout", "microbatches_per_update", "samples_per_update", "rows_dropped_per_epoch",
    "rollouts_per_epoch", "microbatches_per_epoch", "rollouts", "updates", "data_epochs", "loader_epochs", "lr_ticks", "lr_horizon",
)  # fmt: skip
"""Fields of a Schedule with `loop="loader"` that may be unknown. The declaration states all of them."""


def _in_loader(
    said: Said, *, framework: str, version: str, rows: int | Unknown, world_size: int, declared: Iterable[str]
) -> Schedule:
    """The Schedule of a run whose loader triggers rollouts and updates. Only declared quantities are used."""
    values = dict.fromkeys(_IN_LOADER) | {name: said(name) for name in _fields(declared)} | {"rows": rows}
    unknown = {name: value.reason for name, value in values.items() if isinstance(value, Unknown)}
    known: dict[str, Any] = {name: None if name in unknown else value for name, value in values.items()}
    for name in ("prompts_per_rollout", "updates_per_rollout", "data_epochs", "loader_epochs"):
        known[name] = None if known[name] is None else Fraction(known[name])
    return Schedule(
        **{**known, "framework": framework, "version": version, "world_size": world_size, "not_evaluated": unknown}
    )


def _fields(names: Iterable[str]) -> list[str]:
    """The names that are fields of a Schedule, in their order there, whatever the order of a set of names is."""
    given = set(names)
    return [name for name in Schedule.__struct_fields__ if name in given]


def _made(said: Said, arguments: dict[str, Any], declared: Iterable[str]) -> Schedule:
    """The Schedule of one role: declared quantities override derived ones; unknown ones are None, each with its reason."""
    values = {name: said(name) for name in dict.fromkeys((*_DERIVED_FROM, "samples_per_update", *declared))}
    unknown = {name: value.reason for name, value in values.items() if isinstance(value, Unknown)}
    schedule = schedule_in_phases(**arguments)
    if "updates" in unknown and schedule.lr_clock == "update":
        unknown.setdefault("lr_ticks", unknown["updates"])
    over = {
        name: value
        for name, value in values.items()
        if value is not None and name not in (*_DERIVED_FROM, *_ELSEWHERE) and name not in unknown
    }
    if not schedule.minibatches and "samples_per_update" not in unknown:  # there is nothing to derive it from
        over["samples_per_update"] = values["samples_per_update"]
    not_evaluated = {**schedule.not_evaluated, **unknown}
    for name in over:
        not_evaluated.pop(name, None)
    nothing = dict.fromkeys(name for name in _fields(unknown) if name != "syncs")  # which are "unseen" then
    made = msgspec.structs.replace(schedule, **{**over, **nothing, "not_evaluated": not_evaluated})
    if made.rows_dropped_per_epoch and values["rows_reshuffled"] is None:
        raise FormulaError("the declaration drops rows and does not say rows_reshuffled")
    return made


def schedule_in_phases(**arguments: Any) -> Schedule:
    """A Schedule with `loop="phases"`; arguments as those of `rlstep_hooks.planning.phases.fields_in_phases`."""
    return Schedule(**fields_in_phases(**arguments))


def _role(said: Said) -> dict[str, Any]:
    """The quantities of one role that `fields_in_phases` takes."""
    values = {name: said(name) for name in _DERIVED_FROM}
    known = {name: value for name, value in values.items() if value is not None and not isinstance(value, Unknown)}
    for name in ("algorithm", "prompts_per_rollout", "samples_per_prompt"):
        if name not in known:
            raise FormulaError(f"the declaration does not say {name}")
    samples = known.setdefault("samples_per_rollout", int(known["prompts_per_rollout"] * known["samples_per_prompt"]))
    if "minibatches" not in known:
        known["minibatches"] = _minibatches(known, samples, said("samples_per_update"))
    if known.get("remainder") == "drop":
        known.setdefault("samples_dropped_per_rollout", samples - sum(known["minibatches"]))
    if "updates_per_rollout" in known:
        known["updates_per_rollout"] = Fraction(known["updates_per_rollout"])
    if isinstance(values["max_age"], Unknown):
        known["max_age"] = None
    return {_CALLED.get(name, name): value for name, value in known.items()}


def _minibatches(known: dict[str, Any], samples: int, size: Any) -> tuple[int, ...]:
    """The samples of each update of one pass over a rollout, by the declaration's `remainder`."""
    trained = samples + known.get("samples_added_per_rollout", 0)
    if size is None or isinstance(size, Unknown):
        return (trained,)
    if known.get("remainder") in ("keep", "drop"):
        return minibatches_of(trained, size, keep=known["remainder"] == "keep")
    return equal_minibatches(trained, trained // size)


def _passes(said: Said, rows: int | Unknown, prompts: Fraction) -> Passes:
    """How rows become rollouts, by the declaration's `loader`."""
    loader, rollouts, per_epoch = said("loader"), said("rollouts"), said("rollouts_per_epoch")
    made = None if isinstance(rollouts, Unknown) else rollouts
    per_epoch = None if isinstance(per_epoch, Unknown) else per_epoch
    if loader == "none":
        return Passes.without_rows(made)
    if isinstance(rows, Unknown):
        return Passes.of_unknown_rows(made, rows.reason)
    if made is None:
        why = rollouts.reason if isinstance(rollouts, Unknown) else "the run has no end"
        return Passes.without_length(rows, why, per_epoch=per_epoch)
    if loader not in get_args(Loader):
        raise FormulaError(f"loader = {loader!r} is none of drops, keeps, wraps, none")
    return Passes.of_loader(loader, rows, prompts, rollouts=made, per_epoch=per_epoch)
