"""Whether rows and samples that OpenRLHF shuffles come as they stand.

Its loader of prompts always shuffles (ppo_trainer.py 0.11.2:44), and so does the trainers' loader of a rollout's samples, without
dynamic batches, ring attention and tensor parallelism (ppo_actor.py:158, ppo_critic.py:70). Neither has a seed of its own, so no other
order is wrong.
"""

from __future__ import annotations

from math import factorial
from typing import TYPE_CHECKING, Any

from rlstep_hooks.observe.row_orders import AS_IT_STANDS, LARGEST, chance_of
from rlstep_hooks.record.events import MINIBATCH_ORDER, ROW_ORDER, ConfigChanged

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rlstep_hooks.observe.hooks import Call, Hooks
    from rlstep_hooks.observe.sync_watch import EventRecorder

_TOPICS = ("settings",)
_CERTAIN = 1e-8
"""Chance below which no permutation is taken to have left everything as it stands."""
_LOOKED_AT = 64
"""Rows of a pass that are looked at."""


class RowsAsTheyStand:
    """Compares the first prompts of each pass with those of the set.

    Args:
        generator: OpenRLHF's `SamplesGenerator`, whose data set keeps all prompts as text (prompts_dataset.py:86).
        recorder: Takes what is found.
        resumed: Whether the first pass may have begun before this run.
    """

    def __init__(self, generator: Any, recorder: EventRecorder, *, resumed: bool) -> None:
        self._generator = generator
        self._recorder = recorder
        self._prompts = getattr(generator.prompts_dataloader.dataset, "prompts", None) or ()
        self._told = not 0 < len(self._prompts) <= LARGEST
        self._within = False
        """Whether a rollout is generated, and no evaluation."""
        self._passes = 0
        """Passes that have begun."""
        self._begins_anew = False
        """Whether the next prompts are the first of a pass."""
        self._given: list[str] = []
        """The first prompts of this pass."""
        self._resumed = resumed

    def place(self, hooks: Hooks) -> None:
        """Put the hooks on the generator."""
        if self._told:
            return
        hooks.wrap(self._generator, "generate_samples", before=self._begins, after=self._is_over, topics=_TOPICS)
        # samples_generator.py:202: gets prompts in the order in which they were drawn, those that replace filtered ones too.
        hooks.wrap(self._generator, "_dispatch_prompts_to_vllm", before=self._draws, topics=_TOPICS)

    def _begins(self, call: Call) -> None:
        self._within = True
        # samples_generator.py:97: the set is begun anew where no iterator is left of a pass.
        self._begins_anew = getattr(self._generator, "_dataloader_iter", None) is None

    def _is_over(self, call: Call) -> None:
        self._within = False

    def _draws(self, call: Call) -> None:
        if not self._within or self._told:
            return
        if self._begins_anew:
            self._passes, self._begins_anew, self._given = self._passes + 1, False, []
        if (self._resumed and self._passes == 1) or len(self._given) >= _LOOKED_AT:
            return
        self._given += call.argument("prompts", 0)
        seen = len(self._given)
        if self._given != list(self._prompts[:seen]):
            self._given = [""] * _LOOKED_AT  # nothing more is to be looked at in this pass
        elif chance_of(range(len(self._prompts)), self._prompts, seen) < _CERTAIN:
            self._told = True
            _tell(self._recorder, ROW_ORDER, "a permutation", AS_IT_STANDS)


class SamplesAsTheyCame:
    """Compares the order in which one trainer takes the samples of a rollout with that of its buffer.

    Args:
        recorder: Takes what is found.
    """

    def __init__(self, recorder: EventRecorder) -> None:
        self._recorder = recorder
        self._places: dict[int, int] = {}
        """Places in the buffer, by the identity of the sample."""
        self._taken: list[int] = []
        self._chance = 1.0
        """That permutations leave as many passes as came in the buffer's order, one after the other, as they stand."""
        self._told = False

    def begin(self, items: Sequence[Any]) -> None:
        """The passes over a rollout begin.

        Args:
            items: The samples of the buffer.
        """
        self._places = {id(item): place for place, item in enumerate(items)}
        self._taken = []

    def takes(self, items: Sequence[Any]) -> None:
        """A micro-batch is put together from these samples."""
        if not self._told:
            self._taken += [self._places.get(id(item), -1) for item in items]

    def end(self) -> None:
        """The passes are over."""
        whole, taken = [*range(len(self._places))], self._taken
        self._places, self._taken = {}, []
        if self._told or not whole or len(taken) % len(whole):
            return
        for begin in range(0, len(taken), len(whole)):
            stands = taken[begin : begin + len(whole)] == whole
            self._chance = self._chance / factorial(min(len(whole), 20)) if stands else 1.0
            if self._chance < _CERTAIN:
                self._told = True
                _tell(self._recorder, MINIBATCH_ORDER, "shuffled", "the samples as they came")
                return


def _tell(recorder: EventRecorder, name: str, right: str, found: str) -> None:
    recorder.emit(ConfigChanged(at=recorder.now(), name=name, before=right, after=found, since="configuration"))
