"""OpenRLHF's known deviations, as data. Lines are those of OpenRLHF 0.11.2 unless another release is named.

The Schedule already says what the code does. So these explain findings of plans that were made without them, or of plans that show
the loss themselves (a learning-rate schedule of another length).
"""

from __future__ import annotations

from packaging.version import InvalidVersion, Version

from rlstep_hooks.judge.deviations import Deviation, Evidence
from rlstep_hooks.systems.deepspeed_engine import faults

_ORDER = frozenset({"RLS201", "RLS202", "RLS203", "RLS204", "RLS206", "RLS207", "RLS208"})

LOSES_SINCE = "0.17.6"
"""First release of DeepSpeed in which a backward pass at a boundary forgets those before it (ZeRO-1 and 2)."""


def _last_microbatch_alone(evidence: Evidence) -> bool:
    started = evidence.progress.started
    try:
        release = Version(started.versions.get("deepspeed", ""))
    except InvalidVersion:
        return False
    others = {"ZeRO-0", "ZeRO-3"}.intersection(started.facts.get("deployment", ()))
    return release >= Version(LOSES_SINCE) and not others


def _fills_no_update(evidence: Evidence) -> bool:
    """Whether samples are those that fill no update, of which RLS502 warns; that others are not trained is an error."""
    return evidence.finding.severity == "warning"


def _is_the_average_in_zero_3(evidence: Evidence) -> bool:
    deployment = evidence.progress.started.facts.get("deployment", ())
    return "moving average" in evidence.finding.observed and "ZeRO-3" in deployment


AVERAGE = Deviation(
    name="openrlhf-average-stands-still",
    title="with ZeRO-3 the moving average of the weights stands still",
    since="0.5",
    document="train.enable_ema saves a moving average of the policy's weights",
    code=(
        "the average is written into weights that were gathered without a rank that changes them, and DeepSpeed gives these back "
        "without the change: what is saved is the model that training began with, but for small tensors that are never cut"
    ),
    evidence="utils/deepspeed/deepspeed.py:515; DeepSpeed 0.19.6 runtime/zero/partition_parameters.py:2493; measured",
    workaround="leave train.enable_ema out with ds.zero_stage 3, or train with stage 2",
    severity="error",
    codes=frozenset({"RLS703"}),
    applies=_is_the_average_in_zero_3,
)

