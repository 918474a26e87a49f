"""Rows that go through a model beside a forward that training makes, for models whose weights are shared out among processes.

FSDP1, FSDP2 and ZeRO-3 gather the weights of a module when its forward begins, by a collective of all processes, and let go of them
when it ends (torch 2.13.0 _fully_shard/_fsdp_state.py `_pre_forward`, `_post_forward`; deepspeed 0.19.8
runtime/zero/parameter_offload.py `_register_deepspeed_module`). A forward of one process alone would wait for the others. So none is
made: whenever training's own forward has used a module with weights, and they are still there, the same module is applied to the rows
too. What stands between these modules (attention, residuals, masks) has no weights, and is computed by the model's own classes on
copies of its modules that share all but their hooks. Nothing is gathered and nobody is waited for. Shapes: N rows of L tokens, H
numbers of each.
"""

from __future__ import annotations

import functools
from contextlib import contextmanager, nullcontext
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import torch
from torch import Tensor
from torch.distributed.fsdp import FSDPModule, FullyShardedDataParallel

from rlstep_hooks.observe.clean_forward import hooked_by_others, why_not_alone, why_not_with_head

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from rlstep_hooks.observe.guard import Guard

_HOOKS = (
    *("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks"),
    *("_forward_hooks_with_kwargs", "_forward_hooks_always_called", "_forward_pre_hooks_with_kwargs"),
)
"""Where torch keeps a module's hooks (torch 2.13.0 nn/modules/module.py `Module.__init__`)."""
_OF_PARAMETERS = "ParamWrapper"
"""PEFT's adapter of a parameter that no linear layer holds, as those of experts and routers: it registers a parametrization for the
time of each forward (peft 0.21.2 tuners/lora/layer.py:2594)."""
_FLAT = "_flat_param"
"""Where FSDP1 keeps the flat parameter of a module (torch 2.13.0 distributed/fsdp/_unshard_param_utils.py:31)."""


def why_not_beside(model: Any, head: Any = None, *also: str) -> str:
    """Why no row can go through a model beside its forwards; empty where rows can.

    Args:
        model: The model.
        head: What makes numbers of the output of its layers; None for the head of a language model.
        also: Beginnings of modules whose classes are known as transformers' are, where a head is given.
    """
    if why := why_not_alone(model) if head is None else why_not_with_head(model, head, *also):
        return why
    if torch.nn.modules.module._has_any_global_hook():
        return "hooks of all modules would see the forwards of copies"
    base = base_of(model)
    weighted = _with_weights(base)
    for name, module in base.named_modules():
        if type(module).__name__ == _OF_PARAMETERS:
            return f"PEFT's adapter of {name} changes a parameter anew in each forward"
        if id(module) in weighted:
            if any(id(inner) in weighted for inner in module.modules() if inner is not module):
                return f"{name or 'the model'} has weights of its own beside modules that have some"
            if type(module).forward is torch.nn.Module.forward:
                return f"{name} holds weights that another module uses"
    return ""


def is_sharded_by_modules(model: Any) -> bool:
    """Whether the weights of a model are gathered module by module: by FSDP2, whose modules have a class of its own, or by ZeRO-3.

    The latter marks each parameter (deepspeed 0.19.8 runtime/zero/partition_parameters.py `ds_id`).
    """
    base = base_of(model)
    return any(isinstance(module, FSDPModule) for module in base.modules()) or all(
        hasattr(parameter, "ds_id") for parameter in base.parameters()
    )


def is_flat(model: Any) -> bool:
    """Whether FSDP1 gathers the weights of a model for the forward of each module that it wraps, and lets go of them when that ends.

    Within such a forward they stand in their modules (torch 2.13.0 distributed/fsdp/_flat_param.py `_use_unsharded_views`).
    """
    return any(isinstance(module, FullyShardedDataParallel) for module in model.modules())


def inside_of(model: Any) -> Any:
    """The model inside of FSDP1's wrapper, if there is one."""
    return getattr(model, "_fsdp_wrapped_module", model)


def replaced_forwards(model: Any) -> list[str]:
    """The modules on which somebody has put another forward than that of their class; what it computes is not what goes beside."""
    own = "rlstep_hooks", "accelerate", "torch", "deepspeed"
    return [
        name
        for name, module in base_of(model).base_model.named_modules()
        if "forward" in vars(module) and not str(getattr(vars(module)["forward"], "__module__", "")).startswith(own)
    ]


def told_by_others(model: Any, *also: str) -> str:
    """Why numbers of a row beside need not be those of the model; empty where they have to be.

    Args:
        model: The model.
        also: Beginnings of modules of the framework, whose hooks change nothing.
    """
    if replaced := replaced_forwards(model):
        return f"the forward of {replaced[0]} was replaced, and gives other numbers than that of its class"
    if hooked_by_others(model, *also):
        return "somebody's own hooks of the model's modules may change what these give"
    return ""


