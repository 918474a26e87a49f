"""The settings in force while transformers generates, beside those of the configuration."""

from __future__ import annotations

import operator
from typing import TYPE_CHECKING, Any

from rlstep_hooks.record.events import FactsRead

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from rlstep_hooks.observe.hooks import Call, Hooks
    from rlstep_hooks.session.recorder import Recorder

NEUTRAL: dict[str, float] = {
    "do_sample": 0,
    "temperature": 1.0,
    "top_p": 1.0,
    "top_k": 0,
    "min_p": 0.0,
    "typical_p": 1.0,
    "epsilon_cutoff": 0.0,
    "eta_cutoff": 0.0,
    "repetition_penalty": 1.0,
    "no_repeat_ngram_size": 0,
    "min_length": 0,
    "min_new_tokens": 0,
    "max_new_tokens": 0,
    "bad_words_ids": 0,
    "suppress_tokens": 0,
    "begin_suppress_tokens": 0,
    "sequence_bias": 0,
    "guidance_scale": 1.0,
    "num_beams": 1,
}
"""Settings of transformers that change which token is sampled, each with the value that changes nothing; of lists, the size."""

ARGUMENTS = ("temperature", "top_p", "top_k", "min_p", "repetition_penalty")
"""Settings that GRPOConfig and RLOOConfig name themselves."""


PROCESSORS = "logits_processors"
"""The name under which processors of logits are recorded that no setting asks for: how many there are."""


