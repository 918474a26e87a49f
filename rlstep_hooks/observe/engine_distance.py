"""What explains that an engine's log-probs are not the trainer's: documented causes are computed, and the one that fits is named.

The trainer's own logits of a few tokens are kept when it scores a rollout. From them follow the log-probs at another temperature, of a
truncated distribution, or of rounded logits. Two more causes need no logits: log-probs that were rounded, and log-probs that
belong to other tokens.

Sources: vLLM 0.32, `v1/sample/sampler.py` and `v1/sample/ops/topk_topp_sampler.py` (`logprobs_mode`: raw log-probs are those before
temperature and truncation, processed ones those after), `v1/sample/logits_processor/builtin.py` (min_p).
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, Protocol

import msgspec
import torch
from torch import Tensor

from rlstep_hooks.observe.explained_distance import BY_CHANCE, participation

if TYPE_CHECKING:
    from rlstep_hooks.observe.guard import Guard

TOKENS = 16
"""Tokens of a rollout whose logits are kept: 16 rows of a vocabulary of 150 000 are 10 MB."""
ENOUGH_TOKENS = 6
"""Counted ones among them from which a cause is named."""
SHARE = 0.03
"""A cause is named if it leaves at most this share of the distance, and of what the engine's log-probs differ among each other: where
they are all alike, one number is explained by many causes."""
TEMPERATURES = tuple(step / 20 for step in range(2, 41))
TOP_K = (1, 5, 10, 20, 40, 50, 64, 100, 200)
TOP_P = (0.5, 0.6, 0.7, 0.8, 0.85, 0.9, 0.95, 0.98, 0.99)
MIN_P = (0.01, 0.02, 0.05, 0.1, 0.2)
ROWS, COLUMNS = 64, 64
"""Samples and tokens that are searched for log-probs in another place."""


class KeptLogits:
    """Logits of a few completion tokens, kept while a trainer scores a rollout.

    Args:
        temperature: The trainer's, by which it divides logits.
        guard: Keeps errors of this class away from the trainer's forward.
    """

    def __init__(self, temperature: float, guard: Guard) -> None:
        self._temperature = temperature
        self._guard = guard
        self.places: tuple[Tensor, Tensor] | None = None
        """Row and column of each kept token among the completion's (B, T); None until something was kept."""
        self._logits: Tensor | None = None
        self._tokens: Tensor | None = None
        self._handle: Any = None

    def begin(self, model: Any, tokens: Tensor, length: int) -> None:
        """Keep logits of the next forward.

        The output of the model's layers is read, and a few rows of it are multiplied by the last layer's weights: TRL 1.16 computes
        log-probs from there in pieces (utils.py:1548 `add_fused_lm_head`), and no logits are ever returned.

        Args:
            model: A transformers model, or PEFT's wrapper of one.
            tokens: (B, L), what is scored.
            length: T, how many of the last ones are the completion.
        """
        model = model.get_base_model() if hasattr(model, "get_base_model") else model
        head, layers = model.get_output_embeddings(), getattr(model, "base_model", None)
        weight = getattr(head, "weight", None)
        # A compiled model would be compiled again for a hook; sharded weights are not all here.
        whole = type(weight) in (Tensor, torch.nn.Parameter) and weight is not None and weight.dim() == 2
        if layers is None or layers is model or not whole or hasattr(model, "_orig_mod"):
            return

        def see(module: Any, inputs: Any, output: Any) -> None:
            self.end()
            with self._guard, torch.no_grad():
                self._keep(output.last_hidden_state, head, tokens, length)

        self._handle = layers.register_forward_hook(see)

    def end(self) -> None:
        """Keep nothing more."""
        if self._handle is not None:
            self._handle.remove()
            self._handle = None

    def _keep(self, hidden: Tensor, head: Any, tokens: Tensor, length: int) -> None:
        """Keep the first tokens of each row. Position t of (B, L, H) is for token t + 1."""
        if hidden.shape[1] != tokens.shape[1] or hidden.shape[-1] != head.weight.shape[1]:
            return
        rows = min(hidden.shape[0], TOKENS)
        columns = min(length, math.ceil(TOKENS / rows))
        grid = torch.arange(rows * columns, device=hidden.device)
        row, column = grid % rows, grid // rows
        few = hidden.detach()[row, hidden.shape[1] - 1 - length + column].to(head.weight.dtype)
        self._logits = torch.nn.functional.linear(few, head.weight, head.bias).float()
        self._tokens = tokens[:, -length:][row, column]
        self.places = (row, column)

    def alternatives(self) -> tuple[tuple[str, ...], Tensor]:
        """Names of causes, the first "" for the trainer's own log-probs, and what they make of each kept token's log-prob, (C, N)."""
        if self._logits is None or self._tokens is None:
            raise ValueError("no logits were kept")
        return alternatives(self._logits, self._tokens, self._temperature)