def base_of(model: Any) -> Any:
    """The transformers model inside of PEFT's wrapper, if there is one."""
    return model.get_base_model() if hasattr(model, "get_base_model") else model


class _NotYet(BaseException):
    """The rows have come to a module whose weights are not there yet. No error, so nobody who contains errors stops it."""


class RowsBeside:
    """Some rows of one length on their way through the layers of a model, beside one forward of it.

    Args:
        model: A transformers model for which `why_not_beside` is empty, or PEFT's wrapper of one.
        tokens: (N, L).
        at_embeddings: Changes the output of the embeddings, (N, L, H).
    """

    def __init__(self, model: Any, tokens: Tensor, at_embeddings: Callable[[Tensor], Tensor] | None = None) -> None:
        base = base_of(model)
        self._tokens = tokens
        self._change = at_embeddings
        self._embeddings = base.get_input_embeddings()
        layers = inside_of(base.base_model)
        passing = _Passing(_with_weights(base), self._use, self._pass_block, _blocks_of(layers))
        self._layers = _copy(layers, passing)
        self._waits_for: Any = None
        """The module that the rows stand before; None once they are through."""
        self._given: tuple[tuple[Any, ...], dict[str, Any]] = (), {}
        self._outputs: dict[int, tuple[Any, list[int]]] = {}
        """What modules gave in the block that the rows are in, and beside all blocks, by the module's identity, with torch's counts of
        writes to it: it is handed out again and again, so nobody may write to it."""
        self._handed_out: set[int] = set()
        """The modules whose output was handed out since the layers, or the block, began anew."""
        self._of_blocks: dict[int, Any] = {}
        self._block: tuple[Any, Any, tuple[Any, ...], dict[str, Any]] | None = None
        """The block that the rows are in, its copy, and what it was given; None between blocks."""
        self.hidden: Tensor | None = None
        """(N, L, H), the output of the layers; None until the rows are through."""
        self._go_on()

    def uses(self, module: Any) -> None:
        """Training's forward has just used a module with weights, and they are still there."""
        if module is not self._waits_for:
            return
        args, kwargs = self._given
        with _not_seen(self._tokens.device):
            output = type(module).forward(module, *args, **kwargs)
            if module is self._embeddings and self._change is not None:
                output = self._change(output)
        self._outputs[id(module)] = output, _written(output)
        self._go_on()

    def _go_on(self) -> None:
        """Compute until the next module whose weights are not there."""
        self._waits_for = None
        with _not_seen(self._tokens.device):
            try:
                self._handed_out.clear()
                if self._block is not None:
                    self._pass_block(*self._block[:2], *self._block[2], **self._block[3])
                self._handed_out.clear()
                ones = torch.ones_like(self._tokens)
                found = self._layers(input_ids=self._tokens, attention_mask=ones, use_cache=False)
                self.hidden = found.last_hidden_state
                self._outputs.clear()
                self._of_blocks.clear()
            except _NotYet:
                pass

    def _use(self, module: Any, *args: Any, **kwargs: Any) -> Any:
        """Stands in the place of the forward of a module with weights."""
        self._hand_out(module)
        if id(module) in self._outputs:
            output, written = self._outputs[id(module)]
            if _written(output) != written:
                raise ValueError(f"what {type(module).__name__} gives is written to afterwards")
            return output
        self._waits_for, self._given = module, (args, kwargs)
        raise _NotYet

    def _pass_block(self, block: Any, copy: Any, *args: Any, **kwargs: Any) -> Any:
        """Stands in the place of the forward of a block; what modules of it gave is kept no longer than until it is through."""
        self._hand_out(block)
        if id(block) not in self._of_blocks:
            before = self._outputs.keys() - {id(module) for module in block.modules()}
            self._block = block, copy, args, kwargs
            output = type(block).forward(copy, *args, **kwargs)
            # Of blocks before it only that they are over: whoever reads numbers of them again gets an error, and no wrong ones.
            self._of_blocks = {of: _without_numbers(earlier) for of, earlier in self._of_blocks.items()}
            self._of_blocks[id(block)] = output
            self._outputs = {key: value for key, value in self._outputs.items() if key in before}
            self._block = None
        return self._of_blocks[id(block)]

    def _hand_out(self, module: Any) -> None:
        if id(module) in self._handed_out:
            raise ValueError(f"{type(module).__name__} is used twice in one forward")
        self._handed_out.add(id(module))


class UsesHead(Protocol):
    """What is computed while the weights of the head are there, without gradients."""

    def __call__(self, weight: Tensor, bias: Tensor | None) -> None:
        """The forward beside which rows go has used these weights of the head, and they are still there."""


