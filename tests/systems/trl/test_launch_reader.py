"""A launch read without TRL means what TRL's own configuration says: defaults, derived sizes, refusals."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

import pytest
import trl
from hypothesis import given, settings
from hypothesis import strategies as st

from rlstep_hooks.planning.launched import Options
from rlstep_hooks.planning.refusal import PlanError
from rlstep_hooks.systems.engine.launches import reading_of
from rlstep_hooks.systems.trl.launch import release_named
from rlstep_hooks.systems.trl.plan import plan_config
from rlstep_hooks.systems.trl.releases import installed_release
from rlstep_hooks.systems.trl.system import SYSTEM

if TYPE_CHECKING:
    from rlstep_hooks.planning.schedule import Schedule

RELEASE = installed_release()
assert RELEASE is not None
ROWS = 1000

ALIKE = (
    "algorithm", "prompts_per_rollout", "samples_per_prompt", "samples_per_rollout", "samples_per_microbatch", "reuse_epochs",
    "microbatches_per_rollout", "microbatches_per_update", "samples_per_update", "updates_per_rollout", "rows_dropped_per_epoch",
    "rollouts", "updates", "data_epochs", "loader_epochs", "old_logprob_source", "lags", "ratio_one_updates", "reference_source",
    "lr_ticks", "lr_horizon", "rows_reshuffled",
)  # fmt: skip


def launched(config: str, given_settings: dict[str, Any]) -> Schedule:
    words = ["python", "-m", f"trl.scripts.{config}"]
    for name, value in given_settings.items():
        words += [f"--{name}", str(value)]
    assert RELEASE is not None
    return reading_of(words, Options(rows=ROWS, world_size=1, version=RELEASE.trl)).schedule


def live(config: str, given_settings: dict[str, Any]) -> Schedule:
    made = getattr(trl, {"grpo": "GRPOConfig", "rloo": "RLOOConfig"}[config])(
        output_dir="unused", use_cpu=True, bf16=False, report_to=[], **given_settings
    )
    return plan_config(made, rows=ROWS, world_size=1)


CONFIGS = ["grpo", "rloo"] if RELEASE.since("0.22") else ["grpo"]


def test_defaults_are_those_of_the_release() -> None:
    assert RELEASE is not None
    fields = {field.name: field for field in dataclasses.fields(trl.GRPOConfig)}
    for name, value in SYSTEM.defaults(RELEASE.trl).items():
        field = fields.get(name)
        if field is None or name in ("warmup_steps", "warmup_ratio"):  # moved between releases of transformers
            continue
        default = field.default if field.default is not dataclasses.MISSING else field.default_factory()  # type: ignore[misc]
        default = getattr(default, "value", default)
        assert default == value, name


@given(
    config=st.sampled_from(CONFIGS),
    batch=st.sampled_from([2, 4, 8]),
    accumulation=st.integers(1, 4),
    iterations=st.integers(1, 3),
    per_generation=st.none() | st.integers(1, 4),
    length=st.sampled_from([{"max_steps": 7}, {"num_train_epochs": 2}, {"num_train_epochs": 0.5}]),
    beta=st.sampled_from([0.0, 0.04]),
)
@settings(deadline=None, max_examples=60)
def test_a_launch_means_what_the_configuration_says(
    config: str,
    batch: int,
    accumulation: int,
    iterations: int,
    per_generation: int | None,
    length: dict[str, Any],
    beta: float,
) -> None:
    assert RELEASE is not None
    flags = {
        "per_device_train_batch_size": batch, "gradient_accumulation_steps": accumulation, "num_generations": 2,
        "num_iterations": iterations, "beta": beta, **length,
    }  # fmt: skip
    if per_generation is not None and RELEASE.has_steps_per_generation:
        flags["steps_per_generation"] = per_generation
    read, wanted = launched(config, flags), live(config, flags)
    assert {name: getattr(read, name) for name in ALIKE} == {name: getattr(wanted, name) for name in ALIKE}


@given(
    batch=st.integers(1, 9),
    group=st.integers(1, 9),
    per_generation=st.integers(1, 4),
    size=st.none() | st.integers(1, 40),
)
@settings(deadline=None, max_examples=120)
def test_what_the_configuration_refuses_is_refused_in_its_words(
    batch: int, group: int, per_generation: int, size: int | None
) -> None:
    assert RELEASE is not None
    if not RELEASE.has_steps_per_generation:
        pytest.skip("before 0.18 the trainer refuses, not the configuration")
    flags: dict[str, Any] = {"per_device_train_batch_size": batch, "num_generations": group, "max_steps": 3}
    flags |= {"steps_per_generation": per_generation} if size is None else {"generation_batch_size": size}
    refusal = refused(flags)
    if not refusal:
        assert launched("grpo", flags).updates_per_rollout > 0
        return
    with pytest.raises(PlanError) as caught:
        launched("grpo", flags)
    assert caught.value.message == refusal


def refused(flags: dict[str, Any]) -> str:
    """What TRL's own configuration says against these settings; empty where it takes them."""
    try:
        live("grpo", flags)
    except ValueError as error:
        return str(error)
    return ""


def test_the_release_is_known() -> None:
    assert RELEASE is not None
    assert release_named(RELEASE.trl).updates_rounded_down == RELEASE.updates_rounded_down
