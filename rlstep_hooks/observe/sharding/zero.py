"""DeepSpeed's ZeRO: where the optimizer of this rank holds a parameter's elements, stage by stage, with and without offload.

What the inner torch optimizer steps on is never the model's parameter, but for ZeRO-0 in float32. Offloading the optimizer moves the
tensors to another device and changes none of the maps. Read in DeepSpeed 0.18.2, 0.18.9 and 0.19.8, and compared with what a real
engine's optimizer holds in 0.19.8 (tests/systems/trl_ranks/test_places.py).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from rlstep_hooks.observe.replicas import Replicated
from rlstep_hooks.observe.sharding.places import Place, Reduction
from rlstep_hooks.observe.sharding.replicated import WholeParameter, first_hook

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from torch import Tensor

    from rlstep_hooks.observe.sharding.places import ParameterPlaces


def wrapped_optimizer(owner: Any) -> Any:
    """The torch optimizer whose step changes the weights: DeepSpeed's own optimizers and accelerate's wrap it as `optimizer`.

    Args:
        owner: The engine or the trainer whose `optimizer` it is.
    """
    optimizer = owner.optimizer
    while hasattr(optimizer, "optimizer"):
        optimizer = optimizer.optimizer
    return optimizer


def zero_stage(engine: Any) -> int:
    """The stage that the engine's configuration has; 0 without ZeRO (runtime/engine.py 0.19.8 `zero_optimization_stage`)."""
    return int(engine.zero_optimization_stage())


def computes_alone(engine: Any) -> bool:
    """Whether a forward of the module inside of an engine is the engine's, and needs no other process: it is whole, none of its
    matrices are split (AutoTP), and no autocast of the engine's own is around its forward (runtime/engine.py 0.19.8:3006)."""
    split = getattr(engine, "autotp_size", int)() > 1 or getattr(engine, "has_moe_layers", False)
    return zero_stage(engine) < 3 and not split and not getattr(engine, "torch_autocast_enabled", bool)()


def why_no_places(engine: Any) -> str:
    """Why the elements of this engine's parameters are not found; empty where they are."""
    outer = engine.optimizer
    if getattr(engine, "has_moe_layers", False):
        return "experts of a mixture are reduced over groups of their own"
    if getattr(outer, "round_robin_gradients", False):
        # `_hp_mapping` is made of the order of the groups, and the flat partition of the round-robin order, unless some parameter is
        # padded (runtime/zero/stage_1_and_2.py 0.19.8:835, 505).
        return "with round_robin_gradients DeepSpeed's own map does not say where the elements are"
    if getattr(outer, "zenflow", False):
        return "ZenFlow steps some of the elements in another optimizer"
    if getattr(outer, "partial_offload", 1.0) != 1.0 and hasattr(outer, "backup_optimizer"):
        return "partial offload steps some of the partitions in another optimizer"
    if getattr(outer, "swap_optimizer", False):
        return "partitions that are swapped to NVMe are in memory only within a step"
    if zero_stage(engine) == 0 and hasattr(outer, "fp32_groups_flat"):
        return "a fused optimizer without ZeRO holds copies in float32 that are not read"
    return ""


def zero_places(engine: Any) -> list[ParameterPlaces]:
    """The places of each trainable parameter of a DeepSpeed engine, for which `why_no_places` has no reason.

    Args:
        engine: `deepspeed.DeepSpeedEngine`, after `deepspeed.initialize`.
    """
    named = [(name, p) for name, p in engine.module.named_parameters() if p.requires_grad]
    outer = engine.optimizer
    stage = zero_stage(engine)
    if stage == 3:
        return [_Stage3(name, p, outer) for name, p in named]
    if stage in (1, 2):
        return [_Stage1Or2(name, p, outer) for name, p in named]
    copies = dict(_copies(outer))
    return [_SteppedCopy(name, p, copies[id(p)]) if id(p) in copies else WholeParameter(name, p) for name, p in named]


def zero_reduction(engine: Any) -> Reduction:
    """How the gradients of a DeepSpeed engine's model are reduced."""
    hidden = why_no_places(engine)
    if hidden:
        return Reduction([], hidden=hidden)
    # Gradients are divided and added up in this dtype: by default that of the model (runtime/engine.py 0.19.8
    # `communication_data_type`). Quantised gradients (ZeRO++) round more than any.
    asked = engine.communication_data_type
    if getattr(engine, "torch_autocast_enabled", bool)():
        asked = engine.torch_autocast_dtype()  # parameters of autocast modules (runtime/torch_autocast.py)
    quantised = bool(getattr(engine, "zero_quantized_gradients", bool)())
    return Reduction(zero_places(engine), str(asked or "").removeprefix("torch."), approximate=quantised)


def zero_replicas(engine: Any) -> list[Replicated]:
    """What every rank of an engine should hold alike.

    DeepSpeed sends all parameters from rank 0 when it begins (runtime/engine.py 0.19.8 `_broadcast_model`), and after each update
    gathers them from the parts that the ranks have stepped. With ZeRO-3 no rank holds them whole.
    """
    named = list(engine.module.named_parameters()) if zero_stage(engine) < 3 else []
    return [
        Replicated("weights", [of for of in named if of[1].requires_grad]),
        Replicated("frozen weights", [of for of in named if not of[1].requires_grad], often=False),
        Replicated("buffers", [of for of in engine.module.named_buffers() if not of[1].is_meta]),
    ]


_OF_MODEL = ("bit16_groups", "fp16_groups", "bf16_groups")
"""What outer optimizers call the model's parameters: ZeRO-1 and 2; 16 bits without ZeRO; BF16_Optimizer."""


