"""Rows of a training batch that are scored again alone: no padding, no neighbours, no chunks.

Nothing of the host changes: no gradient, no training mode, no random state, no autocast. What may explain a distance from the clean
log-probs is computed only where one is beyond rounding. Shapes: P prompt tokens with padding, C completion tokens of one row.
"""

from __future__ import annotations

import random
import warnings
from contextlib import contextmanager
from itertools import chain
from typing import TYPE_CHECKING, Any, Protocol

import msgspec
import torch
from torch import Tensor
from torch.distributed.fsdp import FSDPModule

from rlstep_hooks.observe.explained_distance import cause_of
from rlstep_hooks.observe.token_distances import outside
from rlstep_hooks.observe.token_log_probs import token_log_probs

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

AT_ONCE = 1024
"""Tokens whose logits are made in float32 at a time: those of 150 000 words take 0.6 GB."""
NEIGHBOURS = 4
"""Rows before and after one that may have been read together with it."""


PADDING_ATTENDED = "attention mask: the padding before the prompt is attended to"
"""What gives log-probs that are those of a row behind its own padding."""


class Row(msgspec.Struct, frozen=True):
    """One row as the framework holds it, padded, and without its padding."""

    padded: Tensor
    """(P + length,), prompt and completion with padding."""
    places: Tensor
    """(L,), the places of its real tokens in that."""
    length: int
    """C, real tokens of the completion."""
    prompt: int
    """P."""

    @property
    def tokens(self) -> Tensor:
        """(L,), its real tokens."""
        return self.padded[self.places]

    @property
    def left(self) -> int:
        """Real tokens of the prompt."""
        return int(self.places.numel()) - self.length


def row_of(prompt: Tensor, prompt_mask: Tensor, completion: Tensor, completion_mask: Tensor) -> Row:
    """One row from what a framework hands to its loss, each of one dimension."""
    mask = torch.cat([prompt_mask, completion_mask]).bool()
    length = int(completion_mask.bool().sum())
    return Row(torch.cat([prompt, completion]), mask.nonzero().squeeze(1), length, int(prompt.numel()))


class CleanGap(msgspec.Struct, frozen=True):
    """How far what training computed for one row is from the clean log-probs."""

    mean: float
    """The mean of |distance| over the tokens, in nats."""
    largest: float
    near_largest: float
    """The 99th percentile."""
    outside: float
    """The share of tokens whose ratio to the clean probability is outside of [0.9, 1.1]."""
    like: str = ""
    """What else gives these log-probs; empty where nothing does that was tried."""


def gap_of(
    clean: Tensor, observed: Tensor, tolerance: float, alternatives: Callable[[], Iterable[tuple[str, Tensor]]]
) -> CleanGap:
    """Compare what training computed for one row with its clean log-probs; waits for the device.

    Args:
        clean: (C,).
        observed: (C,), what training computed.
        tolerance: Mean distance that rounding explains.
        alternatives: Gives log-probs (C,) of the row under mistakes, nan where one says nothing, with what each is.
    """
    observed = observed.detach().float()
    signed = observed - clean
    distance = signed.abs()
    off = outside(signed).float().mean()
    numbers = torch.stack([distance.mean(), distance.amax(), distance.quantile(0.99), off])
    mean, largest, near_largest, share = numbers.tolist()
    like = "" if mean <= tolerance else cause_of(observed, clean, alternatives(), tolerance)
    return CleanGap(mean, largest, near_largest, share, like)


class Forward(Protocol):
    """A model's forward of tokens that stand alone, in two steps: logits are made only of the positions that are wanted."""

    def outputs(self, tokens: Tensor, positions: Tensor | None = None) -> Tensor:
        """(L, ...), what the logits of each position follow from.

        Args:
            tokens: (L,).
            positions: (L,), position ids; 0, 1, ... where left out.
        """

    def logits(self, outputs: Tensor) -> Tensor:
        """(N, V), the logits of some positions, of which `outputs` are given."""


