"""What a trainer process of an OpenRLHF run sees: old log-probs, micro-batches, updates of policy or critic, weight syncs.

Policy and critic of one rank are two processes; each has one `OpenRlhfTrainer`, made when OpenRLHF builds its own trainer there. It
writes events as they happen, within the call of the controller that they belong to, and judges nothing. Of the processes that share
the same samples (ring attention, tensor parallelism) the first records.
"""

from __future__ import annotations

import copy
import os
from typing import TYPE_CHECKING, Any

import msgspec
import torch

from rlstep_hooks.observe.checkpoints import State, note_saved, restored, saved
from rlstep_hooks.observe.compared import is_compared, is_compared_whole
from rlstep_hooks.observe.guard import Guard
from rlstep_hooks.observe.identity import RefreshedSamples, checksum_of, recognise
from rlstep_hooks.observe.norms import norm_of_gradients, parameters_of
from rlstep_hooks.observe.rates import rate_schedule
from rlstep_hooks.observe.trainer_record import REFRESHES, TrainerRecord
from rlstep_hooks.record.events import Carried, CarriedPart, FactsRead
from rlstep_hooks.record.ledger import rank_process
from rlstep_hooks.session.ray_sink import open_trainer_ledger
from rlstep_hooks.systems.openrlhf.observe.buffered import (
    BufferedNumbers,
    BufferedSamples,
    Came,
    buffer_is_dynamic,
    identity,
)
from rlstep_hooks.systems.openrlhf.observe.carried import TO_TRAINERS, part_of, sample_of
from rlstep_hooks.systems.openrlhf.observe.checkpoints import resumed_from, weights_of
from rlstep_hooks.systems.openrlhf.observe.gradients import gradients_of
from rlstep_hooks.systems.openrlhf.observe.loss_meter import LossMeter
from rlstep_hooks.systems.openrlhf.observe.model_weights import ModelWeights
from rlstep_hooks.systems.openrlhf.observe.process import folder, introduce, patches, run_name
from rlstep_hooks.systems.openrlhf.observe.settings import of_arguments, of_optimizer, of_trainer
from rlstep_hooks.systems.openrlhf.observe.synced_weights import SyncedWeights

if TYPE_CHECKING:
    from collections.abc import Iterable

    from rlstep_hooks.observe.losses import LossNumbers
    from rlstep_hooks.record.values import Role

DTYPES = {"bf16": "bfloat16", "fp16": "float16", "fp32": "float32"}
"""`ds.param_dtype` -> torch's name."""


