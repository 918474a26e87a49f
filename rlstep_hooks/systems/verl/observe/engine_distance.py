"""What explains that the engine's log-probs are not the trainer's: logits of a few tokens, kept while old log-probs are computed.

verl's engine gets the logits of a micro-batch as its model returns them, before the temperature (`prepare_model_outputs`,
workers/engine/fsdp/transformer_impl.py 0.9.1:1358, 1418, 1503). Fused kernels return none, and with sequence parallelism a process has
a part of them.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch.nn.utils.rnn import pad_sequence

from rlstep_hooks.observe.engine_distance import ROWS, TOKENS, alternatives, closest, explained
from rlstep_hooks.observe.guard import contained
from rlstep_hooks.systems.verl.observe.samples import keys_of, rows_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch import Tensor

    from rlstep_hooks.observe.guard import GapRecorder
    from rlstep_hooks.systems.verl.observe.samples import Key


class _Asked(NamedTuple):
    """Tokens whose logits are wanted; N of them, in a micro-batch of sequences."""

    samples: tuple[Key, ...]
    """The sample that each token belongs to."""
    columns: tuple[int, ...]
    """The place of each token in its completion."""
    rows: tuple[int, ...]
    """The sequence of each token in the micro-batch."""
    positions: tuple[int, ...]
    """The positions of the logits that predict it, in its sequence."""
    packed: tuple[int, ...]
    """The positions of these logits in all sequences, one after the other."""
    tokens: tuple[int, ...]
    temperature: float


class _Known(NamedTuple):
    """Numbers of some tokens, in the shapes of `KeptLogits`: what each cause makes of their log-probs."""

    places: tuple[Tensor, Tensor]
    found: tuple[tuple[str, ...], Tensor]

    def alternatives(self) -> tuple[tuple[str, ...], Tensor]:
        """Names of causes, and log-probs, (C, N)."""
        return self.found


class DistanceWatch:
    """Keeps logits of the first micro-batch of each computation of old log-probs.

    Args:
        recorder: Learns what is not observed.
    """

    def __init__(self, recorder: GapRecorder) -> None:
        self.recorder = recorder
        """Learns what is not observed."""
        self.open = False
        """Whether old log-probs are being computed, and a micro-batch is wanted."""
        self._asked: _Asked | None = None
        self._found: tuple[tuple[str, ...], Tensor] | None = None

    def begin(self) -> None:
        """Old log-probs are about to be computed."""
        self.open, self._asked, self._found = True, None, None

    @contained("engine_distance")
    def sees(self, data: Any) -> None:
        """A forward of old log-probs begins; its data are still on the CPU."""
        self._asked = _asked_of(data)
        self.open = self._asked is not None

    @contained("engine_distance")
    def keep(self, output: Any, *, packed: bool) -> None:
        """The model has returned the logits of the micro-batch, on the device.

        Args:
            output: What it returned.
            packed: Whether its sequences follow each other in one row.
        """
        asked, self.open = self._asked, False
        with torch.no_grad():
            logits: Any = getattr(output, "logits", None)
            if asked is None or not asked.tokens or type(logits) is not torch.Tensor:
                return
            rows, columns = ([0] * len(asked.packed), asked.packed) if packed else (asked.rows, asked.positions)
            few = logits.detach()[list(rows), list(columns)].float()
            self._found = alternatives(few, torch.tensor(asked.tokens, device=few.device), asked.temperature)

    def explain(self, keys: Sequence[Key], own: Sequence[Tensor] | None, data: Any) -> str:
        """The cause that leaves next to nothing of the distance; empty where none does, or nothing was kept.

        Args:
            keys: The samples whose old log-probs were computed.
            own: The trainer's log-probs, row by row over the completions, without padding.
            data: verl's, of the samples.
        """
        self.open = False
        return self._fit(keys, own, data) or ""

    @contained("engine_distance")
    def _fit(self, keys: Sequence[Key], own: Sequence[Tensor] | None, data: Any) -> str:
        asked, found = self._asked, self._found
        engine, masks = rows_of(data, "rollout_log_probs"), rows_of(data, "response_mask")
        if asked is None or found is None or own is None or engine is None or masks is None:
            return ""
        numbers = {key: number for number, key in enumerate(keys[:ROWS])}
        if not all(key in numbers for key in asked.samples):
            return ""
        rows = [
            pad_sequence([row[: len(of)].float() for of, row in zip(own[:ROWS], field, strict=False)], batch_first=True)
            for field in (own, engine, masks)
        ]
        places = torch.tensor([numbers[key] for key in asked.samples]), torch.tensor(asked.columns)
        result = explained(rows[0], rows[1], rows[2].bool(), _Known(places, (found[0], found[1].cpu())))
        return closest(result.names, result.distances.tolist())


def _asked_of(data: Any) -> _Asked | None:
    """The first tokens of the samples of a micro-batch; None where it does not say enough of them."""
    keys, responses = keys_of(data), rows_of(data, "responses")
    temperature, whole = data["temperature"], data["input_ids"]
    # Only where an engine gives log-probs there is something to explain.
    given = "rollout_log_probs" in data.keys()  # noqa: SIM118 - a TensorDict iterates over its rows
    if keys is None or responses is None or not given or not whole.is_nested or isinstance(temperature, torch.Tensor):
        return None
    starts, values = whole.offsets().tolist(), whole.values()
    rows = min(len(keys), TOKENS)
    grid = [(row, column) for column in range(math.ceil(TOKENS / rows)) for row in range(rows)]
    grid = [(row, column) for row, column in grid if column < len(responses[row])]
    first = [starts[row + 1] - starts[row] - len(responses[row]) - 1 for row in range(rows)]
    packed = [starts[row] + first[row] + column for row, column in grid]
    return _Asked(
        samples=tuple(keys[row] for row, _ in grid),
        columns=tuple(column for _, column in grid),
        rows=tuple(row for row, _ in grid),
        positions=tuple(first[row] + column for row, column in grid),
        packed=tuple(packed),
        tokens=tuple(values[place + 1].item() for place in packed),
        temperature=float(temperature),
    )
