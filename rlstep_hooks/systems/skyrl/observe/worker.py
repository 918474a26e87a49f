"""What observes in the process of SkyRL's policy worker: micro-batches, losses, gradients, steps, and weights that are sent.

The trainer's process says here what it has seen of a rollout, right before the rollout is trained, and fetches the events. Functions
that Ray runs in the worker's process take the worker first. Read and trained: skyrl 0.3.0; paths are below skyrl/backends/skyrl_train/.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import torch
from skyrl.backends.skyrl_train.weight_sync import BroadcastWeightTransferSender
from skyrl.backends.skyrl_train.workers.worker_utils import BaseBatchIterator

from rlstep_hooks.observe.graded import frozen_matrices
from rlstep_hooks.observe.hooks import Hooks
from rlstep_hooks.observe.optimizer_tensors import optimizer_tensors
from rlstep_hooks.observe.settings import as_configured
from rlstep_hooks.observe.spending import SPENDING
from rlstep_hooks.observe.weight_probe import probed_bits
from rlstep_hooks.record.events import NOT_FINITE
from rlstep_hooks.systems.own_loop.recorder import LoopObserver
from rlstep_hooks.systems.own_loop.rows import RowWatch, token_batch
from rlstep_hooks.systems.skyrl.observe.reduction import settled
from rlstep_hooks.systems.skyrl.observe.relay import Relay
from rlstep_hooks.systems.skyrl.observe.rows import PLACE, columns

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from skyrl.train.config import OptimizerConfig
    from torch import Tensor

    from rlstep_hooks.observe.hooks import Call
    from rlstep_hooks.planning.schedule import Schedule
    from rlstep_hooks.record.events import AnyEvent
    from rlstep_hooks.systems.skyrl.observe.loss import LossSettings
    from rlstep_hooks.systems.skyrl.observe.rate import Rates

_SECTION = "trainer.policy.optimizer_config"
_CALLED = {"betas": "adam_betas"}
"""What SkyRL calls a setting of the optimizer otherwise than torch."""
_NAME = "_rlstep_watch"
"""Attribute of the worker that has its watch while there is one."""
_INPUTS = {
    "tokens_intact": ("completions",),
    "prompts_intact": ("prompts",),
    "mask_intact": ("mask",),
    "advantages_intact": ("advantages",),
    "reference_intact": ("reference",),
}
"""Field of the numbers of a micro-batch -> the columns that it is said of."""


@dataclass(frozen=True)
class Told:
    """What the worker's process learns when the audit begins."""

    schedule: Schedule
    facts: dict[str, Any]
    now: float
    """The time on the clock of the record."""
    interval: float
    max_grad_norm: float
    rates: Rates
    temperature: float
    loss: LossSettings | str
    """What the loss is compared with, or why it is not compared."""
    reduction: str
    per_update: int
    """Samples of an update."""
    reference: bool
    """Whether the loss has log-probs of a reference."""
    normalised: bool
    """Whether advantages are normalised once more on their way to the loss (`advantage_batch_normalize`)."""
    optimizer: OptimizerConfig
    """What is configured of the optimizer."""


@dataclass(frozen=True, kw_only=True)
class RolloutSeen:
    """What the trainer's process saw of a rollout until it is trained."""

    samples: int
    sampled: int
    """The policy version that sampled it."""
    reference: bool
    """Whether it came with log-probs of a reference."""
    repeated: int | None
    """Rows of it that its pass had served before; None where rows are not counted."""
    moved: dict[str, Any]
    """Fields of RolloutValues."""
    old: Tensor | None
    """(S, T), the recomputed log-probs where tokens count."""
    off: Tensor | None
    """How far its advantages are from the documented ones; None where they are not compared."""
    fit: Callable[[], str] = str
    """Names what they are instead."""
    rows: dict[str, Tensor] = field(default_factory=dict)
    """`columns` of the rollout; none where nothing is compared."""
    due: dict[str, Tensor] = field(default_factory=dict)
    """(S, T) by reduction, the advantages that a loss gets."""
    one_of: tuple[int, int] = (1, 1)
    """How often numbers are recomputed, of a rollout and of the whole model."""


@dataclass
class _Micro:
    """One micro-batch, from its forward to its end."""

    places: Tensor | None
    own: Tensor | None = None
    """(B, T), log-probs computed from the model's logits."""
    log_probs: Tensor | None = None
    gradient: Tensor | None = None
    loss: Tensor | None = None
    factor: Tensor | None = None


