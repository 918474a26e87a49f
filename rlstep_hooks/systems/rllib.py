"""RLlib's PPO (new API stack): mini-batches run on over the ends of passes, so their number is that of all passes rounded up once.

Read in the wheel of ray 2.50.0: rllib/algorithms/ppo/ppo.py, rllib/algorithms/algorithm_config.py (`get_rollout_fragment_length`,
`validate_train_batch_size_vs_rollout_fragment_length`), rllib/utils/minibatch_utils.py `MiniBatchCyclicIterator`,
rllib/execution/rollout_ops.py `synchronous_parallel_sample`.
"""

from __future__ import annotations

from fractions import Fraction
from typing import TYPE_CHECKING, Any

import msgspec

from rlstep_hooks.launch.text import LaunchError
from rlstep_hooks.planning.minibatches import updates_wrapping
from rlstep_hooks.planning.phases import Passes, schedule_in_phases
from rlstep_hooks.planning.reading import Formula, Note, Reading
from rlstep_hooks.planning.refusal import PlanError
from rlstep_hooks.systems.reader import Reader, Request, release_of

if TYPE_CHECKING:
    from collections.abc import Mapping

    from rlstep_hooks.launch.settings import Settings

_CONFIG = "ray 2.50.0 rllib/algorithms/algorithm_config.py"
_PPO = "ray 2.50.0 rllib/algorithms/ppo/ppo.py"
_MINIBATCHES = "ray 2.50.0 rllib/utils/minibatch_utils.py MiniBatchCyclicIterator"

DEFAULTS: dict[str, Any] = {
    "train_batch_size": 4000,
    "train_batch_size_per_learner": None,
    "minibatch_size": 128,
    "num_epochs": 30,
    "num_env_runners": 2,
    "num_envs_per_env_runner": 1,
    "rollout_fragment_length": "auto",
    "batch_mode": "truncate_episodes",
    "num_learners": 0,
    "lr": 5e-5,
}
"""Defaults of PPOConfig."""

OLD_NAMES = {
    "minibatch_size": ("sgd_minibatch_size",),
    "num_epochs": ("num_sgd_iter",),
    "num_env_runners": ("num_rollout_workers", "num_workers"),
    "num_envs_per_env_runner": ("num_envs_per_worker",),
    "num_learners": ("num_learner_workers",),
}
_CALLS = ("training", "env_runners", "learners", "rollouts", "resources")
"""Methods of AlgorithmConfig that take these settings."""

FORMULAS = (
    Formula("updates_per_rollout", "ceil(num_epochs * train_batch_size_per_learner / minibatch_size)", _MINIBATCHES),
    Formula("samples_per_update", "minibatch_size * max(num_learners, 1)", _PPO),
)


