"""What a trainer process of an OpenRLHF run sees: old log-probs, micro-batches, updates of policy or critic, weight syncs.

Policy and critic of one rank are two processes; each has one `OpenRlhfTrainer`, made when OpenRLHF builds its own trainer there. It
writes events as they happen, within the call of the controller that they belong to, and judges nothing. Of the processes that share
the same samples (ring attention, tensor parallelism) the first records.
"""

from __future__ import annotations

import copy
from functools import partial
from typing import TYPE_CHECKING, Any

import msgspec

from rlstep_hooks.observe.compared import is_compared
from rlstep_hooks.observe.guard import contained
from rlstep_hooks.observe.hooks import Hooks
from rlstep_hooks.observe.identity import RefreshedSamples, checksum_of, recognise
from rlstep_hooks.observe.scored_rows import TOPIC
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
from rlstep_hooks.systems.openrlhf.observe.loss_meter import LossMeter
from rlstep_hooks.systems.openrlhf.observe.model_weights import ModelWeights
from rlstep_hooks.systems.openrlhf.observe.process import folder, introduce, patches, run_name
from rlstep_hooks.systems.openrlhf.observe.rows_alone import RowsAlone
from rlstep_hooks.systems.openrlhf.observe.saved_models import SavedModels
from rlstep_hooks.systems.openrlhf.observe.settings import (
    DTYPES,
    of_arguments,
    of_optimizer,
    of_trainer,
)
from rlstep_hooks.systems.openrlhf.observe.shuffled import SamplesAsTheyCame
from rlstep_hooks.systems.openrlhf.observe.steps import EngineSteps
from rlstep_hooks.systems.openrlhf.observe.synced_weights import synced_weights
from rlstep_hooks.systems.openrlhf.observe.trainer_start import facts_of, loaded_fact, restored_fact

if TYPE_CHECKING:
    from rlstep_hooks.observe.hooks import Call
    from rlstep_hooks.observe.losses import LossNumbers
    from rlstep_hooks.record.values import Role