class Beside:
    """Rows that go through a model beside the first forward of it that is made in a context.

    Args:
        model: The model of the rows.
        rows: The rows.
        guard: Contains errors inside the hooks.
        at_head: Called once, when the rows are through the layers and the forward uses the head; None where nothing is to be computed.
        head: The head; None for that of a language model.
    """

    def __init__(
        self,
        model: Any,
        rows: Sequence[RowsBeside],
        guard: Guard,
        at_head: UsesHead | None = None,
        head: Any = None,
    ) -> None:
        self._base = base_of(model)
        self._head = self._base.get_output_embeddings() if head is None else head
        self._rows = rows
        self._guard = guard
        self._at_head = at_head
        self._handles: list[Any] = []

    def __enter__(self) -> Beside:
        """The forward is about to be made."""
        # Before the hooks that let go of the weights.
        weighted = _with_weights(self._base)
        self._handles = [
            module.register_forward_hook(self._used, prepend=True)
            for module in self._base.modules()
            if id(module) in weighted
        ]
        return self

    def __exit__(self, *error: object) -> None:
        """The forward was made."""
        while self._handles:
            self._handles.pop().remove()

    def head_used(self, weight: Tensor, bias: Tensor | None) -> None:
        """The forward has used the head: told from outside where it calls no module for that."""
        at_head, self._at_head = self._at_head, None
        self.__exit__()
        if at_head is not None:
            with self._guard, _not_seen(weight.device):
                at_head(weight, bias)

    def _used(self, module: Any, args: Any, output: Any) -> None:
        if not self._handles:
            return
        failed = True
        with self._guard:
            for each in self._rows:
                each.uses(module)
            failed = False
        if failed:
            self.__exit__()
        elif module is self._head:
            self.head_used(module.weight, module.bias)


@contextmanager
def _not_seen(device: torch.device) -> Iterator[None]:
    """No gradient, and no weight in reduced precision that is kept for the forward beside."""
    kind = device.type
    casts: Any = nullcontext()
    if torch.is_autocast_enabled(kind):
        casts = torch.autocast(kind, dtype=torch.get_autocast_dtype(kind), cache_enabled=False)
    with torch.no_grad(), casts:
        yield


def _written(output: Any) -> list[int]:
    """How often each tensor of what a module gave has been written to: a router gives several."""
    if isinstance(output, Tensor):
        return [output._version]
    return [count for of in output for count in _written(of)] if type(output) in (tuple, list) else []


def _without_numbers(output: Any) -> Any:
    """What a module gave, with shapes and dtypes alone."""
    if isinstance(output, Tensor):
        return output.to("meta")
    return type(output)(map(_without_numbers, output)) if type(output) in (tuple, list) else output


def _with_weights(base: Any) -> set[int]:
    """Identities of the modules that have weights of their own, also where FSDP1 has taken these into a flat parameter."""
    own = {
        id(module)
        for module in base.modules()
        if any(parameter is not None for name, parameter in module._parameters.items() if name != _FLAT)
    }
    flat = [module._parameters[_FLAT] for module in base.modules() if module._parameters.get(_FLAT) is not None]
    return own.union(*({id(module) for module in each._modules} for each in flat))


def _blocks_of(layers: Any) -> Any:
    """The longest list of modules that stands directly in the layers; None without one."""
    lists = [of for of in layers.children() if isinstance(of, torch.nn.ModuleList)]
    return max(lists, key=len, default=None)


class _Passing(NamedTuple):
    """What copies of a model's modules do in the place of their own forward."""

    weighted: set[int]
    """Identities of the modules with weights."""
    use: Callable[..., Any]
    """Stands in the place of the forward of each of these, and is given that module first."""
    through: Callable[..., Any]
    """Stands in the place of the forward of each block, and is given that block and its copy first."""
    blocks: Any
    """The list of blocks; None without one."""


def _copy(module: Any, passing: _Passing, *, of_block: bool = False) -> Any:
    """A copy of a module that has all of it but its hooks, and in it copies of its modules, without FSDP1's wrappers.

    Args:
        module: The module.
        passing: What stands in the place of forwards.
        of_block: Whether the module is a block.
    """
    if isinstance(module, FullyShardedDataParallel):
        return _copy(inside_of(module), passing, of_block=of_block)
    copy = object.__new__(type(module))
    copy.__dict__.update(module.__dict__)
    copy.__dict__.update({name: {} for name in _HOOKS})
    copy.__dict__.pop("forward", None)
    copy.__dict__["gradient_checkpointing"] = False
    if id(module) in passing.weighted:
        copy.__dict__["forward"] = functools.partial(passing.use, module)
        return copy
    copy.__dict__["_modules"] = {
        name: None if inner is None else _copy(inner, passing, of_block=module is passing.blocks)
        for name, inner in module._modules.items()
    }
    if of_block:
        copy.__dict__["forward"] = functools.partial(passing.through, module, copy)
    return copy
