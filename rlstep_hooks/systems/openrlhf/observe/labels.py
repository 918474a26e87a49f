"""Which weights the engines hold, from what their processes recorded."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

from rlstep_hooks.record.events import Attached, FactsRead, Unobserved, WeightSync
from rlstep_hooks.record.tail import Tail

if TYPE_CHECKING:
    from collections.abc import Collection
    from pathlib import Path

Labels = tuple[tuple[int, int], ...]
"""Weight label -> number of samples with it; empty if that is not known."""

NOT_KNOWN: Labels = ()

Settings = tuple[dict[str, float], ...]
"""The settings that samples were drawn with, each combination once; empty if that is not known."""

LEAST_TEMPERATURE = 1e-2
"""The temperature that vLLM takes for any smaller one except 0."""

FIRST_WEIGHTS = 0
"""Label of the weights that engines load by themselves before training."""


def sampling_of(temperature: float, top_p: float, *, top_k: int) -> dict[str, float]:
    """Settings of a sampler as vLLM takes them (sampling_params.py, 0.32).

    A `top_k` below 1 means none. A temperature of 0 means the likeliest token, whatever else is set; one below 0.01 means 0.01.
    """
    if temperature <= 0:
        return {"temperature": 0.0, "top_p": 1.0, "top_k": 0.0}
    temperature = max(temperature, LEAST_TEMPERATURE)
    return {"temperature": float(temperature), "top_p": float(top_p), "top_k": float(max(top_k, 0))}


NEUTRAL = {
    "min_p": 0.0,
    "presence_penalty": 0.0,
    "frequency_penalty": 0.0,
    "repetition_penalty": 1.0,
    "logit_bias": 0.0,
    "allowed_token_ids": 0.0,
    "bad_words": 0.0,
    "seed": -1.0,
    "stop": 0.0,
    "stop_token_ids": 0.0,
    "ignore_eos": 0.0,
    "min_tokens": 1.0,
}
"""Further settings of a request that change what is sampled, or where it ends, as OpenRLHF leaves them (samples_generator.py:205).

Of the tokens that end a completion those count that are not the model's own, which vLLM adds."""


def sampling_asked(asked: Any, own_ends: Collection[int] | None) -> dict[str, float]:
    """Settings of vLLM's `SamplingParams`; of lists the number of entries, and of a seed whether there is one (0).

    Args:
        asked: The settings.
        own_ends: Tokens that end a completion by the model's own settings; None where nobody knows them: then none are compared.
    """
    found = sampling_of(asked.temperature, asked.top_p, top_k=asked.top_k)
    for name, neutral in NEUTRAL.items():
        value = getattr(asked, name, None)
        if name == "stop_token_ids":
            if value and own_ends is None:
                continue
            value = set(value or ()) - set(own_ends or ())
        if name == "seed":
            found[name] = neutral if value is None else 0.0
        else:
            found[name] = float(value if isinstance(value, int | float) else len(value or ()) or neutral)
    return found


class CutOff:
    """At how many tokens the longest length cut answers of one turn off, by the answers.

    Args:
        args: OpenRLHF's arguments.
    """

    def __init__(self, args: Any) -> None:
        most = getattr(args.rollout, "max_new_tokens", None)
        # utils/agent.py:209: without a configured length it is what the prompt leaves, and an agent's turns have what is left.
        several = bool(getattr(args.train, "agent_func_path", None))
        self._configured = 0 if several or most is None or most >= args.data.max_len else int(most)
        self._lengths: set[int] = set()

    def answered(self, response: dict[str, Any]) -> None:
        """An engine gave an answer."""
        if self._configured and response.get("truncated"):
            self._lengths.add(sum(end - start for start, end in response["action_ranges"]))

    def take(self, settings: Settings) -> Settings:
        """Settings with the length that answers were cut off at since the last call, if any was."""
        lengths, self._lengths = self._lengths, set()
        if not lengths:
            return settings
        others = lengths - {self._configured}
        found = {"max_tokens": float(min(others) if others else self._configured)}
        return tuple({**used, **found} for used in settings)


class EngineWeights:
    """The weights of all engine processes of a run, now.

    Args:
        folder: Where records are.
        run: The run's name.
        engines: Processes of all engines.
    """

    def __init__(self, folder: Path, run: str, engines: int) -> None:
        self._tails = [Tail(folder / f"{run}.engine{number}.jsonl") for number in range(engines)]
        self._held: list[int | None] = [None] * engines
        self._settings: list[list[dict[str, float]]] = [[] for _ in range(engines)]
        """The settings that each engine has sampled with since the latest look at its weights."""
        self.trouble = ""
        """Why an engine could not follow its syncs; empty if all could."""

    def labels(self, samples: int) -> Labels:
        """The labels that the engines hold now, with an equal share of the generated samples for each engine; empty if they are not
        known.

        A record of another machine may arrive late through a shared folder, so only engines on this one are believed.
        """
        self._read()
        self._settings = [settings[-1:] for settings in self._settings]
        if not self._held or None in self._held:
            return NOT_KNOWN
        held = [label for label in self._held if label is not None]
        share = samples // len(held)
        counts = {label: share * held.count(label) for label in held}
        counts[held[0]] += samples - share * len(held)
        return tuple(sorted(counts.items()))

    def settings(self) -> Settings:
        """The settings that the engines have sampled with since `labels` was called, each combination once; empty if an engine does
        not say."""
        self._read()
        if not all(self._settings):
            return ()
        seen: list[dict[str, float]] = []
        for settings in self._settings:
            # An engine goes on with its earlier settings until it reports others.
            for used in settings[1:] or settings:
                if used not in seen:
                    seen.append(used)
        return tuple(seen)

    def _read(self) -> None:
        for number, tail in enumerate(self._tails):
            for event in tail.read():
                if isinstance(event, Attached):
                    self._held[number] = FIRST_WEIGHTS if event.host == os.uname().nodename else None
                elif isinstance(event, Unobserved):
                    self._held[number] = None
                    self.trouble = self.trouble or event.why
                elif isinstance(event, WeightSync) and self._held[number] is not None:
                    self._held[number] = event.label
                elif isinstance(event, FactsRead):
                    self._settings[number].append(event.facts["sampling"])


class SampledWith:
    """Labels and settings of samples in the order in which they were generated; some samples may wait in a buffer."""

    def __init__(self) -> None:
        self._parts: list[tuple[int, Labels, Settings]] = []

    def generated(self, samples: int, labels: Labels, settings: Settings) -> None:
        """Samples were generated with these settings while the engines held these weights."""
        if samples:
            self._parts.append((samples, labels, settings))

    def take(self, samples: int) -> tuple[Labels, Settings]:
        """The labels and the settings of the oldest samples, which are used now; each is empty if that of one sample is not known."""
        counts: dict[int, int] = {}
        used_settings: list[dict[str, float]] = []
        labelled = set_known = True
        while samples > 0 and self._parts:
            there, labels, settings = self._parts.pop(0)
            used = min(there, samples)
            if used < there:
                self._parts.insert(0, (there - used, labels, settings))
            samples -= used
            labelled, set_known = labelled and bool(labels), set_known and bool(settings)
            for label, count in labels:
                counts[label] = counts.get(label, 0) + min(count, used)
            used_settings += [one for one in settings if one not in used_settings]
        return (
            tuple(sorted(counts.items())) if labelled and not samples else NOT_KNOWN,
            tuple(used_settings) if set_known and not samples else (),
        )
