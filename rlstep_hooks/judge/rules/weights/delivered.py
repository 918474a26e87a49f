"""Whether the weights of a sync reached the engine: by a few elements of what was sent and of what the engine holds."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rlstep_hooks.judge.effects import OTHER_FORWARD, Effects
from rlstep_hooks.judge.rules.base import Rule
from rlstep_hooks.planning.words import number

if TYPE_CHECKING:
    from rlstep_hooks.judge.delivery import Delivery
    from rlstep_hooks.judge.rules.progress import Progress
    from rlstep_hooks.record.events import AdapterUsed, WeightsSent

_OTHER_WEIGHTS = (
    "the engine samples from other weights than those that are trained, and neither a label nor the ratio shows it"
)
NO_ENGINE = "no engine told what it holds after a sync"


class NotHeld(Rule):
    """The engine does not hold the weights of the policy after a sync.

    What it checks:
        What the engine holds after a sync is what the policy has, in the engine's dtype. In the first two syncs 8 elements of every
        tensor are compared; later 32 elements of a few tensors, by turns: of an eighth of them, of a 16th from 128 tensors on, of a
        32nd from 256 on. Exact. Looked at again when an engine generates after it was woken up. All tensors of every sync are counted
        (RLS416).

    Why it matters:
        A sync that changes nothing raises no error: the label of the weights is the new one, and the engine goes on
        sampling from the old ones. The ratio is computed from the trainer's own log-probs and does not show it.

    Example:
        ERROR RLS415 Engine does not hold the weights of the policy · data epoch 0,
        rollout 0, update 2
          expected  the weights of version 2 in the engine after sync 1
          observed  the sync changed nothing, the weights are still those of version
                    1: 1 of 1 tensors looked at
                    (model.layers.0.mlp.down_proj.weight)
          why       the engine samples from other weights than those that are
                    trained, and neither a label nor the ratio shows it
          fix       look at the names that the engine loads, and at errors that its
                    loader swallows

    What to do:
        Follow one of the named tensors from the trainer to the engine: is it handed over as it is now, does its name fit
        the engine's, and is it loaded into the tensor that the engine computes with?

    Known limits:
        - The engine must be in a process that is observed: vLLM with this package installed, or an engine whose model is given.
        - A tensor that is split over several processes, quantised or stored in another layout is compared only once its kind was
          seen equal; with tensor parallelism only whole tensors are compared.
        - Where fewer tensors could be compared than there are, the report says how many.
        - Of weights that processes share (FSDP2, ZeRO-3) each process compares its own part with what was gathered; not where adapters
          are merged on the way, nor parts that lie on another device than what is gathered.
        - Both sides count syncs. After one that never came to the engine at all, later ones may be compared with the wrong one.
          Of a vLLM server on the trainer's machine such a sync is known (RLS416).

    Sources:
        - https://github.com/huggingface/trl/issues/5312: an engine that woke up with old weights
        - https://github.com/verl-project/verl/issues/4248: no sync at all, and no error
        - https://github.com/vllm-project/vllm/issues/32718: a reload that gives cached weights
    """

    code = "RLS415"
    title = "Engine does not hold the weights of the policy"
    topics = ("delivery",)
    nothing_seen = NO_ENGINE
    cannot_see = "no tensor of the engine could be compared with one of the policy"
    produces = (Effects(("RLS402", "RLS403", "RLS413", *OTHER_FORWARD), last=1),)

    def __init__(self, progress: Progress) -> None:
        super().__init__(progress)
        self._right: dict[str, int] = {}
        """Engine -> the latest version that it was seen to hold."""
        self._compared: set[str] = set()
        self._due = 0
        """The largest number of tensors of a sync."""

    def note(self) -> str:
        """How many tensors could be compared, if not all."""
        found = len(self._compared)
        return f"{found} of {number(self._due, 'tensors')} compared" if found < self._due else ""

    def delivered(self, delivery: Delivery) -> None:
        """Compare what the engine holds with what the policy has."""
        if not delivery.compared:
            self.missed += 1
            return
        self.checks += 1
        sent, held = delivery.sent, delivery.held
        self._compared.update(delivery.names)
        self._due = max(self._due, sent.tensors or sent.sent)
        if not delivery.wrong:
            self._right[held.engine] = sent.policy_version
            return
        if delivery.through:
            return  # RLS417
        which, variant = self._what_it_holds(delivery)
        first = ", ".join(delivery.wrong[:3])
        fix = {
            "sent": "look at what is handed over: is it read from the policy after its last update?",
            "woken": "sync the weights after the engine was woken up, or keep them while it sleeps",
        }.get(variant, "look at the names that the engine loads, and at errors that its loader swallows")
        self.fail(
            expected=f"the weights of version {sent.policy_version} in {held.engine} after sync {held.number}",
            observed=f"{which}: {len(delivery.wrong)} of {delivery.compared} tensors looked at ({first})",
            why=_OTHER_WEIGHTS,
            fix=fix,
            variant=variant,
        )

    def gathered(self, event: WeightsSent) -> None:
        """Compare what was gathered of this process's part of the weights, where another process hands it over, with that part."""
        self.checks += 1
        if event.sent_as:
            first = ", ".join(probe.name for probe in event.sent_as[:3])
            self.fail(
                expected=f"this process's part of version {event.policy_version} in what is gathered for sync {event.number}",
                observed=f"other numbers in {len(event.sent_as)} of {len(event.policy)} tensors looked at ({first})",
                why=_OTHER_WEIGHTS,
                fix="look at how the parts of a tensor are put together, and whether they are read after the last update",
                variant="gathered",
            )

    def _what_it_holds(self, delivery: Delivery) -> tuple[str, str]:
        wrong = len(delivery.wrong)
        before = self._right.get(delivery.held.engine)
        old = "those of before the sync" if before is None else f"those of version {before}"
        if delivery.held.woken:
            return "it woke up with other weights", "woken"
        if delivery.sent_wrong == wrong and delivery.kept == wrong:
            return f"the weights that were handed over are {old}", "sent"
        if delivery.sent_wrong == wrong:
            return "the weights that were handed over are not the policy's", "sent"
        if delivery.kept == wrong >= delivery.moved:
            return f"the sync changed nothing, the weights are still {old}", "kept"
        if delivery.kept == wrong:
            return f"a part of the weights is still {old}", "part"
        return "weights that are neither the policy's nor those of before the sync", "others"


