"""The audit's numbers in the logs that transformers hands to its trackers (TensorBoard, W&B, trackio, MLflow and others)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from rlstep_hooks.observe.hooks import Hooks
from rlstep_hooks.observe.patches import Patches
from rlstep_hooks.show.scalars import scalars

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from rlstep_hooks.judge.report import Summary
    from rlstep_hooks.observe.guard import GapRecorder
    from rlstep_hooks.observe.hooks import Call

LAST_LOG = "total_flos"
"""A name in the logs that transformers writes once when training is over, and in no others (`Trainer.log(metrics)` after the
loop, 4.51, 4.57, 5.23). `train_runtime` is in every log of a run with `include_num_input_tokens_seen`."""


class TrackerLogs:
    """Adds scalars to the logs of one trainer, for its callbacks' eyes only.

    Args:
        trainer: The trainer.
        record: Takes down that something went wrong here.
        summary: Gives the judgement so far.
        training_over: Called before the last logs, which then have the final judgement.
        adds: False in processes whose trackers write nothing: the last logs are then only the end of training.
    """

    def __init__(
        self,
        trainer: Any,
        record: GapRecorder,
        *,
        summary: Callable[[], Summary],
        training_over: Callable[[], None],
        adds: bool,
    ) -> None:
        self._summary = summary
        self._training_over = training_over
        self._adds = adds
        self._patches = Patches()
        # Every tracker is a callback that gets the same dictionary, and all of them come before the user's own callbacks
        # (Trainer.__init__), so a callback's `on_log` is too late. `Trainer.log` would be early enough, but keeps a copy of
        # what it gets in `log_history` and in checkpoints, which stay as they are. In 4.51, 4.57, 5.23.
        hooks = Hooks(record, self._patches)
        hooks.wrap(trainer.callback_handler, "on_log", around=self._logs, topics=("recording",))

    def remove(self) -> None:
        """Take the hook off."""
        self._patches.restore()

    def _logs(self, call: Call) -> Iterator[None]:
        logs, added = call.argument("logs", 3), dict[str, float]()
        if LAST_LOG in logs:
            self._training_over()
        if self._adds:
            added = {name: value for name, value in scalars(self._summary()).items() if name not in logs}
            logs.update(added)
        try:
            yield
        finally:
            # `evaluate` returns this dictionary, and others may keep it.
            for name in added:
                logs.pop(name, None)
