"""Hooks on one trainer's rollouts: generation, with its rewards and old log-probs, and the weights that sample."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

import torch

from rlstep_hooks.observe.compared import is_carried, is_compared, is_compared_whole
from rlstep_hooks.observe.engine_distance import KeptLogits
from rlstep_hooks.observe.forward_watch import ForwardWatch
from rlstep_hooks.observe.guard import Guard
from rlstep_hooks.record.events import FactsRead, Purpose, Refresh, Rollout, WeightSync
from rlstep_hooks.session.recorder import QUICK
from rlstep_hooks.systems.trl.observe.advantages import RewardWatch
from rlstep_hooks.systems.trl.observe.calls import Generation
from rlstep_hooks.systems.trl.observe.correction import weighed
from rlstep_hooks.systems.trl.observe.generated import GeneratedWatch
from rlstep_hooks.systems.trl.observe.identities import identities
from rlstep_hooks.systems.trl.observe.limits import READ, is_compiled, own_advantages
from rlstep_hooks.systems.trl.observe.masks import read_mask_rule
from rlstep_hooks.systems.trl.observe.measure import token_mask
from rlstep_hooks.systems.trl.observe.order_of_rows import RowOrder
from rlstep_hooks.systems.trl.observe.prompt_tokens import PromptTokens
from rlstep_hooks.systems.trl.observe.replay import ReplayWatch
from rlstep_hooks.systems.trl.observe.rows import RowWatch
from rlstep_hooks.systems.trl.observe.sampled_log_probs import SAMPLED
from rlstep_hooks.systems.trl.observe.sampling import SamplingWatch
from rlstep_hooks.systems.trl.observe.scored_alone import Computed
from rlstep_hooks.systems.trl.observe.settings import of_copies, of_training
from rlstep_hooks.systems.trl.observe.turns import TurnsWatch
from rlstep_hooks.systems.vllm_engine.colocated import ColocatedEngine
from rlstep_hooks.systems.vllm_engine.served import served_engine

if TYPE_CHECKING:
    from collections.abc import Iterator

    from torch import Tensor

    from rlstep_hooks.observe.hooks import Call, Hooks
    from rlstep_hooks.observe.importance import Comparison
    from rlstep_hooks.record.events import AnyEvent
    from rlstep_hooks.systems.trl.observe.advantages import Misplaced
    from rlstep_hooks.systems.trl.observe.calls import LogProbCall
    from rlstep_hooks.systems.trl.observe.observation import Observation
    from rlstep_hooks.systems.trl.observe.randomness import Drawn
    from rlstep_hooks.systems.vllm_engine.served import ServedEngine


REMEMBERED_ROLLOUTS = 64
"""Rollouts whose counted tokens are kept for their losses."""


class RolloutHooks:
    """Gives Rollout, Refresh (of old log-probs computed with a rollout), WeightSync and ConfigChanged."""

    def __init__(self, observation: Observation) -> None:
        self._observation = observation
        self._recorder = observation.recorder
        trainer, schedule, recorder = observation.trainer, observation.schedule, observation.recorder
        self._rollout_guard = Guard(recorder, ("order", "samples", "refresh"))
        self._sampler_guard = Guard(recorder, ("sampler",))
        self._rollouts = 0
        self._trained_rollouts = 0
        """Rollouts that are not of an evaluation: which are compared is decided among these."""
        self._quick = False
        """Whether the latest generation was over before events have to be written."""
        self.of_evaluation = 0
        """Rollouts of the evaluation that is going on."""
        self._forwards: ForwardWatch | None = None
        self._compiled = is_compiled(observation.trainer)
        self._engine_version: int | None = None
        """Version of the weights that were last synced to the engine."""
        self._engine: ColocatedEngine | ServedEngine | None = None
        """The engine, where it tells what it holds."""
        self._delivery_guard = Guard(recorder, ("delivery",))
        self._distance_guard = Guard(recorder, ("engine_distance",))
        self._left_out = schedule.samples_dropped_per_rollout // schedule.world_size
        """Samples that a filter takes out of each rollout on this process."""
        self._settings = of_training(trainer)
        adapter = observation.adapter
        own = adapter.read != READ or bool(own_advantages(trainer, adapter.read))
        self._rewards = rewards = RewardWatch(trainer, schedule.algorithm, recorder, schedule.version)
        # Callbacks may generate for the logs, and reward functions may ask the policy for its judgement. The function must not hold us:
        # the trainer would then wait for the garbage collector together with this object.
        self._sampling = SamplingWatch(
            trainer,
            recorder,
            of_rollout=lambda: observation.generation is not None and not rewards.scoring,
            processors=not own,
        )
        self._generated = GeneratedWatch(trainer, recorder)
        self._turns = TurnsWatch(trainer, recorder, version=schedule.version, engine=adapter.samples_with_engine())
        self._turns_guard = Guard(recorder, ("mask",))
        self._alone = schedule.world_size == 1
        self._replay = ReplayWatch(trainer)
        self._rows = RowWatch(trainer)
        self._row_order = RowOrder(trainer, schedule, read=adapter.read == READ)
        self._rows_guard = Guard(recorder, ("rows",))
        self._prompts = PromptTokens(trainer, schedule.version, schedule.samples_per_prompt)
        self._rewards_guard = Guard(recorder, ("rewards",))
        self._weighed_guard = Guard(recorder, ("correction",))

    def attach(self, hooks: Hooks) -> None:
        """Place the hooks."""
        trainer = self._observation.trainer
        # Generation, rewards and old log-probs: gives Rollout and Refresh. In all releases; called by `_prepare_inputs`.
        if self._observation.adapter.samples_with_engine():
            hooks.wrap(trainer, "_generate_and_score_completions", after=self._engine_generated, topics=("delivery",))
        hooks.wrap(
            trainer,
            "_generate_and_score_completions",
            around=self._generates,
            topics=("order", "samples", "refresh"),
        )
        # Weights synced to vLLM: _move_model_to_vllm up to 0.27, an object's sync_weights from 0.28. Verified with the real engine on a
        # CPU in 1.16.0 (tests/systems/trl_vllm), with a stand-in for it in all releases.
        if self._observation.adapter.samples_with_engine():
            syncs = (getattr(trainer, "vllm_generation", None), "sync_weights"), (trainer, "_move_model_to_vllm")
            place = next(((owner, name) for owner, name in syncs if hasattr(owner, name)), None)
            if place is not None:
                hooks.wrap(*place, after=self._synced_weights, topics=("sampler",))
                hooks.wrap(*place, around=self._delivers, topics=("delivery",))
            with self._delivery_guard:
                self._attach_engine(hooks)
        self._sampling.attach(hooks)
        self._generated.attach(hooks)  # around the hook of `SamplingWatch`, which counts the processors of others
        self._turns.attach(hooks)
        self._replay.attach(hooks)
        self._rewards.attach(hooks)
        self._observation.reference.attach()
        of_copies(trainer).tell(self._recorder)
        if self._row_order.why_not:
            unknown = {"row_order_unknown": self._row_order.why_not}
            self._recorder.emit(FactsRead(at=self._recorder.now(), facts=unknown))

    def _generates(self, call: Call) -> Iterator[None]:
        seen = self._observation
        seen.reference.goes_on(seen.updates.latest)
        generation = Generation()
        began = self._recorder.now()
        try:
            seen.generation = generation
            self._generation_begins(generation, call.argument("inputs", 0))
            yield
        finally:
            seen.generation = None
            if generation.forwards is not None:
                generation.forwards.end()
        self._quick = self._recorder.now() - began < QUICK
        self._emit_rollout(call.argument("inputs", 0), call.result, generation)

    def _generation_begins(self, generation: Generation, rows: Any) -> None:
        seen = self._observation
        trained = self._trained_rollouts if self._purpose() == "training" else None
        compared = trained is not None and is_compared(trained)
        self._generated.begin(looks=compared, log_probs=trained is not None and is_compared_whole(trained))
        self._turns.begin(looks=compared, log_probs=trained is not None and is_compared_whole(trained))
        with self._rows_guard:
            self._prompts.begin(rows, looks=compared)
        if self._corrects_for_engine() and compared:
            generation.logits = KeptLogits(float(seen.trainer.temperature), self._distance_guard)
        if not self._quick:
            self._recorder.write()  # so that nothing is lost to a kill while it generates
        if self._watches_sampler():
            look = functools.partial(self._look_at_weights, generation) if compared else None
            generation.forwards = self._watch_of(seen.trainer.model)
            if generation.forwards is not None:
                generation.forwards.begin(look)

    def _engine_generated(self, call: Call) -> None:
        if self._engine is not None:
            self._engine.generated()

    def _corrects_for_engine(self) -> bool:
        """Whether the trainer scores each rollout itself and compares that with the engine's log-probs."""
        trainer = self._observation.trainer
        correction = getattr(trainer, "vllm_importance_sampling_correction", False)
        return bool(correction and self._observation.adapter.samples_with_engine())

    def _attach_engine(self, hooks: Hooks) -> None:
        """Follow the weights into vLLM: in this process (`vllm_mode="colocate"`), or in a server that tells what it holds."""
        trainer = self._observation.trainer
        generation = getattr(trainer, "vllm_generation", None)
        llm = getattr(trainer if generation is None else generation, "llm", None)
        unwrap = trainer.accelerator.unwrap_model
        if llm is not None:
            self._engine = own = ColocatedEngine(llm, self._recorder, lambda: unwrap(trainer.model))
            own.attach(hooks)
            # Earlier releases hand each tensor to the engine where they gather it.
            own.hands_over = not hasattr(generation, "_iter_named_params")
        elif getattr(generation, "mode", "") == "server" and trainer.accelerator.is_main_process:
            if hasattr(generation, "_iter_named_params"):
                self._engine = served_engine(self._recorder, lambda: unwrap(trainer.model))
            else:
                self._recorder.cannot("delivery", "what this release of TRL sends to a vLLM server is not observed")
        if self._engine is not None and hasattr(generation, "_iter_named_params"):
            # vllm_generation.py 1.16.0:435: all tensors of a sync under vLLM's names, each gathered and, with PEFT, merged.
            hooks.wrap(generation, "_iter_named_params", after=self._hands_over, topics=("delivery",))

    def _hands_over(self, call: Call) -> None:
        if self._engine is not None:
            call.result = self._engine.sync.through(call.result, self._engine.sync.handed_over)

    def _synced_weights(self, call: Call) -> None:
        version = self._engine_version = self._observation.updates.version
        self._recorder.emit(WeightSync(at=self._recorder.now(), policy_version=version))

    def _delivers(self, call: Call) -> Iterator[None]:
        if self._engine is not None:
            self._engine.begin()
        yield
        if self._engine is not None:
            self._engine.end(self._observation.updates.version)

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
            self._observation.adapter.samples_with_engine()
            or self._compiled
            or getattr(args, "cache_implementation", None)
            or getattr(args, "use_transformers_paged", False)
        )

    def _watch_of(self, model: Any) -> ForwardWatch | None:
        if self._forwards is None or not self._forwards.watches(model):
            self._forwards = ForwardWatch.of(model)
        return self._forwards

    def _look_at_weights(self, generation: Generation) -> None:
        """The policy is about to generate: read the probe of its weights."""
        with self._sampler_guard:
            found = self._observation.updates.sampling_weights()
            if found is not None:
                generation.sampling_weights = found

    def _sampler_version(self, forwards: ForwardWatch | None) -> int | None:
        """The version of the weights that sampled; -1 for a model other than the policy; None where it cannot be seen."""
        if self._observation.adapter.samples_with_engine():
            return self._engine_version
        if forwards is None:
            return None
        if not forwards.seen and getattr(self._observation.trainer, "rollout_func", None) is not None:
            # Tokens from elsewhere: an environment, a server, another process. In 0.25 and later.
            self._recorder.cannot(
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
        seen, recorder = self._observation, self._recorder
        index, trained = self._rollouts, self._trained_rollouts
        self._rollouts += 1
        purpose = self._purpose()
        if purpose == "evaluation":
            self.of_evaluation += 1
        else:
            self._trained_rollouts += 1
        parts = seen.adapter.parts(output)
        sizes = [int(part["completion_mask"].shape[0]) for part in parts]
        samples = sum(sizes) + (self._left_out if purpose == "training" else 0)
        replayed = self._replay.take()
        compared = purpose == "training" and is_compared(trained)
        intact = self._groups_intact(rows, samples) if purpose == "training" else None
        drawn = self._drawn(index) if compared else None
        events: list[AnyEvent] = [
            Rollout(
                at=recorder.now(),
                index=index,
                samples=samples,
                policy_version=seen.updates.version,
                sampler_version=self._sampler_version(generation.forwards),
                purpose=purpose,
                reference=any(part.get("ref_per_token_logps") is not None for part in parts)
                or self._has_reference_call(generation.calls),
                groups_intact=intact,
                sampling=self._sampling.take(),
                repeats_random=None if drawn is None else drawn.earlier,
                random_state=None if drawn is None or self._alone else drawn.checksum,
                repeated=self._served_again(rows, intact) if purpose == "training" else None,
            )
        ]
        if purpose == "training":
            with self._rows_guard:
                self._row_order.look(rows, seen.schedule.samples_per_prompt, recorder)
        if not replayed:
            seen.identities.sampled(index, seen.updates.version)
        with torch.no_grad():
            olds = [seen.adapter.old_log_probs_of(part) for part in parts]
            cycle = trained // seen.schedule.rollouts_per_cycle
            for part, old, rows_of_part in zip(parts, olds, identities(index, sizes), strict=True):
                of_others = old is not None and old.shape[0] != rows_of_part.shape[0]
                if of_others:
                    recorder.emit(FactsRead(at=recorder.now(), facts={"old_log_probs_of": int(old.shape[0])}))
                seen.meter.mark(
                    part,
                    rows_of_part,
                    None if of_others else old,
                    carried=is_carried(cycle),
                    whole=compared and not replayed,
                    alike=seen.tells_alike(cycle),
                )
            sampled = self._generated.log_probs(parts[0]["completion_ids"]) if compared and len(parts) == 1 else None
            if sampled is not None and not replayed:
                parts[0][SAMPLED] = sampled
            seen.adapter.mark(output, parts)
            penalty, gap = self._penalty(generation.calls, parts[0]) if compared else (None, None)
            misplaced = self._misplaced(parts, rows) if compared else None
            if compared and not replayed and seen.adapter.counts_tokens():
                self._count(index, parts)
            scored = self._rewards.take(trained, sum(sizes), penalty) if purpose == "training" else None
            rule = read_mask_rule(seen.trainer) if compared and not own_advantages(seen.trainer) else None
            reference = seen.reference.look() if compared else None
            seen.numbers.add_rollout(
                index,
                parts,
                scored=scored,
                misplaced=misplaced,
                reference_moved=self._reference_moved(parts, generation.calls) if compared and not replayed else None,
                clean=self._scored_alone(cycle, parts[0], generation.calls)
                if purpose == "training" and not replayed
                else {},
                moved=self._moved(parts) if compared and not replayed else None,
                prompts_wrong=self._prompts_wrong(parts) if compared and not replayed else None,
                rule=rule,
                reference=reference,
                penalty_gap=gap,
                sampling_weights=generation.sampling_weights,
                kept=generation.logits,
                counts_own=compared and not replayed and seen.adapter.sums_tokens(),
                weighed=self._weighed(parts) if compared and not replayed else None,
            )
            if compared and not replayed and len(parts) == 1:
                with self._turns_guard:
                    seen.numbers.add_turns(self._turns.take(index, parts[0]))
        if all(old is not None for old in olds) and purpose == "training":
            made_by = self._origin(olds, generation.calls, copied=replayed)
            if made_by is not None and not replayed:
                seen.identities.refreshed(index, made_by)
            events.append(
                Refresh(
                    at=recorder.now(),
                    rollout=index,
                    samples=samples,
                    positions=sum(part["completion_mask"].numel() for part in parts),
                    policy_version=made_by,
                )
            )
        recorder.emit_soon(*events)
        if purpose == "training":
            self._settings.tell(recorder)  # they take effect at the next micro-batch
        seen.numbers.collect()

    def _weighed(self, parts: list[dict[str, Any]]) -> Comparison | None:
        if len(parts) != 1 or not self._corrects_for_engine():
            return None
        with self._weighed_guard:
            return weighed(self._observation.trainer.args, parts[0], token_mask(parts[0]))
        return None

    def _misplaced(self, parts: list[dict[str, Any]], rows: Any) -> Misplaced | None:
        with self._rewards_guard:
            return self._rewards.misplaced(parts[0]["completion_ids"], rows) if len(parts) == 1 else None
        return None

    def _reference_moved(self, parts: list[dict[str, Any]], calls: list[LogProbCall]) -> Tensor | None:
        """How many of a rollout's reference log-probs are not those that a forward gave; None where no forward was seen."""
        reference, model = parts[0].get("ref_per_token_logps"), getattr(self._observation.trainer, "ref_model", None)
        if reference is None or model is None or len(parts) != 1:
            return None
        given = [call.log_probs for call in calls if call.model is model and not call.grad]
        counts = [
            (one != reference).sum() for one in given if (one.shape, one.dtype) == (reference.shape, reference.dtype)
        ]
        return torch.stack(counts).min() if counts else None

    def _drawn(self, index: int) -> Drawn | None:
        with self._sampler_guard:
            return self._generated.drawn(index)
        return None

    def _count(self, index: int, parts: list[dict[str, Any]]) -> None:
        counted = self._observation.counted
        counted[index] = torch.stack([token_mask(part).sum() for part in parts]).sum()
        if len(counted) > REMEMBERED_ROLLOUTS:
            del counted[min(counted)]

    def _moved(self, parts: list[dict[str, Any]]) -> Tensor | None:
        with self._rollout_guard:
            return self._generated.moved(parts[0]) if len(parts) == 1 else None
        return None

    def _prompts_wrong(self, parts: list[dict[str, Any]]) -> Tensor | None:
        with self._rows_guard:
            return self._prompts.others(parts[0]) if len(parts) == 1 else None
        return None

    def _penalty(self, calls: list[LogProbCall], part: dict[str, Any]) -> tuple[Tensor | None, Tensor | None]:
        """RLOO's KL penalty of each sample (rloo_trainer.py 0.24.0 to 1.16.0), and the mean |policy - reference| where no update has
        parted them; None where there is no penalty."""
        trainer = self._observation.trainer
        passes = [call.log_probs for call in calls if not call.grad]
        if self._observation.schedule.algorithm != "RLOO" or trainer.beta == 0.0 or len(passes) != 2:
            return None, None
        mask = part["completion_mask"]
        distance = (passes[0] - passes[1]) * mask
        parted = self._observation.updates.version or hasattr(trainer.model, "peft_config")
        return trainer.beta * distance.sum(-1), None if parted else distance.abs().sum() / mask.sum().clamp(min=1)

    def _scored_alone(self, cycle: int, part: dict[str, Any], calls: list[LogProbCall]) -> dict[str, Any]:
        """What forwards and a backward pass of single rows of a rollout tell."""
        return self._penalty_scored_alone(cycle, part, calls) | self._observation.slopes.look(cycle, part)

    def _penalty_scored_alone(self, cycle: int, part: dict[str, Any], calls: list[LogProbCall]) -> dict[str, Any]:
        """Rows of which the reference of RLOO's penalty is scored again alone."""
        found: dict[str, Any] = {}
        passes = [call.log_probs for call in calls if not call.grad]
        wanted = self._observation.schedule.algorithm == "RLOO" and self._observation.trainer.beta != 0.0
        if wanted and is_compared_whole(cycle) and len(passes) == 2:
            alone = self._observation.alone
            with alone.guard:
                policy, reference = passes
                computed = Computed(policy=policy, policy_is="the old log-probs", reference=reference)
                found = alone.look(cycle, part, computed)
        return found

    def _has_reference_call(self, calls: list[LogProbCall]) -> bool:
        """Whether RLOO computed reference log-probs, which it does not hand on: with a model of their own, or, where adapters
        are switched off for them, in a second pass of the policy."""
        reference = getattr(self._observation.trainer, "ref_model", None)
        if reference is not None:
            return any(call.model is reference for call in calls)
        passes = sum(1 for call in calls if self._observation.is_policy(call.model) and not call.grad)
        return self._observation.schedule.algorithm == "RLOO" and passes > 1

    def _origin(self, olds: list[Tensor], calls: list[LogProbCall], *, copied: bool) -> int | None:
        """The policy version whose forwards produced these old log-probs, one tensor for each part of a rollout."""
        policy = [call for call in calls if self._observation.is_policy(call.model) and not call.grad]
        # RLOO's are sums over tokens, GFPO's some of the rows, replayed ones stand beside them: another tensor by construction.
        if self._observation.schedule.algorithm == "RLOO" or copied or self._left_out:
            return policy[0].version if policy else None
        versions = [next((call.version for call in policy if call.log_probs is old), None) for old in olds]
        known = [version for version in versions if version is not None]
        return min(known) if len(known) == len(versions) else None

    def _groups_intact(self, rows: Any, samples: int) -> bool | None:
        group = self._observation.schedule.samples_per_prompt
        if not isinstance(rows, list) or samples % group or len(rows) != samples:
            return None
        prompts = [row.get("prompt", row.get("messages")) for row in rows]
        return all(
            prompts[start] == prompt
            for start in range(0, samples, group)
            for prompt in prompts[start + 1 : start + group]
        )

    def _served_again(self, rows: Any, groups_intact: bool | None) -> int | None:
        with self._rows_guard:
            # Of an intact group one row says it all.
            group = self._observation.schedule.samples_per_prompt if groups_intact else 1
            return self._rows.repeated(rows[::group] if group > 1 else rows)
        return None
