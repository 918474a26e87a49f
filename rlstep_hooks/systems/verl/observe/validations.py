"""Whether a validation goes through its whole set, with as many samples of each prompt as `val_kwargs.n` asks for.

V1 takes what its agent loops gave for a batch of the set from its queue, by names that say prompt and session (trainer_base.py
0.9.1:1048-1078); V0 repeats the rows of a batch before they are generated for (ray_trainer.py 0.9.1:608-626).
"""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING, Any

from rlstep_hooks.observe.configured import OtherThanConfigured
from rlstep_hooks.record.events import EVALUATED_ROWS

if TYPE_CHECKING:
    from rlstep_hooks.observe.hooks import Call, Hooks
    from rlstep_hooks.observe.sync_watch import EventRecorder

SAMPLES = "actor_rollout_ref.rollout.val_kwargs.n, in evaluations"
_TOPICS = ("settings",)
_OWN_NUMBER = "__rollout_n__"
"""The column of a set whose rows say themselves how many samples they want (v1/agent_loop_tq.py 0.9.1:113)."""


class Validations:
    """Counts what each validation of one trainer generates for, and records once of each kind if that is not what is configured.

    Args:
        trainer: verl's, when its data sets are there.
        recorder: Takes what is found.
    """

    def __init__(self, trainer: Any, recorder: EventRecorder) -> None:
        self._trainer = trainer
        self._otherwise = OtherThanConfigured(recorder)
        rows = getattr(trainer, "val_dataset", None)
        self._rows = len(rows) if rows is not None and _is_verls(type(trainer), "_validate") else 0
        """Rows of the set; 0 where validations are not compared."""
        data, rollout = trainer.config.data, trainer.config.actor_rollout_ref.rollout
        own = (data.get("custom_cls") or {}).get("path") or _OWN_NUMBER in set(_columns(rows))
        self._samples = 0 if own else int((rollout.get("val_kwargs") or {}).get("n", 1))
        """Samples that are configured for each row; 0 where the rows say it themselves."""
        self._open = False
        """Whether a validation goes on."""
        self._seen = 0
        """Rows of the set that were generated for, where samples come from a queue."""
        self._sessions: dict[str, set[str]] = defaultdict(set)
        """Sessions of each prompt of this validation."""

    def begin(self) -> None:
        """A validation begins."""
        self._open, self._seen = True, 0
        self._sessions.clear()

    def place(self, hooks: Hooks, *, v1: bool) -> None:
        """Put the hooks on the trainer, which look while it validates.

        Args:
            hooks: What takes them off again.
            v1: Whether it is one of `verl.trainer.ppo.v1`.
        """
        if not self._rows:
            return
        if v1:
            hooks.wrap(self._trainer.replay_buffer, "sample", after=self._sampled, topics=_TOPICS)
        else:
            hooks.wrap(self._trainer, "_get_gen_batch", before=self._repeated, topics=_TOPICS)

    def _sampled(self, call: Call) -> None:
        if not self._open or call.argument("partition_id", 1) != "val":
            return
        self._seen += int(call.argument("batch_size", 2))
        for key in call.result[0].keys:
            prompt, session, _ = key.rsplit("_", 2)
            self._sessions[prompt].add(session)

    def _repeated(self, call: Call) -> None:
        for prompt in call.argument("batch", 0).non_tensor_batch["uid"] if self._open else ():
            sessions = self._sessions[str(prompt)]
            sessions.add(str(len(sessions)))

    def ends(self, *, v1: bool) -> None:
        """A validation is over."""
        self._open = False
        if not self._rows or not self._sessions:
            return
        rows = self._seen if v1 else len(self._sessions)
        if rows < self._rows:
            self._otherwise.tell(EVALUATED_ROWS, f"all {self._rows}", f"{rows} of them")
        counts = [len(of) for of in self._sessions.values()]
        # Sessions fail, and then a prompt has fewer; no prompt has more.
        found = max(counts)
        if self._samples and found != self._samples:
            self._otherwise.tell(SAMPLES, self._samples, found)


def _columns(rows: Any) -> Any:
    return getattr(getattr(rows, "dataframe", None), "column_names", None) or ()


def _is_verls(kind: type, method: str) -> bool:
    """Whether a method of a trainer is one of verl's own."""
    holder = next((of for of in kind.__mro__ if method in vars(of)), None)
    return holder is not None and holder.__module__.partition(".")[0] == "verl"
