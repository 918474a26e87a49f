"""Where megatron-core keeps gradients and parameters: its own data-parallel wrapper, and the optimizers over it.

Nothing of it is imported: what is looked at stands in the objects that a loop made. Read in megatron-core 0.16.1, and followed there in
training on two ranks of gloo.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from rlstep_hooks.observe.sharding.places import Place, Reduction
from rlstep_hooks.observe.sharding.replicated import first_hook

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from torch import Tensor

_WRAPPER = "megatron.core.distributed.distributed_data_parallel"


def is_wrapper(model: Any) -> bool:
    """Whether this is megatron-core's DistributedDataParallel, whatever classes of the user's own derive from it."""
    return any(kind.__module__ == _WRAPPER for kind in type(model).__mro__)


class WrappedParameter:
    """One trained parameter inside megatron-core's DistributedDataParallel.

    Args:
        name: The name that the unwrapped model has for the parameter.
        tensor: The parameter.
        optimizer: The optimizer of megatron-core that has it; None if this rank's has no part of it.
    """

    def __init__(self, name: str, tensor: Any, optimizer: Any) -> None:
        self.name = name
        self.numel = int(tensor.numel())
        self._tensor = tensor
        self._optimizer = optimizer

    def watch_local(self, see: Callable[[Tensor], None]) -> Callable[[], None]:
        """Do what `ParameterPlaces.watch_local` documents.

        The wrapper adds `param.grad` to `param.main_grad` in a hook of what accumulates the gradient, and starts the reduction there
        (distributed_data_parallel.py 0.16.1:340, 438). Hooks of the parameter itself run before that.
        """
        return first_hook(self._tensor, see)

    def place_of(self, element: int) -> Place | None:
        """Do what `ParameterPlaces.place_of` documents."""
        inner, tensor = self._optimizer, self._tensor
        if inner is None:
            return None
        if not hasattr(inner, "gbuf_ranges"):
            # optimizer.py 0.16.1:685: the float32 copy of a parameter of less precision; else the optimizer has the parameter itself,
            # and `.grad` is set to `.main_grad` before the step (optimizer.py:772, 936).
            return Place(getattr(tensor, "main_param", tensor), element)
        # distrib_optimizer.py 0.16.1:883-908: the range of the parameter that this rank steps, and where its optimizer has it.
        part = inner._get_model_param_range_map(tensor)["param"]
        if not part.start <= element < part.end:
            return None
        group, order = inner.model_param_group_index_map[tensor]
        return Place(inner.optimizer.param_groups[group]["params"][order], element - part.start)


def wrapped(model: Any, optimizer: Any) -> Reduction:
    """How gradients are reduced of a model in megatron-core's DistributedDataParallel.

    Args:
        model: The wrapper.
        optimizer: What `get_megatron_optimizer` gave.
    """
    hidden = _hidden(model, optimizer)
    if hidden:
        return Reduction([], hidden=hidden)
    owners = {id(tensor): inner for inner in optimizers_of(optimizer) for tensor in _stepped_by(inner)}
    fused = {id(of) for of in _fused_weights(model.module)}
    named = [(name, of) for name, of in model.module.named_parameters() if of.requires_grad and id(of) not in fused]
    if not named:
        return Reduction(
            [], hidden="gradients of fused layers are added up by their own kernels (gradient_accumulation_fusion)"
        )
    return Reduction(
        [WrappedParameter(name, of, owners.get(id(of))) for name, of in named],
        # param_and_grad_buffer.py 0.16.1: micro-batches and ranks are added up in the dtype of the buffer that main_grad is a view of.
        reduced_in="float32" if model.ddp_config.grad_reduce_in_fp32 else "",
    )


def optimizers_of(optimizer: Any) -> list[Any]:
    """The optimizers of megatron-core that one of them chains together, or it alone."""
    return list(getattr(optimizer, "chained_optimizers", None) or [optimizer])


def scales(optimizer: Any) -> bool:
    """Whether gradients are divided by a scale of the loss, or its parts clip by limits of their own."""
    inner = optimizers_of(optimizer)
    scaled = any(getattr(each, "grad_scaler", None) is not None for each in inner)
    return scaled or len({each.config.clip_grad for each in inner}) > 1


def limit_of(optimizer: Any) -> float | None:
    """The norm over all ranks to which the optimizer clips; None where it does not (optimizer/clip_grads.py 0.16.1:172)."""
    return optimizers_of(optimizer)[0].config.clip_grad or None


def _stepped_by(inner: Any) -> Iterator[Any]:
    """The model's parameters that an optimizer of megatron-core steps on this rank, wholly or in part."""
    if hasattr(inner, "gbuf_ranges"):
        yield from inner.model_param_group_index_map
        return
    if hasattr(inner, "float16_groups"):
        for group in inner.float16_groups:
            yield from group
    for group in inner.optimizer.param_groups:
        yield from group["params"]


def _fused_weights(module: Any) -> Iterator[Any]:
    """Weights whose gradient a kernel adds to `main_grad` itself: autograd only gets a placeholder (tensor_parallel/layers.py 0.16.1
    `LinearWithGradAccumulationAndAsyncCommunication`, which sets `grad_added_to_main_grad`)."""
    for layer in module.modules():
        if getattr(layer, "gradient_accumulation_fusion", False) and getattr(layer, "weight", None) is not None:
            yield layer.weight


def _hidden(model: Any, optimizer: Any) -> str:
    """Why gradients cannot be followed; empty where they can."""
    from torch import distributed

    config, of_ddp = model.config, model.ddp_config
    if distributed.is_initialized() and model.dp_cp_group.size() != distributed.get_world_size():
        return "with tensor or pipeline parallelism ranks hold different parts of the model, which are not told apart"
    if getattr(config, "calculate_per_token_loss", False):
        return "gradients are divided by the tokens of all ranks (calculate_per_token_loss), and not by the number of ranks"
    if getattr(of_ddp, "num_distributed_optimizer_instances", 1) > 1:
        return "with several instances of the distributed optimizer a part is on several ranks"
    if any(getattr(inner.config, "use_precision_aware_optimizer", False) for inner in optimizers_of(optimizer)):
        return "the precision-aware optimizer has its gradients elsewhere than in .grad"
    return ""
