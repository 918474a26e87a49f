"""Rollouts as the controller sees them: the rows that go in, the samples that come out, passes of the loader, validations.

Hooks on one trainer; each gives its event once the wrapped call has returned.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

import msgspec

from rlstep_hooks.observe.guard import contained
from rlstep_hooks.observe.processes import run_of_ray
from rlstep_hooks.observe.turn_records import TurnRecords
from rlstep_hooks.record.events import EpochEnd, Generated
from rlstep_hooks.systems.verl.launch import SHIPPED_AGENT_LOOPS
from rlstep_hooks.systems.verl.observe import left_out_rows
from rlstep_hooks.systems.verl.observe.asked_sampling import AskedSampling
from rlstep_hooks.systems.verl.observe.due_work import DueWork
from rlstep_hooks.systems.verl.observe.order_of_rows import RowOrder
from rlstep_hooks.systems.verl.observe.process import folder
from rlstep_hooks.systems.verl.observe.queue import Queue, restored_prompts
from rlstep_hooks.systems.verl.observe.rollouts import PARTITION, counted, prompt_of, samples_due
from rlstep_hooks.systems.verl.observe.rows import ANY_NUMBER, FIELDS, LARGEST_VALIDATION, Rows, countable, text
from rlstep_hooks.systems.verl.observe.sampled import SEVERAL_TURNS, why_not_sampled
from rlstep_hooks.systems.verl.observe.samples import names_of
from rlstep_hooks.systems.verl.observe.validations import Validations
from rlstep_hooks.systems.verl.plan import is_one_step_off, own_agent_loop

SINGLE_TURN = SHIPPED_AGENT_LOOPS[0]

_ORDER, _QUEUE, _ROWS = ("order",), ("queue",), ("rows",)
"""What is not observed any more where a hook fails."""

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from rlstep_hooks.observe.hooks import Call, Hooks
    from rlstep_hooks.planning.schedule import Schedule
    from rlstep_hooks.record.events import Rewarded, TurnsJoined
    from rlstep_hooks.session.recorder import Recorder


class FollowedRollouts(Protocol):
    """What follows the rollouts of a trainer, of whichever kind it is."""

    validating: bool
    own_loop: bool
    own_fit: bool
    several_turns: bool

    @property
    def trained(self) -> int:
        """Index of the latest rollout that went into training."""

    @property
    def incomplete(self) -> bool:
        """Whether parts of a rollout were given to training, and others are to come."""

    def place(self, hooks: Hooks) -> None:
        """Put the hooks on the trainer."""

    def rewarded(self, event: Rewarded) -> None:
        """Record how the advantages of the rollout that is trained follow its rewards."""

    def ended(self) -> None:
        """Training is over, and was not ended early."""


class RolloutHooks:
    """Follows the rollouts of one trainer.

    Args:
        trainer: verl's, or one that stands on it.
        schedule: The plan of the run.
        recorder: Where events go.
        resumed: Whether updates were made before, in the run that it goes on with.
        own_fit: Whether the trainer has a loop of its own.
        v1: Whether it is one of `verl.trainer.ppo.v1`.
    """

    def __init__(
        self, trainer: Any, schedule: Schedule, recorder: Recorder, *, resumed: bool, own_fit: bool, v1: bool
    ) -> None:
        self.validating = False
        self._trained = -1
        self.own_loop = own_agent_loop(trainer.config)
        """Whether an agent loop generates that may give several samples for a session, or none."""
        agent = trainer.config.actor_rollout_ref.rollout.get("agent") or {}
        self.several_turns = agent.get("default_agent_loop", SINGLE_TURN) != SINGLE_TURN
        """Whether completions may consist of several turns."""
        self._greedy = False
        """Whether the data asked for completions that are not sampled (`__do_sample__`, agent_loop_tq.py 0.9.1:114)."""
        self._greedy_baseline = bool(trainer.config.algorithm.adv_estimator == "remax")
        """Whether each prompt has a greedy completion beside the samples that are trained (ray_trainer.py 0.9.1:1493)."""
        self._trainer = trainer
        self._schedule = schedule
        self.recorder = recorder
        """Where events go."""
        self._resumed = resumed
        self._rollouts = 0
        self._submitted = 0
        self._fetched = 0
        rollouts = int(trainer.global_steps)
        self._begun_with = rollouts
        """Rollouts before this run, of a resumed one."""
        self._passes = rollouts // schedule.rollouts_per_epoch if schedule.rollouts_per_epoch else 0
        self._passes_begun = 2 if rollouts else 1
        """Passes of the loader whose rows may have been submitted; a resumed run may begin within one."""
        training, validation = trainer.train_dataset, getattr(trainer, "val_dataset", None)
        known = countable(training) and countable(validation, LARGEST_VALIDATION)
        self._rows = Rows(training, validation) if known else None
        self._asked_sampling = AskedSampling(folder(), run_of_ray())
        self._due = None if own_fit or is_one_step_off(trainer.config) else DueWork(trainer, recorder)
        """What is due after each rollout; None where the trainer's loop is another one."""
        self.own_fit = own_fit
        self._row_order: RowOrder | None = None
        self._validations: Validations | None = None
        self._follow_settings(known=known)
        self._asked: dict[str, int] = {}
        """Samples that the data ask for, by prompt; of prompts under way."""
        self._labelled = not _lends_engines(trainer.config)
        """Whether the label of a sample's oldest weights is that of its oldest token."""
        self._ahead: list[tuple[Any, TurnsJoined | None]] = []
        """Rollouts that were generated and are not trained yet, each with what agent loops found of it."""
        self._parts: list[Any] = []
        """Parts of the rollout that is being trained in parts: what verl's replay buffer gave."""
        self._queue: Queue | None = None
        """Prompts between submission and training; None where no queue is followed."""
        self._v1 = v1
        self._turns = TurnRecords(folder(), run_of_ray())
        self._not_sampled = why_not_sampled(trainer.config, own_fit=own_fit, v1=v1)
        """Why completions need not be drawn from the policy's distribution; empty where they are to be."""
        if self._not_sampled:
            recorder.cannot("drawn", self._not_sampled)

    @contained("settings")
    def _follow_settings(self, *, known: bool) -> None:
        """Follow the order of rows, where they are known, and validations; see which rows are left out."""
        self._row_order = RowOrder(self._trainer, self.recorder, known=known, own_fit=self.own_fit)
        self._validations = Validations(self._trainer, self.recorder)
        left_out_rows.look(self._trainer, self.recorder)

    def ended(self) -> None:
        """Training is over, and was not ended early."""
        self._tell_of_requests()
        self._step_is_over()

    @contained("settings")
    def _step_is_over(self) -> None:
        """See what was due after the latest step."""
        # Both trainers count the step before they return (V1 trainer_base.py:519; V0 ray_trainer.py:1805).
        if self._due is not None:
            self._due.step_is_over(int(self._trainer.global_steps) - 1)

    @contained("settings")
    def _tell_of_requests(self) -> None:
        """Record what sessions asked the engines for, where it is not what is configured."""
        greedy = self._greedy or self._greedy_baseline
        self._asked_sampling.tell(self.recorder, greedy_rows=greedy)

    def place(self, hooks: Hooks) -> None:
        """Put the hooks on the trainer. Of several after one call the first stands innermost, and looks first.

        Args:
            hooks: What takes them off again.
        """
        trainer, wrap = self._trainer, hooks.wrap
        if not self._labelled:
            self.recorder.cannot("sampler_weights", _LENT)
        wrap(trainer, "_validate", around=self._validation, topics=_ORDER)
        if self._due is not None:
            self._due.place(hooks)
        if self._validations is not None:
            self._validations.place(hooks, v1=self._v1)
        if self._v1:
            # Verified in 0.9.1 V1: gives the batch that is trained, padding and weight labels in its tags (trainer_base.py:1608).
            wrap(trainer, "_balance_batch", after=self._taken_from_queue, topics=_QUEUE)
            wrap(trainer, "_balance_batch", after=self._generated_v1, topics=_ORDER)
            wrap(trainer, "_submit_batch_to_rollout", after=self._prompts_submitted, topics=_ORDER)
            wrap(trainer, "_submit_batch_to_rollout", after=self._prompts_queued, topics=_QUEUE)
            wrap(trainer, "_submit_batch_to_rollout", after=self._rows_of_prompts, topics=_ROWS)
            wrap(trainer, "_fetch_one_gen_batch", around=self._fetching, topics=_ORDER)
            self._follow_queue(hooks)
        else:
            # Verified in 0.9.1 V0: takes the rows of a batch apart before they are generated for (ray_trainer.py:1498, 626). The second
            # stands outside of the first and looks before it.
            wrap(trainer, "_get_gen_batch", before=self._rows_of_batch, topics=_ROWS)
            wrap(trainer, "_get_gen_batch", before=self._pass_begins, topics=_ORDER)
            if is_one_step_off(trainer.config):
                # Verified in 0.9.1: generates the next rollout while one is trained. The sync that follows its end comes before its
                # updates (one_step_off_policy/ray_trainer.py:204, 391). What it awaits must be called by a coroutine
                # (utils/ray_utils.py:125), so nothing stands before `generate_sequences`.
                wrap(trainer, "_async_gen_next_batch", after=self._generated_ahead, topics=_ORDER)
                wrap(trainer, "_fit_update_weights", before=self._sync_begins, topics=_ORDER)
                return
            # Verified in 0.9.1 V0: one call generates a rollout, or a batch of the validation (ray_trainer.py:1513, 640).
            wrap(trainer.async_rollout_manager, "generate_sequences", after=self._generated_v0, topics=_ORDER)

    @property
    def trained(self) -> int:
        """Index of the latest rollout that went into training."""
        return self._trained

    @property
    def incomplete(self) -> bool:
        """Whether parts of a rollout were given to training, and others are to come."""
        return bool(self._parts)

    def rewarded(self, event: Rewarded) -> None:
        """Record how the advantages of the rollout that is trained follow its rewards."""
        self.recorder.emit(event)

    @contained("queue")
    def _follow_queue(self, hooks: Hooks) -> None:
        """Follow prompts between submission and training."""
        trainer = self._trainer
        # Samples that are read from files (skip.rollout_tq) have never been in the queue.
        if ((trainer.config.get("skip") or {}).get("rollout_tq") or {}).get("enable"):
            return
        queue, buffer = Queue(restored_prompts(trainer)), trainer.replay_buffer
        # Verified in 0.9.1 V1: evicts prompts for a reason, which it got as its third argument, and clears them away
        # (replay_buffer.py:336-373 and :257-274). The first calls the second before it returns.
        hooks.wrap(
            buffer,
            "_evict_terminal_groups",
            before=_of_training(2, lambda reasons: queue.drop(reasons[:3])),
            topics=_QUEUE,
        )
        hooks.wrap(buffer, "_clear_groups", after=_of_training(1, queue.discard), topics=_QUEUE)
        # Verified in 0.9.1 V1: what is trained next, prompts of which no sample came among them (replay_buffer.py:394-406).
        hooks.wrap(buffer, "_materialize_batch", after=_of_training(1, queue.choose), topics=_QUEUE)
        self._queue = queue

    def _validation(self, call: Call) -> Iterator[None]:
        self.validating = True
        self._validation_begins()
        try:
            yield
            self._tell_of_requests()
            self._validation_ends()
        finally:
            self.validating = False
            self.recorder.emit(
                Generated(at=self.recorder.now(), index=self._rollouts, samples=0, prompts=0, purpose="evaluation")
            )
            self._rollouts += 1

    @contained("settings")
    def _validation_begins(self) -> None:
        """Look at what a validation begins with."""
        if self._validations is not None:
            self._validations.begin()

    @contained("settings")
    def _validation_ends(self) -> None:
        """Look at what a validation gave."""
        if self._validations is not None:
            self._validations.ends(v1=self._v1)

    # Rows that go in

    def _prompts_submitted(self, call: Call) -> None:
        batch = call.args[0]
        self._submitted += int(call.result)
        asked, loops = names_of(batch, "__rollout_n__"), names_of(batch, "agent_name")
        if asked is not None:
            self._asked |= dict(zip(names_of(batch, "uid") or (), map(int, asked), strict=True))
        self._see_loops(loops or ())
        self._greedy = self._greedy or not all(flag == "True" for flag in names_of(batch, "__do_sample__") or ())

    def _prompts_queued(self, call: Call) -> None:
        if self._queue is not None:
            self._queue.submit(names_of(call.args[0], "uid") or ())

    def _rows_of_prompts(self, call: Call) -> None:
        self._rows_submitted([names_of(call.args[0], name) for name in FIELDS], self._passes_begun)

    def _see_loops(self, names: Iterable[str]) -> None:
        """The agent loops that the data name for samples (`agent_name`)."""
        self.own_loop = self.own_loop or not set(names) <= set(SHIPPED_AGENT_LOOPS)
        self.several_turns = self.several_turns or self.own_loop or not set(names) <= {SINGLE_TURN}

    def _pass_begins(self, call: Call) -> None:
        # V0 begins its loader anew for each epoch (ray_trainer.py:1465-1466, 0.9.1); one fetch is one rollout.
        before = self._begun_with + self._fetched
        if not self.validating and self._fetched and before % len(self._trainer.train_dataloader) == 0:
            self._passes += 1
            self.recorder.emit(EpochEnd(at=self.recorder.now(), epoch=self._passes))

    def _rows_of_batch(self, call: Call) -> None:
        if self.validating:
            return
        self._fetched += 1
        batch = call.argument("batch", 0)
        fields = [batch.non_tensor_batch.get(name) for name in FIELDS]
        loops = batch.non_tensor_batch.get("agent_name")
        self._greedy = self._greedy or not all(batch.non_tensor_batch.get("__do_sample__", ()))
        self._see_loops(() if loops is None else [str(name) for name in loops])
        per_pass = len(self._trainer.train_dataloader)
        self._fetched_a_batch(later_pass=self._fetched > 1 and (self._begun_with + self._fetched - 1) % per_pass == 0)
        # A resumed run may begin within a pass.
        passes = -(-self._fetched // per_pass) + self._resumed
        self._rows_submitted(fields, passes)

    def _rows_submitted(self, fields: list[Any], passes: int) -> None:
        if self._rows is None or any(field is None for field in fields):
            return
        # A sampler of one's own may draw with replacement (trainer/ppo/utils.py 0.9.1 create_rl_sampler).
        if (self._trainer.config.data.get("sampler") or {}).get("class_path") is not None:
            passes = ANY_NUMBER
        rows = list(zip(*([text(value) for value in field] for field in fields), strict=True))
        self._rows.submit(rows, passes)
        self._look_at_order(rows)

    @contained("settings")
    def _look_at_order(self, rows: list[tuple[str, ...]]) -> None:
        """Compare the order of submitted rows with that of the loader."""
        if self._row_order is not None:
            self._row_order.look(rows)

    @contained("settings")
    def _fetched_a_batch(self, *, later_pass: bool) -> None:
        """A batch came from the loader, which is the first of a later pass or not."""
        if self._row_order is not None:
            self._row_order.fetched(later_pass=later_pass)

    def _fetching(self, call: Call) -> Iterator[None]:
        before = getattr(self._trainer, "train_dataloader_it", None)
        yield
        # The loader begins anew when it is exhausted (trainer_base.py:1466).
        later_pass = before is not None and self._trainer.train_dataloader_it is not before
        self._fetched_a_batch(later_pass=later_pass)
        if later_pass:
            self._passes += 1
            self._passes_begun += 1
            self.recorder.emit(EpochEnd(at=self.recorder.now(), epoch=self._passes))

    # Samples that come out

    def _taken_from_queue(self, call: Call) -> None:
        if self._queue is not None:
            buffer = self._trainer.replay_buffer
            if self._labelled:
                self._queue.look(buffer.partitions[PARTITION])
            self._queue.take([key for key, _ in _real(call.result)], buffer.prompt_global_steps[PARTITION])

    def _generated_v1(self, call: Call) -> None:
        self._parts.append(call.result)
        if len(self._parts) < self._schedule.parts_per_rollout:
            return
        parts, self._parts = self._parts, []
        real = [sample for part in parts for sample in _real(part)]
        prompts, self._submitted = self._submitted, 0
        due = samples_due(
            [key for key, _ in real],
            self._trainer.replay_buffer,
            prompts=int(self._schedule.prompts_per_rollout),
            group=self._schedule.samples_per_prompt,
            asked=self._asked,
            own_loop=self.own_loop,
        )
        for key, _ in real:
            self._asked.pop(prompt_of(key), None)
        labels = counted(tag.get("min_global_steps") for _, tag in real if self._labelled)
        sizes = tuple(len(part.tags) for part in parts)
        self._generated(
            len(real),
            prompts,
            labels,
            added=sum(sizes) - len(real),
            due=due,
            parts=sizes if len(sizes) > 1 else (),
        )
        self._see_turns([key for key, _ in real])

    @contained("mask")
    def _see_turns(self, keys: list[str]) -> None:
        """Record what agent loops found of these samples."""
        self._turns_joined(self._turns.take([key.rpartition("_")[0] for key in keys], 0))

    def _turns_joined(self, joined: TurnsJoined | None) -> None:
        """Record what agent loops found of the rollout that is trained next."""
        # Where sessions have one turn each, the controller compares the masks of all rows itself.
        if joined is not None and (joined.rows or self.several_turns):
            self.recorder.emit(msgspec.structs.replace(joined, at=self.recorder.now(), rollout=self._trained))

    def _generated_v0(self, call: Call) -> None:
        # With ReMax a greedy completion of each prompt comes along, for its reward alone (ray_trainer.py 0.9.1:1520-1533).
        self._came(call.result, call.args[0].non_tensor_batch.get("__do_sample__") if call.args else None)
        if not self.validating:
            self._turns_joined(self._all_turns(len(call.result)))

    def _generated_ahead(self, call: Call) -> None:
        if call.result is not None:
            batch = call.result[3]
            self._ahead.append((batch, self._all_turns(len(batch))))

    def _sync_begins(self, call: Call) -> None:
        if self._ahead:  # the first sync comes before any rollout
            batch, joined = self._ahead.pop(0)
            self._came(batch, None)
            self._turns_joined(joined)

    @contained("mask")
    def _all_turns(self, samples: int) -> TurnsJoined | None:
        """What agent loops found of all sessions since the call before."""
        return self._turns.take_all(samples, 0)

    def _came(self, batch: Any, sampled: Any) -> None:
        if self.validating:
            return
        labels = batch.non_tensor_batch.get("min_global_steps", ())
        kept = list(range(len(batch)) if sampled is None else sampled.nonzero()[0])
        counts = counted(labels[row] for row in kept if row < len(labels))
        self._generated(len(kept), len(kept) // self._schedule.samples_per_prompt, counts)

    def _generated(
        self,
        samples: int,
        prompts: int,
        labels: tuple[tuple[int, int], ...],
        *,
        added: int = 0,
        due: int | None = None,
        parts: tuple[int, ...] = (),
    ) -> None:
        self._step_is_over()
        repeated, foreign = (None, None) if self._rows is None else self._rows.take()
        all_drawn = self._are_all_sampled(samples)
        self.recorder.emit(
            Generated(
                at=self.recorder.now(),
                index=self._rollouts,
                samples=samples,
                prompts=prompts,
                added=added,
                due=due,
                repeated=repeated,
                foreign=foreign,
                labels=labels,
                all_drawn=all_drawn,
                parts=parts,
                queue=None if self._queue is None else self._queue.since(),
            )
        )
        self._tell_of_requests()  # behind the rollout, which is theirs
        self._trained = self._rollouts
        self._rollouts += 1

    def _are_all_sampled(self, samples: int) -> bool:
        """Whether the samples of a rollout are all that were drawn for it, from the whole distribution, in one turn."""
        if not self._not_sampled and self.several_turns:
            self._not_sampled = SEVERAL_TURNS
            self.recorder.cannot("drawn", self._not_sampled)
        if not self._not_sampled and self._greedy:
            self._not_sampled = "the data ask for completions that are not sampled (__do_sample__)"
            self.recorder.cannot("drawn", self._not_sampled)
        # Sessions that failed gave no sample, and a long completion fails sooner than a short one.
        planned = self._schedule.prompts_per_rollout * self._schedule.samples_per_prompt
        return not self._not_sampled and samples >= planned


_LENT = (
    "trainer.v1.separate_async.hybrid_rollout.enable_switch: an engine that sends a request away answers with the number of its "
    "weights, and verl takes it for the oldest of the sample"
)
"""Read in verl 0.9.1: vllm_async_server.py:1030-1038, llm_server.py:307-311, and engines are added to the balancer before they get
their weights (trainer_separate_async.py:393-415)."""


def _lends_engines(config: Any) -> bool:
    """Whether engines within the trainers come and go."""
    v1 = config.trainer.get("v1") or {}
    switch = ((v1.get("separate_async") or {}).get("hybrid_rollout") or {}).get("enable_switch", False)
    return bool(v1.get("trainer_mode") == "separate_async" and switch)


def _real(part: Any) -> list[tuple[str, Any]]:
    """Keys and tags of the samples that verl's replay buffer gave, without padding."""
    return [(key, tag) for key, tag in zip(part.keys, part.tags, strict=True) if not tag.get("is_padding", False)]


def _of_training(place: int, see: Callable[[Any], None]) -> Callable[[Call], None]:
    """A hook on calls of verl's replay buffer about samples of training: it gets the argument at a place, behind their partition."""

    def look(call: Call) -> None:
        if call.args[place - 1] == PARTITION:
            see(call.args[place])

    return look