class RLlib(Reader):
    """A Python file with `PPOConfig().training(...)`, or flags and YAML of the same names."""

    name = "rllib"
    title = "RLlib"
    version = "2.50.0"

    def defaults(self, version: str) -> Mapping[str, Any]:
        """Defaults of PPOConfig.

        Raises:
            LaunchError: The release trains with the old API stack.
        """
        if release_of(version) < (2, 40):
            raise LaunchError(f"ray {version} trains PPO with the old API stack, which is not read; 2.40 and later are")
        return DEFAULTS

    def read(self, request: Request) -> Reading:
        """The Schedule; see the module for its sources."""
        reads = _Reads(request.settings)
        learners = max(reads.count("num_learners", least=0), 1)
        per_learner = reads.optional_count("train_batch_size_per_learner") or reads.count("train_batch_size")
        size, epochs = reads.count("minibatch_size"), reads.count("num_epochs")
        if size > per_learner:
            raise PlanError(
                f"`minibatch_size` ({size}) must be <= `train_batch_size_per_learner` ({per_learner}). In PPO, the train batch will be "
                f"split into {size} chunks, each of which is iterated over (used for updating the policy) {epochs} times.",
                when="when the algorithm is built",
                fix=f"minibatch_size = {per_learner} or less",
                source=f"{_PPO} validate",
            )
        runners, each = reads.count("num_env_runners", least=0), reads.count("num_envs_per_env_runner")
        complete = reads.text("batch_mode") == "complete_episodes"
        samples = _timesteps(reads, per_learner * learners, runners, each)
        environments = max(runners, 1) * each
        updates = updates_wrapping(per_learner, size, epochs)
        written = {
            "train_batch_size_per_learner": per_learner,
            "minibatch_size": size,
            "num_epochs": epochs,
            "num_env_runners": runners,
            "num_envs_per_env_runner": each,
            "num_learners": learners,
        }
        schedule = schedule_in_phases(
            framework=self.title,
            version=request.version,
            algorithm="PPO",
            passes=_passes(reads),
            prompts_per_rollout=environments,
            samples_per_prompt=-(-samples // environments),
            samples_per_rollout=samples,
            minibatches=(),
            world_size=learners,
            reuse_epochs=epochs,
            microbatches_per_update=1,
            updates_per_rollout=Fraction(updates),
            updates_bound="data_dependent",
            remainder="wrap",
            old_logprob_source="at_rollout",
            lr_clock="rollout",
            step_unit="rollout",
            step_means=f"1 training_iteration = 1 rollout = {updates} updates; num_env_steps_sampled_lifetime grows by {samples}",
            settings=written,
            formulas=FORMULAS,
        )
        return Reading(
            schedule=msgspec.structs.replace(schedule, samples_per_update=size * learners),
            formulas=FORMULAS,
            notes=tuple(_notes(per_learner, size, epochs, environments, samples, per_learner * learners, complete)),
            facts={
                "lr_constant": reads.constant_rate(),
                "nominal_updates_per_rollout": epochs * Fraction(per_learner, size),
            },
        )


class _Reads:
    """Reads under the names that a setting has as a flag, in a call, and had before."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings

    def _names(self, key: str) -> tuple[str, ...]:
        keys = (key, *OLD_NAMES.get(key, ()))
        called = (f"{call}.{name}" for call in _CALLS for name in keys)
        return (*keys, *called)

    def count(self, key: str, *, least: int = 1) -> int:
        return self._settings.count(*self._names(key), least=least)

    def optional_count(self, key: str) -> int | None:
        return self._settings.optional_count(*self._names(key))

    def text(self, key: str) -> str | None:
        return self._settings.text(*self._names(key))

    def limit(self, *names: str) -> int | None:
        return self._settings.optional_count(*names)

    def constant_rate(self) -> bool:
        """Whether `lr` is one number rather than a schedule."""
        return not isinstance(self._settings.value(*self._names("lr")), list)


def _timesteps(reads: _Reads, wanted: int, runners: int, each: int) -> int:
    """Timesteps of one rollout.

    "auto" shares them among the environments and gives one more to each environment of the first runners, until at least those asked
    for are there. A fragment of a given length is repeated until they are.

    Raises:
        PlanError: They would be more than 10 % away from those asked for.
    """
    fragment = reads.text("rollout_fragment_length")
    environments = max(runners, 1) * each
    if fragment == "auto":
        short = wanted % environments
        return wanted - short + -(-short // each) * each if short else wanted
    length = reads.count("rollout_fragment_length")
    least = environments * length
    collected = -(-wanted // least) * least
    if collected - wanted > 0.1 * wanted:
        raise PlanError(
            f"Your desired `total_train_batch_size` ({wanted}) or a value 10% off of that cannot be achieved with your other settings "
            f"(num_env_runners={runners}; num_envs_per_env_runner={each}; rollout_fragment_length={length})!",
            when="when the algorithm is built",
            fix=f"rollout_fragment_length = 'auto' or {max(wanted // environments, 1)}",
            source=f"{_CONFIG} validate_train_batch_size_vs_rollout_fragment_length",
        )
    return collected


def _passes(reads: _Reads) -> Passes:
    """The run's length, where a stop criterion says it."""
    iterations = reads.limit("stop_iters", "stop.training_iteration")
    passes = Passes.without_rows(iterations)
    if iterations is None:
        why = "the launch names no number of training iterations (--stop-iters)"
        return msgspec.structs.replace(
            passes, unknown={**passes.unknown, **dict.fromkeys(("rollouts", "updates", "lr_ticks"), why)}
        )
    return passes


def _notes(
    per_learner: int, size: int, epochs: int, environments: int, samples: int, wanted: int, complete: bool
) -> list[Note]:
    least = updates_wrapping(per_learner + 1, size, epochs)
    notes = [
        Note(
            "grows",
            "each piece of an episode gets one timestep more before it is cut into mini-batches, so that there are at least "
            f"{least} updates for each rollout, and more with short episodes",
        )
    ]
    if per_learner * epochs % size:
        notes.append(
            Note(
                "pads",
                f"the last mini-batch of a rollout is filled up with {size - per_learner * epochs % size} timesteps from its beginning",
            )
        )
    if per_learner % size:
        notes.append(Note("carries", "mini-batches run on over the ends of passes: none is short"))
    if samples != wanted:
        notes.append(
            Note(
                "grows",
                f"{samples} timesteps are collected for each rollout, not {wanted}: {environments} environments share them",
            )
        )
    if complete:
        notes.append(
            Note("assumes", "complete_episodes: a rollout ends with its episodes, so it has more timesteps than this")
        )
    return notes


READER = RLlib()
