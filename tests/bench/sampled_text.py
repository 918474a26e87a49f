"""The test behind rule RLS413, simulated: false alarms of healthy runs, and the tokens after which other samplers show.

`python -m tests.bench.sampled_text [streams]` needs numpy (any TRL environment). The product's own test judges every stream, each cut
into rollouts of 500 tokens and micro-batches of 100. Vocabularies of 512 tokens, logits of normal distribution with a scale that
gives the mean entropy named.
"""

from __future__ import annotations

import math
import sys
from typing import TYPE_CHECKING

import numpy as np

from rlstep_hooks.judge.rules.weights.sampled import MARGIN
from rlstep_hooks.judge.sampled import FALSE_ALARMS, SampledTest, Surprisal
from rlstep_hooks.observe.surprisal import cap_of

if TYPE_CHECKING:
    from collections.abc import Callable

VOCABULARY = 512
DISTRIBUTIONS = 400
MICROBATCH, ROLLOUT, TOKENS = 100, 500, 5000
LONGEST = 1_000_000
SCALES = (1.0, 3.0, 6.0, 9.0)
"""Of the logits: mean entropies of 5.7, 3.0, 1.2 and 0.7 nats."""


def temperature(value: float) -> Callable[[np.ndarray], np.ndarray]:
    return lambda logits: softmax(logits / value)


def top_p(kept: float) -> Callable[[np.ndarray], np.ndarray]:
    def cut(logits: np.ndarray) -> np.ndarray:
        of = softmax(logits)
        order = np.argsort(-of, 1)
        ranked = np.take_along_axis(of, order, 1)
        ranked = ranked * (ranked.cumsum(1) - ranked < kept)
        np.put_along_axis(of, order, ranked, 1)
        return of / of.sum(1, keepdims=True)

    return cut


def off_by(size: float) -> Callable[[np.ndarray], np.ndarray]:
    return lambda logits: softmax(logits + size * np.random.default_rng(5).normal(size=logits.shape))


SAMPLERS: dict[str, Callable[[np.ndarray], np.ndarray]] = {
    "temperature 0.9": temperature(0.9),
    "temperature 0.6": temperature(0.6),
    "temperature 1.1": temperature(1.1),
    "top-p 0.95": top_p(0.95),
    "top-p 0.8": top_p(0.8),
    "logits off by random 0.1": off_by(0.1),
    "logits off by random 0.3": off_by(0.3),
}


def softmax(logits: np.ndarray) -> np.ndarray:
    of = np.exp(logits - logits.max(1, keepdims=True))
    return of / of.sum(1, keepdims=True)


class Text:
    """Tokens that a sampler draws where a policy has these distributions."""

    def __init__(self, scale: float, sampler: Callable[[np.ndarray], np.ndarray] = softmax, seed: int = 0) -> None:
        self.random = np.random.default_rng(seed)
        logits = scale * np.random.default_rng(1).normal(size=(DISTRIBUTIONS, VOCABULARY))
        log_probs = np.log(softmax(logits))
        entropies = -(np.exp(log_probs) * log_probs).sum(1, keepdims=True)
        self.entropy = float(entropies.mean())
        self.cap = cap_of(VOCABULARY)
        self._distances = np.minimum(-log_probs, self.cap) - entropies
        edges = sampler(logits).cumsum(1)
        self._edges = (edges / edges[:, -1:] + np.arange(DISTRIBUTIONS)[:, None]).ravel()

    def draw(self, tokens: int) -> np.ndarray:
        """The surprise of each of some tokens."""
        rows = self.random.integers(0, DISTRIBUTIONS, tokens)
        places = np.searchsorted(self._edges, rows + self.random.random(tokens), side="right")
        found: np.ndarray = self._distances.ravel()[np.minimum(places, rows * VOCABULARY + VOCABULARY - 1)]
        return found

    def microbatches(self, tokens: int) -> list[Surprisal]:
        """The sums of each micro-batch."""
        cut = self.draw(tokens).reshape(-1, MICROBATCH)
        columns = zip(cut.sum(1), (cut**2).sum(1), cut.max(1), strict=True)
        return [Surprisal(MICROBATCH, float(s), float(q), float(most)) for s, q, most in columns]


def proved_after(text: Text, tokens: int, *, margin: float, false_alarms: float) -> tuple[int, Surprisal] | None:
    """Tokens after which the test speaks, and what it has then."""
    test = SampledTest(cap=text.cap, vocabulary=VOCABULARY, margin=margin, false_alarms=false_alarms)
    drawn = 0
    while drawn < tokens:
        for surprise in text.microbatches(TOKENS):
            found = test.add(drawn // ROLLOUT, surprise)
            drawn += MICROBATCH
            if found is not None:
                return drawn, found
    return None


def main() -> None:
    streams = int(sys.argv[1]) if len(sys.argv) > 1 else 10_000
    print(f"false alarms among {streams} healthy runs of {TOKENS} tokens, no margin")
    for scale in SCALES:
        text = Text(scale)
        counts = []
        for level in (0.1, 0.01, 0.001, FALSE_ALARMS):
            share = streams if level in (0.1, FALSE_ALARMS) else max(streams // 10, 1)
            crossed = sum(proved_after(text, TOKENS, margin=0.0, false_alarms=level) is not None for _ in range(share))
            counts.append(f"level {level:g}: {crossed} of {share}")
        print(f"  mean entropy {text.entropy:.1f}: {', '.join(counts)}", flush=True)
    print("tokens until it is proved, with the margin of float32")
    for scale in SCALES[:3]:
        for name, sampler in SAMPLERS.items():
            text = Text(scale, sampler)
            mean = text.draw(100_000).mean()
            found = proved_after(text, LONGEST, margin=MARGIN["float32"], false_alarms=FALSE_ALARMS)
            said = f"more than {LONGEST}" if found is None else describe(*found)
            print(f"  mean entropy {text.entropy:.1f}, {name}: {mean:+.3f} nats a token, {said}", flush=True)


def describe(tokens: int, proved: Surprisal) -> str:
    fit, kept = proved.temperature(), proved.kept()
    named = [f"temperature {fit:.2f}"] if fit is not None and math.isfinite(fit) else []
    named += [f"top-p {kept:.2f}"] if kept is not None else []
    return f"{tokens} tokens, fits {' or '.join(named)}"


if __name__ == "__main__":
    main()
