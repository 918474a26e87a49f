"""Faults of fully_async_policy: its queue, what generation may run ahead, stamps, syncs, old log-probs and the weights of samples.

Each is made in the process that it belongs to. The classes of the two actors travel by value, so what they do is changed on the
objects, which a method of their common parent makes known.
"""

from __future__ import annotations

import copy
import itertools
import os
from typing import TYPE_CHECKING, Any

import wrapt

from rlstep_hooks.record import cadence
from tests.systems.verl.faults import WORKER, wrap_in_controller, wrap_in_trainer
from tests.systems.verl.number_faults import REQUESTS
from tests.systems.verl.separate_faults import FAULTS as OF_SEPARATE_ASYNC
from tests.systems.verl.separate_faults import PARTS, SeparateFault, fault, saved_weights_not_put_into_place

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

FAULTS: dict[str, SeparateFault] = {}
VARIABLE = "RLSTEP_TEST_FULLY_ASYNC_FAULTS"
MODULE = __name__
FETCHES = PARTS
"""Of a rollout in the runs that these faults are made in."""

PARENT = "verl.experimental.separation.ray_trainer"


class _Now:
    """How far the process that generates is."""

    syncs = 0
    """Of which it was told."""

    @classmethod
    def rollout(cls) -> int:
        """The rollout that is trained meanwhile, from 0."""
        return cls.syncs - 1


def on_generation(place: Callable[[Any], None]) -> None:
    """Do something with the object that generates, once it is there."""
    _on_actor("_process_single_sample_streaming", place)


def on_training(place: Callable[[Any], None]) -> None:
    """Do something with the object that controls training, once it is there."""
    _on_actor("_get_samples_from_queue", place)


def _on_actor(known_by: str, place: Callable[[Any], None]) -> None:
    if WORKER in os.environ:
        return

    def made(wrapped: Any, instance: Any, args: Any, kwargs: Any) -> Any:
        result = wrapped(*args, **kwargs)
        if hasattr(instance, known_by):
            place(instance)
        return result

    name = "SeparateRayPPOTrainer._create_worker_classes"
    wrapt.when_imported(PARENT)(lambda found: wrapt.wrap_function_wrapper(found, name, made))


def instead(instance: Any, method: str, act: Callable[..., Awaitable[Any]]) -> None:
    """Call `act(method, *args)` in place of a coroutine method of an object."""
    before = getattr(instance, method)

    async def call(*args: Any, **kwargs: Any) -> Any:
        return await act(before, *args, **kwargs)

    setattr(instance, method, call)


def _count_syncs(rollouter: Any) -> None:
    told = rollouter._compute_rollout_resource_utilization

    def count() -> Any:
        _Now.syncs += 1
        return told()

    rollouter._compute_rollout_resource_utilization = count


def in_queue(at: int, act: Callable[[Callable[..., Awaitable[bool]], Any], Awaitable[bool]]) -> None:
    """Act in place of one call that puts a prompt into the queue while a rollout is trained: `act(put, sample)`."""
    if WORKER in os.environ:
        return
    done = []

    async def put(wrapped: Any, client: Any, args: Any, kwargs: Any) -> bool:
        sample = args[0] if args else kwargs["sample"]
        if sample is None or done or _Now.rollout() != at:
            return bool(await wrapped(sample))
        done.append(True)
        return await act(wrapped, sample)

    name = "MessageQueueClient.put_sample"
    wrapt.when_imported("verl.experimental.fully_async_policy.message_queue")(
        lambda found: wrapt.wrap_function_wrapper(found, name, put)
    )


@fault(report="AReaL#1388", code="RLS520", variant="lost", lasts=1, of=FAULTS)
def prompt_lost_in_the_queue(at: int) -> None:
    """A finished prompt does not come into the queue, which says that it did."""

    async def lost(put: Any, sample: Any) -> bool:
        return True

    in_queue(at, lost)


@fault(report="AReaL#1388", code="RLS520", variant="taken a second time", lasts=1, of=FAULTS)
def prompt_twice_in_the_queue(at: int) -> None:
    """A finished prompt is put into the queue twice."""

    async def twice(put: Any, sample: Any) -> bool:
        await put(sample)
        return bool(await put(sample))

    in_queue(at, twice)


@fault(report="verl 0.9.1, a fetch trained twice", code="RLS520", variant="taken a second time", of=FAULTS)
def fetch_trained_again(at: int) -> None:
    """The second fetch of a rollout is the first one again; what was fetched is thrown away."""
    fetches = itertools.count()
    kept: list[Any] = []

    async def fetch(before: Any, *args: Any) -> Any:
        batch, number = await before(*args), next(fetches)
        if number == at * FETCHES:
            kept.append(copy.deepcopy(batch))
        return kept.pop() if number == at * FETCHES + 1 else batch

    on_training(lambda trainer: instead(trainer, "_fit_generate", fetch))