class OpenRlhfTrainer:
    """One trainer process.

    Args:
        trainer: OpenRLHF's `ActorPPOTrainer` or `CriticPPOTrainer`.
        role: The role whose weights it trains.
        engine: The DeepSpeed engine of these.
    """

    def __init__(self, trainer: Any, role: Role, engine: Any) -> None:
        args, mesh = trainer.strategy.args, trainer.strategy.ds_device_mesh
        rank = mesh["dp"].get_local_rank()
        process = rank_process(rank) if role == "policy" else f"critic{rank}"
        self.role = role
        self._process = process
        self._record = TrainerRecord(
            open_trainer_ledger(folder(), run_name(), process),
            introduce(process, mesh["dp"].size()),
            # Samples of frozen rollouts wait in the buffer; steps are counted from 0.
            remembered=REFRESHES + max(args.critic.freezing_steps + 1, 0),
        )
        self._trainer = trainer
        self._engine = engine
        self._steps = engine.global_steps
        self._stepped = False
        self._probed: Any = None
        self._probing = False
        self._samples = BufferedSamples(role)
        self._came: list[CarriedPart] = []  # of the rollout that is appended to the buffer
        self._deals = bool(args.train.dynamic_batch_enable) and mesh["dp"].size() > 1
        """Whether samples are redistributed to the ranks before they are trained."""
        self._losses = Guard(self._record.writer, ("loss",))
        self._delivery = Guard(self._record.writer, ("delivery",))
        self._formula = Guard(self._record.writer, ("formula",))
        self._steps_guard = Guard(self._record.writer, ("optimizer",))
        self._gradient_guard = Guard(self._record.writer, ("gradient",))
        self._masks: dict[int, int] = {}
        """Checksum of the mask of each sample when old log-probs were computed, by that of its tokens."""
        self._norms: list[torch.Tensor] = []
        """Norms of the gradients of the parts in which this process makes its step."""
        self._scales_seen = str(args.ds.param_dtype) != "fp16"
        """Whether only accumulation scales a loss; in float16 a scaler does too."""
        steps, ranks = engine.gradient_accumulation_steps(), mesh["dp"].size()
        scale, own = float(steps) if self._scales_seen else 0.0, copy.deepcopy(args)
        self._meter = LossMeter(own, role, ranks=ranks, accumulation=steps, scale=scale, guard=self._formula)
        self._buffered = BufferedNumbers()
        self._syncs = Guard(self._record.writer, ("sampler",))
        self._arguments = of_arguments(args)
        self._in_force = (
            of_trainer(trainer, role),
            of_optimizer(engine, args.actor if role == "policy" else args.critic, role),
        )
        """What is compared with the arguments before each step."""
        self._model = ModelWeights(engine.module.parameters())
        self._weights = SyncedWeights(trainer, engine, self._syncs)
        with self._record.order:
            self._attach()
            self._record.writer.emit(FactsRead(at=self._record.writer.now(), facts=self._facts(args)))

    def cannot(self, what: str, why: str) -> None:
        """Record once that a topic cannot be observed."""
        self._record.writer.cannot(what, why)

    @property
    def version(self) -> int:
        """Policy updates applied in this run."""
        return self._record.version

    def _attach(self) -> None:
        """Hooks on the one trainer. All verified in 0.11.2 by real runs."""
        wrap, trainer = patches.wrap, self._trainer
        # ppo_actor.py:153, ppo_critic.py:65: all passes over a rollout; :259, :121: one micro-batch.
        wrap(trainer, "ppo_train", self._around_training)
        wrap(trainer, "training_step", self._around_microbatch)
        # replay_buffer.py:84: puts the samples of one micro-batch together, while they are on the CPU.
        wrap(trainer.replay_buffer, "collate_fn", self._after_collate)
        # deepspeed.py:177, 183: each is called once for each micro-batch; DeepSpeed steps at the end of each window.
        wrap(trainer.strategy, "backward", self._around_backward)
        wrap(trainer.strategy, "optimizer_step", self._around_step)
        # deepspeed.py:685: writes the checkpoint of this process's model.
        wrap(trainer.strategy, "save_ckpt", self._around_save)
        optimizer = self._engine.basic_optimizer
        optimizer.register_step_pre_hook(self._before_optimizer)
        optimizer.register_step_post_hook(self._after_optimizer)
        # replay_buffer.py:68: takes one part of a rollout apart into its samples.
        wrap(trainer.replay_buffer, "append", self._after_append)
        if self.role == "critic":
            # loss.py:275: gets values and targets of a micro-batch, on the device, and returns its loss.
            trainer.critic_loss_fn.register_forward_pre_hook(self._before_value_loss, with_kwargs=True)
            trainer.critic_loss_fn.register_forward_hook(self._after_value_loss, with_kwargs=True)
            return
        wrap(trainer, "broadcast_to_vllm", self._around_sync)
        # loss.py:174: gets both log-probs of a micro-batch, on the device.
        trainer.actor_loss_fn.register_forward_pre_hook(self._before_loss, with_kwargs=True)
        # The same method returns the loss of a micro-batch. The gradient that arrives there is the factor of the loss in the backward.
        trainer.actor_loss_fn.register_forward_hook(self._after_loss, with_kwargs=True)
        self._weights.attach(patches)

    def _facts(self, args: Any) -> dict[str, Any]:
        active = sum(1 for m in self._engine.module.modules() if isinstance(m, torch.nn.Dropout) and m.p > 0)
        restored = self._restored(args)
        if self.role == "critic":
            return restored | self._schedule("critic_lr_schedule", args.critic)
        dtype = str(args.ds.param_dtype)
        weights = {}
        with self._syncs:
            label = self._weights.label_held()
            if label is not None:
                weights["weights"] = label
        return (
            restored
            | weights
            | self._schedule("lr_schedule", args.actor)
            | {
                "compute_dtype": DTYPES.get(dtype, dtype),
                "dropout_modules": active,
                "compares_settings": True,
                "engine_updates": self._engine.global_steps - self._engine.skipped_steps,
            }
        )

    def _schedule(self, name: str, settings: Any) -> dict[str, Any]:
        """The fact that rule RLS605 reads, under this name: the schedule of a role with these settings."""
        schedule = rate_schedule(self._engine.lr_scheduler, str(settings.lr_scheduler))
        if schedule is None:
            return {}
        if (
            settings.optim == "adam" and not self._engine.global_steps
        ):  # a checkpoint brings the rate that it was made with
            schedule["base"] = float(settings.adam.lr)
        return {name: schedule}

    # Checkpoints

    def _restored(self, args: Any) -> dict[str, Any]:
        """The fact that rule RLS702 reads, where training resumes from a checkpoint that was noted."""
        with self._record.checkpoints:
            path = resumed_from(args, self.role)
            noted = None if path is None else saved(folder(), self._process, path)
            if noted is not None:
                now, loads = (
                    State(weights_of(self._engine.module)),
                    dict.fromkeys(("model", "optimizer", "extra"), True),
                )
                return {f"restored_{self.role}": restored(now, now, noted, loads=loads, exact=False)}
        return {}

    def _around_save(self, wrapped: Any, strategy: Any, args: Any, kwargs: Any) -> Any:
        result = wrapped(*args, **kwargs)
        with self._record.checkpoints:
            given = dict(zip(("model", "save_dir", "tag"), args, strict=False)) | kwargs
            path, state = os.path.join(given["save_dir"], given["tag"]), State(weights_of(self._engine.module))
            note_saved(folder(), self._process, path, state)
        return result

    def begin(self, name: Any) -> None:
        """A call of the controller begins."""
        with self._record.values:
            self._model.look()
        with self._record.order:
            self._steps_elsewhere()
            self._record.begin(name)
        self._arguments.tell(self._record.writer)

    def end(self, name: Any) -> None:
        """A call of the controller is about to return."""
        with self._record.order:
            self._record.end(name)

    # Old log-probs

    def refreshed(self, data: Any, part: slice, results: Any, version: int) -> None:
        """Old log-probs were computed, micro-batch by micro-batch: shapes (samples, length - 1), padded on the right."""
        with self._record.samples:
            number = self._record.calls("refresh") - 1
            refresh = RefreshedSamples(number, version)
            positions = 0
            batches = zip(data["sequences"][part], data["attention_mask"][part], results, strict=True)
            masks = iter(data["action_mask"][part]) if "action_mask" in data else None
            self._masks.clear()
            for sequences, attention, log_probs in batches:
                positions += log_probs.numel()
                counted = None if masks is None else next(masks)
                for row_of, (tokens, length, row) in enumerate(
                    zip(sequences, attention.sum(1).tolist(), log_probs, strict=True)
                ):
                    refresh.add(checksum_of(tokens[:length]), checksum_of(row[: length - 1]))
                    if counted is not None:
                        self._masks[checksum_of(tokens[:length])] = checksum_of(counted[row_of, : length - 1].bool())
            self._record.refreshed(refresh, positions)

    def valued(self, data: Any, part: slice, results: Any) -> None:
        """The critic computed values, micro-batch by micro-batch: shapes (samples, length - 1), padded on the right."""
        with self._formula:
            values: dict[int, set[int]] = {}
            self._masks.clear()
            parts = (data[name][part] for name in ("sequences", "attention_mask", "action_mask"))
            for sequences, attention, masks, rows in zip(*parts, results, strict=True):
                for tokens, length, mask, row in zip(sequences, attention.sum(1).tolist(), masks, rows, strict=True):
                    key = checksum_of(tokens[:length])
                    values.setdefault(key, set()).add(checksum_of(row[: length - 1]))
                    self._masks[key] = checksum_of(mask[: length - 1].bool())
            self._samples.computed(values)

    def _after_append(self, wrapped: Any, buffer: Any, args: Any, kwargs: Any) -> Any:
        result = wrapped(*args, **kwargs)
        with self._record.samples:
            experience = kwargs.get("experience", args[0] if args else None)
            items = buffer.items[-len(experience.sequences) :]
            if self.role == "policy":
                self._buffered.add(experience)
            self._samples.appended(items)
            if is_compared(self._generated):
                self._came.append(part_of(sample_of(item, self.role) for item in items))
            if self.role == "policy" and self._deals and self._record.refreshes:
                # ppo_trainer.py:230, balance_experiences: samples go to other ranks than those that computed their old log-probs.
                self._record.received(self._record.refreshes[0].dealt(map(identity, items)))
        return result

    @property
    def _generated(self) -> int:
        """The rollout whose samples come, counted from 0."""
        return self._record.calls("refresh" if self.role == "policy" else "values") - 1

    def appended(self) -> None:
        """All samples that the controller has for this process have come."""
        with self._record.samples:
            parts, self._came = tuple(self._came), []
            if parts:
                self._record.carried(Carried(way=TO_TRAINERS, rollout=self._generated, role=self.role, parts=parts))

    # Micro-batches

    def _around_training(self, wrapped: Any, trainer: Any, args: Any, kwargs: Any) -> Any:
        name = "policy_updates" if self.role == "policy" else "critic_updates"
        self.begin(name)
        self._meter.next_rollout()
        result = wrapped(*args, **kwargs)
        self._samples.trained()
        if self.role == "critic":
            with self._formula:
                self._meter.send()
            with self._record.values:
                self._record.send_numbers()
                self._record.write_numbers(self._losses_arrived)
        self.end(name)
        return result

    def _after_collate(self, wrapped: Any, buffer: Any, args: Any, kwargs: Any) -> Any:
        experience = wrapped(*args, **kwargs)
        with self._record.samples:
            batch = kwargs.get("batch", args[0] if args else None)
            self._samples.collated(experience, batch[0] if buffer_is_dynamic(self._trainer.replay_buffer) else batch)
        return experience

    def _around_microbatch(self, wrapped: Any, trainer: Any, args: Any, kwargs: Any) -> Any:
        experience = kwargs.get("experience", args[0] if args else None)
        came: list[Came] = []
        with self._record.order:
            self._steps_elsewhere()
            came = self._samples.take(experience)
            keys = [of.key for of in came] or None
            found = recognise(keys, [of.log_probs for of in came], self._record.refreshes)
            self._record.open_microbatch(len(experience.sequences), self.role, found)
        self._begin_loss(experience, came, args, kwargs)
        result = wrapped(*args, **kwargs)
        self._record.abandon_microbatch()
        return result

    def _begin_loss(self, experience: Any, came: list[Came], args: Any, kwargs: Any) -> None:
        """Hand the loss meter what it needs of a micro-batch, and compare its masks with those that the model was given before."""
        with self._formula:
            names = ("experience", "kl_ctl", "step") if self.role == "policy" else ("experience", "step")
            given = dict(zip(names, args, strict=False)) | kwargs
            self._meter.begin(experience, given.get("kl_ctl", 0.0), int(given["step"]), came)
            known = [(self._masks[of.key], of.mask) for of in came if of.key in self._masks]
            if known and self._meter.looks:
                self._record.see_mask(intact=all(before == now for before, now in known))

    def _before_loss(self, module: Any, args: Any, kwargs: Any) -> None:
        with self._record.values:
            names = ("log_probs", "old_log_probs", "advantages", "action_mask")
            given = dict(zip(names, args, strict=False)) | kwargs
            self._record.see_log_probs(given["log_probs"], given["old_log_probs"], given["action_mask"])
            self._record.see_constants(old_logprobs=given["old_log_probs"], advantages=given["advantages"])

    def _before_value_loss(self, module: Any, args: Any, kwargs: Any) -> None:
        with self._losses:
            given = dict(zip(_OF_VALUE_LOSS, args, strict=False)) | kwargs
            self._record.see_constants(targets=given["returns"])

    def _after_value_loss(self, module: Any, args: Any, kwargs: Any, result: Any) -> None:
        """As `_after_loss`, of the critic."""
        with self._formula:
            given = dict(zip(_OF_VALUE_LOSS, args, strict=False)) | kwargs
            if self._record.open_index is not None:
                if self._meter.looks:
                    self._record.see_values(given["action_mask"])
                self._meter.computed(self._record.open_index, given, result)
        with self._losses:
            self._see_scale(self._record.open_index, result)

    def _after_loss(self, module: Any, args: Any, kwargs: Any, result: Any) -> None:
        """DeepSpeed divides each loss by the micro-batches of an update, and OpenRLHF's normaliser multiplies by them
        (loss_utils.py:47-72): the gradient that arrives at the loss is that quotient."""
        with self._formula:
            names = ("log_probs", "old_log_probs", "advantages", "action_mask", "rollout_log_probs")
            given = dict(zip(names, args, strict=False)) | kwargs
            if self._record.open_index is not None:
                self._meter.computed(self._record.open_index, given, result[0])
        with self._losses:
            if self._record.open_index is not None:
                # loss.py 0.11.2: PolicyLoss gives the loss, and the part of the tokens whose surrogate the clip lowers.
                self._record.see_clipped(self._record.open_index, result[1])
            self._see_scale(self._record.open_index, result[0])

    def _see_scale(self, index: int | None, loss: Any) -> None:
        """Look at the gradient that will arrive at a loss."""
        if index is None or not self._scales_seen or not loss.requires_grad:
            return
        microbatches = self._engine.gradient_accumulation_steps()

        def arrived(gradient: Any) -> None:
            with self._losses:
                self._record.see_loss_scale(index, gradient * microbatches)

        loss.register_hook(arrived)

    def _around_backward(self, wrapped: Any, strategy: Any, args: Any, kwargs: Any) -> Any:
        with self._formula:
            self._meter.backward(kwargs.get("loss", args[0] if args else None))
        with self._gradient_guard:
            self._record.begin_window(self.role, probed=False, followed=is_compared_whole(self._cycle))
        with self._record.order:
            self._record.close_microbatch()
        return wrapped(*args, **kwargs)

    # Updates

    @property
    def _cycle(self) -> int:
        """The rollout that is trained, counted from 0."""
        return self._record.calls("policy_updates" if self.role == "policy" else "critic_updates") - 1

    def _around_step(self, wrapped: Any, strategy: Any, args: Any, kwargs: Any) -> Any:
        rate, skipped, tick = 0.0, 0, None
        with self._record.order:
            self._steps_elsewhere()
            self._stepped = False
            rate, skipped = float(self._engine.get_lr()[0]), self._engine.skipped_steps
            tick = getattr(self._engine.lr_scheduler, "last_epoch", None)
        self._norms.clear()
        result = wrapped(*args, **kwargs)
        with self._steps_guard:
            limit = float((self._trainer.args.actor if self.role == "policy" else self._trainer.args.critic).max_norm)
            if self._norms and limit > 0:
                self._record.see_norm(self.role, torch.stack(self._norms).square().sum().sqrt(), limit)
        with self._record.values:
            if self._engine.global_steps != self._steps:
                self._model.left()
        with self._record.order:
            if self._engine.global_steps != self._steps:
                self._steps = self._engine.global_steps
                scaler = self._engine.skipped_steps != skipped
                self._record.updated(
                    self.role,
                    applied=self._stepped and not scaler,
                    rate=rate,
                    tick=tick,
                    reason="gradient scaler" if scaler else "",
                )
        return result

    def _steps_elsewhere(self) -> None:
        """Steps that DeepSpeed made since the last look without a call of the training loop."""
        while self._steps < self._engine.global_steps:
            self._steps += 1
            self._record.updated(self.role, applied=True, rate=float(self._engine.get_lr()[0]), by_loop=False)

    def _before_optimizer(self, optimizer: Any, args: Any, kwargs: Any) -> None:
        """torch's own hook. ZeRO steps its groups of flat weights one after the other; only one of them is looked at."""
        self._probing = False
        with self._record.values:
            held, steps = list(_with_gradient(optimizer)), self._record.steps[self.role]
            if self._probed is None and held:
                self._probed = held[0]
                steps.watch_weights([self._probed])
                steps.watch_graded([("", self._probed)])
                steps.watch_steps(optimizer)
                with self._gradient_guard:
                    named = self._engine.module.named_parameters()
                    watch = gradients_of(named, self._probed, self._gradient_guard) if self._scales_seen else None
                    if watch is not None:
                        steps.watch_gradients(watch)
            if any(weights is self._probed for weights in held):
                self._probing = True
                steps.see_frozen(self._model.frozen)
                self._record.before_step(self.role, replayed=is_compared(self._cycle))
        for settings in self._in_force:
            settings.tell(self._record.writer)
        with self._steps_guard:
            norm = norm_of_gradients(parameters_of(optimizer)) if is_compared_whole(self._cycle) else None
            if norm is not None:
                self._norms.append(norm)

    def _after_optimizer(self, optimizer: Any, args: Any, kwargs: Any) -> None:
        """torch's own hook: an optimizer really stepped."""
        self._stepped = True
        if self._probing:
            with self._record.values:
                self._record.after_step(self.role, optimizer.param_groups[0]["lr"])

    # Weight syncs

    def _around_sync(self, wrapped: Any, trainer: Any, args: Any, kwargs: Any) -> Any:
        self.begin("sync")
        with self._formula:
            self._meter.send()
        with self._record.values:
            self._record.send_numbers()
        result = wrapped(*args, **kwargs)
        label = None
        sent = self._weights.take_sent()
        with self._syncs:
            label = self._weights.label_sent(sent) if sent else None
        with self._delivery:
            self._weights.deliver(sent, self._record)
        with self._record.order:
            if sent or not self._weights.sends:
                self._record.synced(label)
        with self._record.values:
            refresh = self._record.calls("refresh") - 1
            values = self._buffered.take(refresh)
            if values is not None:
                # A sync waits for the device in any case.
                self._record.measured(msgspec.structs.replace(values, model_moved=self._model.take()))
            self._record.write_numbers(self._losses_arrived)
        self.end("sync")
        return result

    def _losses_arrived(self) -> dict[int, LossNumbers]:
        with self._formula:
            return self._meter.arrived()
        return {}


_OF_VALUE_LOSS = ("values", "old_values", "returns", "action_mask")
"""Arguments of `ValueLoss`, by place."""


def _with_gradient(optimizer: Any) -> Iterable[Any]:
    return (weights for group in optimizer.param_groups for weights in group["params"] if weights.grad is not None)
