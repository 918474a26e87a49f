"""What the generating process sees: each rollout, and which weights the engines held for it.

In synchronous training this is the controller itself. In asynchronous training another actor generates ahead of it, and leaves a
record of its own (`generator0`) whose n-th rollout is the n-th that the controller trains.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Any

import msgspec

from rlstep_hooks.observe.guard import contained
from rlstep_hooks.observe.hooks import Call, Hooks, LateRecorder
from rlstep_hooks.observe.turn_records import TurnRecords
from rlstep_hooks.record.events import EpochEnd, FactsRead, Generated, TurnsJoined, Unobserved
from rlstep_hooks.record.tail import Tail
from rlstep_hooks.record.writer import EventWriter
from rlstep_hooks.session.ray_sink import open_trainer_ledger
from rlstep_hooks.systems.openrlhf.observe.labels import (
    NOT_KNOWN,
    CutOff,
    EngineWeights,
    Labels,
    SampledWith,
    Settings,
)
from rlstep_hooks.systems.openrlhf.observe.process import folder, introduce, patches, run_name
from rlstep_hooks.systems.openrlhf.observe.prompts import ServedPrompts

if TYPE_CHECKING:
    from rlstep_hooks.observe.patches import Patches
    from rlstep_hooks.record.events import AnyEvent, Carried
    from rlstep_hooks.session.ray_sink import Sink

GENERATOR = "generator0"

_FOLLOWED = ("sampler", "order")


def place_hooks(patches: Patches, module: Any) -> None:
    """Put the generator's hook into `openrlhf.trainer.ppo_utils.samples_generator`."""
    # samples_generator.py:43 (0.11.2): built by the controller, or by the actor that generates for it.
    Hooks(LateRecorder(lambda: None), patches).wrap(module.SamplesGenerator, "__init__", after=_built, topics=_FOLLOWED)


_records: list[GeneratorRecord] = []


def _built(call: Call) -> None:
    if call.owner.args.train.async_enable:
        _records.append(GeneratorRecord(call.owner))


