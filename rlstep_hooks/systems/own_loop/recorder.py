"""Turns the calls of a loop, and its optimizers' steps, into events. Judges nothing.

When this is imported, torch is already loaded: an audit begins with an optimizer.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from rlstep_hooks.observe.compared import is_compared, is_compared_whole
from rlstep_hooks.observe.guard import contained
from rlstep_hooks.record.events import Constant, MicroBatch, Refresh, Rollout, SampleRows, WeightSync
from rlstep_hooks.systems.own_loop.forward_dtype import ForwardDtype
from rlstep_hooks.systems.own_loop.handed_over import ON_A_DEVICE, HandedOver
from rlstep_hooks.systems.own_loop.numbers import LoopNumbers
from rlstep_hooks.systems.own_loop.updates import LoopUpdates

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from rlstep_hooks.observe.hidden_loss import HiddenLoss
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
        self._schedule = schedule
        self.recorder = recorder
        """The recorder that events go to."""
        self._interval = interval
        self._latest = HandedOver()
        """Numbers of the latest rollout."""
        self._worked_up = -interval
        self._rollouts = 0
        self._microbatches = 0
        self._in_rollout = False
        self._sampled: int | None = None
        """Version that sampled the latest rollout."""
        self._refreshed: int | None = None
        """Version that computed the old log-probs of the latest rollout."""
        self._refreshed_in_rollout: tuple[int, Tensor | None] | None = None
        self._refreshes = 0
        self._dtype = ForwardDtype(facts.get("compute_dtype"))
        self._numbers = LoopNumbers(recorder)
        self.updates = LoopUpdates(
            schedule,
            recorder,
            optimizers,
            self._numbers,
            self._dtype,
            latest=lambda: self.latest,
            many=self._collect,
            max_grad_norm=max_grad_norm,
            learning_rate=learning_rate,
            rate_of_rollout=rate_of_rollout,
        )

    def attach(self) -> None:
        """Place the hooks on the optimizers."""
        self.updates.attach()

    def detach(self) -> None:
        """Take all hooks off."""
        self.updates.detach()

    @property
    def version(self) -> int:
        """Updates applied to the policy so far."""
        return self.updates.version

    @property
    def updates_made(self) -> int:
        """Updates of the policy, skipped ones included."""
        return self.updates.made

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
        self._emit_rollout(samples, sampler_version, due, reference=reference, repeated=repeated)
        self._collect()

    @contained("order", "refresh")
    def _emit_rollout(
        self,
        samples: int | None,
        sampler_version: int | None,
        due: int | None,
        *,
        reference: bool,
        repeated: int | None,
    ) -> None:
        if samples is None:
            raise ValueError("audit.rollout was not told its samples")
        recorder, index = self.recorder, self._rollouts
        self._rollouts += 1
        self._latest.begin(samples)
        self._sampled, self._refreshed = self.version, None
        self.updates.rate_is_due(None)
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

    @contained("order", "refresh")
    def refreshed(self, old_logprobs: Tensor | None) -> None:
        """Old log-probs were computed: those of the rollout that is being sampled, else of the latest one."""
        self._refreshes += 1
        if self._in_rollout:  # computed step by step while sampling: one refresh, of the rollout as a whole
            version = self.version if self._refreshed_in_rollout is None else self._refreshed_in_rollout[0]
            self._refreshed_in_rollout = version, old_logprobs
        else:
            self.recorder.emit(self._refresh(self.version, old_logprobs))

    def _refresh(self, version: int, old_logprobs: Tensor | None) -> Refresh:
        self._refreshed = version
        self._latest.refreshed(old_logprobs)
        return Refresh(
            at=self.recorder.now(),
            rollout=self._rollouts - 1,
            samples=self._latest.samples,
            positions=self._latest.samples if old_logprobs is None else old_logprobs.numel(),
            policy_version=version,
        )

    def synced(self) -> None:
        """The policy's weights were brought to what samples."""
        self.recorder.emit(WeightSync(at=self.recorder.now(), policy_version=self.version))

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

    @contained("advantages")
    def rewarded(self, rewards: Tensor) -> None:
        """Rewards of the latest rollout."""
        self._latest.rewarded(rewards if self.compares else None)

    def moved(self, moved: dict[str, Any]) -> None:
        """What the rollout that is about to end has otherwise than it was given, as fields of RolloutValues."""
        self._numbers.moved = self._rollouts, moved

    @contained("advantages")
    def advantaged(self, /, advantages: Tensor, estimator: EstimatorName, **given: Any) -> None:
        """Advantages of the latest rollout; see `LoopAudit.advantages`."""
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
        self.updates.microbatch_told()
        rows = self._rows(indices)
        given: dict[Constant, Tensor | None] = {
            "old_logprobs": old_logprobs,
            "advantages": advantages,
            "targets": targets,
        }
        seen = {name: tensor for name, tensor in given.items() if tensor is not None}
        shown = (new_logprobs, *seen.values()) if new_logprobs is not None else tuple(seen.values())
        self._emit_microbatch(index, role, samples if rows is None else len(rows), rows, shown, seen)
        if role == "policy" and old_logprobs is not None:
            self._compare_log_probs(index, new_logprobs, old_logprobs, mask, None if rows is None else indices)
        if role == "policy" and advantages is not None:
            self._see_spread(index, advantages)
            if rows is not None:
                self._compare_rows_of_advantages(index, indices, advantages)

    @contained("order", "samples", "log_ratio")
    def _rows(self, indices: Tensor | Sequence[int] | None) -> tuple[int, ...] | None:
        """The rows of a micro-batch; None where they are not known."""
        rows = None if indices is None else self._latest.rows(indices)
        if indices is not None and rows is None:
            self.recorder.cannot("samples", ON_A_DEVICE)
        return rows

    @contained("log_ratio")
    def _compare_log_probs(
        self,
        index: int,
        new: Tensor | None,
        old: Tensor,
        mask: Tensor | None,
        indices: Tensor | Sequence[int] | None,
    ) -> None:
        if new is not None:
            self._dtype.see(new)
        refreshed = None if indices is None else self._latest.refreshed_rows(indices, old)
        self._numbers.add_microbatch(index, new=new, old=old, mask=mask, refreshed=refreshed)

    @contained("log_ratio")
    def _see_spread(self, index: int, advantages: Tensor) -> None:
        with torch.no_grad():
            # Equal ones are 0 once a loss has normalised them.
            numbers = torch.as_tensor(advantages).detach()
            self._numbers.see(index, {"max_abs_advantage": numbers.max() - numbers.min()})

    @contained("advantages")
    def _compare_rows_of_advantages(self, index: int, indices: Any, advantages: Tensor) -> None:
        with torch.no_grad():
            differing = self._latest.differing(indices, advantages)
            if differing is not None:
                self._numbers.see(index, {"advantages_intact": differing})

    @contained("order", "samples", "log_ratio")
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
            self.recorder.cannot("refresh", "audit.refresh was not called before the first micro-batch")
        self.recorder.emit(
            MicroBatch(
                at=self.recorder.now(),
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
        self.updates.trained(role)

    # Numbers

    def _collect(self) -> None:
        """Emit the numbers that have arrived, not too often."""
        now = self.recorder.now()
        if now - self._worked_up >= self._interval or self._numbers.are_many:
            self._worked_up = now
            self._emit_numbers()

    def finish(self) -> None:
        """Emit all numbers; the loop is over, so waiting for the device is allowed."""
        self._emit_numbers(wait=True)

    @contained("log_ratio", "weights")
    def _emit_numbers(self, *, wait: bool = False) -> None:
        measured = self._numbers.measured(self.recorder.now, wait=wait)
        if measured is not None:
            self.recorder.emit(measured)
        steps = self._numbers.steps["policy"]
        steps.parts_sent()
        parts = steps.parts_arrived(self.recorder.now, wait=wait)
        if parts:
            self.recorder.emit(*parts)