class PartArrived(Rule):
    """Only a part of the tensors reached the engine.

    What it checks:
        In each sync: the number of different tensors that were handed over is that of the policy, where it is known, and all of
        them arrived at the engine. Integers, compared exactly, in every sync. Where a vLLM server on the trainer's machine says nothing
        of a sync that is over, nothing arrived.

    Why it matters:
        An engine with half of the new tensors computes something that neither version computes. It still gives fluent
        text, so rewards rise late or not at all.

    Example:
        ERROR RLS416 Only a part of the weights arrived · data epoch 0, rollout 0,
        update 1
          expected  290 tensors in sync 0
          observed  only 12 of 290 arrived in the engine
          why       the engine then samples from a mixture of old and new weights
          fix       compare the names of the tensors that are handed over with those
                    of the policy and of the engine

    What to do:
        Compare the names that are handed over with the names of the policy, then with those that reach the engine's loader.

    Known limits:
        - A sync of an adapter alone, or of changes alone, is complete when all that was handed over has arrived.
        - Tensors that arrive and are not loaded are RLS415.

    Sources:
        - https://github.com/verl-project/verl/issues/7495: weights of an adapter that never reached the engine
        - https://github.com/huggingface/trl/issues/5312: the signs of an engine with other weights
    """

    code = "RLS416"
    title = "Only a part of the weights arrived"
    topics = ("delivery",)
    nothing_seen = NO_ENGINE
    cannot_see = "the tensors that were handed over have other names than the policy's"
    produces = (Effects(("RLS402", "RLS403", "RLS413", "RLS415", *OTHER_FORWARD), last=1),)

    def delivered(self, delivery: Delivery) -> None:
        """Compare the numbers of tensors."""
        sent, held = delivery.sent, delivery.held
        if held.woken:
            return
        if not sent.sent and (held.arrived or sent.tensors is None):
            self.missed += 1
            return
        self.checks += 1
        if sent.tensors is not None and sent.sent < sent.tensors:
            observed, due = f"{sent.sent} of {sent.tensors} were handed over", sent.tensors
        elif held.arrived < sent.sent:
            observed, due = f"only {held.arrived} of {sent.sent} arrived in {held.engine}", sent.sent
        else:
            return
        self.fail(
            expected=f"{number(due, 'tensors')} in sync {held.number}",
            observed=observed,
            why="the engine then samples from a mixture of old and new weights",
            fix="compare the names of the tensors that are handed over with those of the policy and of the engine",
        )