@fault(report="verl#7568", code="RLS402", variant="stamped", lasts=1, of=FAULTS)
def stamped_with_a_counter(at: int) -> None:
    """Samples are stamped with the number of their prompt instead of the version of the weights."""

    async def generate(before: Any, prompts: Any) -> Any:
        result = await before(prompts)
        if _Now.rollout() == at:
            number = int(str(prompts.non_tensor_batch["uid"][0]).rsplit("_", 1)[1])
            for name in ("min_global_steps", "max_global_steps"):
                result.non_tensor_batch[name][:] = number
        return result

    def place(rollouter: Any) -> None:
        async def first(before: Any, sample: Any) -> Any:
            manager = rollouter.async_rollout_manager
            if not hasattr(manager, "stamps_wrong"):
                manager.stamps_wrong = True
                instead(manager, "generate_sequences_single", generate)
            return await before(sample)

        instead(rollouter, "_process_single_sample_streaming", first)

    on_generation(place)


@fault(report="AReaL#1388", code="RLS402", variant="were in it for up to", shows_after=2, lasts=3, of=FAULTS)
def generation_runs_ahead(at: int) -> None:
    """While two rollouts are trained, twice as much may be generated as configured."""

    def place(rollouter: Any) -> None:
        configured = rollouter.required_samples * rollouter.config.async_training.trigger_parameter_sync_step
        configured *= rollouter.staleness_threshold + 1
        rollouter.staleness_threshold = 2 * rollouter.staleness_threshold + 1

        async def should_pause(before: Any) -> bool:
            within = _Now.rollout() in (at, at + 1) or rollouter.staleness_samples < configured
            return bool(await before()) if within else True

        instead(rollouter, "_should_pause_generation", should_pause)

    on_generation(place)


@fault(report="rllm#291", code="RLS405", variant="no sync", shows_after=1, lasts=3, of=FAULTS)
def sync_left_out(at: int) -> None:
    """The sync of weights after a rollout does nothing, on the controller."""
    if WORKER in os.environ:
        return

    async def update_weights(wrapped: Any, manager: Any, args: Any, kwargs: Any) -> Any:
        label = args[0] if args else kwargs.get("global_steps")
        return {} if label == at + 1 else await wrapped(*args, **kwargs)

    name = "CheckpointEngineManager.update_weights"
    wrapt.when_imported("verl.checkpoint_engine.base")(
        lambda found: wrapt.wrap_function_wrapper(found, name, update_weights)
    )


@fault(report="verl#7495", code="RLS402", variant="of older weights", shows_after=1, lasts=2, of=FAULTS)
def engine_keeps_old_weights(at: int) -> None:
    """The sync is made and the engine drops it: it goes on under its old weights and their label."""

    async def update_weights(wrapped: Any, adapter: Any, args: Any, kwargs: Any) -> None:
        if kwargs.get("global_steps") != at + 1:
            await wrapped(*args, **kwargs)
            return
        async for _ in args[0]:
            pass

    wrap_in_trainer("rlstep_hooks.systems.verl.rehearse.cpu.rollout", "HfCpuAdapter", "update_weights", update_weights)


@fault(report="trl#4159", code="RLS403", variant="mean", lasts=1, of=FAULTS)
def engine_at_another_temperature(at: int) -> None:
    """The engine draws and scores at 0.6 times the temperature of the trainer."""
    seen: list[str] = []

    def generate(wrapped: Any, client: Any, args: Any, kwargs: Any) -> Any:
        if kwargs["request_id"] not in seen:  # one that a sync interrupts is asked again
            seen.append(kwargs["request_id"])
        if seen.index(kwargs["request_id"]) // REQUESTS == at:
            kwargs = kwargs | {"sampling_params": kwargs["sampling_params"] | {"temperature": 0.6}}
        return wrapped(*args, **kwargs)

    wrap_in_controller("verl.workers.rollout.llm_server", "LLMServerClient", "generate", generate)


@fault(report="SkyRL#1870", code="RLS312", variant="all of them 1", of=FAULTS)
def weights_all_one(at: int) -> None:
    """The importance weights of a rollout are all 1."""
    fetches = itertools.count()

    def compute(wrapped: Any, instance: Any, args: Any, kwargs: Any) -> Any:
        data, metrics = wrapped(*args, **kwargs)
        if next(fetches) // FETCHES == at:
            data.batch["rollout_is_weights"] = data.batch["response_mask"].to(data.batch["old_log_probs"].dtype)
        return data, metrics

    if WORKER not in os.environ:
        name, helper = "compute_rollout_correction_and_add_to_batch", "verl.trainer.ppo.rollout_corr_helper"
        wrapt.when_imported(helper)(lambda found: wrapt.wrap_function_wrapper(found, name, compute))


# A fetch of its queue is what a part of a rollout is there: the same mistake in the same class of workers.
FAULTS[saved_weights_not_put_into_place.__name__] = OF_SEPARATE_ASYNC[saved_weights_not_put_into_place.__name__]


def asking(faults: dict[str, int]) -> dict[str, str]:
    """The environment that makes faults: name -> rollout."""
    return {VARIABLE: ",".join(f"{name}@{rollout}" for name, rollout in faults.items())}


def make_faults() -> None:
    """Make what the environment names, in this process."""
    wanted = list(filter(None, os.environ.get(VARIABLE, "").split(",")))
    if wanted:
        # Each rollout is compared, so that each can have a fault.
        cadence.ALL_OF_FIRST = 1 << 30
        on_generation(_count_syncs)
    for item in wanted:
        name, rollout = item.split("@")
        FAULTS[name].apply(int(rollout))


make_faults()
