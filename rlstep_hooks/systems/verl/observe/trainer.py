"""What a trainer process of a verl run sees: old log-probs, micro-batches, updates of policy and critic, weight syncs.

Each process has one `VerlTrainer`, which the hooks make when the first model is built (`trainer_hooks`). It writes events as they
happen, within the call of the controller that they belong to, and judges nothing.
"""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import msgspec

from rlstep_hooks.observe.guard import contained
from rlstep_hooks.observe.identity import Recognised, RefreshedSamples, checksum_of, recognise
from rlstep_hooks.observe.optimizer_tensors import optimizer_tensors
from rlstep_hooks.observe.processes import introduce, run_of_ray
from rlstep_hooks.observe.shards import local_shards
from rlstep_hooks.observe.trainer_record import TrainerRecord
from rlstep_hooks.record.events import FactsRead, RolloutValues
from rlstep_hooks.record.ledger import rank_process
from rlstep_hooks.session import ray_sink
from rlstep_hooks.systems.verl.observe import sampled, settings
from rlstep_hooks.systems.verl.observe.carried import Carried, PolicyRows
from rlstep_hooks.systems.verl.observe.checkpoints import Checkpoints
from rlstep_hooks.systems.verl.observe.engine_distance import DistanceWatch
from rlstep_hooks.systems.verl.observe.engine_gap import mean_gap, sampler_gap
from rlstep_hooks.systems.verl.observe.engines import facts_of, rate_facts, role_of, why_not_followed
from rlstep_hooks.systems.verl.observe.layer_slopes import LayerSlopes
from rlstep_hooks.systems.verl.observe.loss_kinds import CriticLosses, PolicyLosses
from rlstep_hooks.systems.verl.observe.made_rows import MadeRows
from rlstep_hooks.systems.verl.observe.minibatch_order import MiniBatchOrder
from rlstep_hooks.systems.verl.observe.process import folder, versions
from rlstep_hooks.systems.verl.observe.reference_forwards import ReferenceForwards, others
from rlstep_hooks.systems.verl.observe.rows_alone import RowsAlone
from rlstep_hooks.systems.verl.observe.samples import completion_rows, keys_of, names_of, rows_of
from rlstep_hooks.systems.verl.observe.sent_weights import SentWeights
from rlstep_hooks.systems.verl.observe.steps import EngineSteps

if TYPE_CHECKING:
    from collections.abc import Iterator
    from contextlib import AbstractContextManager

    from rlstep_hooks.observe.losses import LossNumbers
    from rlstep_hooks.observe.settings import SettingsWatch
    from rlstep_hooks.record.events import PhaseName
    from rlstep_hooks.record.values import Role
    from rlstep_hooks.systems.verl.observe.loss_meter import LossMeter
    from rlstep_hooks.systems.verl.observe.samples import Key


_OF_ENGINES = (
    *("order", "weights", "optimizer", "gradient", "reduction", "replicas", "learning_rate", "checkpoints"),
    *("loss", "critic_loss", "log_ratio", "clean_forward", "layer_slope"),
)
"""What is seen of an engine's own forwards, steps and files."""


