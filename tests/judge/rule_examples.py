"""For each rule a small run, or a launch, in which it finds something.

The example on a rule's page is the finding of this run or launch. `python -m tests.judge.rule_examples` writes all examples into the
docstrings of the rules; a test compares them.
"""

from __future__ import annotations

import inspect
import io
import re
from pathlib import Path
from textwrap import indent
from typing import TYPE_CHECKING, Any

import msgspec
from rich.console import Console

from rlstep_hooks.judge.judge import Judge
from rlstep_hooks.judge.ranks.random_states import compare_random_states
from rlstep_hooks.judge.ranks.reduction.outcome import Reductions
from rlstep_hooks.judge.ranks.replicas import Replicas
from rlstep_hooks.judge.ranks.token_counts import Given, TokenCounts, compare_token_counts
from rlstep_hooks.judge.rules import BY_CODE
from rlstep_hooks.judge.rules.plan_checks import check_plan
from rlstep_hooks.planning.reading import Reading
from rlstep_hooks.planning.shape import schedule_in_phases
from rlstep_hooks.record.events import (
    AdapterUsed,
    AnyEvent,
    ConfigChanged,
    Evaluated,
    FactsRead,
    Generated,
    KeysReused,
    Measured,
    MicroBatch,
    PassesEnded,
    Probe,
    Queued,
    Refresh,
    ReplicaSums,
    Rewarded,
    Rollout,
    RunEnded,
    RunStarted,
    Update,
    WeightsHeld,
    WeightsSent,
    WeightSync,
)
from rlstep_hooks.show.console import finding_lines
from rlstep_hooks.systems.deepspeed_engine.faults import concerning, told
from tests.golden.reading import planned
from tests.judge.gradients import Run as Ranks
from tests.judge.test_early_stop import Script as EarlyStops
from tests.judge.test_early_stop import plan as plan_with_early_stop
from tests.judge.test_replicas import looks
from tests.passes import passes_of
from tests.scripted import make_plan, scripted_run
from tests.scripted_phases import Live, PhaseCase, composed, phase_plan, scripted_phases

if TYPE_CHECKING:
    from collections.abc import Callable

    from rlstep_hooks.judge.rules.base import Rule
    from rlstep_hooks.planning.finding import Finding
    from tests.scripted_phases import Script

WIDTH = 76
"""Columns of an example: with its indentation it fits a terminal of 80."""

# Runs


def run(*, rows: int | None = 36, max_steps: int = 8, iterations: int = 2, **settings: Any) -> list[AnyEvent]:
    """A healthy run in the order of TRL: each rollout is trained in two passes of one update, each of two micro-batches."""
    return scripted_run(make_plan(rows=rows, max_steps=max_steps, iterations=iterations, **settings))


def without(events: list[AnyEvent], kind: type, *numbers: int) -> list[AnyEvent]:
    """A run in which these events of a kind did not happen, counted from 0."""
    own = [event for event in events if isinstance(event, kind)]
    left_out = [own[number] for number in numbers]
    return [event for event in events if not any(event is gone for gone in left_out)]


def after(events: list[AnyEvent], kind: type, number: int, *more: AnyEvent) -> list[AnyEvent]:
    """A run in which something more happened after an event of a kind, counted from 0."""
    place = [i for i, event in enumerate(events) if isinstance(event, kind)][number] + 1
    return [*events[:place], *more, *events[place:]]


def before(events: list[AnyEvent], kind: type, number: int) -> list[AnyEvent]:
    """The beginning of a run, up to an event of a kind, counted from 0."""
    place = [i for i, event in enumerate(events) if isinstance(event, kind)][number]
    return events[:place]


def changed(events: list[AnyEvent], kind: type, *numbers: int, **fields: Any) -> list[AnyEvent]:
    """A run in which these events of a kind have other fields; all events of the kind, if no number is given."""
    own = [event for event in events if isinstance(event, kind)]
    chosen = [own[number] for number in numbers] if numbers else own
    return [
        msgspec.structs.replace(event, **fields) if any(event is one for one in chosen) else event for event in events
    ]


