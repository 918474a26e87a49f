"""The Tinker cookbook's RL loop (`tinker_cookbook.rl.train`): samples, forward_backward and optim_step on a service that trains.

Read in the wheels of tinker-cookbook 0.6.1 and tinker 0.38.0: tinker_cookbook/rl/train.py (`train_step`, `do_sync_training`,
`do_sync_training_with_stream_minibatch`, `do_async_training`), rl/data_processing.py (`compute_advantages`), utils/misc_utils.py
(`split_list`), recipes/math_rl/train.py, recipes/rl_basic.py; tinker/lib/public_interfaces/training_client.py. Losses:
https://tinker-docs.thinkingmachines.ai/tinker/losses.
"""

from __future__ import annotations

import itertools

from rlstep_hooks.planning.counting import countable
from rlstep_hooks.systems.engine.declaration import Check, Entry, Formula, Note, System, count
from rlstep_hooks.systems.engine.links import no, none, yes

_TRAIN = "tinker-cookbook {version} tinker_cookbook/rl/train.py"


def split(samples: int, parts: int) -> tuple[int, ...]:
    """Sizes of the parts into which `split_list` cuts a rollout, in the floating-point numbers of its `numpy.linspace`."""
    edges = [*(int(part * (samples / parts)) for part in range(countable(parts, "updates on one rollout"))), samples]
    return tuple(end - begin for begin, end in itertools.pairwise(edges))


