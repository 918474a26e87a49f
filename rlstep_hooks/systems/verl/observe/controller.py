"""What the controller of a verl run sees: rollouts, calls to its trainers, weight syncs, the end.

One `VerlController` follows one trainer object (`PPOTrainer` of V1 or `RayPPOTrainer`, verl 0.9). It plans the run from the live
configuration when the checkpoint has been loaded, judges at each weight sync, when all trainers have returned from their
calls and their records are complete, and reports when `fit` ends.
"""

from __future__ import annotations

import inspect
import sys
from typing import TYPE_CHECKING, Any

import msgspec

from rlstep_hooks.judge.report import StepAuditError
from rlstep_hooks.observe.contained import Contained
from rlstep_hooks.observe.identity import checksum_of
from rlstep_hooks.observe.logged import with_metrics
from rlstep_hooks.observe.patches import Patches
from rlstep_hooks.record.describe import describe
from rlstep_hooks.record.events import EpochEnd, Generated, Rewarded
from rlstep_hooks.record.logger import not_evaluated
from rlstep_hooks.session.controller_record import ControllerRecord
from rlstep_hooks.show.scalars import scalars
from rlstep_hooks.systems import index
from rlstep_hooks.systems.verl.observe.checkpoints import loader_position
from rlstep_hooks.systems.verl.observe.process import OBSERVED_SINCE, folder, run_name, versions
from rlstep_hooks.systems.verl.observe.rewards import compare_groups, last_of_sessions, samples_of
from rlstep_hooks.systems.verl.observe.rollouts import counted, prompt_of, samples_due
from rlstep_hooks.systems.verl.observe.rows import ANY_NUMBER, FIELDS, LARGEST_VALIDATION, Rows, countable, text
from rlstep_hooks.systems.verl.observe.samples import names_of, unbound
from rlstep_hooks.systems.verl.plan import plan_config
from rlstep_hooks.systems.verl.releases import SUPPORTED, installed_release
from rlstep_hooks.systems.verl.settings import SHIPPED_AGENT_LOOPS, evaluates_only, own_agent_loop, unsupported

if TYPE_CHECKING:
    from collections.abc import Callable

    from rlstep_hooks.judge.report import Report
    from rlstep_hooks.planning.finding import Finding
    from rlstep_hooks.planning.schedule import Schedule
    from rlstep_hooks.record.events import PhaseName
    from rlstep_hooks.session.recorder import Recorder

ATTACH_HINT = (
    "every worker must import rlstep_hooks: install it there, and on an existing Ray cluster pass RLSTEP_DIR on with "
    "+ray_kwargs.ray_init.runtime_env.env_vars.RLSTEP_DIR=<folder that all machines share>; where they share none, also "
    "RLSTEP_SINK=ray in the same way"
)
_CALLS: tuple[tuple[str, str, PhaseName], ...] = (
    ("actor_rollout_wg", "compute_log_prob", "refresh"),
    ("ref_policy_wg", "compute_ref_log_prob", "reference"),
    ("critic_wg", "infer_batch", "values"),
    ("critic_wg", "train_mini_batch", "critic_updates"),
    ("actor_rollout_wg", "update_actor", "policy_updates"),
)
"""Worker group of the trainer, the method that calls all its workers, and what they do then. Verified in 0.9.1, both trainers.

These are counted and not the trainer's own methods around them: a method may call its workers twice, or not at all, and each
call that was made has its place in the trainers' records. (In bypass mode no old log-probs are computed.)"""

_REWARDED = ("prompts", "rm_scores", "token_level_rewards", "advantages", "response_mask")
"""What the advantages of a rollout are compared by. V0 holds rewards per token in any case."""

_RETURNING = ("_compute_old_log_prob", "_compute_values", "_update_critic", "_update_actor")
"""Methods of the trainer that return when all workers have done their part of a rollout (V1 trainer_base.py:1634, 1721, 1804,
1827; V0 ray_trainer.py:1290, 1252, 1378, 1327; verl 0.9.1). Calls to the critic themselves do not wait."""


