"""RLlib's PPO (new API stack): mini-batches run on over the ends of passes, so only the number for all passes together is rounded up.

Read in the wheel of ray 2.60.0: rllib/algorithms/ppo/ppo.py, rllib/algorithms/algorithm_config.py (`get_rollout_fragment_length`,
`validate_train_batch_size_vs_rollout_fragment_length`), rllib/utils/minibatch_utils.py `MiniBatchCyclicIterator`,
rllib/execution/rollout_ops.py `synchronous_parallel_sample`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from rlstep_hooks.launch.text import SettingError
from rlstep_hooks.planning.minibatches import updates_wrapping
from rlstep_hooks.systems.engine.declaration import Check, Demand, Entry, Formula, Note, System, count, text
from rlstep_hooks.systems.engine.links import no, none, yes

if TYPE_CHECKING:
    from rlstep_hooks.systems.engine.request import Request

_CONFIG = "ray 2.60.0 rllib/algorithms/algorithm_config.py"
_PPO = "ray 2.60.0 rllib/algorithms/ppo/ppo.py"
_MINIBATCHES = "ray 2.60.0 rllib/utils/minibatch_utils.py MiniBatchCyclicIterator"

_CALLS = ("training", "env_runners", "learners", "rollouts", "resources")
"""Methods of AlgorithmConfig that take these settings."""


def _formerly(*names: str) -> tuple[str, ...]:
    """Earlier names of a setting, as flags and in the methods of AlgorithmConfig."""
    return (*names, *(f"{call}.{name}" for call in _CALLS for name in names))


def _constant_rate(launch: Request) -> bool:
    """Whether `lr` is one number rather than a schedule."""
    given = launch.settings.given("lr", *(f"{call}.lr" for call in _CALLS))
    return given is None or not isinstance(given.value, list)


def _fragment(written: str) -> int | None:
    """The length of a fragment; None for "auto"."""
    if written == "auto":
        return None
    if not written.isdigit() or int(written) == 0:
        raise SettingError(f"rollout_fragment_length = {written!r} is neither 'auto' nor a whole number of at least 1")
    return int(written)


SYSTEM = System(
    name="rllib",
    title="RLlib",
    version="2.60.0",
    recognised=(
        Entry(
            "rllib",
            keys=("training.train_batch_size_per_learner", "training.num_sgd_iter", "train_batch_size_per_learner"),
            calls=("AlgorithmConfig",),
            packages=("ray",),
        ),
        # Configuration files of others have a `training:` with these.
        Entry("rllib", keys=("training.minibatch_size", "training.num_epochs"), beside="ray"),
    ),
    keywords_of=_CALLS,
    settings={
        "train_batch_size": count(4000),
        "train_batch_size_per_learner": count(None),
        "minibatch_size": count(128, also=_formerly("sgd_minibatch_size")),
        "num_epochs": count(30, also=_formerly("num_sgd_iter")),
        "num_env_runners": count(2, least=0, also=_formerly("num_rollout_workers", "num_workers")),
        "num_envs_per_env_runner": count(1, also=_formerly("num_envs_per_worker")),
        "rollout_fragment_length": text("auto"),
        "batch_mode": text("truncate_episodes"),
        "num_learners": count(0, least=0, also=_formerly("num_learner_workers")),
        "stop_iters": count(also=("stop.training_iteration",)),
    },
    shown=(
        "train_batch_size_per_learner",
        "minibatch_size",
        "num_epochs",
        "num_env_runners",
        "num_envs_per_env_runner",
        "learners",
    ),
    functions={"updates_wrapping": updates_wrapping, "constant_rate": _constant_rate, "fragment_of": _fragment},
    let={
        "learners": "max(num_learners, 1)",
        "world_size": "learners",
        "per_learner": "train_batch_size_per_learner or train_batch_size",
        "wanted": "per_learner * learners",
        "environments": "max(num_env_runners, 1) * num_envs_per_env_runner",
        "short": "wanted % environments",
        "fragment": "fragment_of(rollout_fragment_length)",
        "prompts_per_rollout": "environments",
        "samples_per_prompt": "ceil(samples_per_rollout / environments)",
        "minibatches": "()",
        "reuse_epochs": "num_epochs",
        "rollouts": "stop_iters or unknown('the launch names no number of training iterations (--stop-iters)')",
        "updates": "rollouts * updates_per_rollout",
        "lr_ticks": "rollouts",
        "filled_up": "-(per_learner * num_epochs) % minibatch_size",
    },
    always={
        "algorithm": "PPO",
        "loader": "none",
        "microbatches_per_update": 1,
        "updates_bound": "data_dependent",
        "remainder": "wrap",
        "old_logprob_source": "at_rollout",
        "lr_clock": "rollout",
        "step_unit": "rollout",
        "step_means": "1 training_iteration = 1 rollout = {updates_per_rollout} updates; num_env_steps_sampled_lifetime grows by "
        "{samples_per_rollout}",
    },
    formulas=(
        Formula(
            "samples_per_rollout",
            "wanted - short + (ceil(short / num_envs_per_env_runner) * num_envs_per_env_runner if short else 0)",
            f"{_CONFIG} get_rollout_fragment_length",
            where="fragment is None",
        ),
        Formula(
            "samples_per_rollout",
            "ceil(wanted / (environments * fragment)) * environments * fragment",
            "ray 2.60.0 rllib/execution/rollout_ops.py synchronous_parallel_sample",
        ),
        Formula("updates_per_rollout", "ceil(num_epochs * per_learner / minibatch_size)", _MINIBATCHES),
        Formula("samples_per_update", "minibatch_size * learners", _PPO),
    ),
    checks=(
        Demand(
            "release >= (2, 40)",
            "ray {version} trains PPO with the old API stack, which is not read; 2.40 and later are",
        ),
        Check(
            "minibatch_size <= per_learner",
            "`minibatch_size` ({minibatch_size}) must be <= `train_batch_size_per_learner` ({per_learner}). In PPO, the train "
            "batch will be split into {minibatch_size} chunks, each of which is iterated over (used for updating the policy) "
            "{num_epochs} times.",
            fix="minibatch_size = {per_learner} or less",
            when="when the algorithm is built",
            source=f"{_PPO} validate",
        ),
        Check(
            "10 * (samples_per_rollout - wanted) <= wanted",
            "Your desired `total_train_batch_size` ({wanted}) or a value 10% off of that cannot be achieved with your other settings "
            "(num_env_runners={num_env_runners}; num_envs_per_env_runner={num_envs_per_env_runner}; "
            "rollout_fragment_length={fragment})!",
            fix="rollout_fragment_length = 'auto' or {max(wanted // environments, 1)}",
            when="when the algorithm is built",
            source=f"{_CONFIG} validate_train_batch_size_vs_rollout_fragment_length",
            where="fragment is not None",
        ),
    ),
    notes=(
        Note(
            "grows",
            "each piece of an episode gets one timestep more before it is cut into mini-batches, so that there are at least "
            "{updates_wrapping(per_learner + 1, minibatch_size, num_epochs)} updates for each rollout, and more with short episodes",
        ),
        Note(
            "pads",
            "the last mini-batch of a rollout is filled up with {filled_up} timesteps from its beginning",
            "filled_up",
        ),
        Note("carries", "mini-batches run on over the ends of passes: none is short", "per_learner % minibatch_size"),
        Note(
            "grows",
            "{samples_per_rollout} timesteps are collected for each rollout, not {wanted}: {environments} environments share them",
            "samples_per_rollout != wanted",
        ),
        Note(
            "assumes",
            "complete_episodes: a rollout ends with its episodes, so it has more timesteps than this",
            "batch_mode == 'complete_episodes'",
        ),
    ),
    facts={
        "lr_constant": "constant_rate(launch)",
        "nominal_updates_per_rollout": "num_epochs * per_learner / minibatch_size",
    },
    package="ray",
    attaches_by="`with StepAuditRLlib(algo) as audit:` around the calls of `algo.train()`.",
    observed_releases=("2.60", "2.61"),
    trained_releases=("2.60.0",),
    observes=("rollouts", "old log-probs", "mini-batches, row by row", "updates", "syncs of weights", "learning rate"),
    links={
        "settings in force": no("every number is compared with what the configuration gives"),
        "completions": no("actions are not tested against their distributions"),
        "completions on the way": yes("observations and actions, from the train batch to the loss", often="compared"),
        "rewards on the way": yes("bit for bit, from the episodes to the train batch", often="compared"),
        "advantages": yes("GAE, targets, and how they are standardised, in float64", often="compared"),
        "advantages on the way": yes("from the train batch to the loss; targets too", often="compared"),
        "mask": no("RLlib marks the additional timesteps itself"),
        "mask on the way": no("it is a column of the train batch, and not followed"),
        "loss": yes("its value", "the KL coefficient is taken as it is in force", often="compared"),
        "backward": yes("by the gradients at the loss, and, where the loss is compared, at logits and values"),
        "gradients cleared": yes("a probe after zero_grad"),
        "gradients on the way": yes("eight tensors", "not with grad_clip_by value or norm", often="whole"),
        "reduction": no("what its learners reduce among themselves is not followed"),
        "gradient norm": yes("against grad_clip", "not with grad_clip_by value or norm", often="whole"),
        "optimizer step": yes("Adam of torch, replayed in float64", often="compared"),
        "optimizer moments": yes("between a replayed step and the next", often="compared"),
        "learning rate": yes("a number, or a schedule of timesteps and values"),
        "reference": none("there is none"),
        "reference on the way": none("there is none"),
        "sampler": yes("RLlib's number of its weights, and the ratio before the first update"),
        "weights between updates": yes("a probe between updates"),
        "replicas": no("what its learners hold is not compared with each other"),
    },
    rules={
        "RLS402": yes("by RLlib's number of the weights that sampled each timestep"),
        "RLS404": yes("the module's weights"),
        "RLS521": yes("observations and actions, from the train batch to the loss", often="compared"),
        "RLS801": yes("its value", "the KL coefficient is taken as it is in force", often="compared"),
    },
    knobs={
        "learning_rate": "lr",
        "gradient_limit": "grad_clip",
        "clip": "clip_param",
        "passes": "num_epochs",
        "updates": "minibatch_size",
        "entropy_bonus": "entropy_coeff",
        "length": "stop_iters",
    },
    does_not_observe=("old API stack", "several learners, or one on a device", "several agents", "other algorithms"),
)
