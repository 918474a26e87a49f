"""What the process that generates records: each prompt on its way into the queue, and the rows that it has.

`FullyAsyncRollouter` of verl 0.9.1 generates by itself, prompt by prompt (fully_async_rollouter.py:975-1004). Ray calls the methods of
an actor as its class has them, so hooks on the object see those calls alone that its own methods make.
"""

from __future__ import annotations

import os
import time
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any

from rlstep_hooks.observe.contained import Contained
from rlstep_hooks.observe.patches import Patches
from rlstep_hooks.record.events import Attached, FactsRead, QueueStep
from rlstep_hooks.record.writer import EventWriter
from rlstep_hooks.session.ray_sink import open_trainer_ledger
from rlstep_hooks.systems.verl.observe.process import folder, run_name, versions

if TYPE_CHECKING:
    from rlstep_hooks.record.events import QueueStepName

PROCESS = "rollouter0"
"""Its name in the run."""

_current: ContextVar[str] = ContextVar("prompt")
"""The prompt that a task generates for."""


class Rollouter:
    """Records the prompts of one process that generates.

    Args:
        rollouter: verl's.
    """

    def __init__(self, rollouter: Any) -> None:
        run = run_name()
        self._writer = writer = EventWriter(open_trainer_ledger(folder(), run, PROCESS))
        self._contained = Contained(writer, ("queue",))
        self._patches = Patches()
        self._rollouter = rollouter
        self._client: Any = None
        self._syncs = 0
        writer.emit(
            Attached(
                run=run,
                process=PROCESS,
                host=os.uname().nodename,
                pid=os.getpid(),
                started=time.time(),
                versions=versions(),
            ),
            FactsRead(at=writer.now(), facts={"rows": len(rollouter.train_dataset)}),
        )
        # fully_async_rollouter.py:975: one prompt from its generation into the queue, in a task of its own.
        self._patches.wrap(rollouter, "_process_single_sample_streaming", self._around_prompt)
        # fully_async_rollouter.py:629: called once within `reset_staleness`, by which the trainer tells of a sync.
        self._patches.wrap(rollouter, "_compute_rollout_resource_utilization", self._contained.after(self._told))

    def _told(self, *_: Any) -> None:
        self._syncs += 1

    def _step(self, prompt: str, step: QueueStepName) -> None:
        self._writer.emit(QueueStep(at=self._writer.now(), prompt=prompt, step=step, syncs=self._syncs))

    async def _around_prompt(self, wrapped: Any, instance: Any, args: Any, kwargs: Any) -> Any:
        prompt = None
        with self._contained:
            if self._client is not self._rollouter.message_queue_client:
                self._client = self._rollouter.message_queue_client
                # message_queue.py:186: what goes into the queue; None says that nothing more will.
                self._patches.wrap(self._client, "put_sample", self._around_putting)
            prompt = str((args[0] if args else kwargs["rollout_sample"]).sample_id)
            _current.set(prompt)
            self._step(prompt, "submitted")
        result = await wrapped(*args, **kwargs)
        with self._contained:
            if prompt is not None:
                self._step(prompt, "done")
        return result

    async def _around_putting(self, wrapped: Any, client: Any, args: Any, kwargs: Any) -> Any:
        prompt = _current.get("")
        with self._contained:
            if prompt:
                self._step(prompt, "putting")
        result = await wrapped(*args, **kwargs)
        with self._contained:
            if prompt:
                self._step(prompt, "put" if result else "pushed")
        return result