def place_hooks(patches: Patches, trainer_class: Any) -> None:
    """Put the controller's hooks into a class of trainers."""
    # Verified in 0.9.1, both trainers: called once, after data and workers are there and before the first weight sync
    # (V1 from `init`, V0 from `fit`); afterwards `global_steps` says where the run goes on.
    patches.wrap(trainer_class, "_load_checkpoint", _after_load)
    # Verified in 0.9.1, both trainers: `fit` is the whole of training, and a run that fails leaves it with the exception.
    patches.wrap(trainer_class, "fit", _around_fit)
    # Trainers of one's own (verl.experimental, the recipes) have another `fit`, and some another `_load_checkpoint`. Before either is
    # called they are built by one of these of verl 0.9.1, whichever they have kept (read in 18 trainers of verl-recipe at 48ea0a7).
    for method in ("__init__", "init_workers", "_create_dataloader"):
        if hasattr(trainer_class, method):
            patches.wrap(trainer_class, method, _after_building)
    _hooked.append(trainer_class)


def place_tracking_hook(patches: Patches, tracking: Any) -> None:
    """Put the hook of what is logged into verl's `Tracking`."""
    # Verified in 0.9.1, both trainers: all of a trainer's backends get their metrics here, after each rollout and its sync of
    # weights, and after a validation (utils/tracking.py:191, trainer_base.py:514, ray_trainer.py:1802). On the class, because V0
    # keeps its object to itself.
    patches.wrap(tracking, "log", _around_log)


_controllers: dict[int, VerlController] = {}
"""By the id of their trainer, for as long as it trains; a process has one trainer."""


_hooked: list[Any] = []
"""Classes whose `fit` and `_load_checkpoint` have a hook."""

_fitting: set[int] = set()
"""Trainers whose `fit` is running, by id."""

_own: dict[int, Patches] = {}
"""Hooks of trainers whose class has one of these two of its own; by the id of the trainer, which they keep alive."""


def _has_own(trainer: Any, method: str) -> bool:
    """Whether a trainer's method is not that of verl's trainers."""
    return next(kind for kind in type(trainer).__mro__ if method in vars(kind)) not in _hooked


def _after_building(wrapped: Any, trainer: Any, args: Any, kwargs: Any) -> Any:
    result = wrapped(*args, **kwargs)
    try:
        # On the object: the class may be of a script that Ray sends by value, wrappers and all.
        own = [(name, hook) for name, hook in _HOOKS_OF_OWN if _has_own(trainer, name)]
        if own and id(trainer) not in _own:
            patches = _own[id(trainer)] = Patches()
            for name, hook in own:
                patches.wrap(trainer, name, hook)
    except Exception as error:  # noqa: BLE001 - a trainer that is not as it was read must be built all the same
        not_evaluated(f"the end of {type(trainer).__qualname__} will not be seen: {describe(error)}")
    return result


def _after_load(wrapped: Any, trainer: Any, args: Any, kwargs: Any) -> Any:
    result = wrapped(*args, **kwargs)
    try:
        if id(trainer) not in _controllers:
            _controllers[id(trainer)] = VerlController(trainer)
    except Exception as error:  # noqa: BLE001 - an audit that cannot begin must not keep training from it
        not_evaluated(f"the audit could not begin: {describe(error)}")
    return result


def _around_fit(wrapped: Any, trainer: Any, args: Any, kwargs: Any) -> Any:
    if id(trainer) in _fitting:  # a `fit` of one's own that calls verl's
        return wrapped(*args, **kwargs)
    _fitting.add(id(trainer))
    try:
        result = wrapped(*args, **kwargs)
    except BaseException as error:
        _end(trainer, error)
        raise
    if inspect.iscoroutine(result):
        return _awaited(result, trainer)
    _end(trainer)
    return result


_HOOKS_OF_OWN = (("fit", _around_fit), ("_load_checkpoint", _after_load))


async def _awaited(fitting: Any, trainer: Any) -> Any:
    """`fit` of a trainer that waits for its rollouts (experimental/one_step_off_policy 0.9.1)."""
    try:
        result = await fitting
    except BaseException as error:
        _end(trainer, error)
        raise
    _end(trainer)
    return result


def _around_log(wrapped: Any, tracking: Any, args: Any, kwargs: Any) -> Any:
    added = {name: value for controller in _controllers.values() for name, value in controller.scalars().items()}
    args, kwargs = with_metrics(args, kwargs, added, name="data", position=0)
    return wrapped(*args, **kwargs)