class PolicyWatch:
    """Follows one policy worker.

    Args:
        worker: SkyRL's FSDP policy worker.
        told: What the trainer's process says.
    """

    def __init__(self, worker: Any, told: Told) -> None:
        self._told = told
        self.relay = relay = Relay(told.now)
        recorder: Any = relay  # all that an observer asks of one
        self.observer = observer = LoopObserver(
            told.schedule,
            recorder,
            {"policy": worker.optimizer},
            facts=told.facts,
            interval=told.interval,
            max_grad_norm=lambda: told.max_grad_norm,
            learning_rate=told.rates,
        )
        self.sent: int | None = None
        """The policy version of the weights that were sent last; None where none were."""
        self._due: dict[str, Tensor] = {}
        self._places: Tensor | None = None
        self._micro: _Micro | None = None
        self._begins = True
        """Whether the next micro-batch is the first of an update."""
        left_out = {"reference_intact"} if not told.reference else set()
        left_out |= {"advantages_intact"} if told.normalised else set()
        followed = {name: of for name, of in _INPUTS.items() if name not in left_out}
        self._rows = RowWatch(observer, relay, followed)
        if isinstance(told.loss, str):
            relay.cannot("formula", told.loss)
        self._hooks = hooks = Hooks(relay)
        observer.updates.follow_sharded(worker.model.model)
        observer.updates.compare_settings(as_configured(worker.optimizer, built_as(told.optimizer), _SECTION, _CALLED))
        observer.attach()
        # workers/worker_utils.py:149: the micro-batch, with the column that the worker's next method does not get any more.
        hooks.wrap(BaseBatchIterator, "batch_to_experience", after=self._taken, topics=("samples",))
        # workers/worker.py:815: forward, loss and backward of a micro-batch. Gives MicroBatch.
        hooks.wrap(
            worker,
            "_forward_backward_micro",
            around=self._microbatch,
            topics=("order", "samples", "formula", "log_ratio"),
        )
        # workers/model_wrapper.py:354: the model's logits, before they are divided by the temperature.
        hooks.forward(worker.model.model, after=self._logits, topics=("formula",))
        # workers/model_wrapper.py:231: log-probs of the completions, with their graph.
        hooks.forward(worker.model, after=self._scored, topics=("formula", "log_ratio"))
        # distributed/fsdp_strategy.py:145: the loss that is differentiated.
        hooks.wrap(worker.strategy, "backward", before=self._backward, topics=("formula",))
        # distributed/fsdp_strategy.py:149: the step, which is left out where the norm is not finite; else torch's hooks tell it.
        hooks.wrap(worker.strategy, "optimizer_step", after=self._stepped, topics=("order",))
        # weight_sync/broadcast_strategy.py:143: all weights were sent. Gives WeightSync.
        hooks.wrap(BroadcastWeightTransferSender, "send_chunks", after=self._sent, topics=("sampler",))

    def detach(self) -> None:
        """Take all hooks off."""
        self._hooks.take_off()
        self.observer.detach()

    def rollout(self, seen: RolloutSeen) -> None:
        """A rollout is about to be trained."""
        observer = self.observer
        SPENDING.one_of, SPENDING.whole_one_of = seen.one_of
        observer.rollout_begins()
        if seen.moved:
            observer.moved(seen.moved)
        observer.rollout_ended(seen.samples, seen.sampled, reference=seen.reference, repeated=seen.repeated)
        if seen.old is not None:
            observer.refreshed(seen.old)
        self._due = seen.due if observer.compares else {}
        if observer.compares and seen.rows:
            observer.compare_advantages(seen.off, seen.fit, None)
            self._rows.keep(seen.rows)

    # A micro-batch

    def _taken(self, call: Call) -> None:
        self._places = call.argument("batch", 0).get(PLACE)

    def _microbatch(self, call: Call) -> Iterator[None]:
        if self._begins:
            self.observer.updates.window_begins()
            self._begins = False
        self._micro, self._places = _Micro(self._places), None
        try:
            yield
            self._ended(call.argument("experience", 0), self._micro)
        finally:
            self._micro = None

    def _logits(self, call: Call) -> None:
        if self._micro is not None and self.observer.compares:
            logits = call.result["logits"].detach()[:, :-1].double()
            tokens = call.argument("input_ids", 0)[:, 1:, None]
            self._micro.own = torch.log_softmax(logits / self._told.temperature, -1).gather(-1, tokens)[..., 0]

    def _scored(self, call: Call) -> None:
        micro = self._micro
        if micro is None:
            return
        log_probs = call.result[0]
        micro.log_probs = log_probs.detach()
        if log_probs.requires_grad:

            def arrives(gradient: Tensor) -> None:
                micro.gradient = gradient.detach()

            log_probs.register_hook(arrives)

    def _backward(self, call: Call) -> None:
        micro, loss = self._micro, call.argument("loss", 0)
        if micro is None:
            return
        micro.loss = loss.detach()
        if loss.requires_grad:

            def arrives(gradient: Tensor) -> None:
                micro.factor = gradient.detach()

            loss.register_hook(arrives)

    def _ended(self, given: Any, micro: _Micro) -> None:
        if micro.log_probs is None or micro.loss is None:
            raise ValueError("a micro-batch without a forward or a loss")
        with torch.no_grad():
            mask, used, old = given.loss_mask != 0, given.advantages, given.action_log_probs
            known = {} if micro.places is None else {name: of[micro.places] for name, of in self._due.items()}
            reference = given.base_action_log_probs if self._told.reference else None
            of_rows = settled(used, known, self._told.reduction) if known else used
            rows = columns(given.sequences, given.loss_mask, of_rows, reference)
            tensors: dict[str, Any] = {"log_probs": micro.log_probs, "old": old * mask, "advantages": used}
            self._rows.trained(rows, micro.places, tensors | {"targets": None}, mask)
            # Advantages of a token are what teaches here, and not their distances from each other: no loss normalises them.
            self.observer.add_columns({"max_abs_advantage": (used * mask).abs().amax()})
            nothing = torch.zeros_like(micro.log_probs)
            gradient = nothing if micro.gradient is None else micro.gradient
            factor = nothing.sum() if micro.factor is None else micro.factor
            self.observer.add_columns({"log_prob_gradient": gradient.abs().amax(), "backward_ratio": factor})
            if known and micro.own is not None and not isinstance(self._told.loss, str):
                kept = {
                    "log_probs": micro.own[:, -mask.shape[1] :],
                    "old": old,
                    "advantages": known[self._told.reduction],
                }
                kept |= {} if reference is None else {"reference": reference}
                others = {name: of for name, of in known.items() if name != self._told.reduction}
                batch = token_batch(mask, samples=len(mask), **kept, **others)
                settings = replace(self._told.loss, share=len(mask) / self._told.per_update)
                self._rows.compare_tokens(settings.formula(), batch, micro.loss, gradient)

    # An update, and what follows it

    def _stepped(self, call: Call) -> None:
        self._begins = True
        # The trainer has read the norm already, so that reading it again waits for nothing.
        if call.result is not None and not bool(torch.isfinite(call.result)):
            self.observer.updates.skipped("policy", NOT_FINITE)

    def _sent(self, call: Call) -> None:
        self.sent = self.observer.version
        self.observer.synced()