class LayersAndHead:
    """A transformers model, or PEFT's wrapper of one, through its layers and its head, past what wraps the whole model.

    Args:
        model: The model, unwrapped from what trains it.
        autocast: Gives the context that training's forwards run in.
    """

    def __init__(self, model: Any, autocast: Callable[[], Any]) -> None:
        base = model.get_base_model() if hasattr(model, "get_base_model") else model
        self._layers = base.base_model
        self._head = base.get_output_embeddings()
        self._autocast = autocast

    def outputs(self, tokens: Tensor, positions: Tensor | None = None) -> Tensor:
        """(L, H), the output of the layers."""
        given = {} if positions is None else {"position_ids": positions.unsqueeze(0)}
        # A mask of ones is said: without one, layers read position ids that begin again as several packed rows.
        ones = torch.ones_like(tokens).unsqueeze(0)
        with unseen(tokens.device, self._autocast):
            output = self._layers(input_ids=tokens.unsqueeze(0), attention_mask=ones, use_cache=False, **given)
        hidden: Tensor = output.last_hidden_state[0]
        return _one_each(hidden, tokens)

    def logits(self, outputs: Tensor) -> Tensor:
        """(N, V), the head's."""
        with torch.no_grad(), self._autocast():
            logits: Tensor = self._head(outputs.to(self._head.weight.dtype))
        return logits


class WholeModel:
    """A model with all that wraps it: where weights are shared out, its parts cannot be called by themselves.

    Args:
        model: What training calls.
        autocast: Gives the context that training's forwards run in.
        packs: Whether training packs rows without an attention mask, so that position ids say where a row begins.
    """

    def __init__(self, model: Any, autocast: Callable[[], Any], *, packs: bool) -> None:
        self._model = model
        self._autocast = autocast
        self._packs = packs

    def outputs(self, tokens: Tensor, positions: Tensor | None = None) -> Tensor:
        """(L, V), the logits."""
        places = torch.arange(tokens.numel(), device=tokens.device) if positions is None else positions
        mask = None if self._packs else torch.ones_like(tokens).unsqueeze(0)
        with unseen(tokens.device, self._autocast):
            output = self._model(
                input_ids=tokens.unsqueeze(0), attention_mask=mask, position_ids=places.unsqueeze(0), use_cache=False
            )
        logits: Tensor = output.logits[0]
        return _one_each(logits, tokens)

    def logits(self, outputs: Tensor) -> Tensor:
        """(N, V), as they are."""
        return outputs


def _one_each(outputs: Tensor, tokens: Tensor) -> Tensor:
    if outputs.shape[0] != tokens.shape[0]:
        raise ValueError(f"{outputs.shape[0]} outputs of the model for {tokens.shape[0]} tokens")
    return outputs


@contextmanager
def unseen(device: torch.device, autocast: Callable[[], Any]) -> Iterator[None]:
    """A forward that leaves nothing behind: no gradient, no random number, no warning."""
    devices = [device] if device.type == "cuda" else []
    state = random.getstate()
    try:
        with torch.random.fork_rng(devices), torch.no_grad(), autocast(), warnings.catch_warnings():
            warnings.simplefilter("ignore")  # reentrant gradient checkpointing warns where nothing needs a gradient
            yield
    finally:
        random.setstate(state)


def fields_of(found: Sequence[tuple[str, CleanGap]]) -> dict[str, Any]:
    """The fields of an event about clean log-probs: of the farthest of some comparisons, each with what was compared."""
    of, gap = max(found, key=lambda one: one[1].mean)
    return {
        "clean_gap": gap.mean,
        "max_clean_gap": gap.largest,
        "clean_gap_99": gap.near_largest,
        "clean_outside": gap.outside,
        "clean_of": of,
        "clean_like": gap.like,
    }


