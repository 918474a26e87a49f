"""The gradient of a few log-probs, and of the entropies beside them, on its way to the output of a model's layers.

Between the two stand the last layer, the temperature and the log-softmax, often as one fused kernel with a backward of its own. What
arrives at the layers' output is the gradient at each log-prob times the derivative of that log-prob, which a plain log-softmax of the
same numbers gives. Shapes: B samples, L tokens of prompt and completion, T of the completion, K followed tokens, H numbers of a token.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import msgspec
import torch
from torch import Tensor

from rlstep_hooks.observe.own_graph import own_graph

if TYPE_CHECKING:
    from rlstep_hooks.observe.guard import Guard

TOKENS = 16
"""Tokens that are followed: 16 rows of a vocabulary of 150 000 are 10 MB."""
_GOLDEN = 0.618
"""The share of a completion by which the followed places move from one call to the next."""


class HeadGradient(msgspec.Struct):
    """Followed tokens of one micro-batch."""

    row: Tensor
    """(K,), the sample of each followed token."""
    column: Tensor
    """(K,), the place of each followed token in its completion."""
    derivative: Tensor
    """(K, H), of each log-prob at the output of the layers."""
    size: Tensor
    """(K,), the size of what the derivative is added up from."""
    log_probs: Tensor
    """(K,), by a plain log-softmax."""
    vocabulary: int
    entropies: tuple[Tensor, Tensor] | None = None
    """(K, H), the derivative of the entropy of each place, and (K,), the size of what that is added up from; None where no loss
    teaches entropies."""
    understood: Tensor | None = None
    """(): the largest distance of the log-probs from those of the forward, over the largest from those of a uniform distribution,
    because every scale of nearly uniform ones gives nearly the same. None as long as those of the forward are not known."""
    arrived: Tensor | None = None
    """(K, H), gradients at the output of the layers; None until the backward pass is over."""

    def numbers(self, at_log_probs: Tensor, at_loss: Tensor, at_entropies: Tensor | None = None) -> dict[str, Tensor]:
        """The largest distance of a gradient from the expected one, over the size of the largest, and `understood`.

        Args:
            at_log_probs: (B, T), gradients of the loss at the log-probs.
            at_loss: (), the gradient that arrived at the loss, by which those at the layers are multiplied.
            at_entropies: (B, T), gradients of the loss at the entropies; None where it teaches none.

        Returns:
            `head_gap` and `head_understood`, each () float32; empty if no gradient arrived.
        """
        if self.arrived is None or self.understood is None:
            return {}
        weights = at_log_probs[self.row, self.column].float()
        expected, sizes = weights.unsqueeze(1) * self.derivative, weights.abs() * self.size
        if at_entropies is not None:
            if self.entropies is None:
                return {}
            of_entropies, (derivative, size) = at_entropies[self.row, self.column].float(), self.entropies
            expected, sizes = expected + of_entropies.unsqueeze(1) * derivative, sizes + of_entropies.abs() * size
        distances = (self.arrived / at_loss - expected).norm(dim=1)
        largest = sizes.amax()
        return {
            "head_gap": torch.where(largest > 0, distances.amax() / largest, 0.0),
            "head_understood": self.understood.float(),
        }


class HeadWatch:
    """Follows some tokens of a forward pass whose log-probs are trained.

    Args:
        temperature: The number that logits are divided by.
        guard: Keeps errors of this class away from the forward and the backward pass.
        entropies: Whether the loss may teach the entropies of the distributions too.
    """

    def __init__(self, temperature: float, guard: Guard, *, entropies: bool = False) -> None:
        self._temperature = temperature
        self._entropies = entropies
        self._guard = guard
        self._calls = 0
        self._handle: Any = None
        self._followed: HeadGradient | None = None
        self.autocast: str | None = None
        """The dtype of autocast in the latest of these forwards, "no" where there was none; None before the first one."""

    def begin(self, model: Any, tokens: Tensor, attention: Tensor, length: int) -> None:
        """Follow tokens of the next forward.

        Args:
            model: A transformers model, or PEFT's wrapper of one.
            tokens: (B, L), what is scored.
            attention: (B, L), 1 on real tokens.
            length: T.
        """
        self.end()
        self._followed = None
        model = model.get_base_model() if hasattr(model, "get_base_model") else model
        head, layers = model.get_output_embeddings(), getattr(model, "base_model", None)
        compiled = _is_compiled(model) or _is_compiled(layers)
        if layers is None or layers is model or compiled or _caps_logits(model):
            return

        def see(module: Any, inputs: Any, output: Any) -> None:
            self.end()
            with self._guard:
                self.autocast = autocast_on(tokens.device.type)
                # Where weights are sharded it is whole by now if it is gathered with the model, as FSDP does (a root group), and not if
                # it is gathered for its own forward alone, as ZeRO-3 does.
                if _is_plain(head):
                    self._follow(output.last_hidden_state, head, tokens, attention, length)

        self._handle = layers.register_forward_hook(see)

    def end(self) -> None:
        """Follow nothing more."""
        if self._handle is not None:
            self._handle.remove()
            self._handle = None

    def take(self, log_probs: Tensor) -> HeadGradient | None:
        """What was followed since `begin`, with the log-probs of the same forward, (B, T); None if nothing was."""
        followed, self._followed = self._followed, None
        if followed is not None:
            scored = log_probs.detach()[followed.row, followed.column].float()
            spread = (followed.log_probs + math.log(followed.vocabulary)).abs().amax()
            followed.understood = (scored - followed.log_probs).abs().amax() / spread
        return followed

    def _follow(self, hidden: Tensor, head: Any, tokens: Tensor, attention: Tensor, length: int) -> None:
        if hidden.shape[1] != tokens.shape[1] or not hidden.requires_grad:
            return
        rows = min(hidden.shape[0], TOKENS)
        columns = min(length, -(-TOKENS // rows))
        grid = torch.arange(rows * columns, device=hidden.device)
        row = grid % rows
        share = ((grid // rows) / columns + self._calls * _GOLDEN) % 1
        self._calls += 1
        counted = attention[:, -length:].sum(1).clamp(min=1)[row]
        column = torch.minimum((share * counted).long(), counted - 1)
        place = hidden.shape[1] - 1 - length + column  # position t is for token t + 1
        chosen = tokens[:, -length:][row, column].unsqueeze(1)
        with own_graph():
            few = hidden.detach()[row, place].to(head.weight.dtype).requires_grad_()
            bias = None if head.bias is None else head.bias.detach()
            logits = torch.nn.functional.linear(few, head.weight.detach(), bias).float() / self._temperature
            every = torch.log_softmax(logits, -1)
            log_probs = every.gather(1, chosen).squeeze(1)
            (derivative,) = torch.autograd.grad(log_probs.sum(), few, retain_graph=self._entropies)
            size = head.weight.detach()[chosen.squeeze(1)].float().norm(dim=1) / self._temperature
            of_entropies = None
            if self._entropies:
                entropies = -(every.exp() * every).sum(1)
                (of_each,) = torch.autograd.grad(entropies.sum(), few)
                of_entropies = of_each.float(), size * entropies.detach()
        followed = HeadGradient(
            row, column, derivative.float(), size, log_probs.detach(), logits.shape[-1], of_entropies
        )

        def arrives(gradient: Tensor) -> None:
            with self._guard:
                followed.arrived = gradient.detach()[row, place].float()

        hidden.register_hook(arrives)
        self._followed = followed


def autocast_on(device: str) -> str:
    """The dtype of autocast where this is called, such as "bfloat16"; "no" where none is on.

    Args:
        device: The kind of device.
    """
    if not torch.amp.is_autocast_available(device) or not torch.is_autocast_enabled(device):
        return "no"
    return str(torch.get_autocast_dtype(device)).removeprefix("torch.")


def _is_plain(head: Any) -> bool:
    """Whether a last layer is a matrix that is whole on this process, without an adapter. FSDP2 gives it a class of its own, which
    computes as torch's does (torch/distributed/fsdp/_fully_shard/_fully_shard.py 2.13.0, `FSDPModule`)."""
    linear = isinstance(head, torch.nn.Linear) and type(head).forward is torch.nn.Linear.forward
    return linear and type(head.weight) in (Tensor, torch.nn.Parameter) and head.weight.dim() == 2


def _is_compiled(module: Any) -> bool:
    """Whether a module would be compiled again for a hook."""
    return hasattr(module, "_orig_mod") or getattr(module, "_compiled_call_impl", None) is not None


def _caps_logits(model: Any) -> bool:
    """Whether logits are bent after the last layer. Small ones nearly keep their values, and so their log-probs, and not their
    gradients.

    transformers 5.23, Gemma2ForCausalLM.forward and its like.
    """
    config = model.config.get_text_config() if hasattr(model.config, "get_text_config") else model.config
    return bool(getattr(config, "final_logit_softcapping", None))