def built_as(given: OptimizerConfig) -> torch.optim.Optimizer:
    """The optimizer that a configuration means (train/config/config.py `OptimizerConfig`; SkyRL trains with torch's AdamW)."""
    tensor = torch.zeros(1, requires_grad=True)
    first, second = given.adam_betas
    return torch.optim.AdamW([tensor], lr=given.lr, betas=(first, second), weight_decay=given.weight_decay)


# What Ray runs in the worker's process


def facts_of(worker: Any) -> dict[str, Any]:
    """What the judge needs to know of the model: which of its tensors the optimizer has, and which are frozen, as no setting of SkyRL's
    does without LoRA (workers/fsdp/fsdp_worker.py `init_model`)."""
    model = worker.model.model
    tensors = optimizer_tensors(model.parameters(), worker.optimizer)
    return {"optimizer_tensors": tensors, "frozen_matrices": frozen_matrices(model.named_parameters())}


def probe_of(worker: Any) -> Tensor:
    """The bits of some weights of a worker's model."""
    return probed_bits(worker.model.model.parameters())


def begin(worker: Any, told: Told) -> None:
    """Place the hooks."""
    setattr(worker, _NAME, PolicyWatch(worker, told))


def rollout(worker: Any, seen: RolloutSeen) -> None:
    """A rollout is about to be trained."""
    getattr(worker, _NAME).rollout(seen)


def fetch(worker: Any) -> tuple[list[AnyEvent], int | None]:
    """The events since the last call, and the policy version of the weights that were sent last."""
    watch = getattr(worker, _NAME)
    return watch.relay.take(), watch.sent


def finish(worker: Any) -> tuple[list[AnyEvent], int]:
    """The last events, with all numbers, and the number of updates."""
    watch = getattr(worker, _NAME)
    watch.observer.finish()
    return watch.relay.take(), watch.observer.updates_made


def end(worker: Any) -> None:
    """Take the hooks off."""
    watch = vars(worker).pop(_NAME, None)
    if watch is not None:
        watch.detach()
