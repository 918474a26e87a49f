"""StepAuditAReaL: audits AReaL's PPOTrainer whose actor trains in the trainer's own process (FSDP2), on the CPU.

Read and trained: areal 1.0.4. Paths are below areal/. A mini-batch is one update; its micro-batches are put together again.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

import torch

from rlstep_hooks.observe.compared import is_compared
from rlstep_hooks.observe.graded import frozen_matrices
from rlstep_hooks.observe.token_distances import gap_fields
from rlstep_hooks.observe.weight_probe import probed_bits
from rlstep_hooks.record.events import UNSENT, FactsRead
from rlstep_hooks.systems.areal.observe import advantages, loss
from rlstep_hooks.systems.areal.observe.followed import is_single_turn, plan_trainer, refusal
from rlstep_hooks.systems.areal.observe.optimizer import settings_of
from rlstep_hooks.systems.areal.observe.rate import rate_of
from rlstep_hooks.systems.areal.observe.rows import PLACE, Sampled, Trained, before, joined, unpacked
from rlstep_hooks.systems.own_loop.attached import AttachedAudit
from rlstep_hooks.systems.own_loop.rows import RowWatch, token_batch

if TYPE_CHECKING:
    from collections.abc import Iterator

    from torch import Tensor

    from rlstep_hooks.observe.hooks import Call

_INPUTS = {
    "tokens_intact": ("completions",),
    "prompts_intact": ("prompts",),
    "mask_intact": ("mask",),
    "advantages_intact": ("advantages",),
    "sampling_intact": ("sampling",),
}
"""Field of the numbers of a mini-batch -> the columns that it is said of."""
REMEMBERED = 64
"""Numbers of weights that are kept for samples that were drawn long ago."""


class StepAuditAReaL(AttachedAudit):
    """Records the training of a PPOTrainer, judges it while it trains, and reports.

    with PPOTrainer(config, train_dataset=rows) as trainer, StepAuditAReaL(trainer) as audit:
        trainer.train(workflow=...)
    audit.report.verdict
    """

    def _refusal(self) -> str:
        return refusal(self._trainer)

    def _attach(self) -> None:
        trainer = self._trainer
        self._engine, actor = trainer.actor, trainer.actor.actor
        self._config = settings = trainer.config.actor
        planned, self._horizon = plan_trainer(trainer)
        self._tick = self._engine.lr_scheduler.last_epoch
        self._recomputes = settings.should_compute_prox_logp()
        # trainer/ppo/actor.py `_compute_advantages`: where recomputed log-probs replace the engine's, the loss has no others.
        self._of_engine = "logprobs" if settings.use_decoupled_loss else "" if self._recomputes else "prox_logp"
        """The column of a mini-batch that has the engine's log-probs; empty where none has."""
        self._versions = {self._engine.get_version(): 0}
        """AReaL's number of weights -> policy version."""
        self._sampled: Sampled | None = None
        self._single_turn = False
        """Whether the latest rollout is of episodes of one turn, whose samples and masks are known."""
        self._old: Tensor | None = None
        """(S, T), the log-probs that were recomputed for the latest rollout."""
        self._reference: Tensor | None = None
        """(S, T), the log-probs of the reference of the latest rollout."""
        self._probed = None if trainer.ref is None else probed_bits(trainer.ref.model.parameters())
        """Some weights of the reference as they were at first."""
        self._rollouts = 0
        self._trained: Trained | None = None
        self._log_probs: Tensor | None = None
        limit = settings.optimizer.gradient_clipping
        self._observer = observer = self._begin_run(
            "areal",
            planned,
            self._engine.model,
            self._engine.optimizer,
            max_grad_norm=limit,
            settings=settings_of(self._engine.optimizer, settings.optimizer),
            # No setting freezes any without LoRA (engine/fsdp_engine.py `initialize`).
            more={"frozen_matrices": frozen_matrices(self._engine.model.named_parameters())},
        )
        observer.updates.follow_sharded(self._engine.model, counts_passes=False)  # a mini-batch is several
        hooks, engine, recorder = self._hooks, self._engine, self._session.recorder
        if recorder is not None:  # how far its log-probs may be from those that are recomputed
            served = getattr(trainer.config, trainer.rollout_alloc.backend).dtype
            recorder.emit(FactsRead(at=recorder.now(), facts={"engine_dtype": served}))
        followed = _INPUTS if self._of_engine else {name: of for name, of in _INPUTS.items() if of != ("sampling",)}
        self._rows = RowWatch(observer, hooks.recorder, followed)
        self._documented, self._loss = (
            advantages.documented(settings, trainer.config.gconfig.n_samples, reference=trainer.ref is not None),
            loss.settings_of(settings),
        )
        for topic, what in (("advantages", self._documented), ("formula", self._loss)):
            if isinstance(what, str):
                hooks.recorder.cannot(topic, what)
        # trainer/rl_trainer.py `train`: a rollout, its old log-probs, its advantages, and the weights that are sent after its updates.
        hooks.wrap(engine, "prepare_batch", around=self._rollout, topics=("order", "samples"))
        hooks.wrap(engine, "compute_logp", after=self._scored, topics=("refresh", "log_ratio"))
        hooks.wrap(actor, "_compute_advantages", around=self._advantages, topics=("order", "advantages"))
        hooks.wrap(trainer.rollout, "update_weights_from_disk", after=self._sent, topics=("sampler",))
        hooks.wrap(trainer.rollout, "set_version", after=self._numbered, topics=("sampler",))
        # engine/fsdp_engine.py `train_batch`: an update, micro-batch by micro-batch.
        hooks.wrap(engine, "train_batch", before=self._begins, topics=("order", "samples"))
        hooks.wrap(
            engine, "optimizer_zero_grad", after=lambda call: observer.updates.window_begins(), topics=("weights",)
        )
        hooks.wrap(engine, "_prepare_mb_inputs", after=self._packed, topics=("samples",))
        hooks.wrap(engine, "_compute_logprobs_entropy", after=self._forwarded, topics=("log_ratio", "formula"))
        hooks.wrap(engine, "_compute_logprobs_and_loss", after=self._lost, topics=("order", "formula", "log_ratio"))
        hooks.wrap(engine, "optimizer_step", before=self._ends, after=self._stepped, topics=("order", "formula"))
        self._raise_from(trainer.rollout, "set_version")

    # A rollout

    def _rollout(self, call: Call) -> Iterator[None]:
        self._observer.rollout_begins()
        self._sampled = self._old = None
        self._single_turn = is_single_turn(call.kwargs.get("workflow"))
        yield
        self._sampled = Sampled(call.result)

    def _scored(self, call: Call) -> None:
        self._old = joined(call.result).clone()

    def _advantages(self, call: Call) -> Iterator[None]:
        sampled, data = self._sampled, call.argument("data", 0)
        if sampled is None:
            raise ValueError("advantages of no rollout")
        reference = data.get("ref_logp")
        self._reference = None if reference is None else reference.clone()  # `_compute_advantages` writes to it
        if is_compared(self._rollouts):
            self._observer.moved(self._moved(sampled, data))
        self._begin_updates(sampled)
        yield
        made = call.result
        if self._observer.compares:
            self._compare(sampled, made)
        places = torch.arange(len(sampled), dtype=torch.int32)
        made[PLACE] = places[:, None].expand(made["advantages"].shape).contiguous()

    def _begin_updates(self, sampled: Sampled) -> None:
        observer, oldest = self._observer, sampled.oldest
        version = UNSENT if oldest is None else self._versions.get(oldest, UNSENT)
        due = None if self._single_turn else len(sampled)
        observer.rollout_ended(len(sampled), version, due=due, reference=self._reference is not None)
        if self._recomputes and self._old is not None:
            observer.refreshed(self._old * before(sampled.counts.float()))
        if self._horizon is not None:
            observer.updates.rate_is_due(rate_of(self._config.optimizer, self._tick, self._horizon))
        self._tick += 1
        self._rollouts += 1

    def _moved(self, sampled: Sampled, data: dict[str, Tensor]) -> dict[str, Any]:
        """What the batch of a rollout has otherwise than its engine handed over, as fields of RolloutValues."""
        found: dict[str, Any] = {
            "rewards_moved": int((data["rewards"] != sampled.rewards).sum()),
            "tokens_moved": int((data["input_ids"] != sampled.tokens).any(1).sum()),
        }
        if self._single_turn:
            found["masks_wrong"] = int(((data["loss_mask"] != 0) != sampled.drawn).any(1).sum())
        counted = before(sampled.counts)
        if self._probed is not None:
            now = probed_bits(self._trainer.ref.model.parameters())
            found["reference_changed"] = int((now != self._probed).sum())
        if self._reference is not None and self._old is not None and self._begins_as_reference and counted.any():
            found["reference_gap"] = float((self._old - self._reference)[counted].abs().mean())
        fresh = sampled.oldest is not None and self._versions.get(sampled.oldest) == self._observer.version
        if self._old is not None and fresh:
            apart = (self._old - before(sampled.log_probs))[before(sampled.drawn)].float()
            found |= gap_fields(apart) if len(apart) else {}
            found["sampler_gap_fresh"] = found.get("sampler_gap_mean")
        return found

    @property
    def _begins_as_reference(self) -> bool:
        """Whether nothing was trained yet, and policy and reference are of one path."""
        config = self._trainer.config
        return not self._rollouts and bool(config.ref.path == config.actor.path)

    def _apart(self, sampled: Sampled) -> advantages.Apart | None:
        """What a KL penalty is computed from."""
        recomputed = self._recomputes and not self._config.use_decoupled_loss
        old = self._old if recomputed else before(sampled.log_probs)
        return None if old is None or self._reference is None else advantages.Apart(old, self._reference)

    def _compare(self, sampled: Sampled, made: dict[str, Tensor]) -> None:
        mask, of_groups = (
            before(sampled.counts.double()),
            set(sampled.sizes) == {self._trainer.config.gconfig.n_samples},
        )
        if not isinstance(self._documented, str) and (of_groups or not self._documented.groups):
            given, apart = (sampled.rewards, sampled.groups, mask), self._apart(sampled)
            off = self._documented.of(*given, apart).off(made["advantages"], mask)
            fit = partial(self._documented.fit, *given, made["advantages"].clone(), apart)
            self._observer.compare_advantages(off, fit, made["advantages"].clone())
        else:
            self._observer.compare_advantages(None, str, None)
        of_engine = before(sampled.log_probs) if self._of_engine else None
        self._rows.keep(_columns(sampled.tokens, mask, made["advantages"], of_engine))

    # An update

    def _begins(self, call: Call) -> None:
        self._trained = Trained(call.argument("input_", 0)["input_ids"].shape[1])

    def _packed(self, call: Call) -> None:
        call.result[0].pop(PLACE, None)  # the model's inputs

    def _forwarded(self, call: Call) -> None:
        self._log_probs = call.result[0]

    def _lost(self, call: Call) -> None:
        trained, log_probs, given = self._trained, self._log_probs, call.argument("ctx", 1).mb_input
        if trained is None or log_probs is None:
            return
        ends, length = given["cu_seqlens"], len(given["input_ids"])
        names = (PLACE, "input_ids", "loss_mask", "logprobs", "prox_logp", "advantages")
        packed = {name: given[name] for name in names if given.get(name) is not None}
        packed["new"] = log_probs[:length].detach()
        if self._observer.compares:
            packed["own"] = _own(call.argument("logits", 0)[:length], given["input_ids"], self._config.temperature)
        number = trained.microbatches
        trained.add(packed, ends, call.result)
        if log_probs.requires_grad:

            def arrives(gradient: Tensor) -> None:
                trained.gradients[number] = unpacked(gradient.detach()[:length], ends, trained.width)

            log_probs.register_hook(arrives)
        if call.result.requires_grad:
            call.result.register_hook(lambda gradient: trained.factors.append(gradient.detach()))
        self._log_probs = None

    def _ends(self, call: Call) -> None:
        trained, self._trained = self._trained, None
        if trained is None or not trained.microbatches:
            return
        with torch.no_grad():
            mask, made = trained.column("loss_mask") != 0, trained.column("advantages")
            old = trained.column("prox_logp" if "prox_logp" in trained.columns else "logprobs") * mask
            tensors: dict[str, Any] = {"log_probs": trained.column("new"), "old": old, "advantages": made}
            of_engine = trained.column(self._of_engine) if self._of_engine else None
            rows = _columns(trained.column("input_ids"), mask.double(), made, of_engine)
            places = trained.column(PLACE)[:, 0].long() if PLACE in trained.columns else None
            self._rows.trained(rows, places, tensors | {"targets": None}, mask)
            gradient = trained.gradient()
            self._observer.add_columns({"log_prob_gradient": gradient.abs().amax(), "backward_ratio": trained.factor()})
            if self._observer.compares and not isinstance(self._loss, str) and trained.loss is not None:
                batch = token_batch(mask, log_probs=trained.column("own"), old=old, advantages=made)
                self._rows.compare_tokens(self._loss.formula(), batch, trained.loss, gradient)

    def _stepped(self, call: Call) -> None:
        if not call.result["update_successful"]:
            self._observer.updates.skipped("policy", "the norm of the gradients is not finite")

    # After the updates

    def _sent(self, call: Call) -> None:
        self._observer.synced()

    def _numbered(self, call: Call) -> None:
        numbered = {call.argument("version", 0): self._observer.version}
        self._versions = dict([*self._versions.items()][-REMEMBERED:]) | numbered


def _columns(tokens: Tensor, mask: Tensor, made: Tensor, of_engine: Tensor | None) -> dict[str, Tensor]:
    """What is followed of rows, (S, T) by name; the mask has each token at the place before it."""
    drawn = torch.roll(mask, 1, 1) != 0
    followed = {"completions": tokens * drawn, "prompts": tokens * ~drawn, "mask": mask, "advantages": made * mask}
    return followed | ({} if of_engine is None else {"sampling": of_engine * mask})


def _own(logits: Tensor, tokens: Tensor, temperature: float) -> Tensor:
    """(L,), the log-prob of each token of a pack at the place before it, in float64. What stands at the last token of a sample does not
    count."""
    after = torch.roll(tokens.long(), -1)[:, None]
    return torch.log_softmax(logits.detach().double() / temperature, -1).gather(-1, after)[:, 0]
