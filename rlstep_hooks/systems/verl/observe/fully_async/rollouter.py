"""What the process that generates records: each prompt on its way into the queue, and the rows that it has.

`FullyAsyncRollouter` of verl 0.9.1 generates by itself, prompt by prompt (fully_async_rollouter.py:975-1004). Ray calls the methods of
an actor as its class has them, so hooks on the object see those calls alone that its own methods make.
"""

from __future__ import annotations

from contextvars import ContextVar
from typing import TYPE_CHECKING, Any

from rlstep_hooks.observe.hooks import Call, Hooks
from rlstep_hooks.observe.processes import introduce, run_of_ray
from rlstep_hooks.record.events import FactsRead, QueueStep
from rlstep_hooks.record.writer import EventWriter
from rlstep_hooks.session.ray_sink import open_trainer_ledger
from rlstep_hooks.systems.verl.observe.process import folder, versions

if TYPE_CHECKING:
    from collections.abc import Iterator

    from rlstep_hooks.record.events import QueueStepName

_QUEUE = ("queue",)

PROCESS = "rollouter0"
"""The name of this process in the run."""

_current: ContextVar[str] = ContextVar("prompt")
"""The prompt that a task generates for."""


class Rollouter:
    """Records the prompts of one process that generates.

    Args:
        rollouter: verl's.
    """

    def __init__(self, rollouter: Any) -> None:
        run = run_of_ray()
        self._writer = writer = EventWriter(open_trainer_ledger(folder(), run, PROCESS))
        self._hooks = Hooks(writer)
        self._rollouter = rollouter
        self._client: Any = None
        self._syncs = 0
        writer.emit(
            introduce(run, PROCESS, versions()),
            FactsRead(at=writer.now(), facts={"rows": len(rollouter.train_dataset)}),
        )
        # fully_async_rollouter.py:975: one prompt from its generation into the queue, in a task of its own.
        self._hooks.wrap(rollouter, "_process_single_sample_streaming", around=self._prompt, topics=_QUEUE)
        # fully_async_rollouter.py:629: called once within `reset_staleness`, by which the trainer tells of a sync.
        self._hooks.wrap(rollouter, "_compute_rollout_resource_utilization", after=self._told, topics=_QUEUE)

    def _told(self, call: Call) -> None:
        self._syncs += 1

    def _step(self, prompt: str, step: QueueStepName) -> None:
        self._writer.emit(QueueStep(at=self._writer.now(), prompt=prompt, step=step, syncs=self._syncs))

    def _prompt(self, call: Call) -> Iterator[None]:
        if self._client is not self._rollouter.message_queue_client:
            self._client = self._rollouter.message_queue_client
            # message_queue.py:186: what goes into the queue; None says that nothing more will.
            self._hooks.wrap(self._client, "put_sample", around=self._putting, topics=_QUEUE)
        prompt = str(call.argument("rollout_sample", 0).sample_id)
        _current.set(prompt)
        self._step(prompt, "submitted")
        yield
        self._step(prompt, "done")

    def _putting(self, call: Call) -> Iterator[None]:
        prompt = _current.get("")
        if prompt:
            self._step(prompt, "putting")
        yield
        if prompt:
            self._step(prompt, "put" if call.result else "pushed")