class SamplingWatch:
    """Reads the settings at each call of `generate`: those in force belong to the Rollout, those configured are a fact (rule RLS410).

    Args:
        trainer: The trainer, whose `args` say what was configured, where they have these settings.
        recorder: Takes the facts.
        of_rollout: Whether a call of `generate` now is one for a rollout; others, such as completions for the logs, are left out.
        processors: Whether the trainer hands `generate` no processors of logits, so that any beside those of the settings are
            somebody else's. TRL's hand over none (0.16.1 to 1.16.0).
    """

    def __init__(
        self,
        trainer: Any,
        recorder: Recorder,
        of_rollout: Callable[[], bool] = lambda: True,
        *,
        processors: bool = True,
    ) -> None:
        self._processors = processors
        self._trainer = trainer
        self._recorder = recorder
        self._of_rollout = of_rollout
        self._facts: dict[str, Any] = {}
        self._used: list[dict[str, float]] = []
        self._shown: dict[str, float] = {}
        """Settings of the latest call that belong to its rollout."""
        self._latest: list[Any] = []
        """All that the latest call was seen with."""
        self._lasting = False
        """Whether it holds no collections, into which somebody may write."""

    def attach(self, hooks: Hooks) -> None:
        """Place the hook."""
        model = self._trainer.accelerator.unwrap_model(self._trainer.model)
        model = getattr(model, "policy", model)  # PPOTrainer's holds policy and value model
        if hasattr(model, "get_base_model"):  # PEFT generates with the model inside it
            model = model.get_base_model()
        # Where `generate` puts together its own arguments, the given configuration and that of the model (`GenerationMixin`,
        # transformers 4.51.3, 4.57.6 and 5.23.0): the result is what is in force.
        if hasattr(model, "_prepare_generation_config"):
            hooks.wrap(model, "_prepare_generation_config", after=self._prepared, topics=("sampler",))
        # Where `generate` puts together what changes logits before a token is drawn: those that the settings ask for, all of
        # transformers, and those that were handed over (4.51.3, 4.57.6 and 5.23.0).
        if self._processors and hasattr(model, "_get_logits_processor"):
            hooks.wrap(model, "_get_logits_processor", after=self._has_processors, topics=("sampler",))

    def take(self) -> tuple[dict[str, float], ...]:
        """The settings in force since the last call; those of one `generate` once, however often it was called with them."""
        used, self._used = tuple(self._used), []
        return used

    def _prepared(self, call: Call) -> None:
        if not self._of_rollout():
            return
        asked, of_model = call.argument("generation_config", 0), call.owner.generation_config
        used = call.result[0]
        read = self._read((asked, used, of_model), call.kwargs)
        if read != self._latest or not self._lasting:  # else all is what it was at the last call
            self._record(self._configured(asked, call.kwargs), _settings_of(used), _settings_of(of_model))
            self._latest, self._lasting = read, not any(isinstance(value, _COLLECTIONS) for value in read)
        if self._shown not in self._used:
            self._used.append(self._shown)

    def _has_processors(self, call: Call) -> None:
        if not self._of_rollout():
            return
        given = call.argument("logits_processor", 4) or ()
        count = sum(_is_foreign(one) or any(one is other for other in given) for one in call.result)
        if count and (used := self._shown | {PROCESSORS: count}) not in self._used:
            self._used.append(used)

    def _read(self, configurations: tuple[Any, ...], given: dict[str, Any]) -> list[Any]:
        """Everything that decides what is recorded, as it is."""
        arguments = self._trainer.args
        read = [getattr(arguments, name, None) for name in ARGUMENTS]
        for configuration in configurations:
            read += _values_of(configuration)
        for more in (getattr(arguments, "generation_kwargs", None) or {}, given):
            if more:
                read += [part for name in NEUTRAL if name in more for part in (name, more[name])]
        return read

    def _configured(self, asked: Any, given: dict[str, Any]) -> dict[str, float]:
        """What the trainer's arguments say, and for all other settings what it asks of `generate`."""
        settings = _settings_of(asked) | {name: effective(name, given[name]) for name in NEUTRAL if name in given}
        arguments = self._trainer.args
        if all(hasattr(arguments, name) for name in ARGUMENTS):
            of_args = {name: effective(name, getattr(arguments, name)) for name in ARGUMENTS}
            more = getattr(arguments, "generation_kwargs", None) or {}
            settings |= (
                of_args | self._longest() | {name: effective(name, more[name]) for name in NEUTRAL if name in more}
            )
        return settings

    def _longest(self) -> dict[str, float]:
        """The configured length of completions, where each is drawn by one call: several turns share it."""
        trainer = self._trainer
        turns = any(getattr(trainer, name, None) for name in ("tools", "environments", "rollout_func"))
        length = getattr(trainer, "max_completion_length", None)
        return {} if turns or length is None else {"max_new_tokens": float(length)}

    def _record(self, configured: dict[str, float], used: dict[str, float], of_model: dict[str, float]) -> None:
        differing = [name for name in NEUTRAL if used[name] != configured[name]]
        self._shown = {name: used[name] for name in NEUTRAL if name in ARGUMENTS or name in differing}
        facts = {
            "configured_sampling": configured | {PROCESSORS: 0},
            "sampling_of_model": [name for name in differing if used[name] == of_model[name]],
        }
        if facts != self._facts:
            self._facts = facts
            self._recorder.emit(FactsRead(at=self._recorder.now(), facts=facts))


_values = operator.itemgetter(*NEUTRAL)
_COLLECTIONS = (list, dict, tuple)


def _values_of(config: Any) -> Sequence[Any]:
    """The settings of a GenerationConfig as they are; None for one that this release does not have."""
    try:
        values: tuple[Any, ...] = _values(vars(config))  # `getattr` would search all its classes for each
    except (KeyError, TypeError):
        return [getattr(config, name, None) for name in NEUTRAL]
    return values


def _settings_of(config: Any) -> dict[str, float]:
    """The settings of a GenerationConfig."""
    return {name: effective(name, value) for name, value in zip(NEUTRAL, _values_of(config), strict=True)}


def _is_foreign(processor: Any) -> bool:
    """Whether a processor of logits is none of transformers' own."""
    return not type(processor).__module__.startswith("transformers.")


def effective(name: str, value: Any) -> float:
    """A setting as a number: of a collection its size; of what is not set the value that changes nothing."""
    if value is None:
        value = NEUTRAL[name]
    return len(value) if isinstance(value, _COLLECTIONS) else value + 0