class VerlTrainer:
    """One trainer process: what it did, in the order in which it did it."""

    def __init__(self, engine: Any) -> None:
        process = rank_process(engine.get_data_parallel_rank())
        attached = introduce(run_of_ray(), process, versions(), engine.get_data_parallel_size())
        self._record = TrainerRecord(ray_sink.open_trainer_ledger(folder(), attached.run, process), attached)
        self.recorder = self._record.writer
        """The writer of the record, which learns what is not observed."""
        self.checkpoints = Checkpoints(self._record, process)
        self.expects_log_probs = False
        self.expects_targets = False
        """Whether samples that are cut into mini-batches now are those of the critic."""
        self.sends_with_updates = False
        """Whether numbers are fetched after the updates of a rollout, and not with the sync that follows."""
        self.syncing = False
        """Whether weights are brought to the engines now."""
        self._cycle = 0
        """Rollouts that the policy was trained on, all parts of each, and whose sync is over."""
        self._in_training = False
        """Whether it was trained since the latest sync."""
        self._fresh = False
        """Whether old log-probs of the current rollout were computed here."""
        self._saved_versions: dict[Any, int] = {}
        """Versions of the weights that were saved, by the name under which they were."""
        self._in_place: int | None = None
        """Version of the saved weights that are in the place of the latest ones; None where these are in place."""
        self._rollout_values = RolloutValues(index=NO_REFRESH)
        self._carried = PolicyRows()
        self._targets = Carried()
        """The critic's returns as they came to this process."""
        self._values = Carried()
        """The critic's values as it computed them."""
        self._reference_forwards = ReferenceForwards()
        self._of_critic_intact: dict[int, tuple[bool | None, bool | None]] = {}
        """A micro-batch of the critic -> whether its returns, and its old values, were those that came."""
        self._own_log_probs: dict[Key, Any] = {}
        """The policy's, of the latest refresh before the first update."""
        self._loss_settings: SettingsWatch | None = None
        self._cap: float | None = None
        """The cut of -log p where completions are tested against the policy's distributions; None where they are not."""
        self._losses = PolicyLosses(self.recorder)
        self._value_losses = CriticLosses(self.recorder)
        self.steps = EngineSteps(self._record, self._losses)
        self._sent = SentWeights(self.recorder)
        self.distances = DistanceWatch(self.recorder)
        self._alone = RowsAlone(self.recorder)
        self._order = MiniBatchOrder()
        self._slopes = LayerSlopes(self.recorder)
        self._made = MadeRows()
        """What the forwards of the call of the controller that is running gave."""
        self._versions_of: dict[str, int] = {}
        """Versions of the weights that went to the engine, by their labels."""
        self._label: int | None = None
        """The label of the weights that went to the engine last."""

    def cannot(self, what: str, why: str) -> None:
        """Record once that a topic cannot be observed."""
        self.recorder.cannot(what, why)

    @property
    def version(self) -> int:
        """Policy updates applied in this run."""
        return self._record.version

    @property
    def version_in_place(self) -> int:
        """Policy version of the weights that a forward computes with."""
        return self.version if self._in_place is None else self._in_place

    def saves_weights(self, name: Any) -> None:
        """The weights were saved under a name."""
        self._saved_versions[name] = self.version_in_place

    def restores_weights(self, name: Any) -> None:
        """Saved weights were put into place."""
        version = self._saved_versions.get(name)
        self._in_place = None if version == self.version else version

    def built(self, engine: Any) -> None:
        """A model and its optimizer are there: look at the optimizer's real steps, and read what the judge needs to know."""
        if why := why_not_followed(engine):
            for topic in _OF_ENGINES:
                self.cannot(topic, why)
            return
        followed_before = self._follow(engine)
        if not followed_before:
            self.checkpoints.built(role_of(engine), engine)

    @contained("order")
    def _follow(self, engine: Any) -> bool:
        """Follow the steps of an engine's optimizer, and read what the judge needs to know.

        Returns:
            Whether there is none, or it was followed before.
        """
        if not self.steps.follow(engine):
            return True
        facts = rate_facts(engine, "critic_lr_schedule")
        if role_of(engine) == "policy":
            held = optimizer_tensors(list(engine.module.parameters()), engine.optimizer)
            facts = facts_of(engine) | {"optimizer_tensors": held}
            facts |= sampled.facts_of_vocabulary(engine)
            self._cap = facts.get("surprise_cap")
        if facts:
            self.recorder.emit(FactsRead(at=self.recorder.now(), facts=facts))
        return False

    # Settings, and the reference

    @contained("settings")
    def compares_mini_batches(self, worker: Any) -> None:
        """The policy was trained on a rollout."""
        engine = worker.actor.engine
        ranks, rank = engine.get_data_parallel_size(), engine.get_data_parallel_rank()
        self._order.end(worker.config, ranks, rank, self.recorder)

    def compares_loss_settings(self, worker: Any) -> None:
        """Compare what the loss computes with, before the first rollout and after each."""
        self._loss_settings = self._loss_settings or settings.of_loss(worker)
        self._loss_settings.tell(self.recorder)
        # Log-probs are those of the temperature that samples are drawn at (0.9.1 trainer_base.py:1654).
        configured = getattr(getattr(worker.config, "rollout", None), "temperature", None)
        self._alone.temperature = None if configured is None else float(configured)

    @contained("log_ratio", "weights")
    def sees_reference(self, worker: Any) -> None:
        """The reference model has computed log-probs."""
        number = self._record.calls("refresh") - 1 if self._fresh else NO_REFRESH
        self._record.see_reference(number, local_shards(worker.ref.engine.module.parameters()))

    def asks_reference(self, engine: Any) -> None:
        """Log-probs are asked of the reference, which is the model of this engine."""
        self._reference_forwards.begin(engine)

    @contained("samples", "refresh")
    def reference_answers(self, result: Any) -> None:
        """The call that asks the reference returns."""
        unscored = self._reference_forwards.end(result)
        self._rollout_values = msgspec.structs.replace(self._rollout_values, reference_unscored=unscored)

    def begins_reference(self) -> None:
        """The reference is about to compute log-probs."""
        if self._losses.looks_at_all:
            self._alone.begin("reference")

    def ends_reference(self) -> None:
        """The reference has computed log-probs."""
        self._rollout_values = msgspec.structs.replace(self._rollout_values, **self._alone.end("reference"))

    def computed(self, engine: Any, data: Any, result: Any) -> None:
        """A forward was made that no backward follows.

        Args:
            engine: verl's.
            data: The micro-batch, on the CPU.
            result: What the forward returned, on the device.
        """
        if self._reference_forwards.counts(engine) and self._losses.looks:
            self._keep_output(engine, data, result[1])
        self._alone.computed(engine, data, result)

    @contained("samples", "refresh")
    def _keep_output(self, engine: Any, data: Any, given: dict[str, Any]) -> None:
        """Keep what a forward gave, until the call of the controller returns it."""
        self._made.add(data, given["model_output"]["values" if role_of(engine) == "critic" else "log_probs"])

    @contained("samples", "refresh")
    def sees_reference_log_probs(self, data: Any, result: Any, engine: Any) -> None:
        """Remember the reference's log-probs, and how far they are from the policy's while it is what training began with.

        Args:
            data: verl's, of the samples.
            result: What the reference computed.
            engine: The reference's.
        """
        self._carried.reference.forget()
        tokens, keys, masks = rows_of(data, "responses"), keys_of(data), rows_of(data, "response_mask")
        given = result is not None and "log_probs" in result.keys()  # noqa: SIM118 - a TensorDict iterates over rows
        if not self._losses.looks or not given or tokens is None or masks is None:
            return
        rows = completion_rows(result["log_probs"], [len(row) for row in tokens])
        made = self._made.take(keys)
        self._carried.reference.keep(keys, made or rows)
        self._rollout_values = msgspec.structs.replace(self._rollout_values, reference_moved=others(rows, made))
        own, self._own_log_probs = self._own_log_probs, {}
        policy = self.checkpoints.engine("policy")
        alike = getattr(engine, "_autocast_dtype", None) == getattr(policy, "_autocast_dtype", None)
        # An adapter may begin with weights of its own, so the model without it need not be the first policy.
        if self.version or not alike or engine is policy or not keys or not all(key in own for key in keys):
            return
        gap = mean_gap([own[key] for key in keys], rows, masks)
        self._rollout_values = msgspec.structs.replace(self._rollout_values, reference_gap=gap)

    @contained("samples", "refresh")
    def computed_values(self, data: Any, result: Any) -> None:
        """The critic has computed the values of a rollout."""
        tokens = rows_of(data, "responses") if self._value_losses.looks else None
        rows = None
        if tokens is not None and result is not None:
            rows = completion_rows(result["values"], [len(row) for row in tokens])
        keys = keys_of(data) if rows is not None else None
        self._values.keep(keys, self._made.take(keys) or rows)

    @contained("samples", "refresh")
    def computed_named_values(self) -> None:
        """The critic has computed the values of samples of which the call brought the names alone, as V1's do."""
        made = self._made.take_all()
        self._values.keep(list(made) or None, list(made.values()))

    @contained("order")
    def begin(self, name: PhaseName) -> None:
        """A call of the controller begins."""
        self._record.begin(name)
        self._in_training = self._in_training or name == "policy_updates"
        if name == "sync":
            self._fresh = False
        if name == "refresh" and self._losses.looks:
            self.distances.begin()
        if name != "reference" and (self._value_losses if name == "values" else self._losses).looks_at_all:
            self._alone.begin(name)  # of the reference all calls are seen, also those that are no phase
        self._made.begin()

    @contained("order")
    def end(self, name: PhaseName) -> None:
        """A call of the controller is about to return."""
        self._record.end(name)
        if name not in ("refresh", "reference"):  # these end where their log-probs are there
            self._alone.end(name)

    # Old log-probs

    @contained("samples", "refresh")
    def refreshed(self, data: Any, result: Any, version: int) -> None:
        """Old log-probs were computed; remember whose they are, and how far the engine's are from them."""
        self._fresh = True
        self._measured()
        refresh = RefreshedSamples(self._record.calls("refresh") - 1, version)
        tokens, keys = rows_of(data, "responses"), keys_of(data)
        own = None
        if tokens is not None and result is not None:
            own = completion_rows(result["log_probs"], [len(row) for row in tokens])
        made = self._made.take(keys) if own is not None else None
        for key, row in zip(keys or (), made or own or [None] * len(keys or ()), strict=True):
            refresh.add(key, None if row is None else checksum_of(row), owner=key[:2])
        masks = rows_of(data, "response_mask") if self._losses.looks else None
        self._carried.masks.keep(keys, None if masks is None else [row.bool() for row in masks])
        positions = sum(len(row) for row in tokens) if tokens is not None else 0
        self._record.refreshed(refresh, positions, number=int(data.shape[0]))
        if keys is None or tokens is None:
            self.recorder.cannot("samples", "the data do not say which samples they hold")
            return
        label = self._label if self._versions_of.get(str(self._label)) == version else None
        fit = self.distances.explain(keys, own, data)
        self._rollout_values = sampler_gap(refresh.number, own, data, label=label, fit=fit)
        self._rollout_values = msgspec.structs.replace(self._rollout_values, **self._alone.end("refresh"))
        if own is not None and self._losses.looks:
            self._see_drawn(data, result, own, tokens)
            self._own_log_probs = {} if self.version else dict(zip(keys, own, strict=True))

    @contained("drawn")
    def _see_drawn(self, data: Any, result: Any, own: list[Any], tokens: list[Any]) -> None:
        """Add up how surprising the completions are to the policy that computed their old log-probs."""
        numbers = sampled.numbers_of_refresh(data, result, own, tokens, self._cap)
        if numbers is None:
            self.recorder.cannot("drawn", sampled.NO_ENTROPIES)
        else:
            self._rollout_values = msgspec.structs.replace(self._rollout_values, **numbers)

    # Micro-batches

    @contained("samples", "refresh")
    def sees_advantages(self, data: Any) -> None:
        """The policy is about to train these samples."""
        if "advantages" in data.keys() and data["advantages"].device.type == "cpu":  # noqa: SIM118
            advantages = data["advantages"]
            values = advantages.values() if advantages.is_nested else advantages
            largest = float(values.abs().max()) if values.numel() else 0.0
            self._rollout_values = msgspec.structs.replace(self._rollout_values, max_abs_advantage=largest)
            rows, keys = rows_of(data, "advantages"), keys_of(data)
            self._order.begin(keys if self._losses.looks else None)
            self._carried.advantages.keep(keys, rows if self._losses.looks else None)
            self._carried.weights.keep(keys, rows_of(data, "rollout_is_weights") if self._losses.looks else None)

    @contained("samples", "refresh")
    def sees_targets(self, data: Any) -> None:
        """The critic is about to train on these samples."""
        looks = self._value_losses.looks
        self._targets.keep(keys_of(data) if looks else None, rows_of(data, "returns"))

    def before_microbatch(self, engine: Any, data: Any, loss_function: Any) -> None:
        """A forward of training begins; its data are still where verl's loader left them."""
        role = role_of(engine)
        if role == "policy":
            self._alone.before_training(engine, data)
        self._record.abandon_microbatch()
        self._begin_window(role)
        self._open_microbatch(role, data)
        if self._record.open_index is not None:
            ranks = engine.get_data_parallel_size()
            self._meter(role).begin(self._record.open_index, data, loss_function, ranks)

    @contained("log_ratio", "weights")
    def _begin_window(self, role: Role) -> None:
        """Begin an update, where none is under way."""
        self._record.begin_window(role, followed=self._losses.looks_at_all)

    @contained("samples", "refresh")
    def _open_microbatch(self, role: Role, data: Any) -> None:
        """Open the micro-batch, and compare what it is trained with with what came to this process."""
        samples = int(data.shape[0])
        found = Recognised()
        keys = None
        if role == "policy":
            old, keys = rows_of(data, "old_log_probs"), keys_of(data)
            found = recognise(
                keys,
                [checksum_of(row) for row in old] if old is not None else [None] * samples,
                self._record.refreshes if self._fresh else [],
                None if keys is None else [key[:2] for key in keys],
            )
            if not self._fresh:
                found = msgspec.structs.replace(found, old_version=self._oldest(data))
        self._record.open_microbatch(samples, role, found, old_source="recompute" if self._fresh else "engine")
        if role == "policy" and self._losses.looks:
            self._order.sees(keys)
            self._carried.compare(data, keys, self._record, fresh=self._fresh)
        if role == "critic" and self._value_losses.looks:
            self._compare_targets(data)

    @contextmanager
    def beside(self, engine: Any, data: Any) -> Iterator[None]:
        """The context of training's forward of a micro-batch, beside which rows of it may go."""
        if role_of(engine) != "policy":
            yield
            return
        with self._slopes.beside(self._cycle, engine, data), self._alone.beside(engine, data, trains=True):
            yield

    def beside_scoring(self, engine: Any, data: Any) -> AbstractContextManager[None]:
        """The context of a forward that no backward follows, beside which rows of the micro-batch may go."""
        return self._alone.beside(engine, data, trains=False)

    def _oldest(self, data: Any) -> int | None:
        """The oldest version among the weights that generated these samples; None where that is not known."""
        labels = names_of(data, "min_global_steps")
        versions = [self._versions_of.get(label) for label in labels or ()]
        known = [version for version in versions if version is not None]
        return min(known) if known and len(known) == len(versions) else None

    def _meter(self, role: Role) -> LossMeter:
        """What compares the losses of a role."""
        return self._value_losses if role == "critic" else self._losses

    def _compare_targets(self, data: Any) -> None:
        """Compare returns and old values of a micro-batch of the critic with those that came to this process."""
        index, keys = self._record.open_index, keys_of(data)
        if index is not None and not self._value_losses.reason:
            targets = self._targets.intact(keys, rows_of(data, "returns"))
            self._of_critic_intact[index] = targets, self._values.intact(keys, rows_of(data, "values"))

    def sees_log_probs(self, arguments: dict[str, Any]) -> None:
        """The policy loss is about to be computed: both log-probs of the micro-batch, on the device, padded to one length."""
        self._compare_log_probs(arguments)
        self._follow_log_probs(arguments)

    @contained("log_ratio", "weights")
    def _compare_log_probs(self, arguments: dict[str, Any]) -> None:
        """Compare both log-probs of the micro-batch."""
        self._record.see_log_probs(arguments["log_prob"], arguments["old_log_prob"], arguments["response_mask"])

    @contained("formula")
    def _follow_log_probs(self, arguments: dict[str, Any]) -> None:
        """Look at the gradient that arrives at the log-probs."""
        self._losses.follow(arguments["log_prob"])

    def sees_output(self, output: Any, role: Role) -> None:
        """The model has given its output in a forward of training, from which the loss is computed next."""
        self._meter(role).follow_beside(output)

    def sees_values(self, values: Any, mask: Any) -> None:
        """The critic's loss is about to be computed from these values of the micro-batch, on the device, padded to one length."""
        if self._value_losses.looks:
            self._record.see_values(mask, **self._alone.take_values())
        self._value_losses.follow(values)

    def after_microbatch(self, engine: Any, data: Any, result: Any) -> None:
        """The forward is done and its loss known; the backward follows."""
        loss, output = result[0], result[1]["model_output"]
        self._record.see_alone(self._alone.after_training(engine, data, output) or {})
        self._meter(role_of(engine)).end(loss, output, scaled=getattr(engine, "scaler", None) is not None)
        self._record.close_microbatch()

    # Updates

    def after_update(self, engine: Any, norm: Any) -> None:
        """verl is done with an optimizer step, made or left out.

        Args:
            engine: The engine whose optimizer steps.
            norm: The norm of the gradients, as verl's engine gives it.
        """
        self.steps.answered()
        self._meter(role_of(engine)).next_update()
        if role_of(engine) == "policy":
            self._in_place = None
            self._order.update_ends()
        self.steps.updated(engine, norm)

    # Numbers, and weight syncs

    def send_numbers(self) -> None:
        """Start fetching what the device has: verl synchronises with it during the sync that follows."""
        self._rollout_values = msgspec.structs.replace(self._rollout_values, **(self._slopes.take() or {}))
        self._losses.send()
        self._value_losses.send()
        self._send_record()

    @contained("log_ratio", "weights")
    def _send_record(self) -> None:
        """Start fetching the numbers of the record."""
        self._record.send_numbers()

    def hands_over(self, tensors: Any, engine: Any) -> Any:
        """The tensors of a sync, each seen before it goes on.

        Args:
            tensors: Names and tensors, gathered one by one.
            engine: The engine whose weights are handed over.
        """
        return self._sent.through(tensors, engine)

    def synced(self, label: int | None) -> None:
        """Weights went to the rollout engine."""
        self._sent.end(self.version)
        self._emit_sync(label)
        self.write_numbers()
        self._cycle += self._in_training
        self._in_training = False
        self._losses.next_rollout()
        self._value_losses.next_rollout()

    @contained("order")
    def _emit_sync(self, label: int | None) -> None:
        """Record a sync, and remember which weights have its label."""
        self._record.synced(label)
        self._label = label
        if label is not None:
            self._versions_of[str(label)] = self.version

    @contained("log_ratio", "weights")
    def write_numbers(self) -> None:
        """Write the numbers that have arrived."""
        self._measured()
        self._record.write_numbers(self._losses_arrived)

    def _losses_arrived(self) -> dict[int, LossNumbers]:
        return (self._policy_losses_arrived() or {}) | (self._value_losses_arrived() or {})

    @contained("formula")
    def _policy_losses_arrived(self) -> dict[int, LossNumbers]:
        """Compare the policy's losses that have arrived."""
        return self._losses.arrived()

    @contained("critic_loss")
    def _value_losses_arrived(self) -> dict[int, LossNumbers]:
        """Compare the critic's losses that have arrived, and what they were computed from."""
        found = {}
        for index, numbers in self._value_losses.arrived().items():
            targets, values = self._of_critic_intact.pop(index, (None, None))
            found[index] = msgspec.structs.replace(numbers, targets_intact=targets, values_intact=values)
        return found

    def _measured(self) -> None:
        """The numbers of a rollout are complete; without a refresh of its own the controller's record says which it is."""
        values, self._rollout_values = self._rollout_values, RolloutValues(index=NO_REFRESH)
        if values != self._rollout_values:
            self._record.measured(values)


NO_REFRESH = -1
"""Number of a refresh that was not made (bypass mode)."""