def measured(events: list[AnyEvent], kind: str, *numbers: int, **fields: Any) -> list[AnyEvent]:
    """A run with other numbers from the device, for these rollouts, micro-batches or updates, or for all of them."""
    found = []
    for event in events:
        if isinstance(event, Measured):
            values = [
                msgspec.structs.replace(one, **fields) if not numbers or one.index in numbers else one
                for one in getattr(event, kind)
            ]
            event = msgspec.structs.replace(event, **{kind: tuple(values)})
        found.append(event)
    return found


def with_facts(events: list[AnyEvent], **facts: Any) -> list[AnyEvent]:
    """A run whose observer read these facts from the live trainer."""
    return [
        msgspec.structs.replace(event, facts=event.facts | facts) if isinstance(event, RunStarted) else event
        for event in events
    ]


def in_phases(**fields: Any) -> Script:
    """What the processes of a healthy run record in the order of verl and OpenRLHF."""
    return scripted_phases(PhaseCase(schedule=phase_plan(**fields)))


def with_critic() -> list[AnyEvent]:
    """A healthy run with a critic, which makes one update on each rollout before the policy's two."""
    return composed(in_phases(critic=phase_plan(minibatches=(8,), microbatch=4)))


def judged(events: list[AnyEvent]) -> list[Finding]:
    """What is found in the record of one process."""
    judge = Judge()
    for event in events:
        judge.observe(event)
    return list(judge.report().findings)


def played(script: Script) -> list[Finding]:
    """What is found in the records of a controller and its trainers."""
    return list(Live().play(script).run.report().findings)


def joined(run: Ranks) -> list[Finding]:
    """What is found in the gradients that the ranks of a run recorded."""
    found = Reductions(run.ranks)
    for parts in run.updates(2):
        found.add(parts)
    return found.findings


def held_by(*all_looks: list[ReplicaSums]) -> list[Finding]:
    """What is found in what the ranks of a run held."""
    joined = Replicas()
    for of in all_looks:
        joined.add(of)
    return joined.findings


# Plans


def launched(command: str, *, rows: int | None = 8192, **facts: Any) -> list[Finding]:
    """What is found in the plan of a launch command."""
    return list(planned(command, rows=rows, **facts).findings)


def of_schedule(facts: dict[str, Any] | None = None, **fields: Any) -> list[Finding]:
    """What is found in a plan of 10 rollouts of 64 prompts x 8 samples, each with 4 updates of 128 samples."""
    plain: dict[str, Any] = {
        "framework": "a framework", "version": "1.0", "algorithm": "GRPO", "passes": passes_of(640, 64),
        "prompts_per_rollout": 64, "samples_per_prompt": 8, "minibatches": (128,) * 4,
    }  # fmt: skip
    return check_plan(Reading(schedule=schedule_in_phases(**(plain | fields)), facts=facts or {}))


VERL = (
    "python -m verl.trainer.main_ppo algorithm.adv_estimator=grpo trainer.n_gpus_per_node=8 data.train_batch_size=1024 \
actor_rollout_ref.rollout.n=8 actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu=8 trainer.total_training_steps=100"
)

SLIME = (
    "python train_async.py --num-rollout 3000 --rollout-batch-size 32 --n-samples-per-prompt 8 --global-batch-size 64"
)

FROZEN = {"changed": 0, "max_change": 0.0, "visible": 0}


def early_stops() -> list[Finding]:
    """A run whose updates on a rollout may end early, and do so twice."""
    script = EarlyStops(plan_with_early_stop(rollouts=4))
    for updates in (4, 1, 4, 3):
        script.rollout()
        for _ in range(updates):
            script.update()
    return list(script.judged().findings)


