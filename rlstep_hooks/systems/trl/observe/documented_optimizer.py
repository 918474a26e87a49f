"""The optimizer that transformers' Trainer builds where nobody gives it another, as its documentation says: computed from the arguments
and the model alone, because the trainer's own methods are what is compared.

`TrainingArguments` (4.51.3 to 5.23.0): `optim`; `learning_rate`, `adam_beta1`, `adam_beta2` and `adam_epsilon` are those of AdamW;
`weight_decay` is applied "to all layers except all bias and LayerNorm weights".
"""

from __future__ import annotations

import inspect
import re
import sys
import weakref
from typing import TYPE_CHECKING, Any

from rlstep_hooks.systems.trl.releases import installed_release

if TYPE_CHECKING:
    from collections.abc import Sequence

_BUILDERS = ("create_optimizer", "get_optimizer_cls_and_kwargs", "get_decay_parameter_names")
"""Methods by which somebody's own trainer builds another optimizer (4.51.3 to 5.23.0)."""

_NEVER_DECAY = re.compile("bias|layernorm|rmsnorm")
"""Names of what does not decay (4.51.3 trainer.py:1197, 4.57.6 trainer.py:1274, 5.23.0 trainer.py:1416)."""
_NEWER = re.compile(r"(?:^|\.)norm(?:$|\.)|_norm(?:$|\.)")
"""Names of what does not decay in newer releases either (`TrlRelease.norms_never_decay`)."""

_built_in_training: weakref.WeakSet[Any] = weakref.WeakSet()


def note_training_call(trainer: Any) -> None:
    """Remember whether a trainer has an optimizer when `train` is called: if not, it builds one itself."""
    if getattr(trainer, "optimizer", None) is None:
        _built_in_training.add(trainer)
    else:
        _built_in_training.discard(trainer)


def builds_its_own(trainer: Any, optimizer: Any) -> bool:
    """Whether a trainer built its optimizer in this call of `train`, by transformers' own methods."""
    return trainer in _built_in_training and _builds_it_as_read(trainer) and _documented(trainer, optimizer) is not None


def documented_settings(trainer: Any, optimizer: Any) -> dict[str, Any] | None:
    """What each group of the optimizer must have, besides weight decay; None for an optimizer of another class."""
    documented = _documented(trainer, optimizer)
    if documented is None:
        return None
    kind, given = documented
    own = {
        name: parameter.default
        for name, parameter in inspect.signature(kind).parameters.items()
        if parameter.default is not inspect.Parameter.empty
    }
    return {**own, **given}


def is_built_as_documented(trainer: Any, optimizer: Any) -> bool:
    """Whether whoever built the optimizer in this call of `train` gave it the documented settings. One that a script handed over may be
    like it by chance, and has settings of its own on purpose."""
    documented = _documented(trainer, optimizer) if trainer in _built_in_training else None
    return documented is not None and all(optimizer.defaults.get(name) == of for name, of in documented[1].items())


def _documented(trainer: Any, optimizer: Any) -> tuple[Any, dict[str, Any]] | None:
    wanted = _arguments(trainer.args)
    return wanted if wanted is not None and type(optimizer) is wanted[0] else None


def _arguments(args: Any) -> tuple[type, dict[str, Any]] | None:
    """Class and arguments of the optimizer that is configured; None for those that nobody wrote down here."""
    from torch import optim

    name = str(getattr(args.optim, "value", args.optim))
    rate = {"lr": args.learning_rate}
    adam = {"betas": (args.adam_beta1, args.adam_beta2), "eps": args.adam_epsilon}
    known: dict[str, tuple[type, dict[str, Any]]] = {
        "adamw_torch": (optim.AdamW, rate | adam),
        "adamw_torch_fused": (optim.AdamW, rate | adam | {"fused": True}),
        "sgd": (optim.SGD, rate),
        "adagrad": (optim.Adagrad, rate),
        "rmsprop": (optim.RMSprop, rate),
    }
    return known.get(name) if not getattr(args, "optim_args", None) else None


def _builds_it_as_read(trainer: Any) -> bool:
    """Whether the methods that build the optimizer are transformers' own, and no other optimizer was given in their place."""
    if getattr(trainer, "optimizer_cls_and_kwargs", None) is not None:
        return False
    return all(name not in vars(trainer) and is_of_transformers(type(trainer), name) for name in _BUILDERS)


def is_of_transformers(kind: type, name: str) -> bool:
    """Whether a class of trainers has a method as transformers wrote it, and not as somebody else did."""
    owner = next((base for base in kind.__mro__ if name in vars(base)), None)
    if owner is None or owner.__module__.partition(".")[0] != "transformers":
        return False
    method = vars(owner)[name]
    code = getattr(getattr(method, "__func__", method), "__code__", None)
    return code is not None and code.co_filename == getattr(sys.modules.get(owner.__module__), "__file__", None)


class WeightDecay:
    """Which parameters of a model decay.

    Args:
        trainer: The trainer.
        members: The model's parameters of each group of the optimizer.
        groups: How many groups it has.
    """

    def __init__(self, trainer: Any, members: Sequence[Sequence[Any]], groups: int) -> None:
        self._members = members
        self._groups = groups
        self._configured = float(trainer.args.weight_decay)
        self._names = {id(parameter): name for name, parameter in trainer.model.named_parameters()}
        self._in_norms = _in_layer_norms(trainer.model)
        release = installed_release()
        self._norms_never_decay = release is not None and release.norms_never_decay

    def known(self) -> bool:
        """Whether every parameter of the groups is one of the model's, and each group is given."""
        return len(self._members) == self._groups and all(
            id(parameter) in self._names for group in self._members for parameter in group
        )

    def has(self, place: int) -> bool:
        """Whether a group has parameters."""
        return bool(self._members[place])

    def of_group(self, place: int) -> float | None:
        """The decay of a group; None where its parameters need different ones, or that is not known of any."""
        wanted = {decay for parameter in self._members[place] if (decay := self._of(parameter)) is not None}
        return wanted.pop() if len(wanted) == 1 else None

    def as_documented(self) -> bool:
        """Whether the groups are the two of `Trainer.create_optimizer`: with decay, and without."""
        decaying = [
            {decays for parameter in group if (decays := self._decays(parameter)) is not None}
            for group in self._members
        ]
        return len(decaying) == 2 and decaying[0] <= {True} and decaying[1] <= {False}

    def misplaced(self, in_force: Sequence[float]) -> list[tuple[str, float, float]]:
        """Parameters of groups that hold such as need different decays: name, right decay, and that in force.

        Args:
            in_force: The decay of each group.
        """
        return [
            (self._names[id(parameter)], wanted, now)
            for place, now in enumerate(in_force)
            if self.of_group(place) is None
            for parameter in self._members[place]
            if (wanted := self._of(parameter)) is not None and wanted != now
        ]

    def _of(self, parameter: Any) -> float | None:
        decays = self._decays(parameter)
        return None if decays is None else self._configured if decays else 0.0

    def _decays(self, parameter: Any) -> bool | None:
        name = self._names[id(parameter)].lower()
        if id(parameter) in self._in_norms or _NEVER_DECAY.search(name):
            return False
        if _NEWER.search(name):
            return False if self._norms_never_decay else None
        return True


def _in_layer_norms(model: Any) -> set[int]:
    from torch import nn

    return {
        id(parameter)
        for module in model.modules()
        if isinstance(module, nn.LayerNorm) and module is not model
        for parameter in module.parameters()
    }
