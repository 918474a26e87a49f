"""What the controller of an OpenRLHF run sees: rollouts, calls to its trainers, weight syncs, the end.

One `OpenRlhfController` follows one `PPOTrainer` or, in asynchronous training, one `TrainingActor` (OpenRLHF 0.11). It plans the
run from `strategy.args` when training begins, judges after each weight sync, when all trainers have returned from their calls
and their records are complete, and reports at the end.
"""

from __future__ import annotations

import copy
from functools import partial
from typing import TYPE_CHECKING, Any

import msgspec
import ray

from rlstep_hooks.judge.report import StepAuditError
from rlstep_hooks.observe.guard import contained
from rlstep_hooks.observe.hooks import Call, Hooks
from rlstep_hooks.observe.logged import with_metrics
from rlstep_hooks.observe.patches import Patches
from rlstep_hooks.observe.scored_rows import TOPIC as CLEAN_FORWARD
from rlstep_hooks.observe.turn_records import TurnRecords
from rlstep_hooks.record.describe import describe
from rlstep_hooks.record.events import ConfigChanged, EpochEnd, Generated, Rewarded
from rlstep_hooks.record.logger import logger, not_evaluated
from rlstep_hooks.session.controller_record import ControllerRecord
from rlstep_hooks.session.held_signals import signals_held
from rlstep_hooks.show import scalars
from rlstep_hooks.systems.engine import index
from rlstep_hooks.systems.openrlhf.observe.advantages import AdvantageWatch
from rlstep_hooks.systems.openrlhf.observe.carried import CarriedSamples
from rlstep_hooks.systems.openrlhf.observe.due_work import DueWork
from rlstep_hooks.systems.openrlhf.observe.filtered import GroupFilter
from rlstep_hooks.systems.openrlhf.observe.generator import GeneratorTail, SamplingWeights
from rlstep_hooks.systems.openrlhf.observe.kl_coefficient import NAME, AdaptiveCoefficient
from rlstep_hooks.systems.openrlhf.observe.labels import NOT_KNOWN
from rlstep_hooks.systems.openrlhf.observe.process import folder, run_name, versions
from rlstep_hooks.systems.openrlhf.observe.reference import records_of_reference
from rlstep_hooks.systems.openrlhf.observe.reward_model import records_of_reward_model
from rlstep_hooks.systems.openrlhf.observe.samples import SampleWatch
from rlstep_hooks.systems.openrlhf.observe.settings import of_arguments
from rlstep_hooks.systems.openrlhf.observe.shuffled import RowsAsTheyStand
from rlstep_hooks.systems.openrlhf.observe.start import facts_of, plan_of, updates_before
from rlstep_hooks.systems.vllm_engine.records import EngineRecords

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from rlstep_hooks.judge.report import Report
    from rlstep_hooks.record.events import Carried, PhaseName, TurnsJoined
    from rlstep_hooks.record.values import Role

_ORDER, _SAMPLES, _ADVANTAGES, _RECORDING = ("order",), ("samples",), ("advantages",), ("recording",)
_TURNS = ("mask",)
"""What is not observed any more where a hook fails."""

_CALLS: dict[tuple[str, str], PhaseName] = {
    ("actor_model_group", "forward"): "refresh",
    ("critic_model_group", "forward"): "values",
    ("reference_model_group", "forward"): "reference",
    ("critic_model_group", "fit"): "critic_updates",
    ("actor_model_group", "fit"): "policy_updates",
    ("actor_model_group", "broadcast_to_vllm"): "sync",
}
"""Group of processes and the method that all of them are called for -> what they do then (ppo_trainer.py, experience_maker.py)."""


_TRAINED: dict[str, Role] = {"actor_model_group": "policy", "critic_model_group": "critic"}
"""Group of processes -> the role that they train."""