class SamplingWeights:
    """Which weights the samples of each rollout come from, and whether its prompts are new, around the calls of a `SamplesGenerator`.

    Args:
        generator: The generator.
    """

    def __init__(self, generator: Any) -> None:
        args = generator.args
        engines = int(args.vllm.num_engines or 0) * int(args.vllm.tensor_parallel_size)
        self._generator = generator
        self._weights = EngineWeights(folder(), run_name(), engines)
        self._sampled = SampledWith()
        self._settings: Settings = ()
        """The settings of the latest requests for training."""
        self._waited, self._held = 0, NOT_KNOWN
        """Samples that waited from earlier calls when this one began, and what the engines held then."""
        self._dispatched = False
        """Whether this call sent prompts to the engines. One whose samples all wait in the buffer sends none."""
        self._prompts = ServedPrompts(generator)
        self._cut_off = CutOff(args)
        self._group = int(args.rollout.n_samples_per_prompt)

    @property
    def trouble(self) -> str:
        """Why it is not known which weights an engine holds; empty where nothing failed."""
        return self._weights.trouble

    def attach(self, hooks: Hooks) -> None:
        """Follow the prompts on their way to the engines."""
        # samples_generator.py:202 (0.11.2): gets the prompts of a rollout or an evaluation, and those that replace filtered ones.
        hooks.wrap(self._generator, "_dispatch_prompts_to_vllm", before=self._dispatches, topics=("rows",))
        # samples_generator.py:255: one answer of an engine.
        hooks.wrap(self._generator, "_process_response_into_experience", before=self._answered, topics=("sampler",))

    def _answered(self, call: Call) -> None:
        self._cut_off.answered(call.argument("response", 0))

    def _dispatches(self, call: Call) -> None:
        prompts, labels = call.argument("prompts", 0), call.argument("labels", 1)
        self._dispatched = self._dispatched or bool(prompts)
        self._prompts.dispatched(prompts, labels)

    def before(self) -> None:
        """A call begins."""
        self._waited, self._held = 0, NOT_KNOWN
        self._prompts.begin()
        self._dispatched = False
        self._cut_off.take(())  # of an evaluation
        self._waited = len(getattr(self._generator, "_sample_buffer", None) or ())
        self._held = self.held()

    def carried(self, rollout: int) -> Carried | None:
        """The prompts of the rollout that was generated, against those of the set."""
        return self._prompts.carried(rollout)

    def held(self) -> Labels:
        """Labels that the engines hold now, shared among the samples of one prompt."""
        return self._weights.labels(self._group)

    def rollout(self, samples: int, index: int) -> Generated:
        """Make the event of a rollout from the samples that a call gave."""
        made = samples + len(self._generator._sample_buffer) - self._waited
        share = tuple((label, max(made * count // self._group, 1)) for label, count in self._held)
        # What was sent by an earlier call, and paused since, keeps the settings of its request, whatever an evaluation asked for later.
        settings = self._cut_off.take(self._weights.settings())
        self._settings = settings if self._dispatched else self._settings
        self._sampled.generated(made, share, self._settings)
        labels, sampling = self._sampled.take(samples)
        return Generated(
            index=index,
            samples=samples,
            prompts=samples // self._group,
            labels=labels,
            sampling=sampling,
            repeated=self._prompts.end(),
        )


class GeneratorRecord:
    """The actor that generates in asynchronous training."""

    def __init__(self, generator: Any) -> None:
        self.recorder = EventWriter(open_trainer_ledger(folder(), run_name(), GENERATOR))
        """Learns what is not observed."""
        self._sampling = SamplingWeights(generator)
        self._turns = TurnRecords(folder(), run_name())
        self._rollouts = self._passes = 0
        self.recorder.emit(introduce(GENERATOR))
        self._follow(generator)

    @contained(*_FOLLOWED)
    def _follow(self, generator: Any) -> None:
        """Record the rows of the prompt set, and place the hooks."""
        hooks = Hooks(self.recorder, patches)
        rows = len(generator.prompts_dataloader.dataset)
        self.recorder.emit(FactsRead(at=self.recorder.now(), facts={"rows": rows}))
        # The first stands innermost and looks first: the controller reads on until it finds the rollout.
        hooks.wrap(generator, "generate_samples", after=self._join, topics=("mask",))
        hooks.wrap(generator, "generate_samples", before=self._generates, after=self._came, topics=_FOLLOWED)
        hooks.wrap(generator, "generate_eval_samples", after=self._leave_out, topics=("mask",))
        self._sampling.attach(hooks)

    def _generates(self, call: Call) -> None:
        self._sampling.before()
        if self._sampling.trouble:
            self.recorder.cannot("sampler", self._sampling.trouble)

    def _leave_out(self, call: Call) -> None:
        self._turns.take_all(0, self._rollouts)

    def _join(self, call: Call) -> None:
        joined = self._turns.take_all(0, self._rollouts)
        if call.result[0] and (joined.rows or joined.left_out):
            self.recorder.emit(msgspec.structs.replace(joined, at=self.recorder.now()))

    def _came(self, call: Call) -> None:
        samples, _, _, exhausted = call.result
        if samples:
            self.recorder.emit(self._sampling.rollout(len(samples), self._rollouts))
            self._rollouts += 1
        if exhausted and (samples or self._rollouts):  # otherwise the pass ended before this run resumed
            self._passes += 1
            self.recorder.emit(EpochEnd(at=self.recorder.now(), epoch=self._passes))


class GeneratorTail:
    """The generator's record, as the controller reads it.

    Args:
        sink: What the record comes through; None where it is a file that the generator writes itself.
    """

    def __init__(self, sink: Sink | None) -> None:
        self._events = Tail(folder() / f"{run_name()}.{GENERATOR}.jsonl")
        self._read: deque[AnyEvent] = deque()
        self._sink = sink
        self.unobserved: dict[str, str] = {}
        """Topics that the generator could not follow, and why."""
        self.joined: TurnsJoined | None = None
        """What agents did for the latest rollout, against its rows."""

    def _read_to(self, kind: type[FactsRead | Generated]) -> None:
        """Read on until there is an event of a kind. One that was sent through Ray comes a moment after it happened."""

        def lacking() -> list[str]:
            self._read.extend(self._events.read())
            return [] if any(isinstance(event, kind) for event in self._read) else [GENERATOR]

        if self._sink is None:
            lacking()
        else:
            self._sink.wait_for(lacking)

    def rows(self) -> int | None:
        """Rows of the prompt set; None if the generator did not record them."""
        self._read_to(FactsRead)
        while self._read:
            event = self._read.popleft()
            if isinstance(event, FactsRead):
                return int(event.facts["rows"])
        return None

    def next_rollout(self) -> tuple[Generated | None, bool]:
        """The next rollout, and whether a pass over the rows ended before it; None where it has not arrived."""
        self._read_to(Generated)
        ended, self.joined = False, None
        while self._read:
            event = self._read.popleft()
            ended = ended or isinstance(event, EpochEnd)
            if isinstance(event, TurnsJoined):
                self.joined = event
            if isinstance(event, Unobserved):
                self.unobserved[event.what] = event.why
            if isinstance(event, Generated):
                # If one may be missing, the next one must not be taken for it.
                return None if "order" in self.unobserved else event, ended
        return None, ended