_ORDER, _VALUES, _SAMPLES = ("order",), ("log_ratio", "weights"), ("samples", "refresh")
_FORMULA, _LOSS, _SAMPLER, _DELIVERY = ("formula",), ("loss",), ("sampler",), ("delivery",)
"""What is not observed any more where a hook fails."""
_COMPUTES = ("refresh", "values")
"""Calls in which a model computes what samples are trained with."""


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
        self.recorder = self._record.writer
        """Learns what is not observed."""
        self._trainer = trainer
        self._engine = engine
        self._samples = BufferedSamples(role)
        self._came: list[CarriedPart] = []  # of the rollout that is appended to the buffer
        self._deals = bool(args.train.dynamic_batch_enable) and mesh["dp"].size() > 1
        """Whether samples are redistributed to the ranks before they are trained."""
        self._masks: dict[int, int] = {}
        """Checksum of the mask of each sample when old log-probs were computed, by that of its tokens."""
        self._scales_seen = str(args.ds.param_dtype) != "fp16"
        """Whether only accumulation scales a loss; in float16 a scaler does too."""
        steps, ranks = engine.gradient_accumulation_steps(), mesh["dp"].size()
        scale, own = float(steps) if self._scales_seen else 0.0, copy.deepcopy(args)
        self._meter = LossMeter(own, role, ranks=ranks, accumulation=steps, scale=scale, recorder=self.recorder)
        self._buffered = BufferedNumbers()
        self._saved = SavedModels(
            trainer, engine, role, process, self.recorder, lambda: self.version, averages=self._scales_seen
        )
        self._dtype = DTYPES.get(str(args.ds.param_dtype), str(args.ds.param_dtype))
        self._alone = RowsAlone(args, engine, self._dtype, self.recorder)
        self._arguments = of_arguments(args)
        configured = args.actor if role == "policy" else args.critic
        self._in_force = (of_trainer(trainer, role), of_optimizer(engine, configured, role))
        """What is compared with the arguments before each step."""
        self._order = SamplesAsTheyCame(self.recorder) if _shuffles(trainer) else None
        """Looks at the order of the samples; None where the trainer takes them as they came."""
        self._model = ModelWeights(engine.module.parameters())
        self._steps = EngineSteps(
            engine,
            role,
            self._record,
            self._model,
            ranks=mesh["dp"].size(),
            limit=float(configured.max_norm),
            cycle=lambda: self._cycle,
            scaled=not self._scales_seen,
        )
        self._weights = synced_weights(trainer, engine)
        self._taken: list[Came] = []
        """The samples of the micro-batch that is trained, as they came."""
        self._sent = 0
        self._label: int | None = None
        """Tensors of the latest sync, and the label of their weights; None where it is not known."""
        self._follow(args)

    def cannot(self, what: str, why: str) -> None:
        """Record once that a topic cannot be observed."""
        self.recorder.cannot(what, why)

    @property
    def version(self) -> int:
        """Policy updates applied in this run."""
        return self._record.version

    @contained(*_ORDER)
    def _follow(self, args: Any) -> None:
        """Place the hooks, and record what is known before training."""
        self._attach()
        self.recorder.emit(FactsRead(at=self.recorder.now(), facts=self._facts(args)))

    def _attach(self) -> None:
        """Hooks on the one trainer. All verified in 0.11.2 by real runs."""
        hooks, trainer = Hooks(self.recorder, patches), self._trainer
        wrap, policy = hooks.wrap, self.role == "policy"
        # ppo_actor.py:153, ppo_critic.py:65: all passes over a rollout. Of several hooks on one method the later stand outside.
        if not policy:
            wrap(trainer, "ppo_train", after=lambda _: self._meter.send(), topics=_FORMULA)
            wrap(trainer, "ppo_train", after=self._write_numbers, topics=_VALUES)
        wrap(trainer, "ppo_train", before=self._training_begins, after=self._training_ends, topics=_ORDER)
        # ppo_actor.py:259, ppo_critic.py:121: one micro-batch.
        wrap(trainer, "training_step", before=self._begin_loss, topics=_FORMULA)
        wrap(trainer, "training_step", before=self._begin_microbatch, after=self._abandon, topics=_ORDER)
        self._saved.attach(hooks)
        if self._order is not None:
            wrap(trainer, "ppo_train", before=self._order_begins, after=self._order_ends, topics=("settings",))
            wrap(trainer.replay_buffer, "collate_fn", before=self._takes, topics=("settings",))
        # replay_buffer.py:84: puts the samples of one micro-batch together, while they are on the CPU.
        wrap(trainer.replay_buffer, "collate_fn", after=self._collated, topics=_SAMPLES)
        # replay_buffer.py:68: takes one part of a rollout apart into its samples.
        wrap(trainer.replay_buffer, "append", after=self._appended, topics=_SAMPLES)
        # deepspeed.py:177: called once for each micro-batch.
        wrap(trainer.strategy, "backward", before=lambda _: self._record.close_microbatch(), topics=_ORDER)
        wrap(trainer.strategy, "backward", before=lambda _: self._steps.begin_window(), topics=("gradient",))
        wrap(trainer.strategy, "backward", before=self._backward, topics=_FORMULA)
        # actor.py:221, model.py `CriticModel.forward`: what the model is given of a micro-batch.
        model = trainer.actor if policy else trainer.critic
        hooks.forward(model, before=self._see_inputs, topics=_FORMULA)
        self._steps.place(hooks, trainer.strategy, self._engine.gradient_accumulation_steps())
        hooks.steps(self._engine.basic_optimizer, before=self._compare_settings, topics=("settings",))
        if not policy:
            # model.py `CriticModel.forward`: one micro-batch of values, or of training, while ZeRO-3 gathers the weights.
            hooks.forward(model, before=self._alone.critic_begins, after=self._alone.critic_ends, topics=(TOPIC,))
            # loss.py:275: gets values and targets of a micro-batch, on the device, and returns its loss.
            hooks.forward(trainer.critic_loss_fn, before=self._see_targets, topics=_LOSS)
            hooks.forward(trainer.critic_loss_fn, after=self._value_loss, topics=_FORMULA)
            hooks.forward(trainer.critic_loss_fn, after=lambda call: self._see_scale(call.result), topics=_LOSS)
            return
        # actor.py:221: one micro-batch of old log-probs, or of training. Here because the model still holds what it was scored with.
        hooks.forward(trainer.actor, before=self._alone.forward_begins, after=self._alone.forward_ends, topics=(TOPIC,))
        hooks.forward(trainer.actor, after=self._see_entropies, topics=_FORMULA)
        # loss.py:174: gets both log-probs of a micro-batch, on the device, and returns its loss. The gradient that arrives there is
        # the factor of the loss in the backward.
        hooks.forward(trainer.actor_loss_fn, before=self._see_log_probs, topics=_VALUES)
        hooks.forward(trainer.actor_loss_fn, after=self._loss, topics=_FORMULA)
        hooks.forward(trainer.actor_loss_fn, after=self._see_clipped, topics=_LOSS)
        # ppo_actor.py:409: all tensors of a sync.
        wrap(trainer, "broadcast_to_vllm", after=self._see_sent, topics=_SAMPLER)
        wrap(trainer, "broadcast_to_vllm", after=self._deliver, topics=_DELIVERY)
        wrap(trainer, "broadcast_to_vllm", after=self._synced, topics=_ORDER)
        wrap(trainer, "broadcast_to_vllm", before=self._send_numbers, after=self._write_all, topics=_VALUES)
        wrap(trainer, "broadcast_to_vllm", before=lambda _: self._meter.send(), topics=_FORMULA)
        wrap(trainer, "broadcast_to_vllm", before=self._sync_begins, after=self._sync_ends, topics=_ORDER)
        self._weights.attach(hooks)

    def _facts(self, args: Any) -> dict[str, Any]:
        restored = self._restored(args) or self._loaded(args) or {}
        label = self._label_held() if self.role == "policy" else None
        held = {} if label is None else {"weights": label}
        return restored | held | facts_of(self._engine, args, self.role, dtype=self._dtype)

    @contained("checkpoints")
    def _restored(self, args: Any) -> dict[str, Any]:
        """What the process took up from a checkpoint, as a fact."""
        return restored_fact(self._engine, args, self.role, self._process)

    @contained("weights")
    def _loaded(self, args: Any) -> dict[str, Any]:
        """Whether the policy has the weights of its files, as a fact; empty where it has taken up a checkpoint's since."""
        return loaded_fact(self._engine, args, self.role)

    @contained(*_SAMPLER)
    def _label_held(self) -> int | None:
        """The label of the weights that training begins with."""
        return self._weights.label_held()

    # Calls of the controller

    def begin(self, name: Any) -> None:
        """A call of the controller begins."""
        self._see_model()
        self._see_call(name)
        if name in _COMPUTES:
            self._alone.begin(name, self._record.calls(name) - 1)
        self._arguments.tell(self.recorder)

    @contained(*_VALUES)
    def _see_model(self) -> None:
        """Look whether the model's weights moved since the latest look."""
        self._model.look()

    @contained(*_ORDER)
    def _see_call(self, name: Any) -> None:
        """Record that a call begins, after what was done before it."""
        self._steps.elsewhere()
        self._record.begin(name)

    @contained(*_ORDER)
    def end(self, name: Any) -> None:
        """A call of the controller is about to return."""
        self._record.end(name)

    # Old log-probs

    @contained(*_SAMPLES)
    def refreshed(self, data: Any, part: slice, results: Any, version: int) -> None:
        """Old log-probs were computed, micro-batch by micro-batch: shapes (samples, length - 1), padded on the right."""
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
        self._alone.end_refresh()

    def valued(self, data: Any, part: slice, results: Any) -> None:
        """The critic computed values, micro-batch by micro-batch: shapes (samples, length - 1), padded on the right."""
        self._see_values(data, part, results)
        self._alone.see_values(self._record.calls("values") - 1, data, part, results)

    @contained(*_FORMULA)
    def _see_values(self, data: Any, part: slice, results: Any) -> None:
        """Note the values and masks of samples, which are trained later."""
        values: dict[int, set[int]] = {}
        self._masks.clear()
        parts = (data[name][part] for name in ("sequences", "attention_mask", "action_mask"))
        for sequences, attention, masks, rows in zip(*parts, results, strict=True):
            for tokens, length, mask, row in zip(sequences, attention.sum(1).tolist(), masks, rows, strict=True):
                key = checksum_of(tokens[:length])
                values.setdefault(key, set()).add(checksum_of(row[: length - 1]))
                self._masks[key] = checksum_of(mask[: length - 1].bool())
        self._samples.computed(values)

    def _appended(self, call: Call) -> None:
        experience = call.argument("experience", 0)
        items = call.owner.items[-len(experience.sequences) :]
        if self.role == "policy":
            self._buffered.add(experience)
        self._samples.appended(items)
        if is_compared(self._generated):
            self._came.append(part_of(sample_of(item, self.role) for item in items))
        if self.role == "policy" and self._deals and self._record.refreshes:
            # ppo_trainer.py:230, balance_experiences: samples go to other ranks than those that computed their old log-probs.
            self._record.received(self._record.refreshes[0].dealt(map(identity, items)))

    @property
    def _generated(self) -> int:
        """The rollout whose samples come, counted from 0."""
        return self._record.calls("refresh" if self.role == "policy" else "values") - 1

    @contained(*_SAMPLES)
    def appended(self) -> None:
        """All samples that the controller has for this process have come."""
        parts, self._came = tuple(self._came), []
        if parts:
            self._record.carried(Carried(way=TO_TRAINERS, rollout=self._generated, role=self.role, parts=parts))

    # Micro-batches

    def _training_begins(self, call: Call) -> None:
        self.begin("policy_updates" if self.role == "policy" else "critic_updates")
        self._meter.next_rollout()

    def _training_ends(self, call: Call) -> None:
        self._samples.trained()
        self.end("policy_updates" if self.role == "policy" else "critic_updates")

    def _order_begins(self, call: Call) -> None:
        if self._order is not None:
            self._order.begin(self._trainer.replay_buffer.items)

    def _takes(self, call: Call) -> None:
        if self._order is not None:
            self._order.takes(call.argument("batch", 0))

    def _order_ends(self, call: Call) -> None:
        if self._order is not None:
            self._order.end()

    def _collated(self, call: Call) -> None:
        batch = call.argument("batch", 0)
        self._samples.collated(call.result, batch[0] if buffer_is_dynamic(self._trainer.replay_buffer) else batch)

    def _begin_microbatch(self, call: Call) -> None:
        experience, self._taken = call.argument("experience", 0), []
        self._steps.elsewhere()
        self._taken = came = self._samples.take(experience)
        found = recognise([of.key for of in came] or None, [of.log_probs for of in came], self._record.refreshes)
        self._record.open_microbatch(len(experience.sequences), self.role, found)

    def _abandon(self, call: Call) -> None:
        self._record.abandon_microbatch()

    def _begin_loss(self, call: Call) -> None:
        """Hand the loss meter what it needs of a micro-batch, and compare its masks with those that the model was given before."""
        given = call.named(*(("experience", "kl_ctl", "step") if self.role == "policy" else ("experience", "step")))
        update = self._record.updates(self.role)
        self._meter.begin(given["experience"], given.get("kl_ctl", 0.0), int(given["step"]), self._taken, update=update)
        known = [(self._masks[of.key], of.mask) for of in self._taken if of.key in self._masks]
        if known and self._meter.looks:
            self._record.see_mask(intact=all(before == now for before, now in known))

    def _see_inputs(self, call: Call) -> None:
        if self._record.open_index is not None:
            self._meter.fed(call.argument("sequences", 0), call.argument("attention_mask", 2))

    def _see_entropies(self, call: Call) -> None:
        if self._record.open_index is not None:
            self._meter.scored(call.result)

    def _see_log_probs(self, call: Call) -> None:
        given = call.named(*_OF_POLICY_LOSS)
        self._record.see_log_probs(given["log_probs"], given["old_log_probs"], given["action_mask"])
        self._record.see_constants(old_logprobs=given["old_log_probs"], advantages=given["advantages"])

    def _see_targets(self, call: Call) -> None:
        self._record.see_constants(targets=call.named(*_OF_VALUE_LOSS)["returns"])

    def _value_loss(self, call: Call) -> None:
        given = call.named(*_OF_VALUE_LOSS)
        if self._record.open_index is not None:
            if self._meter.looks:
                self._record.see_values(given["action_mask"], **self._alone.take_values())
            self._meter.computed(self._record.open_index, given, call.result)

    def _loss(self, call: Call) -> None:
        if self._record.open_index is not None:
            self._meter.computed(self._record.open_index, call.named(*_OF_POLICY_LOSS), call.result[0])

    def _see_clipped(self, call: Call) -> None:
        if self._record.open_index is not None:
            # loss.py 0.11.2: PolicyLoss gives the loss, and the part of the tokens whose surrogate the clip lowers.
            self._record.see_clipped(self._record.open_index, call.result[1])
        self._see_scale(call.result[0])

    def _see_scale(self, loss: Any) -> None:
        """Look at the gradient that will arrive at a loss.

        DeepSpeed divides each loss by the micro-batches of an update, and OpenRLHF's normaliser multiplies by them
        (loss_utils.py:47-72): the gradient that arrives at the loss is that quotient.
        """
        index = self._record.open_index
        if index is None or not self._scales_seen or not loss.requires_grad:
            return
        loss.register_hook(partial(self._seed_arrives, index, self._engine.gradient_accumulation_steps()))

    @contained(*_LOSS)
    def _seed_arrives(self, index: int, microbatches: int, gradient: Any) -> None:
        """Look at the gradient that a backward begins with."""
        self._record.see_loss_scale(index, gradient * microbatches)
        self._record.steps[self.role].see_seed(gradient)

    def _backward(self, call: Call) -> None:
        self._meter.backward(call.argument("loss", 0))

    # Updates

    @property
    def _cycle(self) -> int:
        """The rollout that is trained, counted from 0."""
        return self._record.calls("policy_updates" if self.role == "policy" else "critic_updates") - 1

    def _compare_settings(self, call: Call) -> None:
        for settings in self._in_force:
            settings.tell(self.recorder)

    # Weight syncs

    def _sync_begins(self, call: Call) -> None:
        self.begin("sync")

    def _sync_ends(self, call: Call) -> None:
        self.end("sync")

    def _send_numbers(self, call: Call) -> None:
        self._record.send_numbers()

    def _see_sent(self, call: Call) -> None:
        self._sent, self._label = self._weights.sends.take(), None
        if self._sent:
            self._label = self._weights.label_sent(self._sent)

    def _deliver(self, call: Call) -> None:
        self._weights.deliver(self._sent, self._record)

    def _synced(self, call: Call) -> None:
        if self._sent or not self._weights.sends.any:
            self._record.synced(self._label)

    def _write_all(self, call: Call) -> None:
        """Write the numbers of a rollout, and those of its micro-batches. A sync waits for the device in any case."""
        values = self._buffered.take(self._record.calls("refresh") - 1)
        if values is not None:
            clean = self._alone.take_log_probs()
            self._record.measured(msgspec.structs.replace(values, model_moved=self._model.take(), **clean))
        self._record.write_numbers(lambda: self._losses_arrived() or {})

    def _write_numbers(self, call: Call) -> None:
        """Write the numbers of the critic's micro-batches, which no sync follows."""
        self._record.send_numbers()
        self._record.write_numbers(lambda: self._losses_arrived() or {})

    @contained(*_FORMULA)
    def _losses_arrived(self) -> dict[int, LossNumbers]:
        """Compare the losses that are on the CPU."""
        return self._meter.arrived()


def _shuffles(trainer: Any) -> bool:
    """Whether a trainer shuffles the samples of a rollout (ppo_actor.py:158, ppo_critic.py:70)."""
    args, strategy = trainer.args, trainer.strategy
    alone = strategy.ring_attn_group is None and int(args.ds.tensor_parallel_size) <= 1
    return bool(alone and not args.train.dynamic_batch_enable)


_OF_POLICY_LOSS = ("log_probs", "old_log_probs", "advantages", "action_mask", "rollout_log_probs")
_OF_VALUE_LOSS = ("values", "old_values", "returns", "action_mask")
"""Arguments of `PolicyLoss` and `ValueLoss`, by place."""