SYSTEM = System(
    name="tinker",
    title="Tinker cookbook",
    version="0.6.1",
    releases=("0.6.1", "0.7"),
    observed_releases=("0.6.1", "0.7"),
    trained_releases=("0.6.1",),
    package="tinker-cookbook",
    # The one recipe whose defaults were read: others have sizes of their own, and some train by supervision.
    recognised=(Entry("tinker", programs=("module:tinker_cookbook.recipes.math_rl.train",)),),
    overrides=True,
    settings={
        "groups_per_batch": count(100, also=("batch_size", "dataset_builder.batch_size")),
        "group_size": count(4, also=("dataset_builder.group_size",)),
        "num_substeps": count(1),
        "max_steps": count(None),
        "num_epochs": count(1),
        "max_steps_off_policy": count(None, least=0, also=("async_config.max_steps_off_policy",)),
        "stream_minibatch_config.num_minibatches": count(None),
        "save_every": count(20, least=0),
        "eval_every": count(20, least=0),
    },
    functions={"split": split},
    let={
        "prompts_per_rollout": "groups_per_batch",
        "samples_per_prompt": "group_size",
        "asynchronous": "max_steps_off_policy is not None",
        "minibatches": "split(samples_per_rollout, updates_per_rollout)",
        "microbatches_per_update": "stream_minibatch_config.num_minibatches or 1",
        "batches": "floor(rows / groups_per_batch)",
        "max_age": "unknown('no group is discarded for being stale, so the age of a slow one has no bound') if asynchronous else 0",
        "max_age_updates": "unknown('no group is discarded for being stale, so the age of a slow one has no bound') "
        "if asynchronous else 0",
    },
    always={
        "algorithm": "policy gradient",
        "loader": "drops",
        "remainder": "spread",
        "old_logprob_source": "engine",
        "lr_clock": "update",
        "step_unit": "rollout",
        "syncs": "first_and_after_updates",
        "step_means": "1 step = 1 rollout = {updates_per_rollout} updates",
    },
    formulas=(
        Formula("samples_per_rollout", "groups_per_batch * group_size", f"{_TRAIN} do_sync_training (get_batch)"),
        Formula(
            "updates_per_rollout",
            "min(num_substeps, samples_per_rollout)",
            f"{_TRAIN} train_step (split_list)",
        ),
        Formula(
            "samples_per_update",
            "ceil(samples_per_rollout / updates_per_rollout)",
            f"{_TRAIN} train_step (split_list; the largest)",
        ),
        Formula("rollouts", "limited(num_epochs * batches, max_steps)", f"{_TRAIN} _resolve_end_batch"),
        Formula("lr_ticks", "updates", f"{_TRAIN} train_step (AdamParams; the rate is constant)"),
        Formula(
            "rows_reshuffled", "unknown('the data set of the recipe decides it')", f"{_TRAIN} main (dataset_builder)"
        ),
        Formula("rollouts_per_epoch", "batches", f"{_TRAIN} main (len(dataset))"),
    ),
    checks=(
        Check(
            "given(stream_minibatch_config.num_minibatches) == False or groups_per_batch % num_substeps == 0",
            "config.stream_minibatch_config.groups_per_batch={groups_per_batch} must be divisible by "
            "config.num_substeps={num_substeps}",
            fix="num_substeps = {multiples(groups_per_batch, num_substeps)}",
            when="in the first step",
            source=f"{_TRAIN} do_train_step_streaming_and_get_sampling_client",
        ),
    ),
    notes=(
        Note(
            "unit",
            "num_substeps is the number of updates of a rollout; each is one forward_backward and one optim_step",
        ),
        Note(
            "assumes",
            "each sample is one datum: an episode whose turns do not continue each other is several",
        ),
        Note(
            "carries",
            "with max_steps_off_policy = {max_steps_off_policy} no group is discarded for being stale: a slow one is trained when it "
            "is finished",
            "asynchronous",
        ),
    ),
    facts={"lr_constant": "True", "save_every": "save_every or None", "eval_every": "eval_every or None"},
    attaches_by="`rlstep run -- python -m tinker_cookbook.recipes...` for a program that never heard of this package; for a loop of "
    "your own over the client (tinker 0.38) the same, or `with StepAuditTinker(client, schedule):` around it, which knows its plan.",
    on_import={
        "tinker.lib.public_interfaces.training_client": "rlstep_hooks.systems.tinker.observe.loops:observe_training",
        "tinker.lib.public_interfaces.sampling_client": "rlstep_hooks.systems.tinker.observe.boundary:observe_sampling",
        "tinker.lib.public_interfaces.service_client": "rlstep_hooks.systems.tinker.observe.boundary:observe_service",
        "tinker_cookbook.rl.train": "rlstep_hooks.systems.tinker.observe.injection:audit_loop",
    },
    observes=(
        "samples with their log-probs and the weights of their sampler",
        "forward_backward: data, loss, and the log-probs that come back",
        "optim_step: the rate and the other parameters of Adam",
        "weights that samplers get",
        "rewards and advantages of the cookbook's loop",
        "loops of one's own over the client: what they send and get, and their order, age and sizes where they say their plan",
    ),
    does_not_observe=(
        "gradients, weights and the optimizer's moments, which the service keeps",
        "samples that other processes draw (rollout_executor)",
        "asynchronous training, streamed mini-batches of the cookbook",
        "rewards, groups and the formula of the advantages of a loop of one's own",
    ),
    links={
        "settings in force": yes("loss, its configuration, and Adam's parameters of each call"),
        "completions": no("the service draws them, and returns no distribution"),
        "completions on the way": yes("tokens of prompt and completion, from the sampler's answer to forward_backward"),
        "rewards on the way": yes("from the end of an episode to the advantages", "not in a loop of one's own"),
        "advantages": yes(
            "rewards minus the mean of their group, and the KL penalty of kl_penalty_coef from what its reference says, in float64",
            "not in a loop of one's own, whose rewards nobody sees",
        ),
        "advantages on the way": yes("from the prepared data to forward_backward", "not in a loop of one's own"),
        "mask": yes("tokens that were not drawn have no advantage"),
        "mask on the way": no("the service gets no mask: advantages of 0 stand for it"),
        "loss": yes(
            "importance_sampling, ppo, cispo, dro with its beta, and cross_entropy, from the log-probs that came back",
            "not gspo, stable_reinforce, nor losses of one's own",
        ),
        "backward": no("the service keeps gradients to itself"),
        "gradients cleared": no("the service keeps gradients to itself"),
        "gradients on the way": no("the service keeps gradients to itself"),
        "reduction": no("the service keeps gradients to itself"),
        "gradient norm": no("the service clips where grad_clip_norm is sent, and shows no gradient"),
        "optimizer step": no("the service keeps weights to itself"),
        "optimizer moments": no("the service keeps the optimizer to itself"),
        "learning rate": yes(
            "that of each optim_step against the configuration, or against StepAuditTinker(learning_rate=...)",
            "not in a loop of one's own that does not say it",
        ),
        "reference": no("its log-probs come from a sampler whose weights are not seen"),
        "reference on the way": no("its log-probs go into the advantages, which are compared"),
        "sampler": yes(
            "the weights that each sample's sampler was made from, its settings, and its log-probs beside those of "
            "forward_backward at the same weights",
            "not its weights",
        ),
        "weights between updates": no("the service keeps weights to itself"),
        "replicas": none("one client"),
    },
    rules={
        "RLS101": yes(
            "loss, its configuration, and Adam's parameters of each call", "in a loop of one's own those that it says"
        ),
        "RLS305": yes(
            "old log-probs of the tokens that count, bit for bit, with those of the sampler, or those that the service was asked for",
            "in a loop of one's own without a plan only where they are 0, shifted, or those of another sample",
            often="compared",
        ),
        "RLS306": yes(
            "tokens of prompt and completion, from the sampler's answer to forward_backward",
            "in a loop of one's own, which gives data no provenance, those of rows that some sample is recognised in",
            often="compared",
        ),
        "RLS402": yes(
            "the version of the weights that each sampler was made from",
            "in a loop of one's own where it says its plan; not of samplers that were made before the audit",
        ),
        "RLS403": yes(
            "the sampler's log-probs beside those of forward_backward at the same weights",
            "only at temperature 1",
            often="compared",
        ),
        "RLS410": yes("temperature, top_p and top_k of each sample", "in a loop of one's own those that it says"),
        "RLS801": yes(
            "importance_sampling, ppo, cispo, dro with its beta, and cross_entropy, from the log-probs that came back",
            "not gspo, stable_reinforce, nor losses of one's own",
            often="compared",
        ),
    },
    knobs={
        "learning_rate": "learning_rate",
        "updates": "num_substeps",
        "group": "group_size",
        "temperature": "temperature",
        "length": "max_steps",
        "age": "max_steps_off_policy",
    },
)