def alternatives(logits: Tensor, tokens: Tensor, temperature: float) -> tuple[tuple[str, ...], Tensor]:
    """Log-probs of tokens by other calculations.

    Args:
        logits: (N, V), before the temperature.
        tokens: (N,).
        temperature: The trainer's.

    Returns:
        The names of the C calculations, the first "" for the trainer's own, and the log-probs, (C, N).
    """
    index = tokens.unsqueeze(1)

    def at(values: Tensor, divisor: float) -> Tensor:
        return (values / divisor).log_softmax(1).gather(1, index).squeeze(1)

    own = at(logits, temperature)
    found = {"": own}
    others = sorted({1.0, temperature**2, *TEMPERATURES} - {temperature})
    found |= {f"temperature {value:g}": at(logits, value) for value in others}
    chances = (logits / temperature).softmax(1).sort(1, descending=True).values
    mass = chances.cumsum(1)
    for k in TOP_K:
        if k < mass.shape[1]:
            found[f"top_k {k}"] = own - mass[:, k - 1].log()
    for p in TOP_P:
        last = (mass < p).sum(1, keepdim=True).clamp(max=mass.shape[1] - 1)
        found[f"top_p {p:g}"] = own - mass.gather(1, last).squeeze(1).log()
    for p in MIN_P:
        found[f"min_p {p:g}"] = own - (chances * (chances >= p * chances[:, :1])).sum(1).log()
    for kind, name in ((torch.bfloat16, "bfloat16"), (torch.float16, "float16")):
        found[f"logits in {name}"] = at(logits.to(kind).float(), temperature)
        found[f"log-probs in {name}"] = own.to(kind).float()
    return tuple(found), torch.stack(list(found.values()))


class Explained(msgspec.Struct, frozen=True):
    """How far an engine's log-probs are from what each cause would give."""

    names: tuple[str, ...]
    """Causes; "=" stands for what those after it have to explain: the distance, or the spread of the engine's log-probs where that is
    less."""
    distances: Tensor
    """Mean |cause - engine|, (C,); NaN where there are not enough tokens."""


class Kept(Protocol):
    """Tokens whose logits were kept."""

    @property
    def places(self) -> tuple[Tensor, Tensor] | None:
        """Row and column of each among the completion's (B, T); None until something was kept."""

    def alternatives(self) -> tuple[tuple[str, ...], Tensor]:
        """Names of causes, the first "" for the trainer's own log-probs, and what they make of each log-prob, (C, N)."""


