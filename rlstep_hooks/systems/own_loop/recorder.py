"""Turns the calls of a loop, and its optimizers' steps, into events. Judges nothing.

When this is imported, torch is already loaded: an audit begins with an optimizer.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from rlstep_hooks.observe.compared import is_compared, is_compared_whole
from rlstep_hooks.observe.gathered_gradients import GatheredGradientWatch
from rlstep_hooks.observe.gradient_watch import GradientWatch
from rlstep_hooks.observe.guard import Guard
from rlstep_hooks.observe.norms import norm_of_gradients, parameters_of
from rlstep_hooks.observe.rates import RatesOfStep, rates_of
from rlstep_hooks.observe.sharding.dtensors import of_dtensors
from rlstep_hooks.observe.shards import local_shard, local_shards
from rlstep_hooks.record.events import Constant, FactsRead, MicroBatch, Refresh, Rollout, SampleRows, Update, WeightSync
from rlstep_hooks.systems.own_loop.forward_dtype import ForwardDtype
from rlstep_hooks.systems.own_loop.handed_over import ON_A_DEVICE, HandedOver
from rlstep_hooks.systems.own_loop.numbers import LoopNumbers
from rlstep_hooks.systems.own_loop.optimizers import OptimizerSteps
from rlstep_hooks.systems.own_loop.ranks import ReductionHooks

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from rlstep_hooks.observe.hidden_loss import HiddenLoss
    from rlstep_hooks.observe.settings import SettingsWatch
    from rlstep_hooks.planning.schedule import Schedule
    from rlstep_hooks.record.events import AnyEvent
    from rlstep_hooks.record.values import Role
    from rlstep_hooks.session.recorder import Recorder
    from rlstep_hooks.systems.own_loop.advantages import EstimatorName


class LoopObserver:
    """One audited loop.

    Args:
        schedule: The plan of the loop.
        recorder: Where events go.
        optimizers: The optimizer of each role; empty to use torch's hook on all optimizers.
        facts: Facts about the run that are already known.
        interval: Least number of seconds between two computations of deferred numbers.
        max_grad_norm: The configured limit of the gradient norm, read at a step; None where there is none.
        learning_rate: The rate that the policy's updates should have, or a function of rollout and update; None where nobody said.
        rate_of_rollout: Whether the rate is set once a rollout, so that the rollout is its schedule's tick.
    """

    def __init__(
        self,
        schedule: Schedule,
        recorder: Recorder,
        optimizers: dict[Role, Any],
        *,
        facts: dict[str, Any],
        interval: float,
        max_grad_norm: Callable[[], float | None] = lambda: None,
        learning_rate: float | Callable[[int, int], float] | None = None,
        rate_of_rollout: bool = False,
    ) -> None:
        self.version = 0
        """Updates applied to the policy so far."""
        self._schedule = schedule
        self._recorder = recorder
        self._interval = interval
        self._max_grad_norm = max_grad_norm
        self._learning_rate = learning_rate
        self._rate_of_rollout = rate_of_rollout
        self._latest = HandedOver()
        """Numbers of the latest rollout."""
        self._worked_up = -interval
        self._rollouts = 0
        self._microbatches = 0
        self._windows: dict[Role, int] = {"policy": 0, "critic": 0}
        self._updates: dict[Role, int] = {"policy": 0, "critic": 0}
        self._rates: dict[Role, RatesOfStep] = {}
        """The largest rate of each optimizer's groups, and the least of those that are meant to move."""
        self._probed: set[Role] = set()
        self._in_rollout = False
        self._sampled: int | None = None
        """Version that sampled the latest rollout."""
        self._refreshed: int | None = None
        """Version that computed the old log-probs of the latest rollout."""
        self._refreshed_in_rollout: tuple[int, Tensor | None] | None = None
        self._refreshes = 0
        self._dtype = ForwardDtype(facts.get("compute_dtype"))
        self._numbers = LoopNumbers(recorder)
        self._follows = False
        """Whether gradients are followed: a loop of one's own may do with them what it likes."""
        self._settings: SettingsWatch | None = None
        """Compares the settings of the policy's optimizer; None where they are the loop's own."""
        self._reduction: ReductionHooks | None = None
        """Follows the gradients of a model that several processes train; None where nobody named one."""
        self._apart: set[int] = set()
        """Identities of tensors of the critic alone."""
        self._due_rate: float | None = None
        """The rate that the schedule gives for the latest rollout; None where that is not known."""
        self._steps = OptimizerSteps(
            optimizers, before=self._before_step, after=self._after_step, unnamed=self._unnamed_step
        )
        # Each keeps this package's own errors away from the loop; what they cost the observation is recorded.
        self._rollout_guard = Guard(recorder, ("order", "refresh"))
        self._microbatch_guard = Guard(recorder, ("order", "samples", "log_ratio"))
        self._ratio_guard = Guard(recorder, ("log_ratio",))
        self._before_guard = Guard(recorder, ("weights", "learning_rate"))
        self._rate_guard = Guard(recorder, ("learning_rate",))
        self._after_guard = Guard(recorder, ("order", "weights"))
        self._step_guard = Guard(recorder, ("optimizer",))
        self._advantage_guard = Guard(recorder, ("advantages",))
        self._numbers_guard = Guard(recorder, ("log_ratio", "weights"))

    def attach(self) -> None:
        """Place the hooks on the optimizers."""
        with Guard(self._recorder, ("order", "weights", "learning_rate")):
            self._steps.attach()

    def detach(self) -> None:
        """Take all hooks off."""
        self._steps.detach()
        if self._reduction is not None:
            self._reduction.detach()
        for steps in self._numbers.steps.values():
            steps.remove()

    def set_apart(self, parameters: Iterable[Any]) -> None:
        """Tensors that the policy's optimizer trains and its log-probs do not depend on: those of the critic alone."""
        self._apart = {id(tensor) for tensor in parameters}

    def follow_gradients(self, parameters: Iterable[tuple[str, Any]]) -> None:
        """Compare the gradients that the policy's optimizer uses with those that the backward passes gave.

        Args:
            parameters: The policy's tensors by name.
        """
        self._follows = True
        watch = GradientWatch(parameters, Guard(self._recorder, ("gradient",)))
        self._numbers.steps["policy"].watch_gradients(watch)

    def follow_sharded(self, model: Any, *, counts_passes: bool = True) -> None:
        """Compare gradients from the backward passes to the step, look which tensors get any, and compare all tensors between updates.

        For a policy that FSDP2 gathers for its forwards, and that no other process trains.

        Args:
            model: The policy, whose tensors are DTensors.
            counts_passes: Whether each micro-batch that is told is one backward pass.
        """
        guard = Guard(self._recorder, ("gradient",))
        with guard:
            parameters = list(model.named_parameters())
            steps = self._numbers.steps["policy"]
            watch = GatheredGradientWatch(parameters, of_dtensors(model).places, guard)
            watch.counts_passes = counts_passes
            steps.watch_gradients(watch)
            steps.watch_model(local_shard(parameter) for _, parameter in parameters)
            steps.watch_graded(of for of in parameters if of[1].requires_grad)
            self._follows = True

    def compare_settings(self, watch: SettingsWatch) -> None:
        """Compare what the policy's optimizer steps with before each of its steps."""
        self._settings = watch

    def follow_reduction(self, model: Any, optimizer: Any) -> None:
        """Follow the policy's gradients over the processes that train it together.

        Args:
            model: The model, as the loop calls it.
            optimizer: The optimizer, as the loop steps it.
        """
        with Guard(self._recorder, ("reduction",)):
            passes = int(self._schedule.microbatches_per_update or 1)
            steps = self._numbers.steps["policy"]
            hooks = self._reduction = ReductionHooks(
                model,
                optimizer,
                steps,
                self._recorder,
                passes=passes,
                follows=lambda: self.compares_whole,
                trained=lambda: self._windows["policy"] > 0,
            )
            hooks.attach()

    # Rollouts and old log-probs

    def rollout_begins(self) -> None:
        """Sampling begins."""
        self._in_rollout = True
        self._refreshed_in_rollout = None

    def rollout_failed(self) -> None:
        """Sampling raised: there is no rollout."""
        self._in_rollout = False

    def rollout_ended(
        self,
        samples: int | None,
        sampler_version: int | None,
        due: int | None = None,
        *,
        reference: bool = False,
        repeated: int | None = None,
    ) -> None:
        """Sampling is over.

        Args:
            samples: Samples of the rollout.
            sampler_version: Policy version that sampled it; None if it is not known.
            due: The samples that it should have, where the data decide it; None where the plan does.
            reference: Whether it came with log-probs of a reference.
            repeated: Rows of it that came more often than the passes of the loader allow; None where rows are not known.
        """
        self._in_rollout = False
        with self._rollout_guard:
            if samples is None:
                raise ValueError("audit.rollout was not told its samples")
            recorder, index = self._recorder, self._rollouts
            self._rollouts += 1
            self._latest.begin(samples)
            self._sampled, self._refreshed, self._due_rate = self.version, None, None
            events: list[AnyEvent] = [
                Rollout(
                    at=recorder.now(),
                    index=index,
                    samples=samples,
                    policy_version=self.version,
                    sampler_version=sampler_version,
                    due=due,
                    reference=reference,
                    repeated=repeated,
                )
            ]
            within, self._refreshed_in_rollout = self._refreshed_in_rollout, None
            if within is not None:
                events.append(self._refresh(*within))
            recorder.emit(*events)
        self._collect()

    def refreshed(self, old_logprobs: Tensor | None) -> None:
        """Old log-probs were computed: those of the rollout that is being sampled, else of the latest one."""
        with self._rollout_guard:
            self._refreshes += 1
            if self._in_rollout:  # computed step by step while sampling: one refresh, of the rollout as a whole
                version = self.version if self._refreshed_in_rollout is None else self._refreshed_in_rollout[0]
                self._refreshed_in_rollout = version, old_logprobs
            else:
                self._recorder.emit(self._refresh(self.version, old_logprobs))

    def _refresh(self, version: int, old_logprobs: Tensor | None) -> Refresh:
        self._refreshed = version
        self._latest.refreshed(old_logprobs)
        return Refresh(
            at=self._recorder.now(),
            rollout=self._rollouts - 1,
            samples=self._latest.samples,
            positions=self._latest.samples if old_logprobs is None else old_logprobs.numel(),
            policy_version=version,
        )

    def synced(self) -> None:
        """The policy's weights were brought to what samples."""
        self._recorder.emit(WeightSync(at=self._recorder.now(), policy_version=self.version))

    def rate_is_due(self, rate: float) -> None:
        """The rate that the configured schedule gives for the updates on the latest rollout."""
        self._due_rate = rate

    # Rewards and advantages

    @property
    def latest(self) -> int:
        """The number of the latest rollout; -1 before the first."""
        return self._rollouts - 1

    @property
    def compares(self) -> bool:
        """Whether the numbers of the latest rollout are recomputed."""
        return is_compared(max(self._rollouts - 1, 0))

    @property
    def compares_whole(self) -> bool:
        """Whether numbers of the whole model are recomputed in it."""
        return is_compared_whole(max(self._rollouts - 1, 0))

    def rewarded(self, rewards: Tensor) -> None:
        """Rewards of the latest rollout."""
        with self._advantage_guard:
            self._latest.rewarded(rewards if self.compares else None)

    def moved(self, moved: dict[str, Any]) -> None:
        """What the rollout that is about to end has otherwise than it was given, as fields of RolloutValues."""
        self._numbers.moved = self._rollouts, moved

    def advantaged(self, advantages: Tensor, estimator: EstimatorName, **given: Any) -> None:
        """Advantages of the latest rollout; see `LoopAudit.advantages`."""
        with self._advantage_guard:
            if not self._rollouts:
                raise ValueError("audit.advantages was called before a rollout ended")
            if self.compares:
                comparison = self._latest.advantaged(advantages, estimator, **given)
                self._numbers.add_advantages(self._rollouts - 1, comparison.off(), comparison.fit)

    def compare_advantages(self, off: Tensor | None, fit: Callable[[], str], advantages: Tensor | None) -> None:
        """How far the advantages of the latest rollout are from those of the documented formula, and which they are.

        Args:
            off: The distance, in units of what rounding explains; None where it is not known.
            fit: Names which other calculation gives them.
            advantages: One a sample; None where a loss gets others on purpose.
        """
        self._latest.advantages = advantages
        if off is None:
            self._numbers.add_moved(self._rollouts - 1)
        else:
            self._numbers.add_advantages(self._rollouts - 1, off, fit)

    # Micro-batches

    def window_begins(self) -> None:
        """Begin an update, whose first backward comes next or has just begun: what the policy's gradients hold already is left
        over."""
        with self._before_guard:
            self._numbers.steps["policy"].begin_window(followed=self.compares_whole)

    def add_replaced(self, replaced: list[tuple[str, Tensor]]) -> None:
        """Modules whose backward hooks replaced gradients of the latest micro-batch; see `LoopNumbers.add_replaced`."""
        self._numbers.add_replaced(self._microbatches - 1, replaced)

    def add_columns(self, columns: dict[str, Tensor], like: Callable[[], str] | None = None) -> None:
        """Add numbers of the latest micro-batch; `like` names its loss, if that is not the documented one."""
        self._numbers.see(self._microbatches - 1, columns)
        if like is not None:
            self.know(loss_like=like)

    def know(self, **fields: Any) -> None:
        """Add what the host knows of the latest micro-batch, as fields of its values: numbers that are worked up later come in their
        place."""
        self._numbers.know(self._microbatches - 1, **fields)

    def hold_loss(self, loss: HiddenLoss[Any]) -> None:
        """Keep the loss of the latest micro-batch, which is compared with others of its kind when numbers are worked up."""
        self._numbers.losses.add(self._microbatches - 1, loss)

    def microbatch(
        self,
        *,
        samples: int | None,
        indices: Tensor | Sequence[int] | None,
        role: Role,
        old_logprobs: Tensor | None,
        new_logprobs: Tensor | None,
        mask: Tensor | None,
        advantages: Tensor | None,
        targets: Tensor | None,
    ) -> None:
        """One forward and backward; see `LoopAudit.microbatch`."""
        index, self._microbatches = self._microbatches, self._microbatches + 1
        rows: tuple[int, ...] | None = None
        with self._microbatch_guard:
            rows = None if indices is None else self._latest.rows(indices)
            if indices is not None and rows is None:
                self._recorder.cannot("samples", ON_A_DEVICE)
            given: dict[Constant, Tensor | None] = {
                "old_logprobs": old_logprobs,
                "advantages": advantages,
                "targets": targets,
            }
            seen = {name: tensor for name, tensor in given.items() if tensor is not None}
            shown = (new_logprobs, *seen.values()) if new_logprobs is not None else tuple(seen.values())
            self._emit_microbatch(index, role, samples if rows is None else len(rows), rows, shown, seen)
        if role == "policy" and old_logprobs is not None:
            with self._ratio_guard:
                if new_logprobs is not None:
                    self._dtype.see(new_logprobs)
                refreshed = None if rows is None else self._latest.refreshed_rows(indices, old_logprobs)
                self._numbers.add_microbatch(index, new=new_logprobs, old=old_logprobs, mask=mask, refreshed=refreshed)
        if role == "policy" and advantages is not None:
            with self._ratio_guard, torch.no_grad():
                # Equal ones are 0 once a loss has normalised them.
                numbers = torch.as_tensor(advantages).detach()
                self._numbers.see(index, {"max_abs_advantage": numbers.max() - numbers.min()})
        if role == "policy" and rows is not None and advantages is not None:
            with self._advantage_guard, torch.no_grad():
                differing = self._latest.differing(indices, advantages)
                if differing is not None:
                    self._numbers.see(index, {"advantages_intact": differing})

    def _emit_microbatch(
        self,
        index: int,
        role: Role,
        samples: int | None,
        rows: tuple[int, ...] | None,
        shown: tuple[Tensor, ...],
        constants: dict[Constant, Tensor],
    ) -> None:
        """Write the event.

        Args:
            index: The micro-batch.
            role: The role whose loss the micro-batch has.
            samples: Number of samples; None if a tensor gives it.
            rows: The rows of the samples; None if they are not known.
            shown: All tensors that were given, each with one row for each sample.
            constants: Tensors that the loss treats as constant.

        Raises:
            ValueError: Nothing says how many samples there are.
        """
        if samples is None and not shown:
            raise ValueError("audit.microbatch was told neither samples nor indices, nor given a tensor")
        source = self._schedule.old_logprob_source
        if not self._refreshes and role == "policy" and source in ("at_rollout", "recompute"):
            self._recorder.cannot("refresh", "audit.refresh was not called before the first micro-batch")
        self._recorder.emit(
            MicroBatch(
                at=self._recorder.now(),
                index=index,
                samples=int(shown[0].shape[0]) if samples is None else samples,
                role=role,
                trained=None if rows is None else (SampleRows(self._rollouts - 1, rows),),
                policy_version=self.version,
                sampled_version=self._sampled,
                old_version=self._refreshed,
                old_source=source,
                constants=tuple(constants),
                with_gradient=tuple(
                    name for name, given in constants.items() if getattr(given, "requires_grad", False)
                ),
            )
        )
        self._windows[role] += 1

    # Updates

    def _before_step(self, role: Role, optimizer: Any, *, final: bool) -> None:
        steps = self._numbers.steps[role]
        with self._before_guard:
            if role not in self._probed:
                self._probed.add(role)
                self._first_step(role, optimizer)
            self._rates[role] = rates_of(optimizer)
        if role == "policy" and self._settings is not None:
            self._settings.tell(self._recorder)
        if role == "policy" and self._learning_rate is not None:
            with self._rate_guard:
                due = self._learning_rate
                self._due_rate = float(due(self._rollouts - 1, self._updates[role]) if callable(due) else due)
        with self._step_guard:
            limit = self._limit() if final and role == "policy" and self.compares_whole else None
            if limit:
                steps.see_norm(self._updates[role], norm_of_gradients(parameters_of(optimizer)), limit)
        steps.before_step(self._updates[role], replayed=final and self.compares)

    def _limit(self) -> float | None:
        """The configured limit of the gradient norm; where the loop names none, the one of an optimizer that clips by itself."""
        limit = self._max_grad_norm()
        return self._reduction.limit if limit is None and self._reduction is not None else limit

    def _first_step(self, role: Role, optimizer: Any) -> None:
        """Read from the live optimizer: the dtype of its weights, and which of them can be probed."""
        parameters = list(parameters_of(optimizer))
        dtype = self._dtype.tell(parameters) if role == "policy" else None
        if dtype is not None:
            self._recorder.emit(FactsRead(at=self._recorder.now(), facts={"compute_dtype": dtype}))
        # The last tensor of the policy is always among those that are probed: layers before it may be dead, and have no gradient.
        parameters.reverse()
        parameters.sort(key=lambda parameter: id(parameter) in self._apart)
        steps, nothing = self._numbers.steps[role], f"the optimizer of the {role} holds no trainable weight"
        # FSDP2 keeps tensors whose local part alone is here.
        steps.watch_weights(local_shards(parameters), apart=self._apart, nothing=nothing)
        if role == "policy" and not self._follows:
            steps.watch_left_over()
        steps.watch_steps(optimizer)

    def _after_step(self, role: Role, optimizer: Any) -> None:
        with self._after_guard:
            if not self._microbatches:
                self._recorder.cannot("order", "an optimizer stepped before audit.microbatch was called")
            rates, index = self._rates.get(role), self._updates[role]
            self._update(role, applied=True, rate=None if rates is None else rates.largest_number)
            if self._reduction is not None and role == "policy":
                self._reduction.stepped()
            if rates is not None:
                self._numbers.steps[role].after_step(index, rates.least_moving, whole=self.compares_whole)
                self._numbers.steps_held += 1
        if self._numbers.are_many:
            self._collect()

    def skipped(self, role: Role, reason: str) -> None:
        """The loop reached its optimizer step and made none."""
        with self._after_guard:
            self._update(role, applied=False, reason=reason)
            if self._reduction is not None and role == "policy":
                self._reduction.stepped()

    def _update(self, role: Role, *, applied: bool, rate: float | None = None, reason: str = "") -> None:
        self.version += applied and role == "policy"
        window, self._windows[role] = self._windows[role], 0
        self._recorder.emit(
            Update(
                at=self._recorder.now(),
                index=self._updates[role],
                role=role,
                applied=applied,
                version=self.version,
                microbatches=window,
                learning_rate=rate,
                lr_tick=self._rollouts - 1 if self._rate_of_rollout and role == "policy" else None,
                skip_reason=reason,
                due_rate=self._due_rate if role == "policy" else None,
            )
        )
        self._updates[role] += 1

    def _unnamed_step(self, name: str) -> None:
        self._recorder.cannot(
            "order", f"a second optimizer ({name}) steps in this process: name those of the loop (optimizer=...)"
        )

    # Numbers

    @property
    def updates_made(self) -> int:
        """Updates of the policy, skipped ones included."""
        return self._updates["policy"]

    def _collect(self) -> None:
        """Emit the numbers that have arrived, not too often."""
        now = self._recorder.now()
        if now - self._worked_up >= self._interval or self._numbers.are_many:
            self._worked_up = now
            self._emit_numbers()

    def finish(self) -> None:
        """Emit all numbers; the loop is over, so waiting for the device is allowed."""
        self._emit_numbers(wait=True)

    def _emit_numbers(self, *, wait: bool = False) -> None:
        with self._numbers_guard:
            measured = self._numbers.measured(self._recorder.now, wait=wait)
            if measured is not None:
                self._recorder.emit(measured)
            steps = self._numbers.steps["policy"]
            steps.parts_sent()
            parts = steps.parts_arrived(self._recorder.now, wait=wait)
            if parts:
                self._recorder.emit(*parts)