def held_parameters(engine: Any) -> list[Any]:
    """The model's parameters for which some rank's optimizer holds what it steps."""
    return [parameter for parameters in parameters_of_groups(engine) for parameter in parameters]


def parameters_of_groups(engine: Any) -> list[list[Any]]:
    """The model's parameters of each group of the inner optimizer's settings, in which ZeRO puts tensors of its own."""
    outer = engine.optimizer
    if zero_stage(engine) == 3:  # some sub-groups make a group
        members: dict[int, list[Any]] = {}
        for place, parameters in enumerate(outer.fp16_groups):
            members.setdefault(outer.sub_group_to_group_id[place], []).extend(parameters)
        return [members[place] for place in sorted(members)]
    for name in _OF_MODEL:
        if hasattr(outer, name):
            return [list(parameters) for parameters in getattr(outer, name)]
    return [list(group["params"]) for group in outer.param_groups]


def stepped_tensors(engine: Any) -> list[tuple[Any, int]]:
    """The tensors that the inner optimizer of this rank steps, each with the place of its group in `param_groups`."""
    outer = engine.optimizer
    if zero_stage(engine) == 3:
        partitions = enumerate(outer.fp32_partitioned_groups_flat)
        return [(tensor, outer.sub_group_to_group_id[place]) for place, tensor in partitions]
    groups = wrapped_optimizer(engine).param_groups
    return [(tensor, place) for place, group in enumerate(groups) for tensor in group["params"]]


def _copies(outer: Any) -> Iterator[tuple[int, Any]]:
    """Identities of parameters in 16 bits and the copies in float32 that are stepped (runtime/fp16/unfused_optimizer.py 0.19.8:77)."""
    for copies, parameters in zip(getattr(outer, "fp32_groups", ()), getattr(outer, "fp16_groups", ()), strict=True):
        for copy, parameter in zip(copies, parameters, strict=True):
            yield id(parameter), copy


class _SteppedCopy(WholeParameter):
    """ZeRO-0 in 16 bits: every rank steps all elements, of a copy in float32.

    Args:
        name: The parameter's name.
        tensor: The model's parameter.
        copy: What the optimizer steps, of the same shape.
    """

    def __init__(self, name: str, tensor: Any, copy: Any) -> None:
        super().__init__(name, tensor)
        self._copy = copy

    def place_of(self, element: int) -> Place:
        """Find the element, as `ParameterPlaces` documents it."""
        return Place(self._copy, element)


class _Stage1Or2:
    """ZeRO-1 and ZeRO-2: the parameters of a group stand one after the other in a flat tensor, of which each rank steps an equal part.

    DeepSpeed's map of a parameter, `_hp_mapping`, is None where no element of it is in this rank's part. Else it has two addresses of
    one stretch: in the parameter ("lp") and in the part ("hp") (utils/tensor_fragment.py 0.19.8:23, 378). It is made anew when states
    come back from an offload that was asked for, and so is read each time.
    """

    def __init__(self, name: str, parameter: Any, outer: Any) -> None:
        self.name = name
        self.numel = int(parameter.numel())
        self._parameter = parameter
        # BF16_Optimizer takes the place of ZeRO-1 where bf16 gradients are accumulated in float32 (runtime/bf16_optimizer.py
        # 0.19.8:337), and calls its parts otherwise.
        held = getattr(outer, "single_partition_of_fp32_groups", None)
        self._partitions = outer.fp32_groups_flat_partition if held is None else held

    def watch_local(self, see: Callable[[Tensor], None]) -> Callable[[], None]:
        """See the gradient of each backward pass, as `ParameterPlaces` documents it."""
        return first_hook(self._parameter, see)

    def place_of(self, element: int) -> Place | None:
        """Find the element, as `ParameterPlaces` documents it."""
        mapping = self._parameter._hp_mapping
        if mapping is None:
            return None
        whole, part = mapping.lp_fragment_address, mapping.hp_fragment_address
        if not whole.start <= element < whole.start + whole.numel:
            return None
        return Place(self._partitions[mapping.param_group_index], part.start + element - whole.start)


class _Stage3:
    """ZeRO-3: each parameter is cut into equal parts, the last of which is padded; a rank's parts of one sub-group stand one after the
    other in a flat tensor (`grad_position`, runtime/zero/stage3.py 0.19.8:1948)."""

    def __init__(self, name: str, parameter: Any, outer: Any) -> None:
        self.name = name
        self.numel = int(parameter.ds_numel)
        self._parameter = parameter
        sub_group, at, count = outer.grad_position[outer.get_param_id(parameter)]
        self._partition = outer.fp32_partitioned_groups_flat[sub_group]
        self._at = at
        # Its own group with expert parallelism and MiCS, else that of all ranks (runtime/zero/stage3.py 0.19.8:643; in 0.18 always).
        group = getattr(parameter, "ds_process_group", outer.dp_process_group)
        self._first = count * torch.distributed.get_rank(group)
        self._end = min(self._first + count, self.numel)

    def watch_local(self, see: Callable[[Tensor], None]) -> Callable[[], None]:
        """See the gradient of each backward pass, as `ParameterPlaces` documents it. It is whole, although the parameter's own `data`
        is empty between its uses."""
        return first_hook(self._parameter, see)

    def place_of(self, element: int) -> Place | None:
        """Find the element, as `ParameterPlaces` documents it."""
        if not self._first <= element < self._end:
            return None
        return Place(self._partition, self._at + element - self._first)