def explained(own: Tensor, engine: Tensor, mask: Tensor, kept: Kept | None) -> Explained:
    """Compare an engine's log-probs with every cause.

    Args:
        own: (B, T), the trainer's.
        engine: (B, T).
        mask: (B, T), 1 on tokens that count.
        kept: Logits of some of the tokens; None if none were kept.
    """
    names, distances = _displaced(own[:ROWS, :COLUMNS], engine[:ROWS, :COLUMNS], mask[:ROWS, :COLUMNS].bool())
    if kept is not None and kept.places is not None:
        of_logits, values = kept.alternatives()
        theirs, counted = engine[kept.places].float(), mask[kept.places].bool()
        off = torch.where(counted, (values - theirs).abs().nan_to_num(nan=0.0, posinf=1e4), 0.0).sum(1) / counted.sum()
        # Where the kept logits do not give the trainer's own log-probs (a cap on logits after the last layer), they explain nothing.
        other = torch.where(counted, (values[0] - own[kept.places].float()).abs(), 0.0).sum() / counted.sum()
        off = torch.where((other <= SHARE * off[0]) & (counted.sum() >= ENOUGH_TOKENS), off, torch.nan)
        off[0] = torch.minimum(off[0], _spread(theirs, counted))
        # The nearest of forty temperatures, or of ten bounds, meets any one number.
        numbers = participation(torch.where(counted, values[0] - theirs, 0.0).nan_to_num()) - 1
        off[1:] = torch.where((off[1:] / off[0]) ** numbers <= BY_CHANCE, off[1:], torch.nan)
        names, distances = (*names, "=", *of_logits[1:]), torch.cat([distances, off])
    return Explained(names, distances)


def _displaced(own: Tensor, engine: Tensor, mask: Tensor) -> tuple[tuple[str, ...], Tensor]:
    """Causes by which log-probs stand in another place: of a neighbouring token, or of another sample."""
    own, engine = own.float(), engine.float().nan_to_num()

    def apart(left: Tensor, right: Tensor, where: Tensor) -> Tensor:
        return torch.where(where, (left - right).abs(), 0.0).sum() / where.sum()

    def to_explain(own: Tensor, engine: Tensor, where: Tensor) -> Tensor:
        return torch.minimum(apart(own, engine, where), _spread(engine, where))

    whole = to_explain(own, engine, mask)
    found = {"=": whole}
    if own.shape[1] > 1:
        both = mask[:, 1:] & mask[:, :-1]
        later, earlier = slice(1, None), slice(None, -1)
        for words, theirs, ours in (("before", later, earlier), ("after", earlier, later)):
            # A cause that says nothing of a row's first or last token explains no distance that is there.
            share = apart(own[:, ours], engine[:, theirs], both) / to_explain(own[:, theirs], engine[:, theirs], both)
            numbers = participation(torch.where(both, own[:, theirs] - engine[:, theirs], 0.0).flatten())
            explains = share**numbers <= BY_CHANCE
            found[f"at each token that of the token {words} it"] = torch.where(explains, share * whole, torch.inf)
    if own.shape[0] > 1:
        # (B, B): row i of the engine's against row j of the trainer's, over tokens that both have.
        both = mask.unsqueeze(1) & mask.unsqueeze(0)
        count = both.sum(2)
        gaps = torch.where(both, (engine.unsqueeze(1) - own.unsqueeze(0)).abs(), 0.0).sum(2) / count
        gaps = torch.where(count >= ENOUGH_TOKENS, gaps, torch.inf)
        found["those of other samples of the rollout"] = gaps.amin(1).mean()
    return tuple(found), torch.stack(list(found.values()))


def _spread(values: Tensor, mask: Tensor) -> Tensor:
    """Mean distance of the counted values from their mean."""
    mean = torch.where(mask, values, 0.0).sum() / mask.sum()
    return torch.where(mask, (values - mean).abs(), 0.0).nan_to_num().sum() / mask.sum()


def closest(names: tuple[str, ...], distances: list[float]) -> str:
    """The cause that leaves the smallest share of the distance, if it leaves no more than `SHARE` of it; else empty."""
    best, least, base = "", SHARE, math.nan
    for name, distance in zip(names, distances, strict=True):
        if name == "=":
            base = distance
        elif base > 0 and distance / base < least:
            best, least = name, distance / base
    return best