DEVIATIONS: tuple[Deviation, ...] = (
    *faults.DEVIATIONS,
    Deviation(
        name="openrlhf-freezes-one-more",
        title="freezing_steps N freezes N + 1 rollouts",
        since="0.9.1",
        document='critic.freezing_steps: "Freeze the actor for the first N steps to let the critic warm up"',
        code="the policy is trained if step > N, and steps are counted from 0: N + 1 rollouts are frozen, with N = 0 still one",
        evidence="trainer/ppo_trainer.py:272; measured: N = 1 gives 0, 0, 6, 2 updates. 0.9.0 and before count from 1",
        workaround="set critic.freezing_steps to one less than the rollouts that you mean",
        codes=_ORDER,
        when="critic.freezing_steps is not None and critic.freezing_steps >= 0 and frozen_rollouts == critic.freezing_steps",
    ),
    Deviation(
        name="openrlhf-frozen-samples-kept",
        title="the first update phase trains all frozen rollouts at once",
        since="0.7.1",
        document="frozen rollouts train the critic only",
        code=(
            "their samples are also put into the policy's buffer, which only its own training clears: the first rollout that is "
            "not frozen is trained together with all those before it, whose samples are as old as the run"
        ),
        evidence="trainer/ppo_trainer.py:233 append, trainer/ray/ppo_actor.py fit; measured: 48 samples, 6 updates instead of 2 after "
        "two frozen rollouts",
        workaround="keep freezing_steps small, or warm the critic up in a run of its own",
        codes=_ORDER | {"RLS304"},
        when="frozen_rollouts > 0 and not frozen_samples_kept",
    ),
    Deviation(
        name="openrlhf-accumulation-carried",
        title="gradients that do not fill an update are carried into the next rollout",
        since="0.5",
        document="a rollout makes rollout.batch_size * n_samples_per_prompt * max_epochs / train.batch_size updates",
        code=(
            "DeepSpeed counts micro-batches through passes and rollouts: where the division has a remainder, gradients of old weights "
            "and old samples are applied in the next rollout; those left at the end of the run are never applied"
        ),
        evidence="utils/deepspeed/deepspeed.py:110-116, trainer/ray/ppo_actor.py:163-190; measured: 1, 1, 2, 1 updates of 12 "
        "samples on rollouts of 16",
        workaround="choose train.batch_size as a divisor of rollout.batch_size * n_samples_per_prompt, and rows as a multiple of "
        "rollout.batch_size",
        codes=_ORDER,
        when="remainder != 'carry' and not train.dynamic_batch_enable",
    ),
    Deviation(
        name="openrlhf-horizon-rounded",
        title="the learning-rate schedule is rounded to whole updates in each pass",
        since="0.5",
        document="max_steps is the number of updates",
        code=(
            "max_steps = rows * n_samples_per_prompt // train.batch_size * num_episodes * max_epochs: the remainder of a pass counts "
            "for the updates and not for the schedule, so they differ by less than one update a pass"
        ),
        evidence="trainer/ppo_trainer.py:72-78; measured: 12 planned and 13 made with 6 1/2 updates in each of two passes",
        workaround="nothing to mend; both are equal if the sizes divide each other",
        severity="info",
        codes=frozenset({"RLS601"}),
        when="lr_horizon is not None and lr_ticks is not None and max(lr_horizon - lr_ticks, lr_ticks - lr_horizon) "
        "<= max((train.num_episodes or 1) * (train.max_epochs or 1) - 1, 1)",
    ),
    Deviation(
        name="openrlhf-horizon-of-nominal-updates",
        title="the learning-rate schedule counts updates that are not made",
        since="0.5",
        document="max_steps is the number of updates",
        code=(
            "max_steps = rows * n_samples_per_prompt // train.batch_size * num_episodes * max_epochs, whatever freezing, filtering, "
            "dropped rows and carried gradients change: the learning rate does not reach its end, or stays there"
        ),
        evidence="trainer/ppo_trainer.py:72-78; measured: 8 planned and 6 made with dynamic filtering",
        workaround="choose sizes that divide each other, or a constant learning rate",
        severity="warning",
        codes=frozenset({"RLS601"}),
        when="lr_horizon is not None and lr_ticks != lr_horizon",
    ),
    AVERAGE,
    Deviation(
        name="openrlhf-small-generate-batch",
        title="a generate batch below the rollout batch shrinks every rollout",
        since="0.10",
        document="rollout.vllm_generate_batch_size is the batch size of generation, rollout.batch_size that of a rollout",
        code="only one generate batch is made for a rollout, which then has that many prompts",
        evidence="trainer/ppo_utils/samples_generator.py:96-131; measured: 4 of 8 prompts, twice the rollouts",
        workaround="leave vllm_generate_batch_size out",
        codes=_ORDER,
        when="rollout.vllm_generate_batch_size and rollout.vllm_generate_batch_size < (rollout.batch_size or 0) "
        "and rollout.batch_size == prompts_per_rollout",
    ),
    Deviation(
        name="openrlhf-last-rollout-wasted",
        title="the last rollout of an episode is generated and thrown away",
        since="0.9.9",
        fixed_in="0.11",
        document="a partial batch is still processed (`_collect_prompt_batch`)",
        code=(
            "the synchronous trainer leaves its loop as soon as the loader is exhausted: rows that do not fill a rollout are "
            "generated and rewarded, but never trained"
        ),
        evidence="trainer/ppo_utils/samples_generator.py 0.9.9:129, trainer/ppo_trainer.py 0.10.4:322-323",
        workaround="choose rows as a multiple of rollout.batch_size (data.max_samples), or use 0.11 or later",
        codes=_ORDER | {"RLS501"},
        when="rows_dropped_per_epoch",
    ),
    Deviation(
        name="openrlhf-oversampling-never-ends",
        title="over-sampling can repeat an episode for ever",
        since="0.10",
        fixed_in="0.11.1",
        document="an episode is one pass over the rows",
        code=(
            "with samples left in the buffer when the loader is exhausted, the generator starts the loader anew and empties the "
            "buffer, so that the episode does not end"
        ),
        evidence="trainer/ppo_utils/samples_generator.py 0.11.0:96, corrected in 0.11.1",
        workaround="leave vllm_generate_batch_size out, or use 0.11.1 or later",
        codes=_ORDER | {"RLS503"},
        when="(rollout.vllm_generate_batch_size or 0) > (rollout.batch_size or 0)",
    ),
    Deviation(
        name="openrlhf-dynamic-batch-trains-frozen-samples-only",
        title="with dynamic batches the first update phase trains the oldest samples only",
        since="0.8.6",
        document="the first rollout that is not frozen is trained",
        code=(
            "the buffer still holds the frozen rollouts, in front, and dynamic batches make no more updates than one rollout has: the "
            "samples just generated are dropped"
        ),
        evidence="trainer/ppo_utils/replay_buffer.py:100-108",
        workaround="leave critic.freezing_steps out with dynamic batches",
        codes=_ORDER | {"RLS304"},
        when="train.dynamic_batch_enable and frozen_rollouts > 0",
    ),
    Deviation(
        name="openrlhf-dynamic-batch-drops-the-rest",
        title="with dynamic batches samples that do not fill an update are never trained",
        since="0.8.6",
        document="each sample of a rollout is trained train.max_epochs times",
        code=(
            "setup_dynamic_batch (trainer/ppo_utils/replay_buffer.py) makes len(samples) // train.batch_size updates, and no "
            "micro-batch has one of the samples behind them; the buffer is then cleared, without a message. Without dynamic batches "
            "their gradients go into the next update"
        ),
        evidence=(
            "trainer/ppo_utils/replay_buffer.py:91-117, trainer/ray/ppo_actor.py:155; measured with dynamic filtering: of a rollout of "
            "14 samples one update of 8 is made, and 6 samples are never trained. 0.9.10 and before count the updates of a whole "
            "rollout, and drop what does not fill those"
        ),
        workaround=(
            "choose train.batch_size as a divisor of n_samples_per_prompt, which every rollout fills, or as small as can be; or leave "
            "train.dynamic_batch_enable out"
        ),
        severity="warning",
        codes=frozenset({"RLS502"}),
        when="train.dynamic_batch_enable",
        applies=_fills_no_update,
    ),
    Deviation(
        name="openrlhf-dynamic-batch-keeps-the-last-micro-batch",
        title="with dynamic batches and ZeRO-1 or 2 an update is made of its last micro-batch alone",
        since="0.8.6",
        document="the gradients of all micro-batches of an update are added up",
        code=(
            "the engine is configured with gradient_accumulation_steps 1 and stepped once for several backward passes: each of them is "
            "at DeepSpeed's boundary, which puts the gradients of this pass alone in the place of those before it. The loss is divided "
            "by the tokens of all, so gradients are smaller too"
        ),
        evidence=(
            "utils/deepspeed/deepspeed.py:453, trainer/ray/ppo_actor.py:357, ppo_critic.py; DeepSpeed runtime/zero/stage_1_and_2.py "
            "`independent_gradient_partition_epilogue` 0.17.6, 0.18.3, 0.18.9 and 0.19.6, otherwise in 0.17.5; measured with 0.11.2 "
            "and DeepSpeed 0.19.6, which it requires: ZeRO-1, ZeRO-2 and ZeRO-2 with an offloaded optimizer lose them, ZeRO-3 does not"
        ),
        workaround="use ds.zero_stage 3, or leave train.dynamic_batch_enable out",
        codes=frozenset({"RLS810", "RLS811"}),
        when="train.dynamic_batch_enable",
        applies=_last_microbatch_alone,
    ),
)


def known_before(version: str, *, stage: int, averages: bool) -> list[dict[str, str]]:
    """What rule RLS119 is told of a release of OpenRLHF before anything is trained.

    Args:
        version: The release.
        stage: The stage of ZeRO.
        averages: Whether averaged weights are configured.
    """
    if stage != 3 or not averages or not AVERAGE.concerns(version):
        return []
    return [
        {
            "release": f"OpenRLHF {version}",
            "name": AVERAGE.name,
            "title": AVERAGE.title,
            "document": AVERAGE.document,
            "code": AVERAGE.code,
            "workaround": AVERAGE.workaround,
        }
    ]
