"""What the policy's `generate` was asked for and gave, beside the tokens that its rollout comes with.

GRPOTrainer and RLOOTrainer call it once for each rollout, with the prompts padded on the left, and keep each completion through its
first end (grpo_trainer.py 0.16.1 `_generate_and_score_completions`, 1.16.0:1881 `_generate_single_turn`). With vLLM its engine is asked
in the place of it (1.16). In several turns the tokens come from elsewhere.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from rlstep_hooks.observe.guard import contained
from rlstep_hooks.systems.trl.observe.engine_answers import as_tensors, engine_calls
from rlstep_hooks.systems.trl.observe.limits import writes_tokens
from rlstep_hooks.systems.trl.observe.masks import ends_of
from rlstep_hooks.systems.trl.observe.randomness import Drawn, RandomWatch
from rlstep_hooks.systems.trl.observe.sampled_log_probs import SampledLogProbs
from rlstep_hooks.systems.trl.releases import TrlRelease

if TYPE_CHECKING:
    from rlstep_hooks.observe.hooks import Call, Hooks, Sleep
    from rlstep_hooks.session.recorder import Recorder
    from rlstep_hooks.systems.trl.observe.engine_answers import EngineCalls

SEVERAL_TURNS = ("tools", "rollout_func", "environments", "environment_factory", "multi_turn_scheduler")
"""Settings of a trainer whose completions are put together of several generations."""


class GeneratedWatch:
    """Keeps the tokens of one rollout from its generation until it is scored.

    Args:
        trainer: The live trainer.
        version: The release of TRL.
    """

    def __init__(self, trainer: Any, recorder: Recorder, *, version: str) -> None:
        self._trainer = trainer
        self._engine = _engine(trainer, version)
        self.recorder = recorder
        """Learns what is not observed."""
        self._random = RandomWatch()
        self._sampled_log_probs = SampledLogProbs(trainer, recorder)
        self._whole = not writes_tokens(trainer)
        """Whether completions are kept through their first end, as TRL does it."""
        self._looks = False
        self._seen: list[tuple[Tensor, Tensor]] = []
        """The prompts of each call, and its prompts with completions."""
        self._sleeps: list[Sleep] = []
        """Lets the hooks sleep in rollouts whose tokens are not compared."""

    def attach(self, hooks: Hooks) -> None:
        """Place the hook.

        `generate` of transformers takes `input_ids` and returns sequences that begin with them (4.51.3 to 5.23.0).
        """
        if any(getattr(self._trainer, name, None) for name in SEVERAL_TURNS):
            return
        if self._engine is not None:
            self._sleeps.append(hooks.wrap(self._engine.owner, "generate", after=self._answers, topics=("samples",)))
            self._sleep()
            return
        model = self._trainer.accelerator.unwrap_model(self._trainer.model)
        if callable(getattr(model, "generate", None)):
            self._sleeps.append(hooks.wrap(model, "generate", after=self._generates, topics=("samples",)))
        inner = model.get_base_model() if hasattr(model, "get_base_model") else model
        # Called by `generate` before it draws, so that whatever was to be seeded is. It gives the processors of logits, of which the
        # first gets them as the model gave them (transformers 4.51.3, 4.57.6 and 5.23.0).
        if hasattr(inner, "_get_logits_processor"):
            self._sleeps.append(hooks.wrap(inner, "_get_logits_processor", after=self._draws, topics=("samples",)))
        self._sleep()

    def _sleep(self) -> None:
        for sleep in self._sleeps:
            sleep.asleep = not self._looks

    def begin(self, *, looks: bool, log_probs: bool) -> None:
        """A rollout begins; its tokens are compared if `looks`, and their log-probs are taken too if `log_probs`."""
        self._looks, self._seen = looks, []
        self._sleep()
        self._random.begin()
        self._sampled_log_probs.begin(looks=log_probs)

    def drawn(self, index: int) -> Drawn | None:
        """Say with which state of the random generator a rollout was drawn, as `RandomWatch` does."""
        return self._random.ended(self._trainer.accelerator.device, index)

    @contained("drawn_log_probs")
    def log_probs(self, ids: Tensor) -> Tensor | None:
        """(B, T): the log-probs of a rollout's completions when they were drawn, as `SampledLogProbs.take` says."""
        return self._sampled_log_probs.take(ids)

    def _draws(self, call: Call) -> None:
        if self._looks:
            self._random.draws(self._trainer.accelerator.device)
            self._follow_draws(call.result)

    @contained("drawn_log_probs")
    def _follow_draws(self, processors: list[Any]) -> None:
        self._sampled_log_probs.see(processors)

    def _generates(self, call: Call) -> None:
        if not self._looks:
            return
        asked = call.kwargs.get("input_ids", call.argument("inputs", 0))
        given = getattr(call.result, "sequences", call.result)
        # A processor of images may write their places into the prompt anew.
        of_text = not any("pixel" in name for name in call.kwargs)
        if isinstance(asked, Tensor) and isinstance(given, Tensor) and of_text:
            self._seen.append((asked.clone(), given.clone()))

    def _answers(self, call: Call) -> None:
        if not self._looks or self._engine is None:
            return
        requests = self._engine.read(call)
        if requests:
            ends, pad = ends_of(self._trainer)
            self._seen.append(as_tensors(requests, ends[0] if pad is None else pad, self._trainer.accelerator.device))

    def moved(self, part: dict[str, Any]) -> Tensor | None:
        """How many samples of a rollout have other tokens; None where that was not seen.

        Args:
            part: The rollout by TRL's names.
        """
        seen, self._seen, self._looks = self._seen, [], False
        prompts, mask = part.get("prompt_ids"), part.get("prompt_mask")
        if len(seen) != 1 or prompts is None or mask is None:
            return None
        [(asked, given)] = seen
        ids, counted = part["completion_ids"], part["completion_mask"]
        samples, before = asked.shape
        if not samples == given.shape[0] == ids.shape[0] == prompts.shape[0] or asked.device != ids.device:
            return None
        wide, long = min(before, prompts.shape[1]), min(given.shape[1] - before, ids.shape[1])
        completions = given[:, before:]
        same = completions[:, :long] == ids[:, :long]
        differ = (~same & counted[:, :long].bool()).any(1) | counted[:, long:].bool().any(1)
        if self._whole:
            kept = self._through_end(completions)
            differ |= (~same & kept[:, :long]).any(1) | kept[:, long:].any(1)
        own, real = prompts[:, prompts.shape[1] - wide :], mask[:, mask.shape[1] - wide :].bool()
        differ |= ((asked[:, before - wide :] != own) & real).any(1) | mask[:, : mask.shape[1] - wide].bool().any(1)
        return differ.sum()

    def _through_end(self, completions: Tensor) -> Tensor:
        """(B, T): the tokens of each completion through its first end; without an end, through the last that is no padding."""
        ends, pad = ends_of(self._trainer)
        is_end = torch.zeros_like(completions, dtype=torch.bool)
        for end in ends:
            is_end |= completions == end
        before_end = is_end.cumsum(1) - is_end.int() == 0
        if pad is None or pad in ends:
            return before_end
        return before_end & ((completions != pad).flip(1).cumsum(1).flip(1) > 0)


def _engine(trainer: Any, version: str) -> EngineCalls | None:
    """Where the engine is asked for the samples of this process alone; None where generate of transformers is, or that is not known."""
    if not getattr(trainer, "use_vllm", False) or trainer.accelerator.num_processes > 1:
        return None
    return engine_calls(trainer) if TrlRelease(version, "").since("1.16") else None
