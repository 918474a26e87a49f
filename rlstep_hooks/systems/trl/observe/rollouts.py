"""Hooks on one trainer's rollouts: generation, with its rewards and old log-probs, and the weights that sample."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

import msgspec
import torch

from rlstep_hooks.observe.compared import is_carried, is_compared, is_compared_whole
from rlstep_hooks.observe.engine_distance import KeptLogits
from rlstep_hooks.observe.forward_watch import ForwardWatch
from rlstep_hooks.observe.guard import Guard, contained
from rlstep_hooks.record.events import FactsRead, Purpose, Refresh, Rollout
from rlstep_hooks.session.recorder import QUICK
from rlstep_hooks.systems.trl.observe.calls import Generation
from rlstep_hooks.systems.trl.observe.calls_of_rollout import CallsOfRollout
from rlstep_hooks.systems.trl.observe.correction import weighed
from rlstep_hooks.systems.trl.observe.engine_syncs import EngineSyncs
from rlstep_hooks.systems.trl.observe.generated import GeneratedWatch
from rlstep_hooks.systems.trl.observe.identities import identities
from rlstep_hooks.systems.trl.observe.limits import READ, is_compiled, own_advantages
from rlstep_hooks.systems.trl.observe.masks import read_mask_rule
from rlstep_hooks.systems.trl.observe.measure import token_mask
from rlstep_hooks.systems.trl.observe.order_of_rows import RowOrder
from rlstep_hooks.systems.trl.observe.prompt_groups import group_of_evaluation, in_whole_groups
from rlstep_hooks.systems.trl.observe.prompt_tokens import PromptTokens
from rlstep_hooks.systems.trl.observe.replay import ReplayWatch
from rlstep_hooks.systems.trl.observe.rows import RowWatch
from rlstep_hooks.systems.trl.observe.sampled_log_probs import SAMPLED
from rlstep_hooks.systems.trl.observe.sampling import SamplingWatch
from rlstep_hooks.systems.trl.observe.settings import of_copies, of_training

if TYPE_CHECKING:
    from collections.abc import Iterator

    from torch import Tensor

    from rlstep_hooks.observe.hooks import Call, Hooks
    from rlstep_hooks.observe.importance import Comparison
    from rlstep_hooks.systems.trl.observe.advantages import Misplaced, Scored
    from rlstep_hooks.systems.trl.observe.calls import LogProbCall
    from rlstep_hooks.systems.trl.observe.observation import Observation
    from rlstep_hooks.systems.trl.observe.randomness import Drawn


REMEMBERED_ROLLOUTS = 64
"""Rollouts whose counted tokens are kept for their losses."""


class _Made(msgspec.Struct, frozen=True, kw_only=True):
    """A rollout that was made, and what is looked at in it."""

    index: int
    trained: int
    """The number of the rollout among those that are not of an evaluation."""
    cycle: int
    """The cycle of rollouts that it belongs to."""
    purpose: Purpose
    rows: Any
    """What was submitted for generation."""
    output: Any
    """What the trainer's method returned."""
    parts: list[dict[str, Any]]
    """That, as batches of samples."""
    sizes: list[int]
    """Samples of each part."""
    samples: int
    """Samples that were generated, those that a filter took out too."""
    generation: Generation
    replayed: bool
    """Whether it has samples of earlier rollouts."""
    compared: bool
    """Whether its numbers are recomputed."""

    @property
    def trains(self) -> bool:
        """Whether it is not of an evaluation."""
        return self.purpose == "training"

    @property
    def recomputed(self) -> bool:
        """Whether its numbers are recomputed, and all of its samples are its own."""
        return self.compared and not self.replayed

    @property
    def alone(self) -> dict[str, Any] | None:
        """The only part; None where there are several."""
        return self.parts[0] if len(self.parts) == 1 else None