class CleanForward:
    """Scores rows alone.

    Args:
        forward: The model's.
        temperature: By which logits are divided.
    """

    def __init__(self, forward: Forward, temperature: float) -> None:
        self._forward = forward
        self._temperature = temperature

    def score(self, row: Row) -> Tensor:
        """(C,) float32, the clean log-probs of a row's completion."""
        return self._scored(self._forward.outputs(row.tokens), row.tokens, row.length)

    def score_with_entropies(self, row: Row) -> tuple[Tensor, Tensor]:
        """(C,) float32 each, the clean log-probs of a row's completion, and the entropies of what its tokens are drawn from."""
        outputs, tokens, length = self._forward.outputs(row.tokens), row.tokens, row.length
        # All log-probs of a position are there at once, twice in float32.
        entropies = [self._entropies(part) for part in outputs[-length - 1 : -1].split(AT_ONCE // 4)]
        return self._scored(outputs, tokens, length), torch.cat(entropies)

    def compare(
        self,
        row: Row,
        clean: Tensor,
        observed: Tensor,
        tolerance: float,
        neighbours: list[Row],
        more: Callable[[], Iterable[tuple[str, Tensor]]] = tuple,
    ) -> CleanGap:
        """Compare what training computed with the clean log-probs; waits for the device.

        Args:
            row: The row.
            clean: (C,), by `score`.
            observed: (C,), what training computed.
            tolerance: Mean distance that rounding explains.
            neighbours: Other rows of the batch, nearest first.
            more: Gives log-probs (C,) of the row under further mistakes, with what each is.
        """
        return gap_of(clean, observed, tolerance, lambda: chain(more(), self._alternatives(row, neighbours)))

    def _alternatives(self, row: Row, neighbours: list[Row]) -> Iterator[tuple[str, Tensor]]:
        """Log-probs (C,) of the same row under mistakes, nan where one says nothing, with what each is."""
        tokens, length = row.tokens, row.length
        yield from self.of_outputs(self._forward.outputs(tokens), row)
        for words, positions in self._positions(row):
            yield f"position ids: {words}", self._scored(self._forward.outputs(tokens, positions), tokens, length)
        yield from self._padded(row)
        for neighbour in neighbours[:NEIGHBOURS]:
            together = torch.cat([neighbour.tokens, tokens])
            yield (
                "a neighbour: the row is read after another row of the batch",
                self._scored(self._forward.outputs(together), together, length),
            )
            each = [torch.arange(of.numel(), device=of.device) for of in (neighbour.tokens, tokens)]
            yield (
                "a neighbour: the row is read after another row of the batch, with position ids of its own",
                self._scored(self._forward.outputs(together, torch.cat(each)), together, length),
            )
        device = tokens.device.type
        with torch.autocast(device, dtype=torch.bfloat16):
            yield "autocast: bfloat16", self._scored(self._forward.outputs(tokens), tokens, length)

    def of_outputs(self, outputs: Tensor, row: Row) -> Iterator[tuple[str, Tensor]]:
        """Log-probs (C,) of a row under mistakes behind its forward, nan where one says nothing, with what each is.

        Args:
            outputs: (L, ...), what the forward of the row alone gave.
            row: The row.
        """
        tokens, length, temperature = row.tokens, row.length, self._temperature
        clean = self._scored(outputs, tokens, length)
        if temperature != 1.0:
            yield "temperature: not applied", self._scored(outputs, tokens, length, 1.0)
            yield "temperature: applied twice", self._scored(outputs, tokens, length, temperature**2)
        nothing = torch.full_like(clean[:1], torch.nan)
        if length > 1:
            yield (
                "chunk of the head: each token has the log-prob of the one before it",
                torch.cat([nothing, clean[:-1]]),
            )
            yield "chunk of the head: each token has the log-prob of the one after it", torch.cat([clean[1:], nothing])
            yield (
                "chunk of the head: each token is scored one position too late",
                self._log_probs(outputs[-length:], tokens[-length:], temperature),
            )
            moved = outputs[-length - 2 : -2]
            if moved.shape[0] == length:
                yield (
                    "chunk of the head: each token is scored one position too early",
                    self._log_probs(moved, tokens[-length:], temperature),
                )

    @staticmethod
    def _positions(row: Row) -> Iterator[tuple[str, Tensor]]:
        count, left = row.places.numel(), row.left
        plain = torch.arange(count, device=row.places.device)
        yield "they begin at 1", plain + 1
        if not torch.equal(row.places, plain):
            yield "they count the padding", row.places
        if left:
            yield "they begin again at the completion", torch.cat([plain[:left], plain[: count - left]])
            yield "the completion is one place too far", torch.cat([plain[:left], plain[left:] + 1])
        if row.prompt > left > 0:
            apart = torch.cat([plain[:left], row.prompt + plain[: count - left]])
            yield "padding stands between prompt and completion (padding side)", apart
        yield "all of them 0", torch.zeros_like(plain)

    def _padded(self, row: Row) -> Iterator[tuple[str, Tensor]]:
        if row.prompt == row.left or not row.left:
            return
        whole = row.padded[: row.prompt + row.length]
        yield (
            PADDING_ATTENDED,
            self._scored(self._forward.outputs(whole), whole, row.length),
        )
        padding = row.prompt - row.left
        turned = torch.cat([whole[padding : row.prompt], whole[:padding], whole[row.prompt :]])
        yield (
            "padding side: padding between prompt and completion is attended to",
            self._scored(self._forward.outputs(turned), turned, row.length),
        )

    def score_outputs(self, outputs: Tensor, row: Row) -> Tensor:
        """(C,) float32, the log-probs of a row's completion by outputs that end with those of the row."""
        return self._scored(outputs, row.tokens, row.length)

    def _scored(self, outputs: Tensor, tokens: Tensor, length: int, temperature: float | None = None) -> Tensor:
        return self._log_probs(outputs[-length - 1 : -1], tokens[-length:], temperature or self._temperature)

    def _entropies(self, outputs: Tensor) -> Tensor:
        """(N,) float32, from what the logits of N positions follow from."""
        logits = self._forward.logits(outputs).float() / self._temperature
        return torch.special.entr(logits.softmax(-1)).sum(-1)

    def _log_probs(self, outputs: Tensor, tokens: Tensor, temperature: float) -> Tensor:
        """(N,) float32, the log-probs of tokens, from what the logits before each follow from."""
        pieces = zip(outputs.split(AT_ONCE), tokens.split(AT_ONCE), strict=True)
        return torch.cat([token_log_probs(self._forward.logits(o).float() / temperature, t) for o, t in pieces])


def why_not_alone(model: Any) -> str:
    """Why a model's rows cannot be scored alone through its layers and its head; empty where they can."""
    base = model.get_base_model() if hasattr(model, "get_base_model") else model
    if why := why_not_with_head(model, base.get_output_embeddings()):
        return why
    config = _text_config(base)
    # transformers 5.23: Gemma 2 and its like cap logits, Cohere's and Granite's scale them, after the head.
    if any(getattr(config, name, None) for name in ("final_logit_softcapping", "logit_scale", "logits_scaling")):
        return "the model changes its logits after the head"
    return ""


def why_not_with_head(model: Any, head: Any, *also: str) -> str:
    """Why a model's rows cannot go through its layers and this head of it alone; empty where they can.

    Args:
        model: The model.
        head: The head.
        also: As of `why_not_at_all`.
    """
    base = model.get_base_model() if hasattr(model, "get_base_model") else model
    layers = getattr(base, "base_model", None)
    if why := why_not_at_all(model, *also):
        return why
    if layers is None or layers is base or not isinstance(head, torch.nn.Linear):
        return "the model's layers and its head are not apart"
    return "" if type(head).forward is torch.nn.Linear.forward else "the head is no plain matrix"


def why_not_at_all(model: Any, *also: str) -> str:
    """Why a model's rows cannot be scored alone in any way; empty where they can.

    Args:
        model: The model.
        also: Beginnings of modules whose classes are known as transformers' are.
    """
    settings = getattr(model, "active_peft_config", None)
    if getattr(settings, "is_prompt_learning", False):
        return "the adapter puts virtual tokens before each row"
    base = model.get_base_model() if hasattr(model, "get_base_model") else model
    kind = type(base)
    if (
        kind.__mro__[1] is FSDPModule
    ):  # FSDP2 makes a class from that of the model (torch 2.13.0 _fully_shard.py `fully_shard`)
        kind = kind.__mro__[2]
    if not kind.__module__.startswith(("transformers.", *also)):
        return "the model's class is not transformers' own, and its forward may keep something"
    compiled = [of for of in base.modules() if hasattr(of, "_orig_mod") or getattr(of, "_compiled_call_impl", None)]
    if compiled:
        return "the model is compiled, and would be compiled again for another length"
    if any(isinstance(of, torch.nn.modules.batchnorm._NormBase) and of.track_running_stats for of in base.modules()):
        return "a forward in training mode would change the model's running statistics"
    config = _text_config(base)
    rope = getattr(config, "rope_parameters", None) or getattr(config, "rope_scaling", None) or {}
    if any(name in str(rope) for name in ("dynamic", "longrope")):
        return "the positions of this model depend on the length of the padded batch"
    return ""


def _text_config(base: Any) -> Any:
    return base.config.get_text_config() if hasattr(base.config, "get_text_config") else base.config


_OWN_HOOKS = ("rlstep_hooks.", "transformers.", "peft.", "accelerate.", "torch.", "deepspeed.")
"""Beginnings of the modules whose forward hooks keep nothing that training reads."""


def hooked_by_others(model: Any, *also: str) -> bool:
    """Whether somebody's own hooks would see a forward of this model: what they keep of it, training might read.

    Args:
        model: The model.
        also: Beginnings of modules of the framework, whose hooks keep nothing either.
    """
    hooks = [
        hook
        for module in model.modules()
        for of in (module._forward_hooks, module._forward_pre_hooks)
        for hook in of.values()
    ]
    return any(not _module_of(hook).startswith((*_OWN_HOOKS, *also)) for hook in hooks)


def _module_of(hook: Any) -> str:
    while hasattr(hook, "func"):  # functools.partial
        hook = hook.func
    return str(getattr(hook, "__module__", None) or type(hook).__module__) + "."
