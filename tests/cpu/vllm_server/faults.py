"""Faults inside a server's engine, switched on by a message to its workers (`--worker-extension-cls vllm_server.faults.Faults`)."""

from __future__ import annotations

from typing import Any


class Faults:
    """Methods that vLLM adds to its worker; `/collective_rpc` calls them by name."""

    model_runner: Any

    def lose_layer(self) -> None:
        """The tensors of one layer get lost before the model sees them.

        Were only a part of a layer's own tensors lost, vLLM would fill the rest of the layer with what is in memory, and compute NaN.
        """
        self._change("", lambda weights: [pair for pair in weights if ".layers.1." not in pair[0]])

    def load_nothing(self) -> None:
        """The model takes all tensors and loads none."""
        self._change("model", lambda weights: list(weights)[:0])

    def load_attention(self) -> None:
        """The model takes all tensors and loads those of attention."""
        self._change("model", lambda weights: [pair for pair in weights if "attn" in pair[0]])

    def keep_old(self) -> None:
        """Each time that the engine wakes up it has the weights that it has now."""
        model = self.model_runner.model
        kept = {name: tensor.clone() for name, tensor in model.named_parameters()}
        step = self.execute_model  # type: ignore[attr-defined]

        def asleep(*args: Any, **kwargs: Any) -> Any:
            # As after a sleep that keeps a copy; the CPU's worker ignores sleep itself.
            self.execute_model = step
            for name, tensor in model.named_parameters():
                tensor.data.copy_(kept[name])
            self.wake_up()  # type: ignore[attr-defined]
            return step(*args, **kwargs)

        self.execute_model = asleep

    def heal(self) -> None:
        """All faults are gone."""
        for of in (self.model_runner.model, self.model_runner.model.model):
            if "own_load_weights" in vars(of):
                of.load_weights = of.own_load_weights
                del of.own_load_weights
        vars(self).pop("execute_model", None)

    def _change(self, of: str, change: Any) -> None:
        model = self.model_runner.model
        changed = getattr(model, of) if of else model
        load = changed.own_load_weights = changed.load_weights
        changed.load_weights = lambda weights: load(change(weights))