class RolloutHooks:
    """Gives Rollout, Refresh (of old log-probs computed with a rollout), WeightSync and ConfigChanged."""

    def __init__(self, observation: Observation) -> None:
        self._observation = observation
        self.recorder = observation.recorder
        """The recorder that events go to."""
        trainer, schedule, recorder = observation.trainer, observation.schedule, observation.recorder
        self._rollouts = 0
        self._trained_rollouts = 0
        """Rollouts that are not of an evaluation: which are compared is decided among these."""
        self._quick = False
        """Whether the latest generation was over before events have to be written."""
        self.of_evaluation = 0
        """Rollouts of the evaluation that is going on."""
        self._forwards: ForwardWatch | None = None
        self._compiled = is_compiled(observation.trainer)
        self._engine = EngineSyncs(observation) if observation.adapter.samples_with_engine() else None
        """Follows the weights into the engine; None where the policy generates by itself."""
        self._distance_guard = Guard(recorder, ("engine_distance",))
        self._left_out = schedule.samples_dropped_per_rollout // schedule.world_size
        """Samples that a filter takes out of each rollout on this process."""
        self._calls = CallsOfRollout(observation, filtered=self._left_out > 0)
        self._settings = of_training(trainer)
        adapter = observation.adapter
        own = adapter.read != READ or bool(own_advantages(trainer, adapter.read))
        self._rewards = rewards = adapter.rewards()
        # Callbacks may generate for the logs, and reward functions may ask the policy for its judgement. The function must not hold us:
        # the trainer would then wait for the garbage collector together with this object.
        self._sampling = SamplingWatch(
            trainer,
            recorder,
            of_rollout=lambda: observation.generation is not None and not rewards.scoring,
            processors=not own,
        )
        self._generated = GeneratedWatch(trainer, recorder, version=schedule.version)
        self._turns = adapter.turns()
        self._alone = schedule.world_size == 1
        self._replay = ReplayWatch(trainer)
        self._rows = RowWatch(trainer)
        self._group_of_evaluation = group_of_evaluation(trainer, schedule, read=adapter.read == READ)
        self._row_order = RowOrder(trainer, schedule, read=adapter.read == READ)
        self._prompts = PromptTokens(trainer, schedule.version, schedule.samples_per_prompt)

    def attach(self, hooks: Hooks) -> None:
        """Place the hooks."""
        trainer = self._observation.trainer
        if self._engine is not None:
            self._engine.attach(hooks)
        # Generation, rewards and old log-probs: gives Rollout and Refresh. In all releases; called by `_prepare_inputs`.
        hooks.wrap(
            trainer,
            "_generate_and_score_completions",
            around=self._generates,
            topics=("order", "samples", "refresh"),
        )
        self._sampling.attach(hooks)
        self._generated.attach(hooks)  # around the hook of `SamplingWatch`, which counts the processors of others
        self._turns.attach(hooks)
        if self._observation.alone.reference_beside is not None:
            self._observation.alone.reference_beside.attach(hooks)
        self._replay.attach(hooks)
        self._rewards.attach(hooks)
        self._observation.reference.attach()
        of_copies(trainer).tell(self.recorder)
        if self._row_order.why_not:
            unknown = {"row_order_unknown": self._row_order.why_not}
            self.recorder.emit(FactsRead(at=self.recorder.now(), facts=unknown))

    def _generates(self, call: Call) -> Iterator[None]:
        seen = self._observation
        seen.reference.goes_on(seen.updates.latest)
        generation = Generation()
        began = self.recorder.now()
        try:
            seen.generation = generation
            self._generation_begins(generation, call.argument("inputs", 0))
            yield
        finally:
            seen.generation = None
            if generation.forwards is not None:
                generation.forwards.end()
        self._quick = self.recorder.now() - began < QUICK
        self._emit_rollout(call.argument("inputs", 0), call.result, generation)

    def _generation_begins(self, generation: Generation, rows: Any) -> None:
        seen = self._observation
        trained = self._trained_rollouts if self._purpose() == "training" else None
        compared = trained is not None and is_compared(trained)
        self._generated.begin(looks=compared, log_probs=trained is not None and is_compared_whole(trained))
        self._turns.begin(looks=compared, log_probs=trained is not None and is_compared_whole(trained))
        if seen.alone.reference_beside is not None:
            seen.alone.reference_beside.begin(trained if trained is not None and is_compared_whole(trained) else None)
        self._see_prompts(rows, looks=compared)
        if compared and self._corrects_for_engine():
            generation.logits = KeptLogits(float(seen.trainer.temperature), self._distance_guard)
        if not self._quick:
            self.recorder.write()  # so that nothing is lost to a kill while it generates
        if self._watches_sampler():
            look = functools.partial(self._look_at_weights, generation) if compared else None
            generation.forwards = self._watch_of(seen.trainer.model)
            if generation.forwards is not None:
                generation.forwards.begin(look)

    @contained("rows")
    def _see_prompts(self, rows: Any, *, looks: bool) -> None:
        self._prompts.begin(rows, looks=looks)

    def _corrects_for_engine(self) -> bool:
        """Whether the trainer scores each rollout itself and compares that with the engine's log-probs."""
        trainer = self._observation.trainer
        correction = getattr(trainer, "vllm_importance_sampling_correction", False)
        return bool(correction and self._observation.adapter.samples_with_engine())

    def pass_ended(self) -> None:
        """A pass of the loader ended."""
        self._row_order.pass_ended()

    def finish(self) -> None:
        """Training is over: what is still on the device may be waited for."""
        if self._engine is not None:
            self._engine.finish()

    # The weights that sample

    def _watches_sampler(self) -> bool:
        """Whether forwards of the policy may be counted while it generates.

        Not with an engine (it has weights of its own), and not where a forward hook would be compiled in.
        """
        args = self._observation.trainer.args
        return not (
            self._engine is not None
            or self._compiled
            or getattr(args, "cache_implementation", None)
            or getattr(args, "use_transformers_paged", False)
        )

    def _watch_of(self, model: Any) -> ForwardWatch | None:
        if self._forwards is None or not self._forwards.watches(model):
            self._forwards = ForwardWatch.of(model)
        return self._forwards

    @contained("sampler")
    def _look_at_weights(self, generation: Generation) -> None:
        """The policy is about to generate: read the probe of its weights."""
        found = self._observation.updates.sampling_weights()
        if found is not None:
            generation.sampling_weights = found

    def _sampler_version(self, forwards: ForwardWatch | None) -> int | None:
        """The version of the weights that sampled; -1 for a model other than the policy; None where it cannot be seen."""
        if self._engine is not None:
            return self._engine.version
        if forwards is None:
            return None
        if not forwards.seen and getattr(self._observation.trainer, "rollout_func", None) is not None:
            # Tokens from elsewhere: an environment, a server, another process. In 0.25 and later.
            self.recorder.cannot(
                "sampler_weights",
                "rollout_func returned tokens without a forward of the policy; which weights sampled them is not known",
            )
            return None
        if not forwards.seen and not forwards.is_on():  # somebody gave the model other embeddings
            self._forwards = None
            return None
        return self._observation.updates.version if forwards.seen else -1

    # Events

    def _purpose(self) -> Purpose:
        activity = self._observation.activity
        return activity.purpose if activity is not None else "training"

    def _emit_rollout(self, rows: Any, output: Any, generation: Generation) -> None:
        """Record a rollout that was made, and keep of it, on the device, what is worked up later."""
        made = self._made(rows, output, generation)
        event = self._rollout_of(made)
        if made.trains:
            self._see_order_of_rows(rows)
        if not made.replayed:
            self._observation.identities.sampled(made.index, self._observation.updates.version)
        with torch.no_grad():
            olds = [self._observation.adapter.old_log_probs_of(part) for part in made.parts]
            self._mark(made, olds)
            self._take_numbers(made)
        refresh = self._refresh_of(made, olds)
        self.recorder.emit_soon(*([event] if refresh is None else [event, refresh]))
        if made.trains:
            self._settings.tell(self.recorder)  # they take effect at the next micro-batch
        self._observation.numbers.collect()

    @contained("rows")
    def _see_order_of_rows(self, rows: Any) -> None:
        self._row_order.look(rows, self._observation.schedule.samples_per_prompt, self.recorder)

    def _made(self, rows: Any, output: Any, generation: Generation) -> _Made:
        """Take the rollout that was just made, and count it."""
        index, trained, purpose = self._rollouts, self._trained_rollouts, self._purpose()
        self._rollouts += 1
        if purpose == "evaluation":
            self.of_evaluation += 1
        else:
            self._trained_rollouts += 1
        parts = self._observation.adapter.parts(output)
        sizes = [int(part["completion_mask"].shape[0]) for part in parts]
        return _Made(
            index=index,
            trained=trained,
            cycle=trained // self._observation.schedule.rollouts_per_cycle,
            purpose=purpose,
            rows=rows,
            output=output,
            parts=parts,
            sizes=sizes,
            samples=sum(sizes) + (self._left_out if purpose == "training" else 0),
            generation=generation,
            replayed=self._replay.take(),
            compared=purpose == "training" and is_compared(trained),
        )

    def _rollout_of(self, made: _Made) -> Rollout:
        intact = self._groups_intact(made)
        drawn = self._drawn(made.index) if made.compared else None
        return Rollout(
            at=self.recorder.now(),
            index=made.index,
            samples=made.samples,
            policy_version=self._observation.updates.version,
            sampler_version=self._sampler_version(made.generation.forwards),
            purpose=made.purpose,
            reference=any(part.get("ref_per_token_logps") is not None for part in made.parts)
            or self._calls.have_reference(made.generation.calls),
            groups_intact=intact,
            sampling=self._sampling.take(),
            repeats_random=None if drawn is None else drawn.earlier,
            random_state=None if drawn is None or self._alone else drawn.checksum,
            repeated=self._served_again(made.rows, intact) if made.trains else None,
        )

    def _mark(self, made: _Made, olds: list[Any]) -> None:
        """Give each sample what says later, in the loss, which one it is and what it was."""
        seen = self._observation
        for part, old, rows_of_part in zip(made.parts, olds, identities(made.index, made.sizes), strict=True):
            of_others = old is not None and old.shape[0] != rows_of_part.shape[0]
            if of_others:
                of = {"old_log_probs_of": int(old.shape[0])}
                self.recorder.emit(FactsRead(at=self.recorder.now(), facts=of))
            seen.meter.mark(
                part,
                rows_of_part,
                None if of_others else old,
                carried=is_carried(made.cycle),
                whole=made.recomputed,
                alike=seen.tells_alike(made.cycle),
            )
        if made.compared and made.alone is not None:
            sampled = self._generated.log_probs(made.alone["completion_ids"])
            if sampled is not None and not made.replayed:
                made.alone[SAMPLED] = sampled
        seen.adapter.mark(made.output, made.parts)

    def _take_numbers(self, made: _Made) -> None:
        """Keep the rollout's numbers, and what they are compared with."""
        seen, parts, calls = self._observation, made.parts, made.generation.calls
        clean = self._scored_alone(made.cycle, parts[0], calls) if made.trains and not made.replayed else {}
        if not made.compared:
            scored, weights = self._scored(made, None), made.generation.sampling_weights
            seen.numbers.add_rollout(made.index, parts, scored=scored, clean=clean, sampling_weights=weights)
            return
        penalty, gap = self._calls.penalty(calls, parts)
        misplaced = self._misplaced(made)
        if made.recomputed and seen.adapter.counts_tokens():
            self._count(made.index, parts)
        seen.numbers.add_rollout(
            made.index,
            parts,
            scored=self._scored(made, penalty),
            misplaced=misplaced,
            rule=None if own_advantages(seen.trainer) else read_mask_rule(seen.trainer),
            reference=seen.reference.look(),
            reference_moved=self._calls.reference_moved(parts, calls) if made.recomputed else None,
            clean=clean,
            moved=self._moved(parts) if made.recomputed else None,
            prompts_wrong=self._prompts_wrong(parts) if made.recomputed else None,
            penalty_gap=gap,
            sampling_weights=made.generation.sampling_weights,
            kept=made.generation.logits,
            counts_own=made.recomputed and seen.adapter.sums_tokens(),
            weighed=self._weighed(parts) if made.recomputed else None,
        )
        if made.recomputed:
            self._take_turns(made)

    @contained("mask")
    def _take_turns(self, made: _Made) -> None:
        self._observation.numbers.add_turns(self._turns.take(made.index, made.parts))

    def _scored(self, made: _Made, penalty: Tensor | None) -> Scored | None:
        """The rewards of the rollout; None where its advantages are not compared."""
        if not made.trains or self._observation.adapter.adds_to_advantages(made.parts):
            return None
        return self._rewards.take(made.trained, sum(made.sizes), penalty)

    def _refresh_of(self, made: _Made, olds: list[Any]) -> Refresh | None:
        """The refresh that is part of the rollout; None where it computed no old log-probs."""
        if not made.trains or any(old is None for old in olds):
            return None
        version = self._calls.origin(olds, made.generation.calls, copied=made.replayed)
        if version is not None and not made.replayed:
            self._observation.identities.refreshed(made.index, version)
        return Refresh(
            at=self.recorder.now(),
            rollout=made.index,
            samples=made.samples,
            positions=sum(part["completion_mask"].numel() for part in made.parts),
            policy_version=version,
        )

    @contained("correction")
    def _weighed(self, parts: list[dict[str, Any]]) -> Comparison | None:
        if len(parts) != 1 or not self._corrects_for_engine():
            return None
        return weighed(self._observation.trainer.args, parts[0], token_mask(parts[0]))

    @contained("rewards")
    def _misplaced(self, made: _Made) -> Misplaced | None:
        return self._rewards.misplaced(made.parts, made.rows, self._turns.spoken)

    @contained("sampler")
    def _drawn(self, index: int) -> Drawn | None:
        return self._generated.drawn(index)

    def _count(self, index: int, parts: list[dict[str, Any]]) -> None:
        counted = self._observation.counted
        counted[index] = torch.stack([token_mask(part).sum() for part in parts]).sum()
        if len(counted) > REMEMBERED_ROLLOUTS:
            del counted[min(counted)]

    @contained("order", "samples", "refresh")
    def _moved(self, parts: list[dict[str, Any]]) -> Tensor | None:
        return self._generated.moved(parts[0]) if len(parts) == 1 else None

    @contained("rows")
    def _prompts_wrong(self, parts: list[dict[str, Any]]) -> Tensor | None:
        return self._prompts.others(parts[0]) if len(parts) == 1 else None

    def _scored_alone(self, cycle: int, part: dict[str, Any], calls: list[LogProbCall]) -> dict[str, Any]:
        """What forwards and a backward pass of single rows of a rollout tell."""
        found = self._calls.penalty_scored_alone(cycle, part, calls) if is_compared_whole(cycle) else {}
        return found | self._calls.reference_beside(part, calls) | self._observation.slopes.look(cycle, part)

    def _groups_intact(self, made: _Made) -> bool | None:
        group = self._observation.schedule.samples_per_prompt if made.trains else self._group_of_evaluation
        return None if group is None else in_whole_groups(made.rows, made.samples, group)

    @contained("rows")
    def _served_again(self, rows: Any, groups_intact: bool | None) -> int | None:
        # Of an intact group one row says it all.
        group = self._observation.schedule.samples_per_prompt if groups_intact else 1
        return self._rows.repeated(rows[::group] if group > 1 else rows)
