"""How one kind of trainer hands on its rollouts, its micro-batches and its loss: GRPOTrainer and RLOOTrainer of TRL.

A trainer that is built on them and hands on something else has an adapter of its own
(`rlstep_hooks.systems.swift.observe.batch_adapter`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar, Protocol

import msgspec

from rlstep_hooks.systems.trl.observe.advantages import RewardWatch
from rlstep_hooks.systems.trl.observe.facts import shares_entropies
from rlstep_hooks.systems.trl.observe.limits import READ, own_loss, uncovered_loss, unknown_masks, unobservable
from rlstep_hooks.systems.trl.observe.loss_inputs import COVERED, OF_WINDOW, LossTerms, TokenWeights, read_loss_settings
from rlstep_hooks.systems.trl.observe.ranks import other_parallelism
from rlstep_hooks.systems.trl.observe.turns import TurnsWatch

if TYPE_CHECKING:
    from torch import Tensor

    from rlstep_hooks.observe.hooks import Hooks
    from rlstep_hooks.observe.importance import Comparison
    from rlstep_hooks.observe.numbers import Meaning
    from rlstep_hooks.planning.schedule import Schedule
    from rlstep_hooks.session.recorder import Recorder
    from rlstep_hooks.systems.trl.observe.calls import LogProbCall
    from rlstep_hooks.systems.trl.observe.loss_inputs import LossSettings
    from rlstep_hooks.systems.trl.observe.tools_used import Spoken
    from rlstep_hooks.systems.trl.releases import TrlRelease


class Turns(Protocol):
    """Whatever keeps the turns of one rollout from their generation until the rollout is complete."""

    @property
    def spoken(self) -> Spoken:
        """What was said in each sample of the rollout that is being made; nothing where that is not seen."""

    def attach(self, hooks: Hooks) -> None:
        """Place the hooks, or say why turns are not seen."""

    def begin(self, *, looks: bool, log_probs: bool) -> None:
        """A rollout begins; its turns are kept if `looks`, and the log-probs with which they are drawn too if `log_probs`."""

    def take(self, index: int, parts: list[dict[str, Any]]) -> tuple[Meaning, Tensor] | None:
        """What is to be compared of a rollout that is complete, and how; None where nothing is."""


class BatchAdapter:
    """Reads one trainer's data by TRL's names, and says what of its loss is documented."""

    read: ClassVar[tuple[str, ...]] = READ
    """Packages whose overrides of methods are known."""
    covered: ClassVar[tuple[str, ...]] = COVERED
    """Loss types whose formula is known."""
    rows_hidden: ClassVar[str] = ""
    """Why no row can be taken out of a batch, to be scored again or followed by itself; empty where each can."""

    def __init__(self, trainer: Any, schedule: Schedule, release: TrlRelease, recorder: Recorder) -> None:
        self.trainer = trainer
        self.schedule = schedule
        self.recorder = recorder
        self._passes_decide = not release.has_steps_per_generation
        """0.16 and 0.17: the number of passes decides whether old log-probs are used, not whether they are there."""
        self._loss_includes_accumulation = release.loss_includes_accumulation
        self._counts_masks = release.since("1.9")
        """Up to 1.8 a window's loss is divided by the tokens of truncated completions too, although they are masked (TRL PR #6439)."""
        covered = schedule.algorithm == "RLOO" or getattr(trainer, "loss_type", "bnpo") in self.covered
        self.loss_settings = self._settings_of_loss(release) if covered else None
        """None where the loss is none of the documented ones."""
        self.compares_loss = self.loss_settings is not None and not self.uncovered_loss()
        """Whether the documented formula covers the loss."""
        self._masks_known = self.loss_settings is not None and not self.unknown_masks()
        self.shares_entropies = self.loss_settings is not None and shares_entropies(trainer)
        """Whether the entropies of all processes decide which tokens are trained, so that here only the trainer's own mask says it."""

    def _settings_of_loss(self, release: TrlRelease) -> LossSettings:
        settings = read_loss_settings(self.trainer, release, self.schedule.algorithm)
        return msgspec.structs.replace(settings, includes_accumulation=self.divides_loss())

    def attach(self, hooks: Hooks) -> None:
        """Place the hooks on what this kind of trainer hands on nowhere else."""

    # What this trainer is

    def unobservable(self) -> list[tuple[str, str]]:
        """Topics that this trainer's configuration hides, each with the reason."""
        found = unobservable(self.trainer, self.schedule, self.read, self.covered)
        unknown = self.unknown_masks()
        return (
            [*found, ("trained_tokens", f"which tokens get a gradient is not known with {unknown}")]
            if unknown
            else found
        )

    def uncovered_loss(self) -> str:
        """What keeps the documented formula from covering this trainer's loss; empty where it does."""
        return uncovered_loss(self.trainer, self.schedule, self.read, self.covered)

    def unknown_masks(self) -> str:
        """What keeps anybody from saying which tokens get a gradient; empty where `trained_tokens` says it."""
        return unknown_masks(self.trainer, self.schedule, self.read, self.covered)

    def follows_rollout(self) -> bool:
        """Whether the loss trains the tokens of the rollout, as TRL's own losses do."""
        return not own_loss(self.trainer, self.read)

    def divides_loss(self) -> bool:
        """Whether the loss method itself divides by the accumulation; else transformers does, after it."""
        return self._loss_includes_accumulation and self.schedule.algorithm != "RLOO"

    def samples_with_engine(self) -> bool:
        """Whether vLLM samples, with weights of its own."""
        return bool(getattr(self.trainer, "use_vllm", False))

    def picks_samples(self) -> bool:
        """Whether samples, or all of their tokens, are left out by what they contain."""
        return bool(self._filtered() or getattr(self.trainer, "mask_truncated_completions", False))

    def _filtered(self) -> bool:
        return bool(self.schedule.samples_dropped_per_rollout or hasattr(self.trainer, "replay_buffer"))

    def counts_tokens(self) -> bool:
        """Whether the tokens that a window's loss is divided by are those that count in the masks of this process.

        0.24 to 1.8 count truncated completions too although they are masked (`num_items_in_batch`), 1.9 and later the mask.
        """
        alike = not (self._filtered() if self._counts_masks else self.picks_samples())
        return self.trainer.accelerator.num_processes == 1 and alike

    def sums_tokens(self) -> bool:
        """Whether the tokens that a window's loss is divided by are those that count in the masks of all processes, added up.

        0.22 to 1.16.0: `accelerator.gather(completion_mask.sum()).sum()` (grpo_trainer.py 1.16.0:2498).
        """
        several = self.trainer.accelerator.num_processes > 1
        of_window = self.loss_settings is not None and self.loss_settings.loss_type in OF_WINDOW
        return several and of_window and not self.picks_samples()

    def has_samples_of_its_own(self) -> bool:
        """Whether there are several processes, each with other samples: those that share sequences have the same ones."""
        accelerator = self.trainer.accelerator
        return accelerator.num_processes > 1 and not other_parallelism(accelerator)

    # A rollout

    def parts(self, output: Any) -> list[dict[str, Any]]:
        """The tensors of a rollout by TRL's names. More than one where the trainer itself cuts it into micro-batches."""
        return [output]

    def mark(self, output: Any, parts: list[dict[str, Any]]) -> None:
        """Have identities and checksums travel with the samples. Where the parts are the output itself they already do."""

    def old_log_probs_of(self, part: dict[str, Any]) -> Any:
        """The old log-probs of a part of a rollout; None where there are none. RLOO's have a name of their own."""
        old = part.get("old_per_token_logps")
        return part.get("old_logps") if old is None else old

    def rewards(self) -> RewardWatch:
        """What follows the rewards of this trainer to its advantages."""
        return RewardWatch(self.trainer, self.schedule.algorithm, self.recorder, self.schedule.version)

    def turns(self) -> Turns:
        """What keeps the turns of a rollout, and joins them with its rows."""
        return TurnsWatch(self.trainer, self.recorder, version=self.schedule.version, engine=self.samples_with_engine())

    def penalty(self, parts: list[dict[str, Any]]) -> Tensor | None:
        """(B,), what a KL term takes off the rewards, where the rollout's own tensors say it; None where they do not."""
        return None

    def adds_to_advantages(self, parts: list[dict[str, Any]]) -> bool:
        """Whether something besides the rewards enters the advantages of this rollout."""
        return False

    # A micro-batch

    def loss_inputs(self, inputs: Any) -> dict[str, Any] | None:
        """What a loss gets, by TRL's names; None where it is something else."""
        tensors: dict[str, Any] = inputs
        return tensors

    def old_log_probs(self, inputs: dict[str, Any]) -> Tensor | None:
        """The old log-probs that the loss uses, by the condition of this release.

        0.16 and 0.17 look at num_iterations and would pass over a tensor that is there; later ones look at the tensor.
        """
        if self.schedule.algorithm == "RLOO":
            return inputs.get("old_logps")
        if self.schedule.old_logprob_source == "engine":
            return inputs.get("sampling_per_token_logps")
        if self._passes_decide and self.trainer.num_iterations <= 1:
            return None
        return inputs.get("old_per_token_logps")

    def token_weights(
        self, inputs: dict[str, Any], call: LogProbCall, kept: Tensor | None = None
    ) -> TokenWeights | None:
        """What the loss weighs its tokens by; None where nobody knows which of them it trains.

        Args:
            inputs: What the loss got.
            call: The forward that it trains.
            kept: (B, T), the tokens that the trainer keeps for their entropy; None where it was not asked.
        """
        settings, trainer = self.loss_settings, self.trainer
        if settings is None or not self._masks_known or (self.shares_entropies and kept is None):
            return None
        corrected = getattr(trainer, "use_vllm", False) and getattr(
            trainer, "vllm_importance_sampling_correction", False
        )
        needed = settings.high_entropy < 1.0 or getattr(trainer, "_entropy_bonus_enabled", False)
        return TokenWeights(
            entropies=call.others[0].detach() if needed else None,
            correction=inputs.get("importance_sampling_ratio") if corrected else None,
            kept=kept if self.shares_entropies else None,
        )

    def weighed(self, inputs: dict[str, Any]) -> Comparison | None:
        """Compare the importance weights that the loss itself computed; None where they come with the rollout, or there are none.

        Args:
            inputs: What the loss got.
        """
        return None

    def loss_terms(
        self, loss: Tensor, inputs: dict[str, Any], call: LogProbCall, reference: Tensor | None
    ) -> LossTerms | None:
        """What the documented formula needs besides log-probs; None where it does not cover this loss.

        Args:
            loss: What was returned.
            inputs: What the loss got.
            call: The forward that it trains.
            reference: The reference's log-probs, where the loss computed them itself (0.18).
        """
        settings, trainer = self.loss_settings, self.trainer
        if settings is None or not self.compares_loss:
            return None
        accumulation = trainer.args.gradient_accumulation_steps
        bonus = getattr(trainer, "_entropy_bonus_enabled", False)
        return LossTerms(
            settings=msgspec.structs.replace(
                settings,
                beta=trainer.beta if self.schedule.algorithm == "GRPO" else 0.0,  # RLOO's KL term is in its rewards
                weighs_kl=bool(getattr(trainer.args, "use_bias_correction_kl", False)),
                window=getattr(trainer, "current_gradient_accumulation_steps", accumulation),
                entropy_weight=(getattr(trainer, "entropy_coef", 0.0) or 0.0) if bonus else 0.0,
            ),
            value=loss.detach(),
            reference=inputs.get("ref_per_token_logps") if reference is None else reference,
            generation_tokens=inputs.get("num_items_in_batch") if settings.loss_type in OF_WINDOW else None,
            auxiliary=(
                trainer.router_aux_loss_coef * call.others[1].detach()
                if getattr(trainer, "aux_loss_enabled", False)
                else None
            ),
        )
