"""The settings in force while transformers generates, beside those of the configuration."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from rlstep_hooks.observe.contained import Contained
from rlstep_hooks.record.events import FactsRead

if TYPE_CHECKING:
    from collections.abc import Callable

    from rlstep_hooks.observe.patches import Patches
    from rlstep_hooks.session.recorder import Recorder

NEUTRAL: dict[str, Any] = {
    "do_sample": False,
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
    "bad_words_ids": [],
    "suppress_tokens": [],
    "begin_suppress_tokens": [],
    "sequence_bias": {},
    "guidance_scale": 1.0,
    "num_beams": 1,
}
"""Settings of transformers that change which token is sampled, each with the value that changes nothing."""

ARGUMENTS = ("temperature", "top_p", "top_k", "min_p", "repetition_penalty")
"""Those that GRPOConfig and RLOOConfig name themselves."""


class SamplingWatch:
    """Reads the settings at each call of `generate`, and records a fact `sampling` when they are others than before (rule RLS408).

    Args:
        trainer: Its `args` say what was configured, where they have these settings.
        recorder: Takes the fact.
    """

    def __init__(self, trainer: Any, recorder: Recorder) -> None:
        self._trainer = trainer
        self._recorder = recorder
        self._latest: dict[str, Any] | None = None
        self._guard = Contained(recorder, ("sampler",))

    def attach(self, patches: Patches) -> None:
        """Place the hook."""
        model = self._trainer.accelerator.unwrap_model(self._trainer.model)
        model = getattr(model, "policy", model)  # PPOTrainer's holds policy and value model
        if hasattr(model, "get_base_model"):  # PEFT generates with the model inside it
            model = model.get_base_model()
        # Where `generate` puts together its own arguments, the given configuration and that of the model (`GenerationMixin`,
        # transformers 4.51.3, 4.57.6 and 5.23.0): the result is what is in force.
        if hasattr(model, "_prepare_generation_config"):
            patches.wrap(model, "_prepare_generation_config", self._around_prepare)

    def _around_prepare(self, wrapped: Callable[..., Any], model: Any, args: Any, kwargs: Any) -> Any:
        result = wrapped(*args, **kwargs)
        with self._guard:
            asked = args[0] if args else kwargs.get("generation_config")
            self._compare(
                self._configured(asked, kwargs), _settings_of(result[0]), _settings_of(model.generation_config)
            )
        return result

    def _configured(self, asked: Any, given: dict[str, Any]) -> dict[str, Any]:
        """What the trainer's arguments say, and for all other settings what it asks of `generate`."""
        settings = _settings_of(asked) | {name: given[name] for name in NEUTRAL if name in given}
        arguments = self._trainer.args
        if all(hasattr(arguments, name) for name in ARGUMENTS):
            of_args = {name: _effective(name, getattr(arguments, name)) for name in ARGUMENTS}
            more = getattr(arguments, "generation_kwargs", None) or {}
            settings |= of_args | {name: _effective(name, more[name]) for name in NEUTRAL if name in more}
        return settings

    def _compare(self, configured: dict[str, Any], used: dict[str, Any], of_model: dict[str, Any]) -> None:
        differing = {name: [configured[name], used[name]] for name in NEUTRAL if used[name] != configured[name]}
        found = {
            "used": {name: used[name] for name in ARGUMENTS},
            "differing": differing,
            "of_model": [f"{name} {used[name]}" for name in differing if used[name] == of_model[name]],
        }
        if found != self._latest:
            self._latest = found
            self._recorder.emit(FactsRead(at=self._recorder.now(), facts={"sampling": found}))


def _settings_of(config: Any) -> dict[str, Any]:
    """The settings of a GenerationConfig."""
    return {name: _effective(name, getattr(config, name, None)) for name in NEUTRAL}


def _effective(name: str, value: Any) -> Any:
    """A setting in a form that compares: what is not set, or set to a neutral value of another kind, is neutral."""
    neutral = NEUTRAL[name]
    if value is None or (name == "guidance_scale" and not value):
        return neutral
    return float(value) if isinstance(neutral, float) else value