def evaluated_in_training() -> list[AnyEvent]:
    """A run in which samples of an evaluation came into a micro-batch."""
    events = after(run(), Update, 1, Rollout(index=90, samples=4, policy_version=2, purpose="evaluation"))
    trained = [event for event in events if isinstance(event, MicroBatch)][4].trained
    assert trained is not None
    return changed(events, MicroBatch, 4, trained=(msgspec.structs.replace(trained[0], rollout=90),))


def trained_twice() -> list[AnyEvent]:
    """A run in which a micro-batch has the samples of the one before."""
    events = run(iterations=1)
    first = next(event for event in events if isinstance(event, MicroBatch))
    return changed(events, MicroBatch, 1, trained=first.trained)


def one_rank_skips() -> Script:
    """A run on two trainers, of which one skips an update that the other makes."""
    script = in_phases(world_size=2)
    own = [event for process, event in script if process == "rank1" and isinstance(event, Update)]
    skipped = msgspec.structs.replace(own[-1], applied=False, version=own[-2].version, skip_reason="gradient scaler")
    return [(process, skipped if event is own[-1] else event) for process, event in script]


def own_tokens() -> list[Finding]:
    """What is found of a run of two ranks whose losses are divided by each rank's own tokens."""
    own = {0: 212, 1: 388}
    counts = {rank: TokenCounts({0: tokens}, {0: [Given(float(tokens), 0)]}) for rank, tokens in own.items()}
    return compare_token_counts(counts, len(own))[1]


def sampled_otherwise() -> Script:
    """A run whose engine takes another temperature once."""
    configured = {"temperature": 1.0, "top_p": 1.0, "top_k": 0.0}
    found: Script = []
    for process, event in in_phases():
        if isinstance(event, Generated):
            used = configured | {"temperature": 0.6} if event.index == 2 else configured
            event = msgspec.structs.replace(event, sampling=(used,))
        if isinstance(event, RunStarted):
            event = msgspec.structs.replace(event, facts=event.facts | {"configured_sampling": configured})
        found.append((process, event))
    return found


def evaluation_short_of_rollouts() -> list[AnyEvent]:
    """A run whose evaluation took three batches and generated for two."""
    rollouts = (Rollout(index=90 + i, samples=4, policy_version=1, purpose="evaluation") for i in range(2))
    return after(run(), Update, 0, *rollouts, Evaluated(batches=3, rollouts=2))


def resumed(error: str) -> list[AnyEvent]:
    """A run that was resumed after update 6 and raised at once."""
    first = changed(run(max_steps=16), RunStarted, start_updates=6)[0]
    return [first, RunEnded(status="raised", updates=6, error=error)]


def synced(*syncs: tuple[WeightsSent, WeightsHeld]) -> list[AnyEvent]:
    """A run with these syncs after its updates."""
    events = run()
    for number, sync in enumerate(syncs):
        events = after(events, Update, number, *sync)
    return events


def sent(number: int, value: int, **fields: Any) -> WeightsSent:
    """A sync that hands over one tensor, with these bits."""
    weights = (Probe("model.layers.0.mlp.down_proj.weight", "float32", (value,)),)
    plain = {"number": number, "policy_version": number + 1, "tensors": 290, "sent": 290, "policy": weights}
    return WeightsSent(**(plain | fields))


def held(number: int, before: int, now: int, **fields: Any) -> WeightsHeld:
    """What an engine held before a sync, and what it holds afterwards."""
    was, held_now = ((Probe("model.layers.0.mlp.down_proj.weight", "float32", (value,)),) for value in (before, now))
    plain = {"number": number, "engine": "the engine", "arrived": 290, "before": was, "after": held_now}
    return WeightsHeld(**(plain | fields))


RESTORED = {
    "weights": "others", "optimizer_step": 12, "saved_optimizer_step": 12, "lr_tick": None, "saved_lr_tick": None,
}  # fmt: skip

