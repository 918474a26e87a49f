"""Whether completions are draws from the policy, and can be tested against its own distributions: what the rules RLS519 and RLS413
need, and where it cannot be had.

The loss forward computes log-probs and entropies at the trainer's temperature (grpo_trainer.py and rloo_trainer.py 0.24.0, 1.0.0 and
1.16.0, `_compute_loss` with `compute_entropy=True`); 0.16 to 0.19 compute no entropies.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from rlstep_hooks.observe.surprisal import cap_of
from rlstep_hooks.record.events import FactsRead
from rlstep_hooks.systems.trl.observe.facts import forward_noise
from rlstep_hooks.systems.trl.observe.generated import SEVERAL_TURNS
from rlstep_hooks.systems.trl.observe.limits import own_advantages
from rlstep_hooks.systems.trl.observe.sampling import NEUTRAL, effective

if TYPE_CHECKING:
    from torch import Tensor

    from rlstep_hooks.session.recorder import Recorder
    from rlstep_hooks.systems.trl.observe.batch_adapter import BatchAdapter
    from rlstep_hooks.systems.trl.observe.calls import LogProbCall

_CONSTRAINED = ("vllm_guided_decoding_regex", "vllm_structured_outputs_regex")
_HARMLESS = (
    "cache_implementation",
    "disable_compile",
    "max_new_tokens",
    "max_tokens",
    "seed",
    "use_cache",
    "return_dict_in_generate",
)
"""Settings of a generation that change no distribution."""


class SampledWatch:
    """Knows whether completions are draws from the policy, and hands on the entropies of losses whose tokens are tested."""

    def __init__(self, adapter: BatchAdapter, recorder: Recorder) -> None:
        self._recorder = recorder
        self._engine = adapter.samples_with_engine()
        self._vocabulary = _vocabulary(adapter.trainer)
        self._why_not = _why_not(adapter, self._vocabulary)
        self._no_entropies = _no_entropies(adapter.trainer)
        self.cap = math.inf if self._why_not or self._no_entropies else cap_of(self._vocabulary)
        """The cut of -log-probs."""

    @property
    def are_draws(self) -> bool:
        """Whether completions are drawn one by one from the policy's distribution."""
        return not self._why_not

    def attach(self) -> None:
        """Say what is tested, or why nothing is."""
        if self._why_not:
            self._recorder.cannot("drawn", self._why_not)
            return
        if self._no_entropies:
            self._recorder.cannot("entropies", self._no_entropies)
            return
        facts = {"surprise_cap": self.cap, "vocabulary": self._vocabulary, "sampled_by_engine": self._engine}
        self._recorder.emit(FactsRead(at=self._recorder.now(), facts=facts))

    def entropies(self, call: LogProbCall) -> Tensor | None:
        """(B, T), the entropies of a loss forward; None where tokens are not tested."""
        if self._why_not or self._no_entropies:
            return None
        found = call.others[0] if call.others else None
        if found is None:
            self._no_entropies = "the loss computes no entropies"
            self._recorder.cannot("entropies", self._no_entropies)
            return None
        return found.detach()


def _vocabulary(trainer: Any) -> int:
    """Tokens that the model may give; 0 where its configuration does not say."""
    config: Any = getattr(trainer.model, "config", None)
    text = config.get_text_config() if hasattr(config, "get_text_config") else config
    return int(getattr(text, "vocab_size", 0) or 0)


def _no_entropies(trainer: Any) -> str:
    """Why no loss of a trainer has entropies; empty where one may."""
    known = hasattr(trainer, "_get_per_token_logps_and_entropies")
    return "" if known else "this release computes no entropies in its loss"


def _why_not(adapter: BatchAdapter, vocabulary: int) -> str:
    """Why the tokens that a loss counts need not be drawn from the policy's distribution; empty where they are to be."""
    trainer = adapter.trainer
    if any(getattr(trainer, name, None) for name in SEVERAL_TURNS):
        return "some tokens are those of tools or of an environment"
    if adapter.picks_samples():
        return "completions are picked by their rewards or their length, so those that are left are not a fair draw"
    noise = forward_noise(trainer)
    if noise:
        return f"{noise}: the loss forward has another distribution than the one that was sampled from"
    if not vocabulary:
        return "the size of the vocabulary is not known"
    return own_advantages(trainer, adapter.read) or _truncation(trainer.args, vocabulary)


def _truncation(args: Any, vocabulary: int) -> str:
    """What configured settings change the distribution besides the temperature; empty where none does."""
    more = getattr(args, "generation_kwargs", None) or {}
    settings = {name: getattr(args, name) for name in NEUTRAL if hasattr(args, name) and name != "do_sample"} | more
    changed = [name for name, value in settings.items() if not _keeps(name, value, vocabulary)]
    changed += [name for name in _CONSTRAINED if getattr(args, name, None)]
    return f"tokens are sampled from a changed distribution, as configured: {', '.join(changed)}" if changed else ""


def _keeps(name: str, value: Any, vocabulary: int) -> bool:
    """Whether a setting of the generation leaves the distribution as it is, up to the temperature, which is what is tested."""
    if name == "do_sample":
        return bool(value)
    if name == "top_k" and isinstance(value, int) and (value < 0 or value >= vocabulary):
        return True
    return name in ("temperature", *_HARMLESS) or (name in NEUTRAL and effective(name, value) == NEUTRAL[name])
