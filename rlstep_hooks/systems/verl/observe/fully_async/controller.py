"""What the process that controls training sees of a run of `fully_async_policy`: calls to its trainers, syncs, the end."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

from rlstep_hooks.observe.guard import contained
from rlstep_hooks.record.events import FactsRead
from rlstep_hooks.systems.verl.observe.controller import VerlController
from rlstep_hooks.systems.verl.observe.fully_async.rollouts import StreamedRollouts, record_of_generation
from rlstep_hooks.systems.verl.observe.start import plan_of

if TYPE_CHECKING:
    from rlstep_hooks.planning.schedule import Schedule
    from rlstep_hooks.systems.verl.observe.rollout_hooks import FollowedRollouts


class FullyAsyncController(VerlController):
    """Follows one `FullyAsyncTrainer` from its first sync to the report.

    Args:
        trainer: It.
    """

    def __init__(self, trainer: Any) -> None:
        self._streamed: StreamedRollouts | None = None
        self._label = -1
        """The label of the latest sync."""
        super().__init__(trainer, own_fit=False)

    def _plan(self, own_fit: bool) -> tuple[Schedule | None, str]:
        """The plan, and why the run cannot be followed; empty where it can. The rows are those of the process that generates."""
        facts = (event.facts for event in record_of_generation().read() if isinstance(event, FactsRead))
        rows = next((fact["rows"] for fact in facts if "rows" in fact), None)
        schedule, reason = plan_of(self._trainer, rows=rows, own_fit=own_fit, v1=False)
        if schedule is not None and rows is None:
            # The process that generates has counted its rows, and told this one (fully_async_main.py:88).
            rollouts = int(self._trainer.total_train_steps)
            updates = int(rollouts * schedule.updates_per_rollout)
            schedule = msgspec.structs.replace(schedule, rollouts=rollouts, updates=updates)
        return schedule, reason

    def _rollouts_before(self) -> int:
        """Rollouts that a resumed run has behind it."""
        return int(self._trainer.current_param_version)

    def _loader_facts(self) -> dict[str, Any]:
        """The loader is in another process, and its position on a resume does not say what was under way."""
        return {"row_order_unknown": "the rows are read by the process that generates"}

    def _followed_rollouts(self, schedule: Schedule, *, resumed: bool, own_fit: bool) -> FollowedRollouts:
        """What follows the rollouts."""
        self._streamed = StreamedRollouts(self._trainer, schedule, self.recorder)
        return self._streamed

    def _attach_syncs(self) -> None:
        """The one hook on syncs that begins the audit goes on to tell of them (`hooks`)."""

    async def around_sync(self, wrapped: Any, manager: Any, args: Any, kwargs: Any) -> Any:
        """A sync of weights."""
        result = await wrapped(*args, **kwargs)
        if not self._followed or self._streamed is None:
            return result
        label = int(kwargs.get("global_steps", args[0] if args else -1))
        self._streamed.synced(label)
        # At its end verl may sync the same weights once more (fully_async_trainer.py:484); that is none of the plan.
        self._streamed.validating, self._label = label == self._label, label
        error = self._synced()
        if self._record.session.stop_if_asked():
            self.stopped_for = error
        return result

    def end(self, error: BaseException | None = None) -> None:
        """Training returned, or raised `error`: write the last lines and report."""
        if self._followed and self._streamed is not None and self._streamed.incomplete:
            self._leave_out_rest()
        super().end(error)

    @contained("order")
    def _leave_out_rest(self) -> None:
        """Fetches that fill no rollout are none of the plan, and no sync follows them."""
        self._record.all_returned("evaluation")
