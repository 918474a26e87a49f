"""Schedule.ppo: the quantities of the PPO paper's Algorithm 1, compared with published settings and with the timeline."""

from __future__ import annotations

from collections import Counter
from fractions import Fraction
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rlstep_hooks import Schedule
from rlstep_hooks.judge.timeline import ExpectedMicroBatch, ExpectedUpdate, expected_events
from tests.golden.reading import read


@pytest.mark.parametrize(
    ("settings", "samples", "minibatch", "per_rollout"),
    [
        # arXiv:1707.06347, Table 5 (Atari) and Table 3 (MuJoCo)
        ({"actors": 8, "steps": 128, "epochs": 3, "minibatches": 4}, 1024, 256, 12),
        ({"actors": 1, "steps": 2048, "epochs": 10, "minibatches": 32}, 2048, 64, 320),
        # baselines ppo2/defaults.py atari(), CleanRL ppo.py
        ({"actors": 8, "steps": 128, "epochs": 4, "minibatches": 4}, 1024, 256, 16),
        ({"actors": 4, "steps": 128, "epochs": 4, "minibatches": 4}, 512, 128, 16),
        # the whole batch at once, `n_updates_per_iteration` times
        ({"actors": 1, "steps": 4800, "epochs": 5, "minibatches": 1}, 4800, 4800, 5),
    ],
)
def test_published_settings(settings: dict[str, int], samples: int, minibatch: int, per_rollout: int) -> None:
    schedule = Schedule.ppo(**settings)
    assert schedule.samples_per_rollout == samples
    assert schedule.samples_per_update == minibatch
    assert schedule.updates_per_rollout == per_rollout
    assert schedule.lags == tuple(range(per_rollout))
    assert schedule.ratio_one_updates == (1,)


@pytest.mark.parametrize(
    ("launch", "same"),
    [
        (
            "python -m baselines.run --alg=ppo2 --env=BreakoutNoFrameskip-v4 --num_timesteps=1e7 --num_env=8 --noptepochs=3",
            {"actors": 8, "steps": 128, "epochs": 3, "minibatches": 4, "rollouts": 9765},
        ),
        ("python cleanrl/ppo.py", {"actors": 4, "steps": 128, "epochs": 4, "minibatches": 4, "rollouts": 976}),
        (
            "python cleanrl/ppo.py --target-kl 0.02 --num-minibatches 5",
            {
                "actors": 4,
                "steps": 128,
                "epochs": 4,
                "minibatches": (102, 102, 102, 102, 102, 2),
                "rollouts": 976,
                "early_stop": True,
            },
        ),
        (
            "python sota-implementations/ppo/ppo_mujoco.py",
            {"actors": 1, "steps": 2048, "epochs": 10, "minibatches": 32, "rollouts": 489},
        ),
    ],
)
def test_readers_of_classic_systems_agree(launch: str, same: dict[str, Any]) -> None:
    read_from_launch, own = read(launch).schedule, Schedule.ppo(**same)
    for name in (
        "prompts_per_rollout", "samples_per_prompt", "samples_per_rollout", "reuse_epochs", "minibatches", "samples_per_update",
        "updates_per_rollout", "updates_bound", "rollouts", "updates", "lags", "ratio_one_updates", "old_logprob_source", "remainder",
        "samples_dropped_per_rollout", "loop",
    ):  # fmt: skip
        assert getattr(own, name) == getattr(read_from_launch, name), name


def test_twenty_thousand_iterations_of_four_epochs_are_eighty_thousand_updates() -> None:
    schedule = Schedule.ppo(actors=1, steps=64, epochs=4, rollouts=20_000)
    assert (schedule.rollouts, schedule.updates) == (20_000, 80_000)


@given(
    actors=st.integers(1, 4),
    steps=st.integers(1, 6),
    epochs=st.integers(1, 3),
    rollouts=st.integers(1, 3),
    data=st.data(),
)
def test_the_timeline_has_what_the_schedule_says(
    actors: int, steps: int, epochs: int, rollouts: int, data: st.DataObject
) -> None:
    samples = actors * steps
    count = data.draw(st.sampled_from([n for n in range(1, samples + 1) if samples % n == 0]))
    size = samples // count
    microbatches = data.draw(st.sampled_from([n for n in range(1, size + 1) if size % n == 0]))
    schedule = Schedule.ppo(
        actors=actors, steps=steps, epochs=epochs, minibatches=count, rollouts=rollouts, microbatches=microbatches
    )
    events = list(expected_events(schedule))
    kinds = Counter(type(event) for event in events)
    assert kinds[ExpectedUpdate] == schedule.updates == rollouts * epochs * count
    assert kinds[ExpectedMicroBatch] == rollouts * epochs * count * microbatches
    trained = sum(event.samples or 0 for event in events if isinstance(event, ExpectedMicroBatch))
    assert trained == rollouts * epochs * samples


def test_sizes_of_mini_batches_one_by_one() -> None:
    kept = Schedule.ppo(actors=2, steps=5, epochs=2, minibatches=(4, 4, 2), rollouts=1)
    assert (kept.updates_per_rollout, kept.remainder, kept.samples_dropped_per_rollout) == (6, "keep", 0)
    sizes = [event.samples for event in expected_events(kept) if isinstance(event, ExpectedMicroBatch)]
    assert sizes == [4, 4, 2, 4, 4, 2]
    dropped = Schedule.ppo(actors=2, steps=5, epochs=2, minibatches=(4, 4), rollouts=1)
    assert (dropped.updates_per_rollout, dropped.remainder, dropped.samples_dropped_per_rollout) == (4, "drop", 2)
    assert sum(isinstance(event, ExpectedUpdate) for event in expected_events(dropped)) == 4


def test_what_is_not_asked_for_is_not_evaluated() -> None:
    schedule = Schedule.ppo(actors=2, steps=4)
    assert schedule.updates_per_rollout == Fraction(1)
    unknown = ("rollouts", "updates", "lr_ticks", "lr_horizon", "rows")
    assert {name: getattr(schedule, name) for name in unknown} == dict.fromkeys(unknown)
    assert set(unknown) <= set(schedule.not_evaluated)


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"actors": 0, "steps": 4}, "actors = 0"),
        ({"actors": 1, "steps": 4, "rollouts": 0}, "rollouts = 0"),
        ({"actors": 8, "steps": 128, "minibatches": 3}, "use 2 or 4"),
        ({"actors": 8, "steps": 128, "minibatches": 0}, "minibatches = 0"),
        ({"actors": 1, "steps": 4, "minibatches": 9}, "use 4, or"),
        ({"actors": 1, "steps": 8, "minibatches": (8, 8)}, "cannot be cut from 8"),
        ({"actors": 1, "steps": 8, "minibatches": ()}, "cannot be cut from 8"),
        ({"actors": 1, "steps": 8, "minibatches": 2, "microbatches": 3}, "3 micro-batches"),
        ({"actors": 1, "steps": 8, "minibatches": (6, 2), "microbatches": 2}, "2 micro-batches"),
    ],
)
def test_sizes_that_do_not_fit_are_refused(settings: dict[str, object], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        Schedule.ppo(**settings)  # type: ignore[arg-type]