class OtherDtype(Rule):
    """The weights passed through a narrower dtype on their way to the engine.

    What it checks:
        The elements that RLS415 looks at: each is the policy's, rounded once to the engine's own dtype. If none is, and all
        are the policy's rounded to another dtype first, that dtype is named. Exact.

    Why it matters:
        The engine samples from coarser weights than its dtype holds, so its log-probs differ from the trainer's at every
        token. The difference does not shrink with training, and looks like a mismatch of kernels.

    Example:
        WARNING RLS417 Weights passed through another dtype · data epoch 0, rollout
        0, update 2
          expected  the policy's weights as float32, which the engine computes with
          observed  1 tensor with values that were rounded to bfloat16 first
          why       the engine computes with coarser weights than the trainer, and
                    its log-probs differ at every token
          fix       look for a cast to bfloat16 where weights are handed over

    What to do:
        Look for a cast between the trainer and the engine: the dtype of the transfer, or of the state dict.

    Known limits:
        - bfloat16 and float16 are told apart. Values that went through a type of 8 bits are RLS415.

    Sources:
        - https://arxiv.org/abs/2510.26788: the effect of the dtype of the engine on training
        - https://github.com/NVIDIA-NeMo/RL/issues/3743: a distance although the weights are shared
    """

    code = "RLS417"
    title = "Weights passed through another dtype"
    severity = "warning"
    topics = ("delivery",)
    nothing_seen = NO_ENGINE
    produces = (Effects(("RLS403", "RLS415", *OTHER_FORWARD), last=1),)

    def delivered(self, delivery: Delivery) -> None:
        """Look for a dtype that explains the values."""
        if not delivery.compared:
            return
        if not self.holds(not delivery.through):
            self.fail(
                expected=f"the policy's weights as {delivery.dtype}, which {delivery.held.engine} computes with",
                observed=f"{number(len(delivery.wrong), 'tensors')} with values that were rounded to {delivery.through} first",
                why="the engine computes with coarser weights than the trainer, and its log-probs differ at every token",
                fix=f"look for a cast to {delivery.through} where weights are handed over",
            )


class AdapterNotBound(Rule):
    """An adapter was delivered to the engine, and no request uses it.

    What it checks:
        Once a LoRA adapter was given to an engine: of the requests that it runs for a rollout, at least one runs with an
        adapter; the engine's layers found their parts in it, and hold them.

    Why it matters:
        The engine then samples from the base model for the whole run. Each delivery succeeds and every log says so; one
        report took two months to find it. Names that fit no layer bind zero modules and raise nothing, and layers that an
        engine discards while it sleeps come back as zeros if only the base weights are synced.

    Example:
        ERROR RLS418 Adapter delivered and not used · data epoch 0, rollout 0,
        update 1
          expected  requests of the engine that run with the adapter
          observed  64 requests, none with an adapter
          why       the engine samples from the base model, without what was learned
          fix       give each request the adapter: look at `lora_request` on its way
                    to the engine

    What to do:
        Look at the requests: do they carry the adapter (`lora_request` of vLLM), and with the name under which it was delivered?

    Known limits:
        - Whether the adapter that is bound has the latest weights is not compared; that it is not zero is.
        - Adapters that are merged into the weights before they are sent are RLS415.

    Sources:
        - https://github.com/verl-project/verl/issues/7495: an adapter that was never delivered, for two months
        - https://github.com/verl-project/verl-omni/issues/552: an adapter that binds zero modules, and a run that ends well
        - https://github.com/verl-project/verl/issues/3516: layers of an adapter that the engine does not get back after its sleep
    """

    code = "RLS418"
    title = "Adapter delivered and not used"
    topics = ("delivery",)
    nothing_seen = "no adapter was given to an engine"
    optional = True
    produces = (Effects(("RLS402", "RLS403", "RLS413", "RLS415", *OTHER_FORWARD), last=1),)

    def adapter_used(self, event: AdapterUsed) -> None:
        """Look whether any request was bound to the adapter, and whether the layers have it."""
        if not event.requests:
            return
        self.checks += 1
        if event.parts is not None and not event.matched:
            self.fail(
                expected=f"layers of {event.engine} that the adapter changes",
                observed=f"an adapter with parts for {number(event.parts, 'layers')}, of which the engine has none",
                why="the names in the adapter fit no layer of the engine: it samples from the base model",
                fix="compare the names of the adapter's tensors with those of the engine's layers",
                variant="names",
            )
            return
        if event.empty:
            self.fail(
                expected=f"layers of {event.engine} that hold the adapter",
                observed=f"zeros in {event.empty} of {number(event.matched, 'layers')} that the adapter changes",
                why="these layers compute as the base model does",
                fix="deliver the adapter again after the engine was woken up",
                variant="zeros",
            )
            return
        if event.bound:
            return
        self.fail(
            expected=f"requests of {event.engine} that run with the adapter",
            observed=f"{number(event.requests, 'requests')}, none with an adapter",
            why="the engine samples from the base model, without what was learned",
            fix="give each request the adapter: look at `lora_request` on its way to the engine",
        )
