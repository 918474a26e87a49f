"""The updates of a loop: what each step of its optimizers shows, and what is followed from the backward passes to it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from rlstep_hooks.observe.compared import is_compared, is_compared_whole
from rlstep_hooks.observe.gathered_gradients import GatheredGradientWatch
from rlstep_hooks.observe.gradient_watch import GradientWatch
from rlstep_hooks.observe.guard import Guard, contained
from rlstep_hooks.observe.norms import norm_of_gradients, parameters_of
from rlstep_hooks.observe.rates import RatesOfStep, rates_of
from rlstep_hooks.observe.sharding.dtensors import of_dtensors
from rlstep_hooks.observe.shards import local_shard, local_shards
from rlstep_hooks.record.events import FactsRead, Update
from rlstep_hooks.systems.own_loop.optimizers import OptimizerSteps
from rlstep_hooks.systems.own_loop.ranks import ReductionHooks

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from rlstep_hooks.observe.settings import SettingsWatch
    from rlstep_hooks.planning.schedule import Schedule
    from rlstep_hooks.record.values import Role
    from rlstep_hooks.session.recorder import Recorder
    from rlstep_hooks.systems.own_loop.forward_dtype import ForwardDtype
    from rlstep_hooks.systems.own_loop.numbers import LoopNumbers


class LoopUpdates:
    """Follows the updates of one audited loop.

    Args:
        schedule: The plan of the loop.
        recorder: Where events go.
        optimizers: The optimizer of each role; empty to use torch's hook on all optimizers.
        numbers: The numbers of the loop.
        dtype: The dtype that its forwards compute in.
        latest: Gives the number of the latest rollout; -1 before the first.
        many: Called after an update where so many numbers wait that they should be worked up.
        max_grad_norm: The configured limit of the gradient norm, read at a step; None where there is none.
        learning_rate: The rate that the policy's updates should have, or a function of rollout and update; None where nobody said.
        rate_of_rollout: Whether the rate is set once a rollout, so that the rollout is its schedule's tick.
    """

    def __init__(
        self,
        schedule: Schedule,
        recorder: Recorder,
        optimizers: dict[Role, Any],
        numbers: LoopNumbers,
        dtype: ForwardDtype,
        *,
        latest: Callable[[], int],
        many: Callable[[], None],
        max_grad_norm: Callable[[], float | None],
        learning_rate: float | Callable[[int, int], float] | None,
        rate_of_rollout: bool,
    ) -> None:
        self.version = 0
        """Updates applied to the policy so far."""
        self._schedule = schedule
        self.recorder = recorder
        """The recorder that events go to."""
        self._numbers = numbers
        self._dtype = dtype
        self._latest = latest
        self._many = many
        self._max_grad_norm = max_grad_norm
        self._learning_rate = learning_rate
        self._rate_of_rollout = rate_of_rollout
        self._told = False
        """Whether the loop has told of a micro-batch."""
        self._windows: dict[Role, int] = {"policy": 0, "critic": 0}
        self._updates: dict[Role, int] = {"policy": 0, "critic": 0}
        self._rates: dict[Role, RatesOfStep] = {}
        """The largest rate of each optimizer's groups, and the least of those that are meant to move."""
        self._probed: set[Role] = set()
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

    @contained("order", "weights", "learning_rate")
    def attach(self) -> None:
        """Place the hooks on the optimizers."""
        self._steps.attach()

    def detach(self) -> None:
        """Take all hooks off."""
        self._steps.detach()
        if self._reduction is not None:
            self._reduction.detach()
        for steps in self._numbers.steps.values():
            steps.remove()

    # What is followed

    def set_apart(self, parameters: Iterable[Any]) -> None:
        """Tensors that the policy's optimizer trains and its log-probs do not depend on: those of the critic alone."""
        self._apart = {id(tensor) for tensor in parameters}

    def follow_gradients(self, parameters: Iterable[tuple[str, Any]]) -> None:
        """Compare the gradients that the policy's optimizer uses with those that the backward passes gave.

        Args:
            parameters: The policy's tensors by name.
        """
        self._follows = True
        watch = GradientWatch(parameters, Guard(self.recorder, ("gradient",)))
        self._numbers.steps["policy"].watch_gradients(watch)

    @contained("gradient")
    def follow_sharded(self, model: Any, *, counts_passes: bool = True) -> None:
        """Compare gradients from the backward passes to the step, look which tensors get any, and compare all tensors between updates.

        For a policy that FSDP2 gathers for its forwards, and that no other process trains.

        Args:
            model: The policy, whose tensors are DTensors.
            counts_passes: Whether each micro-batch that is told is one backward pass.
        """
        parameters = list(model.named_parameters())
        steps = self._numbers.steps["policy"]
        watch = GatheredGradientWatch(parameters, of_dtensors(model).places, Guard(self.recorder, ("gradient",)))
        watch.counts_passes = counts_passes
        steps.watch_gradients(watch)
        steps.watch_model(local_shard(parameter) for _, parameter in parameters)
        steps.watch_graded(of for of in parameters if of[1].requires_grad)
        self._follows = True

    def compare_settings(self, watch: SettingsWatch) -> None:
        """Compare what the policy's optimizer steps with before each of its steps."""
        self._settings = watch

    @contained("reduction")
    def follow_reduction(self, model: Any, optimizer: Any) -> None:
        """Follow the policy's gradients over the processes that train it together.

        Args:
            model: The model, as the loop calls it.
            optimizer: The optimizer, as the loop steps it.
        """
        passes = int(self._schedule.microbatches_per_update or 1)
        steps = self._numbers.steps["policy"]
        hooks = self._reduction = ReductionHooks(
            model,
            optimizer,
            steps,
            self.recorder,
            passes=passes,
            follows=lambda: self._compares_whole,
            trained=lambda: self._windows["policy"] > 0,
        )
        hooks.attach()

    # Micro-batches

    def microbatch_told(self) -> None:
        """The loop tells of a micro-batch."""
        self._told = True

    def trained(self, role: Role) -> None:
        """Count a micro-batch that was recorded into the update that comes next."""
        self._windows[role] += 1

    @contained("weights", "learning_rate")
    def window_begins(self) -> None:
        """Begin an update, whose first backward comes next or has just begun: what the policy's gradients hold already is left
        over."""
        self._numbers.steps["policy"].begin_window(followed=self._compares_whole)

    def rate_is_due(self, rate: float | None) -> None:
        """Compare the rate of the updates on the latest rollout with this one, which the configured schedule gives; None: with none."""
        self._due_rate = rate

    # Steps

    @property
    def made(self) -> int:
        """Updates of the policy, skipped ones included."""
        return self._updates["policy"]

    def _before_step(self, role: Role, optimizer: Any, *, final: bool) -> None:
        self._see_optimizer(role, optimizer)
        if role == "policy" and self._settings is not None:
            self._settings.tell(self.recorder)
        if role == "policy":
            self._ask_rate(self._updates[role])
            if final:
                self._see_norm(self._updates[role], optimizer)
        self._numbers.steps[role].before_step(self._updates[role], replayed=final and self._compares)

    @contained("weights", "learning_rate")
    def _see_optimizer(self, role: Role, optimizer: Any) -> None:
        if role not in self._probed:
            self._probed.add(role)
            self._first_step(role, optimizer)
        self._rates[role] = rates_of(optimizer)

    @contained("learning_rate")
    def _ask_rate(self, update: int) -> None:
        """Ask what the loop's author said of the rate of an update of the policy, where anything was said."""
        due = self._learning_rate
        if due is not None:
            self._due_rate = float(due(self._latest(), update) if callable(due) else due)

    @contained("optimizer")
    def _see_norm(self, update: int, optimizer: Any) -> None:
        limit = self._limit() if self._compares_whole else None
        if limit:
            self._numbers.steps["policy"].see_norm(update, norm_of_gradients(parameters_of(optimizer)), limit)

    def _limit(self) -> float | None:
        """The configured limit of the gradient norm; where the loop names none, the one of an optimizer that clips by itself."""
        limit = self._max_grad_norm()
        return self._reduction.limit if limit is None and self._reduction is not None else limit

    def _first_step(self, role: Role, optimizer: Any) -> None:
        """Read from the live optimizer: the dtype of its weights, and which of them can be probed."""
        parameters = list(parameters_of(optimizer))
        dtype = self._dtype.tell(parameters) if role == "policy" else None
        if dtype is not None:
            self.recorder.emit(FactsRead(at=self.recorder.now(), facts={"compute_dtype": dtype}))
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
        self._stepped(role)
        if self._numbers.are_many:
            self._many()

    @contained("order", "weights")
    def _stepped(self, role: Role) -> None:
        if not self._told:
            self.recorder.cannot("order", "an optimizer stepped before audit.microbatch was called")
        rates, index = self._rates.get(role), self._updates[role]
        self._update(role, applied=True, rate=None if rates is None else rates.largest_number)
        if self._reduction is not None and role == "policy":
            self._reduction.stepped()
        if rates is not None:
            self._numbers.steps[role].after_step(index, rates.least_moving, whole=self._compares_whole)
            self._numbers.steps_held += 1

    @contained("order", "weights")
    def skipped(self, role: Role, reason: str) -> None:
        """The loop reached its optimizer step and made none."""
        self._update(role, applied=False, reason=reason)
        if self._reduction is not None and role == "policy":
            self._reduction.stepped()

    def _update(self, role: Role, *, applied: bool, rate: float | None = None, reason: str = "") -> None:
        self.version += applied and role == "policy"
        window, self._windows[role] = self._windows[role], 0
        self.recorder.emit(
            Update(
                at=self.recorder.now(),
                index=self._updates[role],
                role=role,
                applied=applied,
                version=self.version,
                microbatches=window,
                learning_rate=rate,
                lr_tick=self._latest() if self._rate_of_rollout and role == "policy" else None,
                skip_reason=reason,
                due_rate=self._due_rate if role == "policy" else None,
            )
        )
        self._updates[role] += 1

    def _unnamed_step(self, name: str) -> None:
        self.recorder.cannot(
            "order", f"a second optimizer ({name}) steps in this process: name those of the loop (optimizer=...)"
        )

    @property
    def _compares(self) -> bool:
        """Whether the numbers of the latest rollout are recomputed."""
        return is_compared(max(self._latest(), 0))

    @property
    def _compares_whole(self) -> bool:
        """Whether numbers of the whole model are recomputed in it."""
        return is_compared_whole(max(self._latest(), 0))