def place_hooks(patches: Patches, module: Any) -> None:
    """Put the controller's hook into `openrlhf.trainer.ppo_trainer`."""
    # ppo_trainer.py:458: the first thing that training does, synchronous (`fit`) or not (`PPOTrainerAsync.fit`). A patch and no hook:
    # where it fails there is no record that lacks a topic, but no audit, and that is what it says.
    patches.wrap(module.BasePPOTrainer, "init_checkpoint_states", _after_checkpoint)


_controllers: list[OpenRlhfController] = []
"""A process has one trainer."""


def _after_checkpoint(wrapped: Any, trainer: Any, args: Any, kwargs: Any) -> Any:
    states = wrapped(*args, **kwargs)
    try:
        if not _controllers:
            _controllers.append(OpenRlhfController(trainer, states))
    except Exception as error:  # noqa: BLE001 - an audit that cannot begin must not keep training from it
        not_evaluated(f"the audit could not begin: {describe(error)}")
    return states


class OpenRlhfController:
    """Follows one OpenRLHF trainer from its start to the report.

    Args:
        trainer: `PPOTrainer` or `TrainingActor`.
        states: What its checkpoint says: rollouts made (`global_step`) and the episode that goes on.
    """

    def __init__(self, trainer: Any, states: dict[str, Any]) -> None:
        self.report: Report | None = None
        self._trainer = trainer
        self._sampling: SamplingWeights | None = None
        self._patches = Patches()
        self._waiting: Generated | None = None
        """The rollout that was generated and is trained next."""
        self._turns = TurnRecords(folder(), run_name())
        self._joined: TurnsJoined | None = None
        """The comparison of the latest rollout's rows with the turns that were sampled for them."""
        self._served: Carried | None = None
        """The comparison of the prompts that went to the engines for the latest rollout."""
        self._rollouts = 0
        self._begins = not int(states["global_step"])
        """Whether training begins with the weights of its model, and not with those of a checkpoint."""
        self._reference_gap: float | None = None
        """The distance of policy and reference in the first rollout, until it is recorded."""
        self._episode = int(states["episode"])
        self._episode_ended = False
        self._ended = False
        run = run_name()
        self._record = ControllerRecord(folder(), run, index.deviations_of)
        self._generator = GeneratorTail(self._record.sink) if trainer.args.train.async_enable else None
        self._samples = SampleWatch(trainer.args)
        configured = copy.deepcopy(trainer.args)
        self._advantages = AdvantageWatch(configured)
        self._filter = GroupFilter(configured)
        self._way = CarriedSamples(configured)
        self._arguments = of_arguments(trainer.args)
        self._configured = configured
        self._coefficient = AdaptiveCoefficient(configured) if configured.algo.kl.target else None
        self._references = records_of_reference(trainer.args, folder(), run)
        self._reward_models = records_of_reward_model(trainer.args, folder(), run)
        self.schedule, reason = plan_of(trainer.args, self._rows)
        rollouts = int(states["global_step"])
        updates = updates_before(run, self._record.sink) if rollouts else 0
        facts = facts_of(trainer.args, self.schedule, rollouts=rollouts, updates=updates)
        self.recorder = self._record.begin(self.schedule, updates=updates, facts=facts, versions=versions())
        """Learns what is not observed."""
        self._engines = EngineRecords(folder(), run, self.recorder)
        self._hooks = Hooks(self.recorder, self._patches)
        session = self._record.session
        session.take_off(self._patches.restore)
        with session.beginning():
            self._record.cannot_follow(reason)
            self._attach()

    def _rows(self) -> int | None:
        """The rows of the training set; None where they are not known."""
        return len(self._trainer.prompts_dataloader.dataset) if self._generator is None else self._generator.rows()

    # Hooks on the one trainer. All verified in 0.11.2 by real runs, line numbers of ppo_trainer.py.

    def _attach(self) -> None:
        trainer, wrap, ends = self._trainer, self._hooks.wrap, self._ends
        for group in ("actor_model_group", "critic_model_group", "reference_model_group", "reward_model_group"):
            processes = getattr(trainer, group)
            for name in ("async_run_method", "async_run_method_batch") if processes is not None else ():
                # launcher.py:320, 328: what the controller asks of all processes of a group.
                wrap(processes, name, before=partial(self._called, group), topics=_ORDER)
                wrap(processes, name, around=partial(self._handed, group), topics=_SAMPLES)
        maker = trainer.experience_maker
        # Each returns when the processes that it called have done their part (:213, experience_maker.py:85, :264, :300).
        # The second hook stands outside of the first: the rollout is recorded before what changed since the last one.
        wrap(trainer, "train_step", before=self._compare_arguments, topics=("settings",))
        if self._coefficient is not None:
            # ppo_trainer.py:253: with the divergence of the rollout that was trained.
            wrap(trainer.kl_ctl, "update", before=self._coefficient_updated, topics=("settings",))
            wrap(trainer, "train_step", before=self._compare_coefficient, topics=("settings",))
        wrap(trainer, "train_step", before=self._rollout_begins, after=self._rollout_ends, topics=_ORDER)
        self._follow_due_work()
        self._patches.wrap(trainer, "train_step", self._may_raise)
        wrap(maker, "make_experience_batch", after=self._returned, topics=_ORDER)
        wrap(maker, "make_experience_batch", after=self._inspected, topics=_SAMPLES)
        ends(maker, "make_experience_batch")
        # experience_maker.py:118: asks the models about the samples; :114: their answers, one tensor for each part of the rollout.
        wrap(maker, "make_experience", before=self._asked, after=self._made, topics=_SAMPLES)
        wrap(maker, "_flatten_results", after=self._answered, topics=_SAMPLES)
        # experience_maker.py:238: gets the samples as the models have seen them, and makes advantages of their rewards.
        wrap(maker, "compute_advantages_and_returns", before=self._rewarded, after=self._computed, topics=_SAMPLES)
        wrap(maker, "compute_advantages_and_returns", around=self._compared, topics=_ADVANTAGES)
        wrap(trainer, "ppo_train", after=self._returned, topics=_ORDER)
        ends(trainer, "ppo_train")
        wrap(trainer, "broadcast_to_vllm", after=lambda _: self._synced(), topics=_ORDER)
        ends(trainer, "broadcast_to_vllm")
        for tracker in filter(None, (trainer.wandb_logger, trainer.tensorboard_logger)):
            # :577, :579: the last thing that the loop does, also if it drops the last samples. Without a tracker, nothing else shows
            # the end of a loop that drops them.
            wrap(tracker, "close", before=lambda _: self.end(), topics=_RECORDING)
            if scalars.asked():
                # logging_utils.py:86, 122: what each tracker gets after a rollout and its weight sync (:388, :390).
                wrap(tracker, "log_train", before=self._logged, topics=_RECORDING)
        # The last thing in each turn of the loop (:382).
        wrap(trainer, "save_logs_and_checkpoints", after=self._turn_ends, topics=_ORDER)
        ends(trainer, "save_logs_and_checkpoints")
        if self._generator is None:
            generator = trainer.samples_generator
            self._sampling = SamplingWeights(generator)
            self._sampling.attach(self._hooks)
            self._follow_rows()
            wrap(generator, "generate_samples", before=self._generates, after=self._came, topics=_ORDER)
            self._patches.wrap(generator, "generate_samples", self._may_stop)
            # samples_generator.py:255: one response of an engine, with its reward.
            wrap(generator, "_process_response_into_experience", after=self._responded, topics=_SAMPLES)
            wrap(generator, "_process_response_into_experience", after=self._scored, topics=_SAMPLES)
            wrap(generator, "generate_samples", before=self._filter_begins, after=self._filtered, topics=_SAMPLES)
            wrap(generator, "_process_response_into_experience", after=self._masked, topics=_ADVANTAGES)
            wrap(generator, "generate_eval_samples", after=self._evaluated, topics=_ORDER)
            # What agents did for an evaluation, or for a rollout: each has come back when the call returns.
            wrap(generator, "generate_eval_samples", after=self._leave_out, topics=_TURNS)
            wrap(generator, "generate_samples", after=self._join, topics=_TURNS)
            ends(generator, "generate_eval_samples")
        else:
            # ppo_trainer_async.py:199: gives "done" when nothing follows.
            wrap(trainer.rollout_queue, "get", after=self._got, topics=_ORDER)
            self._patches.wrap(trainer.rollout_queue, "get", self._may_stop)

    @contained("settings")
    def _follow_due_work(self) -> None:
        """Look at the evaluations and checkpoints that are due."""
        DueWork(self._trainer, self._configured, self.recorder).place(self._hooks)

    @contained("settings")
    def _follow_rows(self) -> None:
        """Look at the order in which rows are served."""
        RowsAsTheyStand(self._trainer.samples_generator, self.recorder, resumed=not self._begins).place(self._hooks)

    # Patches and no hooks, which contain every error: these learn with which error the run ends, or end it on purpose.

    def _ends(self, owner: Any, name: str) -> None:
        self._patches.wrap(owner, name, self._run)

    def _run(self, wrapped: Callable[..., Any], instance: Any, args: Any, kwargs: Any) -> Any:
        """The wrapped call; an exception of it ends the run, and is recorded as its end."""
        try:
            return wrapped(*args, **kwargs)
        except BaseException as error:
            self.end(error)
            raise

    def _may_stop(self, wrapped: Callable[..., Any], instance: Any, args: Any, kwargs: Any) -> Any:
        """Run a call before which the audit may end training."""
        self._stop_if_asked()
        return self._run(wrapped, instance, args, kwargs)

    def _may_raise(self, wrapped: Callable[..., Any], instance: Any, args: Any, kwargs: Any) -> Any:
        """Run a call after which the audit may end training."""
        result = self._run(wrapped, instance, args, kwargs)
        try:
            self._record.session.raise_if_asked()
        except StepAuditError as error:
            self.end(error)
            raise
        return result

    def _called(self, group: str, call: Call) -> None:
        name = _CALLS.get((group, call.argument("method_name", 0, "")))
        if name is not None:
            self._record.called.append(name)

    def _handed(self, group: str, call: Call) -> Iterator[None]:
        method, role = call.argument("method_name", 0, ""), _TRAINED.get(group)
        if method == "append" and role is not None and "experience" in call.kwargs:
            self._carried(*self._way.handed(role, call.kwargs["experience"], self._rollouts - 1))
        yield
        if method == "forward":
            self._way.called(group, call.result)

    def _returned(self, call: Call) -> None:
        self._all_returned()

    def _synced(self) -> None:
        self._all_returned()
        self._see_deliveries()

    @contained("delivery")
    def _see_deliveries(self) -> None:
        """Take up what the engines recorded of syncs."""
        self._engines.collect()

    def _inspected(self, call: Call) -> None:
        inspected = self._samples.inspected(call.result, self._rollouts - 1)
        intact = self._references.intact()
        if self._references.why_not_alone:
            self.recorder.cannot("clean_reference", self._references.why_not_alone)
        reward_model_intact = self._reward_models.intact()
        if self._reward_models.why_not_alone:
            self.recorder.cannot(CLEAN_FORWARD, self._reward_models.why_not_alone)
        gap, self._reference_gap = self._reference_gap, None
        self.recorder.emit(
            msgspec.structs.replace(
                inspected,
                at=self.recorder.now(),
                reference_intact=intact,
                reference_gap=gap,
                reward_model_intact=reward_model_intact,
                filtered=self._filter.take(),
                **self._references.alone(),
                **self._reward_models.alone(),
            )
        )

    def _carried(self, *events: Carried | None) -> None:
        """Record what samples held at two places."""
        for event in events:
            if event is not None:
                self.recorder.emit(msgspec.structs.replace(event, at=self.recorder.now()))

    def _asked(self, call: Call) -> None:
        self._carried(self._way.asked(call.argument("samples_list", 0), self._rollouts - 1))

    def _made(self, call: Call) -> None:
        self._carried(self._way.made(call.result, self._rollouts - 1))
        if self._begins and self._rollouts == 1:
            self._reference_gap = self._way.reference_gap(call.result)

    def _answered(self, call: Call) -> None:
        self._way.answered(call.argument("refs", 0), call.result, self._rollouts - 1)

    def _rewarded(self, call: Call) -> None:
        self._samples.before_advantages(call.argument("experiences", 0))

    def _computed(self, call: Call) -> None:
        self._way.computed(call.result, self._rollouts - 1)

    def _compared(self, call: Call) -> Iterator[None]:
        self._advantages.before(call.argument("experiences", 0), self._way.penalised())
        yield
        found = self._advantages.after(call.result, float(call.owner.kl_ctl.value), self._rollouts - 1)
        if found is not None:
            seen = msgspec.structs.asdict(found)
            self.recorder.emit(Rewarded(at=self.recorder.now(), rollout=self._rollouts - 1, groups=0, **seen))

    def _responded(self, call: Call) -> None:
        response = call.argument("response", 0)
        self._samples.generated(call.result, response.get("reward"))
        self._way.generated(response, int(call.kwargs.get("max_len", 2048)))

    def _scored(self, call: Call) -> None:
        self._filter.answered(call.result, call.argument("response", 0).get("scores"))

    def _filter_begins(self, call: Call) -> None:
        self._filter.begins()

    def _filtered(self, call: Call) -> None:
        self._filter.generated(call.result[0])

    def _masked(self, call: Call) -> None:
        self._advantages.generated(call.argument("response", 0), int(call.kwargs.get("max_len", 2048)), call.result)

    def _all_returned(self) -> None:
        """All processes have done what they were called for."""
        # A resumed run first syncs its weights. That is not part of the plan, but engines hold these weights then.
        self._record.all_returned("training" if self._rollouts else "evaluation")

    def _generates(self, call: Call) -> None:
        if self._sampling is not None:
            self._sampling.before()
            if self._sampling.trouble:
                self.recorder.cannot("sampler", self._sampling.trouble)

    def _came(self, call: Call) -> None:
        samples, _, _, exhausted = call.result
        if samples and self._sampling is not None:
            self._emit_untrained()
            if self._episode_ended:
                self.recorder.emit(EpochEnd(at=self.recorder.now(), epoch=self._episode))
                self._episode_ended = False
            self._waiting = self._sampling.rollout(len(samples), self._rollouts)
            self._served = self._sampling.carried(self._rollouts)
        if exhausted:
            self._episode += 1
            # A run that resumes at the end of a pass first finds no rows: that pass ended in the run before.
            self._episode_ended = bool(samples or self._rollouts)
            if not samples:
                self._end_if_over()

    def _leave_out(self, call: Call) -> None:
        self._turns.take_all(0, self._rollouts)

    def _join(self, call: Call) -> None:
        joined = self._turns.take_all(0, self._rollouts)
        self._joined = joined if call.result[0] and (joined.rows or joined.left_out) else None

    def _evaluated(self, call: Call) -> None:
        self._emit_rollout(Generated(index=0, samples=0, prompts=0, purpose="evaluation"))

    def _got(self, call: Call) -> None:
        if isinstance(call.result, str) and call.result == "done":
            self.end()

    def _compare_arguments(self, call: Call) -> None:
        self._arguments.tell(self.recorder)

    def _coefficient_updated(self, call: Call) -> None:
        if self._coefficient is not None:
            self._coefficient.updates(float(call.argument("current", 0)))

    def _compare_coefficient(self, call: Call) -> None:
        if self._coefficient is None:
            return
        value = float(self._trainer.kl_ctl.value)
        right = self._coefficient.differs(value)
        if right is not None:
            at = self.recorder.now()
            self.recorder.emit(ConfigChanged(at=at, name=NAME, before=right, after=value, since="configuration"))

    def _rollout_begins(self, call: Call) -> None:
        samples = call.argument("rollout_samples", 0)
        if self._record.called and not self._rollouts:
            # ppo_trainer_async.py:340: a resumed run first asks the actor for a sync. Ray calls a method of the actor's class then,
            # not the hook on the object; it has returned when training begins.
            self._synced()
        self._emit_rollout(self._generated(len(samples)))

    def _rollout_ends(self, call: Call) -> None:
        self._record.take_error()

    def _stop_if_asked(self) -> None:
        """End training before its next rollout because of an error: the model is saved, and the run does not end like a healthy one."""
        session = self._record.session
        error = session.error
        if error is None or not session.stop_if_asked():
            return
        trainer = self._trainer
        # train_ppo_ray.py:191-194: the driver saves once training has returned, which it does not do here.
        groups = [trainer.actor_model_group]
        if trainer.critic_model_group is not None and trainer.args.critic.save_value_network:
            groups.append(trainer.critic_model_group)
        for group in groups:
            ray.get(group.async_save_model())
        self.end()
        logger.error("the model was saved before training ended")
        raise StepAuditError(error)

    def _generated(self, samples: int) -> Generated:
        """The rollout that is about to be trained."""
        found, self._waiting = self._waiting, None
        if self._generator is not None:
            found, ended = self._generator.next_rollout()
            self._joined = self._generator.joined
            for what, why in self._generator.unobserved.items():
                self.recorder.cannot(what, why)
            if ended:
                self._episode += 1
                self.recorder.emit(EpochEnd(at=self.recorder.now(), epoch=self._episode))
        group = int(self._trainer.args.rollout.n_samples_per_prompt)
        labels = found.labels if found is not None and found.samples == samples else NOT_KNOWN
        sampling = found.sampling if found is not None else ()
        repeated = found.repeated if found is not None else None
        prompts = samples // group
        return Generated(index=0, samples=samples, prompts=prompts, labels=labels, sampling=sampling, repeated=repeated)

    def _emit_rollout(self, event: Generated) -> None:
        self.recorder.emit(msgspec.structs.replace(event, at=self.recorder.now(), index=self._rollouts))
        self._rollouts += 1
        served, self._served = self._served, None
        self._carried(served)
        joined, self._joined = self._joined, None
        if joined is not None:
            self.recorder.emit(msgspec.structs.replace(joined, at=self.recorder.now(), rollout=self._rollouts - 1))

    def _emit_untrained(self) -> None:
        """A rollout was generated and the loop went on without it (OpenRLHF#1297): what should have followed is missing."""
        waiting, self._waiting = self._waiting, None
        if waiting is not None:
            self._emit_rollout(waiting)

    def _logged(self, call: Call) -> None:
        added = scalars.scalars(self.recorder.judge.summary())
        call.args, call.kwargs = with_metrics(call.args, call.kwargs, added, name="logs_dict", position=1)

    def _turn_ends(self, call: Call) -> None:
        if self._episode_ended and self._generator is None:
            self._end_if_over()

    def _end_if_over(self) -> None:
        """The synchronous loop ends with the rows of its last episode (:315, :389); nothing is called after that."""
        if self._episode >= self._trainer.args.train.num_episodes:
            self.end()

    def end(self, error: BaseException | None = None) -> None:
        """Training is over, or raised `error`: write the last lines and report. Later calls do nothing."""
        if self._ended:
            return
        self._ended = True
        # Ray tells a worker more than once that it should end; the second time must not keep the first from being recorded.
        with signals_held():
            self._see_untrained()
            self._see_deliveries()
            self._report(error)
            self._patches.restore()

    @contained(*_ORDER)
    def _see_untrained(self) -> None:
        """Record the rollout that nothing trained, where the run ends with one."""
        self._emit_untrained()

    @contained(*_RECORDING)
    def _report(self, error: BaseException | None) -> None:
        """Write the last lines of the record, and the report."""
        self.report = self._record.end(error)