def _end(trainer: Any, error: BaseException | None = None) -> None:
    """The record ends.

    Raises:
        StepAuditError: The audit ended training, and `fit` returned as if all were well.
    """
    _fitting.discard(id(trainer))
    own = _own.pop(id(trainer), None)
    if own is not None:
        own.restore()
    controller = _controllers.pop(id(trainer), None)
    if controller is None:
        not_evaluated(f"{type(trainer).__qualname__} ended, and the audit never began: it loads no checkpoint")
        return
    controller.end(error)
    if error is None and controller.stopped_for is not None:
        # `fit` has saved what it has; what follows it is the end of the driver, with this as its exit status.
        raise StepAuditError(controller.stopped_for)


class VerlController:
    """Follows one verl trainer from its start to the report."""

    def __init__(self, trainer: Any) -> None:
        self.report: Report | None = None
        self._trainer = trainer
        self._v1 = any(kind.__module__.startswith("verl.trainer.ppo.v1") for kind in type(trainer).__mro__)
        self._patches = Patches()
        self._rollouts = 0
        self._submitted = 0
        self._trained = -1
        """Index of the latest rollout that went into training."""
        self._fetched = 0
        self._passes_begun = 2 if int(trainer.global_steps) else 1
        """Passes of the loader whose rows may have been submitted; a resumed run may begin within one."""
        training, validation = trainer.train_dataset, getattr(trainer, "val_dataset", None)
        known = countable(training) and countable(validation, LARGEST_VALIDATION)
        self._rows = Rows(training, validation) if known else None
        self._asked: dict[str, int] = {}
        """Samples that the data ask for, by prompt; of prompts under way."""
        self._own_loop = own_agent_loop(trainer.config)
        """Whether an agent loop generates that may give several samples for a session, or none."""
        self._validating = False
        self._passes = 0
        self._updates_before = 0
        self.stopped_for: Finding | None = None
        """The error for which the audit ended training, where it did."""
        self._followed = False
        self._own_fit = _has_own(trainer, "fit")
        """Whether the trainer has a loop of its own."""
        self._record = ControllerRecord(folder(), run_name(), index.deviations_of)
        self.schedule, reason = _plan(trainer, own_v0=self._own_fit and not self._v1)
        if self._own_fit and not self._v1 and trainer.config.algorithm.get("filter_groups", {}).get("enable"):
            reason = f"{type(trainer).__qualname__}.fit: how often it generates for a rollout depends on which groups it drops"
        self._recorder = self._begin()
        self._contained = Contained(self._recorder, ("order",))
        self._contained_rewards = Contained(self._recorder, ("rewards",))
        self._contained_rows = Contained(self._recorder, ("rows",))
        session = self._record.session
        session.take_off(self._patches.restore)
        with session.beginning():
            if not self._record.cannot_follow(reason) and self.schedule is not None:
                self._attach()

    def _begin(self) -> Recorder:
        trainer, schedule = self._trainer, self.schedule
        rollouts = int(trainer.global_steps)
        self._updates_before = updates = _updates_before(schedule, rollouts)
        self._passes = rollouts // schedule.rollouts_per_epoch if schedule and schedule.rollouts_per_epoch else 0
        facts = {
            "position": {"rollouts": rollouts, "updates": updates, "version": updates},
            "engine_dtype": str(trainer.config.actor_rollout_ref.rollout.get("dtype", "unknown")),
            "lr_constant": _rate_is_constant(trainer.config.actor_rollout_ref.actor.optim),
            "attach_hint": ATTACH_HINT,
            "evaluation_only": evaluates_only(trainer.config),
            "masks_change": self._own_fit or _rejects(trainer.config.algorithm),
        }
        trouble = ""
        try:
            facts |= self._loader_facts(rollouts)
        except Exception as error:  # noqa: BLE001 - a loader that is not as it was read must not keep the audit from beginning
            trouble = describe(error)
        recorder = self._record.begin(schedule, updates=updates, facts=facts, versions=versions())
        if trouble:
            recorder.cannot("checkpoints", f"a hook failed: {trouble}")
        return recorder

    def _loader_facts(self, rollouts: int) -> dict[str, Any]:
        """Where the loader of a resumed run goes on, and where the rows of the rollouts before it end."""
        schedule = self.schedule
        if schedule is None or schedule.rows_bound != "exact" or not rollouts:
            return {}
        loader = self._trainer.train_dataloader
        batches = int(rollouts * schedule.prompts_per_rollout) // loader.batch_size
        # A pass that is over is left only when the next batch is asked for.
        return {"loader_position": [(batches - 1) % len(loader) + 1, loader_position(loader)]}

    # Hooks on the one trainer. Each gives an event once the wrapped call has returned, when all workers have done their part.

    def _attach(self) -> None:
        self._followed = True
        trainer, wrap = self._trainer, self._patches.wrap
        for group, method, name in _CALLS:
            workers = getattr(trainer, group, None)
            if hasattr(workers, method):
                wrap(workers, method, self._after(lambda *_, name=name: self._record.called.append(name)))
        for method in _RETURNING:
            wrap(trainer, method, self._after(lambda *_: self._all_returned()))
        wrap(trainer, "_compute_ref_log_prob", self._after(lambda *_: self._reference_returned()))
        # Verified in 0.9.1: the only way in which weights reach the rollout replicas (checkpoint_engine/base.py:510).
        wrap(trainer.checkpoint_manager, "update_weights", self._around_sync)
        wrap(
            trainer.checkpoint_manager.actor_wg,
            "update_weights",
            self._after(lambda *_: self._record.called.append("sync")),
        )
        wrap(trainer, "_validate", self._around_validation)
        if self._v1:
            # Verified in 0.9.1 V1: gives the batch that is trained, padding and weight labels in its tags (trainer_base.py:1608).
            wrap(trainer, "_balance_batch", self._after(self._generated_v1))
            wrap(trainer, "_submit_batch_to_rollout", self._after(self._prompts_submitted))
            wrap(trainer, "_fetch_one_gen_batch", self._around_fetch)
            # Verified in 0.9.1 V1: fetches rewards and advantages of a rollout for verl's metrics (trainer_base.py:1885).
            module = sys.modules["verl.trainer.ppo.v1.trainer_base"]
            wrap(module, "get_metric_data_with_optional_routed_experts", self._after_metric_data)
        else:
            # Verified in 0.9.1 V0: takes the rows of a batch apart before they are generated for (ray_trainer.py:1498, 626).
            wrap(trainer, "_get_gen_batch", self._around_gen_batch)
            # Verified in 0.9.1 V0: gets the whole batch, rewards and advantages included, once it is trained (ray_trainer.py:1768).
            wrap(sys.modules["verl.trainer.ppo.ray_trainer"], "compute_data_metrics", self._after_data_metrics)
            # Verified in 0.9.1 V0: one call generates a rollout, or a batch of the validation (ray_trainer.py:1513, 640).
            wrap(trainer.async_rollout_manager, "generate_sequences", self._after(self._generated_v0))

    def _after(self, see: Callable[..., None]) -> Callable[..., Any]:
        """A wrapper that looks at a call once it has returned: `see(result, args)`."""

        def wrapper(wrapped: Any, instance: Any, args: Any, kwargs: Any) -> Any:
            result = wrapped(*args, **kwargs)
            with self._contained:
                see(result, args)
            return result

        return wrapper

    def _all_returned(self) -> None:
        """All workers have done what they were called for."""
        self._record.all_returned("evaluation" if self._validating else "training")

    def _reference_returned(self) -> None:
        # The reference of an actor with LoRA is the actor itself without its adapter, by the call that computes old log-probs.
        called = self._record.called
        self._record.called = ["reference" if name == "refresh" else name for name in called]
        self._all_returned()

    def _prompts_submitted(self, result: Any, args: Any) -> None:
        self._submitted += int(result)
        asked, loops = names_of(args[0], "__rollout_n__"), names_of(args[0], "agent_name")
        if asked is not None:
            self._asked |= dict(zip(names_of(args[0], "uid") or (), map(int, asked), strict=True))
        self._own_loop = self._own_loop or not set(loops or ()) <= set(SHIPPED_AGENT_LOOPS)
        with self._contained_rows:
            self._rows_submitted([names_of(args[0], name) for name in FIELDS], self._passes_begun)

    def _generated_v1(self, result: Any, args: Any) -> None:
        real = [
            (key, tag) for key, tag in zip(result.keys, result.tags, strict=True) if not tag.get("is_padding", False)
        ]
        prompts, self._submitted = self._submitted, 0
        plan = self.schedule
        due = None
        if plan is not None:
            due = samples_due(
                [key for key, _ in real],
                self._trainer.replay_buffer,
                prompts=int(plan.prompts_per_rollout),
                group=plan.samples_per_prompt,
                asked=self._asked,
                own_loop=self._own_loop,
            )
        for key, _ in real:
            self._asked.pop(prompt_of(key), None)
        labels = counted(tag.get("min_global_steps") for _, tag in real)
        self._generated(len(real), prompts, labels, added=len(result.tags) - len(real), due=due)

    def _generated_v0(self, result: Any, args: Any) -> None:
        if self._validating:
            return
        # With ReMax a greedy completion of each prompt comes along, for its reward alone (ray_trainer.py 0.9.1:1520-1533).
        sampled = args[0].non_tensor_batch.get("__do_sample__") if args else None
        labels = result.non_tensor_batch.get("min_global_steps", ())
        kept = list(range(len(result)) if sampled is None else sampled.nonzero()[0])
        group = self.schedule.samples_per_prompt if self.schedule is not None else 1
        counts = counted(labels[row] for row in kept if row < len(labels))
        self._generated(len(kept), len(kept) // group, counts)

    def _generated(
        self, samples: int, prompts: int, labels: tuple[tuple[int, int], ...], *, added: int = 0, due: int | None = None
    ) -> None:
        repeated, foreign = (None, None) if self._rows is None else self._rows.take()
        self._recorder.emit(
            Generated(
                at=self._recorder.now(),
                index=self._rollouts,
                samples=samples,
                prompts=prompts,
                added=added,
                due=due,
                repeated=repeated,
                foreign=foreign,
                labels=labels,
            )
        )
        self._trained = self._rollouts
        self._rollouts += 1

    def _around_fetch(self, wrapped: Any, trainer: Any, args: Any, kwargs: Any) -> Any:
        before = getattr(trainer, "train_dataloader_it", None)
        result = wrapped(*args, **kwargs)
        with self._contained:
            # The loader begins anew when it is exhausted (trainer_base.py:1466).
            if before is not None and trainer.train_dataloader_it is not before:
                self._passes += 1
                self._passes_begun += 1
                self._recorder.emit(EpochEnd(at=self._recorder.now(), epoch=self._passes))
        return result

    # Rows, rewards and advantages

    def _around_gen_batch(self, wrapped: Any, trainer: Any, args: Any, kwargs: Any) -> Any:
        with self._contained_rows:
            if not self._validating:
                self._fetched += 1
                batch = kwargs.get("batch", args[0] if args else None)
                fields = [batch.non_tensor_batch.get(name) for name in FIELDS]
                # A resumed run may begin within a pass.
                passes = -(-self._fetched // len(trainer.train_dataloader)) + bool(self._updates_before)
                self._rows_submitted(fields, passes)
        return wrapped(*args, **kwargs)

    def _rows_submitted(self, fields: list[Any], passes: int) -> None:
        if self._rows is None or any(field is None for field in fields):
            return
        # A sampler of one's own may draw with replacement (trainer/ppo/utils.py 0.9.1 create_rl_sampler).
        if (self._trainer.config.data.get("sampler") or {}).get("class_path") is not None:
            passes = ANY_NUMBER
        self._rows.submit(zip(*([text(value) for value in field] for field in fields), strict=True), passes)

    def _after_metric_data(self, wrapped: Any, instance: Any, args: Any, kwargs: Any) -> Any:
        data = wrapped(*args, **kwargs)
        with self._contained_rewards:
            keys = list(kwargs["keys"])
            rows = [row for row in last_of_sessions(keys) if not keys[row].startswith("pad")]
            fields = {name: unbound(data[name]) for name in data.keys() if name in _REWARDED}  # noqa: SIM118 - a TensorDict
            self._rewarded([prompt_of(keys[row]) for row in rows], fields, rows)
        return data

    def _after_data_metrics(self, wrapped: Any, instance: Any, args: Any, kwargs: Any) -> Any:
        with self._contained_rewards:
            batch = kwargs.get("batch", args[0] if args else None)
            fields = {name: list(batch.batch[name]) for name in _REWARDED if name in batch.batch.keys()}  # noqa: SIM118
            self._rewarded([str(uid) for uid in batch.non_tensor_batch["uid"]], fields, list(range(len(batch))))
        return wrapped(*args, **kwargs)

    def _rewarded(self, prompts: list[str], fields: dict[str, list[Any]], rows: list[int]) -> None:
        rewards = fields["token_level_rewards" if "token_level_rewards" in fields else "rm_scores"]
        chosen = {name: [field[row] for row in rows] for name, field in {**fields, "rewards": rewards}.items()}
        samples = samples_of(
            prompts,
            # An agent loop of one's own may give each session another prompt.
            [0 if self._own_loop else checksum_of(row) for row in chosen["prompts"]],
            chosen["rewards"],
            chosen["advantages"],
            chosen["response_mask"],
        )
        found = compare_groups(samples, str(self._trainer.config.algorithm.adv_estimator))
        self._recorder.emit(Rewarded(at=self._recorder.now(), rollout=self._trained, **msgspec.structs.asdict(found)))

    def _around_validation(self, wrapped: Any, trainer: Any, args: Any, kwargs: Any) -> Any:
        self._validating = True
        try:
            return wrapped(*args, **kwargs)
        finally:
            self._validating = False
            with self._contained:
                self._recorder.emit(
                    Generated(at=self._recorder.now(), index=self._rollouts, samples=0, prompts=0, purpose="evaluation")
                )
                self._rollouts += 1

    def _around_sync(self, wrapped: Any, manager: Any, args: Any, kwargs: Any) -> Any:
        result = wrapped(*args, **kwargs)
        error = None
        with self._contained:
            self._all_returned()
            error = self._record.take_error()
        self._record.session.raise_if_asked()
        trainer = self._trainer
        if trainer.global_steps < trainer.total_training_steps and self._record.session.stop_if_asked():
            self.stopped_for = error
            # Both loops look at this number before each rollout; V0 makes one more (ray_trainer.py:1507).
            trainer.total_training_steps = trainer.global_steps
        return result

    def scalars(self) -> dict[str, float]:
        """Numbers for the tracker, of the judgement so far; none where the run is not followed."""
        found: dict[str, float] = {}
        if self._followed:
            with Contained(self._recorder, ("recording",)):
                found = scalars(self._recorder.judge.summary())
        return found

    def end(self, error: BaseException | None = None) -> None:
        """Training returned, or raised `error`: write the last lines and report."""
        with Contained(self._recorder, ("recording",)):
            self.report = self._record.end(error)
        self._patches.restore()


def _plan(trainer: Any, *, own_v0: bool) -> tuple[Schedule | None, str]:
    """The plan of a live trainer, and why its run cannot be followed.

    Args:
        trainer: verl's, or one of somebody's own that stands on it.
        own_v0: Whether it is one of somebody's own on `RayPPOTrainer`, whose script need not set `trainer.use_v1`.
    """
    from omegaconf import OmegaConf

    release = installed_release()
    if release is None or not release.supported:
        return None, f"verl {release.verl if release else 'of unknown release'} is not supported ({SUPPORTED} are)"
    config: Any = OmegaConf.to_container(trainer.config, resolve=True)
    if own_v0:
        config["trainer"]["use_v1"] = False
    reason = unsupported(config)
    try:
        schedule = plan_config(config, rows=len(trainer.train_dataset), release=release)
    except Exception as error:  # noqa: BLE001 - whatever the plan meets in a configuration must not end training
        return None, reason or f"the configuration could not be read: {describe(error)}"
    if not reason and not release.since(OBSERVED_SINCE):
        reason = f"verl {release.verl} gets the plan only: hooks are verified from {OBSERVED_SINCE} on"
    return schedule, reason


def _rate_is_constant(optimizer: Any) -> bool:
    """Whether the learning rate of a section `optim` has no end, so that the length of its schedule does not matter."""
    # `warmup_style` is the older name, and wins where it is set (workers/config/optimizer.py 0.9.1:117-122).
    return bool((optimizer.get("warmup_style") or optimizer.get("lr_scheduler_type", "constant")) == "constant")


def _rejects(algorithm: Any) -> bool:
    """Whether samples or tokens are masked out after old log-probs were computed (rollout_corr_helper.py 0.9.1)."""
    return (algorithm.get("rollout_correction") or {}).get("rollout_rs") is not None


def _updates_before(schedule: Schedule | None, rollouts: int) -> int:
    """Policy updates that the plan has for the first rollouts of a run."""
    if schedule is None:
        return 0
    return int(max(rollouts - schedule.frozen_rollouts, 0) * schedule.updates_per_rollout)