EXAMPLES: dict[str, Callable[[], list[Finding]]] = {
    # The plan and the configuration
    "RLS101": lambda: judged(
        after(
            run(),
            RunStarted,
            0,
            ConfigChanged(name="per_device_train_batch_size", before=8, after=16, since="construction"),
        )
    ),
    "RLS102": lambda: launched("trl grpo"),
    "RLS110": lambda: launched(f"{VERL} actor_rollout_ref.actor.ppo_mini_batch_size=2048"),
    "RLS111": lambda: launched("trl grpo --gradient_accumulation_steps 8 --steps_per_generation 4"),
    "RLS112": lambda: launched(
        f"{VERL} actor_rollout_ref.actor.ppo_mini_batch_size=1024 actor_rollout_ref.actor.ppo_epochs=4"
    ),
    "RLS113": lambda: of_schedule({"nominal_updates_per_rollout": 1}, minibatches=(86,) * 5 + (82,)),
    "RLS114": lambda: launched("trl grpo --num_iterations 4 --save_steps 10"),
    "RLS115": lambda: of_schedule({"minibatch_unit": "samples"}, minibatches=(64,) * 8),
    "RLS116": lambda: launched(f"{VERL} actor_rollout_ref.rollout.tries_per_prompt=5"),
    "RLS117": lambda: launched(SLIME, rows=96_000),
    "RLS118": lambda: launched(f"{VERL} custom_reward_function.path=reward.py"),
    "RLS119": lambda: of_schedule({"release_faults": told(concerning("0.18.2")[:1], "0.18.2")}),
    "RLS120": lambda: judged(
        with_facts(run(), seeds={"seed": 42, "compared": ["torch", "numpy"], "unseeded": ["torch"]})
    ),
    # Counts and order
    "RLS201": lambda: judged(without(without(run(), MicroBatch, 2, 3), Update, 1)),
    "RLS202": lambda: judged(without(without(run(), Rollout, 2), Refresh, 2)),
    "RLS203": lambda: judged(changed(without(run(), MicroBatch, 5), Update, 2, microbatches=1)),
    "RLS204": lambda: judged(without(run(), Update, 3)),
    "RLS205": lambda: judged(without(run(max_steps=40), MicroBatch, 16, 17, 18, 19)),
    "RLS206": lambda: judged([*before(run(), Rollout, 3), RunEnded(status="completed", updates=6)]),
    "RLS207": lambda: judged(changed(run(), MicroBatch, 9, samples=3)),
    "RLS208": lambda: judged(changed(run(), Update, 5, microbatches=3)),
    "RLS209": lambda: judged([run()[0], RunEnded(status="completed", updates=0)]),
    "RLS210": lambda: judged(changed(run(), Update, 7, applied=False)),
    "RLS211": lambda: judged(without(without(with_critic(), MicroBatch, 12, 13), Update, 6)),
    "RLS212": early_stops,
    # Old log-probs and the ratio
    "RLS213": lambda: judged(
        measured(with_facts(run(), kl_limit=0.015), "microbatches", 6, tokens=8, divergence=0.041)
    ),
    "RLS214": lambda: judged(
        after(with_facts(run(), kl_limit=0.015), Update, 2, PassesEnded(at=0.0, divergence=0.0021))
    ),
    "RLS301": lambda: judged(
        measured(
            run(),
            "microbatches",
            8,
            tokens=512,
            mean_abs_log_ratio=0.1,
            max_abs_log_ratio=1.0,
            log_ratio_99=0.7,
            log_ratio_outside=0.34,
        )
    ),
    "RLS302": lambda: judged(measured(run(), "microbatches", 10, mean_abs_log_ratio=0.0, max_abs_log_ratio=0.0)),
    "RLS303": lambda: judged(
        after(run(), MicroBatch, 5, Refresh(rollout=1, samples=4, positions=32, policy_version=3, in_loss=True))
    ),
    "RLS304": lambda: judged(changed(run(), MicroBatch, 10, old_source="detach", old_version=None)),
    "RLS305": lambda: judged(measured(run(), "microbatches", 10, old_intact=False)),
    "RLS306": lambda: judged(measured(run(), "microbatches", 10, tokens_intact=False)),
    "RLS307": lambda: judged(changed(run(), MicroBatch, 9, old_version=2)),
    "RLS308": lambda: judged(changed(run(beta=0.04), Rollout, 2, reference=False)),
    "RLS309": lambda: judged(measured(run(), "rollouts", 1, mean_ratio=1.02, logged_ratio=0.51)),
    "RLS310": lambda: judged(measured(run(), "microbatches", mean_abs_log_ratio=0.0, max_abs_log_ratio=0.0)),
    # Weights and sync
    "RLS311": lambda: judged(measured(run(), "microbatches", 10, reference_intact=False)),
    "RLS312": lambda: judged(
        after(run(), Rollout, 2, Rewarded(rollout=2, groups=16, weights_off=4e4, weights_like="all of them 1"))
    ),
    "RLS313": lambda: judged(
        measured(
            run(),
            "microbatches",
            8,
            sampling_gap=0.009,
            max_sampling_gap=0.28,
            sampling_gap_99=0.15,
            sampling_outside=0.021,
            sampling_known=480,
        )
    ),
    "RLS314": lambda: judged(
        measured(
            run(),
            "microbatches",
            8,
            clean_gap=0.03,
            max_clean_gap=0.2,
            clean_gap_99=0.18,
            clean_outside=0.075,
            clean_of="the loss",
            clean_like="attention mask: the padding before the prompt is attended to",
        )
    ),
    "RLS315": lambda: judged(
        measured(
            run(beta=0.04),
            "microbatches",
            8,
            reference_clean_gap=0.03,
            reference_clean_max=0.2,
            reference_clean_like="attention mask: the padding before the prompt is attended to",
        )
    ),
    "RLS401": lambda: judged(measured(run(), "updates", 5, changed=0)),
    "RLS402": lambda: judged(changed(run(), Rollout, 2, sampler_version=3)),
    "RLS403": lambda: judged(
        measured(
            run(),
            "rollouts",
            2,
            sampler_gap_mean=0.2,
            sampler_gap_max=3.1,
            sampler_gap_99=1.4,
            sampler_gap_outside=0.46,
            sampler_gap_tokens=4096,
        )
    ),
    "RLS404": lambda: judged(measured(run(), "updates", 5, moved_before=4)),
    "RLS405": lambda: judged(without(composed(in_phases()), WeightSync, 2)),
    "RLS406": lambda: judged(measured(run(max_steps=20), "updates", with_gradient=0, visible=0)),
    "RLS407": lambda: judged(
        after(
            measured(run(), "updates", **FROZEN),
            RunStarted,
            0,
            FactsRead(facts={"optimizer_tensors": {"trainable": 290, "held": 0, "others": 290}}),
        )
    ),
    "RLS408": lambda: judged(
        with_facts(run(), frozen_matrices={"all": 196, "frozen": 49, "first": "model.layers.0.self_attn.q_proj.weight"})
    ),
    "RLS410": lambda: played(sampled_otherwise()),
    "RLS411": lambda: judged(changed(run(), Rollout, 2, reference_intact=False)),
    "RLS412": lambda: judged(measured(run(), "rollouts", 1, weights_differ=1016)),
    # Rows, samples, rewards and advantages
    "RLS413": lambda: judged(
        with_facts(
            measured(
                run(), "microbatches", 4, tokens=1024, surprise=-717.0, surprise_squares=1130.0, surprise_largest=5.1
            ),
            surprise_cap=12.2,
            vocabulary=512,
        )
    ),
    "RLS415": lambda: judged(synced((sent(0, 7), held(0, 5, 7)), (sent(1, 9), held(1, 7, 7)))),
    "RLS416": lambda: judged(synced((sent(0, 7), held(0, 5, 7, arrived=12)))),
    "RLS417": lambda: judged(synced((sent(0, 7), held(0, 7, 7)), (sent(1, 0x3F812345), held(1, 7, 0x3F810000)))),
    "RLS418": lambda: judged(after(run(), Update, 0, AdapterUsed(engine="the engine", requests=64, bound=0))),
    "RLS422": lambda: judged(
        after(
            run(),
            Update,
            1,
            KeysReused(number=1, engine="the engine", requests=8, reusing=8, stale=4, tokens=768, oldest=0),
        )
    ),
    "RLS420": lambda: judged(
        with_facts(
            run(),
            built={
                "compared": 6,
                "otherwise": [
                    {
                        "name": "mlp_extractor.policy_net",
                        "expected": "Linear 64, Tanh, Linear 64, Tanh",
                        "observed": "Linear 64, Linear 64",
                        "of": "network",
                    }
                ],
            },
        )
    ),
    "RLS423": lambda: judged(with_facts(run(), policy_loaded="others", critic_loaded="as saved")),
    "RLS419": lambda: held_by(
        looks((1, 2, 3), (1, 2, 3)),
        looks((4, 5, 6), (4, 5, 6), update=2, moment="after"),
        looks((4, 5, 6), (4, 5, 0), update=3, moment="before"),
    ),
    "RLS414": lambda: judged(measured(run(), "microbatches", 0, reference_gap=0.62)),
    "RLS501": lambda: judged(changed(run(), Rollout, 2, groups_intact=False)),
    "RLS502": lambda: judged(trained_twice()),
    "RLS503": lambda: judged(evaluated_in_training()),
    "RLS504": lambda: judged(evaluation_short_of_rollouts()),
    "RLS505": lambda: judged(measured(run(), "rollouts", max_abs_advantage=0.0)),
    "RLS506": lambda: launched("trl grpo --gradient_accumulation_steps 8 --shuffle_dataset false", rows=8533),
    "RLS507": lambda: judged(changed(run(), MicroBatch, 9, trained=None, unknown=2)),
    "RLS508": lambda: judged(after(run(), Rollout, 2, Rewarded(rollout=2, groups=16, unordered=9))),
    "RLS509": lambda: judged(changed(run(), Rollout, 2, repeated=3)),
    "RLS510": lambda: launched("trl grpo --gradient_accumulation_steps 64", rows=40),
    "RLS511": lambda: of_schedule(frozen_rollouts=20),
    "RLS512": lambda: of_schedule(minibatches=(150,) * 3, samples_dropped=62, remainder="drop"),
    "RLS513": lambda: judged(changed(run(), Rollout, 2, foreign=4)),
    "RLS514": lambda: judged(changed(run(), Rollout, 2, signal=True, repeats=1)),
    "RLS515": lambda: judged(changed(run(), Rollout, 2, rewards_intact=False)),
    "RLS516": lambda: judged(
        measured(
            run(), "rollouts", advantages_off=12400.0, advantages_fit="at each sample those of the sample before it"
        )
    ),
    "RLS517": lambda: judged(measured(run(), "microbatches", 4, advantages_intact=False)),
    "RLS518": lambda: judged(measured(run(), "rollouts", 2, masks_wrong=4)),
    "RLS523": lambda: compare_random_states({rank: {0: 41} for rank in range(2)}, 2)[1],
    "RLS519": lambda: judged(measured(run(), "microbatches", 4, copied=3, copied_nats=212.0)),
    "RLS520": lambda: judged(changed(run(), Rollout, 2, queue=Queued(waiting=8, lost=2))),
    "RLS522": lambda: judged(
        changed(run(), Rollout, 2, contradictions={"mask and token ids of different lengths: 7 and 8": 3})
    ),
    "RLS421": lambda: judged(
        measured(run(), "rollouts", 2, actions_off=64, actions_like="the likeliest ones and nothing else")
    ),
    "RLS521": lambda: judged(measured(run(), "rollouts", 2, timesteps_moved=3, timesteps_part="ends of episodes")),
    # The learning rate
    "RLS601": lambda: of_schedule(lr_horizon=24),
    "RLS602": lambda: judged(changed(run(), Update, 7, lr_tick=8)),
    "RLS603": lambda: judged(changed(run(), Update, 5, 6, 7, learning_rate=0.0)),
    "RLS604": lambda: of_schedule({"lr_warmup": 500}),
    "RLS605": lambda: judged(
        with_facts(
            changed(run(), Update, 5, lr_tick=5, learning_rate=5e-7),
            lr_schedule={"kind": "constant", "base": 1e-6, "horizon": 8},
        )
    ),
    "RLS610": lambda: of_schedule({"lr_constant": False}, lr_clock="rollout"),
    # Resuming
    "RLS701": lambda: judged(resumed("TypeError: 'NoneType' object is not subscriptable")),
    "RLS702": lambda: judged(
        with_facts(run(), position={"rollouts": 2}, restored_policy=RESTORED),
    ),
    "RLS703": lambda: judged(with_facts(run(), saved_checkpoints={"compared": 2, "wrong": [(2, "weights")]})),
    # Loss, gradient and optimizer
    "RLS801": lambda: judged(measured(run(), "microbatches", 4, 5, 6, 7, loss_ratio=0.25)),
    "RLS802": lambda: judged(
        changed(run(), MicroBatch, constants=("old_logprobs", "advantages"), with_gradient=("advantages",))
    ),
    "RLS803": lambda: judged(measured(run(), "updates", 1, left_over=7)),
    "RLS804": lambda: judged(measured(run(), "microbatches", 4, mask_intact=False)),
    "RLS805": lambda: judged(measured(run(), "microbatches", 4, backward_ratio=0.25)),
    "RLS806": lambda: judged(measured(run(), "updates", 1, optimizer_off=8200.0, optimizer_share=0.5)),
    "RLS807": lambda: judged(measured(run(), "updates", 1, moments_lost=8)),
    "RLS808": lambda: judged(measured(run(), "updates", 1, gradient_norm=3.7, gradient_limit=1.0)),
    "RLS809": lambda: judged(
        measured(measured(run(), "microbatches", max_abs_advantage=1.2, clipped=0.0), "updates", 4, with_gradient=0)
    ),
    "RLS810": lambda: judged(
        measured(
            run(),
            "updates",
            1,
            gradient_off=4e6,
            gradient_factor=1.0,
            gradient_tensor="layers.1.weight",
            gradient_tensor_factor=10.0,
        )
    ),
    "RLS811": lambda: joined(
        Ranks(passes=3, local=lambda update, rank, one, number: 0.0 if (rank, one) == (1, 0) else number)
    ),
    "RLS813": lambda: judged(
        measured(run(), "rollouts", 1, slope_gap=0.16, slope_doubt=0.0001, slope_layer="layers.1")
    ),
    "RLS812": lambda: joined(Ranks(sharded=True, limit=0.1, use=lambda update, rank, number, factor: number)),
    "RLS820": own_tokens,
    # The observation itself
    "RLS901": lambda: played([line for line in in_phases(world_size=2) if line[0] != "rank1"]),
    "RLS902": lambda: played(one_rank_skips()),
}


def found(code: str) -> Finding:
    """The first finding of a rule in its example."""
    return next(finding for finding in EXAMPLES[code]() if finding.code == code)


def example(code: str) -> str:
    """The finding as `rlstep report` prints it."""
    output = io.StringIO()
    Console(file=output, width=WIDTH, no_color=True).print(finding_lines(found(code)))
    return "\n".join(line.rstrip() for line in output.getvalue().splitlines())


def write(rule: type[Rule]) -> None:
    """Put the example into the docstring of a rule."""
    path = Path(inspect.getfile(rule))
    source = path.read_text()
    start = source.index(f"class {rule.__name__}(")
    body = indent(example(rule.code), " " * 8)
    section = re.compile(r"(^    Example:\n).*?(?=^    [A-Z][^\n]*:\n)", re.MULTILINE | re.DOTALL)
    written = section.sub(lambda heading: f"{heading[1]}{body}\n\n", source[start:], count=1)
    path.write_text(source[:start] + written)


if __name__ == "__main__":
    for one in BY_CODE.values():
        write(one)
