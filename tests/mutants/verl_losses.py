"""verl's losses: what its own functions make of random micro-batches, against what the audit of a trainer finds of each.

No launch and no optimizer: the training of a mutant is the loss of each micro-batch with its gradients, to five digits.
"""

from __future__ import annotations

import functools
import itertools
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any
from unittest import mock

from rlstep_hooks.observe.losses import FITS
from tests.mutants.run import Run, Target
from tests.systems.verl.test_losses import (
    RANKS,
    SAMPLES,
    Nobody,
    config,
    microbatch,
    value_config,
    value_microbatch,
)

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from rlstep_hooks.observe.losses import LossNumbers
    from rlstep_hooks.systems.verl.observe.loss_meter import LossMeter
    from tests.mutants.training import Training

MODULES = (
    "verl.workers.utils.losses", "verl.trainer.ppo.core_algos", "verl.utils.torch_functional",
    "verl.workers.utils.padding",
)  # fmt: skip


class LossAudit:
    """Judges the losses of a run, as the rules do in the micro-batches of a trainer."""

    def __init__(self) -> None:
        self.found: list[LossNumbers] = []

    @property
    def report(self) -> Any:
        """A verdict with findings."""
        wrong = {
            "RLS801": [of for of in self.found if (of.loss_gap or 0.0) > FITS],
            "RLS805": [of for of in self.found if (of.gradient_gap or 0.0) > FITS],
        }
        findings = [
            SimpleNamespace(code=code, severity="error", title=code, text=of[0].loss_like)
            for code, of in wrong.items()
            if of
        ]
        return SimpleNamespace(verdict="FAIL" if findings else "PASS", findings=findings, not_evaluated={})


Case = tuple[Any, Any, dict[str, Any]]
"""The configuration of a loss, verl's data of a micro-batch, and the model's output."""


def _surrogates() -> Iterator[Case]:
    modes = itertools.product(("vanilla", "gspo", "sapo", "gpg", "cispo", "dro"), ("token-mean", "seq-mean-token-mean"))
    for seed, (mode, aggregation) in enumerate(modes):
        clip = {"clip_ratio_low": 0.1, "clip_ratio_high": 0.3}
        yield config(mode=mode, loss_agg_mode=aggregation, **clip), *microbatch(seed=seed)


def _terms() -> Iterator[Case]:
    for seed, mode in enumerate(("vanilla", "gspo", "sapo", "gpg", "cispo", "dro")):
        norm = {"loss_agg_mode": "seq-mean-token-sum-norm", "loss_scale_factor": 12}
        yield config(mode=mode, entropy_coeff=0.01, **norm), *microbatch(weights=True, seed=seed)
    for kind in ("k1", "abs", "k2", "k3", "k3+"):
        settings = {"kl_loss_type": kind, "kl_loss_coef": 0.05, "entropy_coeff": 0.01}
        yield config(use_kl_loss=True, **settings), *microbatch(reference=True)


def _values() -> Iterator[Case]:
    for aggregation in ("token-mean", "token-sum", "seq-mean-token-sum"):
        yield value_config(loss_agg_mode=aggregation), *value_microbatch()


CASES = {"surrogates": _surrogates, "terms": _terms, "values": _values}


def _train(name: str, folder: Path, audits: list[Any], training: Training) -> None:
    from rlstep_hooks.systems.verl.observe.loss_kinds import CRITIC, POLICY
    from rlstep_hooks.systems.verl.observe.loss_meter import LossMeter

    for settings, data, output in CASES[name]():
        meter = LossMeter(CRITIC if name == "values" else POLICY, Nobody())
        meter.next_rollout()
        loss, gradients = _trained(meter, settings, data, output, critic=name == "values")
        meter._update.add(SAMPLES // RANKS - int(data.shape[0]), None)
        meter.send()
        for audit in audits:
            audit.found += meter.arrived().values()
        largest = max((float(of.abs().max()) for of in gradients), default=0.0) or 1.0
        parts = [f"{number / largest:.5f}" for of in gradients for number in of.tolist()]
        training.steps.append(f"{loss:.4e} {largest:.4e} {' '.join(parts)}")


def _trained(meter: LossMeter, settings: Any, data: Any, output: dict[str, Any], *, critic: bool) -> tuple[float, Any]:
    """One forward and backward of verl's loss, which the meter follows as in a trainer; the loss and its gradients."""
    import torch
    from verl.workers.utils import losses

    function = losses.value_loss if critic else losses.ppo_loss
    meter.begin(0, data, functools.partial(function, config=settings), RANKS)
    names = ("values",) if critic else ("log_probs", "entropy")
    leaves = {name: output[name].values().clone().requires_grad_() for name in names}
    given = {
        name: torch.nested.nested_tensor_from_jagged(leaf, output[name].offsets()) for name, leaf in leaves.items()
    }
    meter.follow_beside(given)
    plain, values = losses.get_policy_loss_fn, losses.compute_value_loss

    def policy_loss(mode: str) -> Any:
        found = plain(mode)

        def measured(**named: Any) -> Any:
            meter.follow(named["log_prob"])
            return found(**named)

        return measured

    def value_loss(**named: Any) -> Any:
        meter.follow(named["vpreds"])
        return values(**named)

    with mock.patch.multiple(losses, get_policy_loss_fn=policy_loss, compute_value_loss=value_loss):
        loss, _ = function(settings, dict(given), data)
    meter.end(loss, {name: of.detach() for name, of in given.items()}, scaled=False)
    loss.backward()
    return float(loss.detach()), [torch.zeros_like(of) if of.grad is None else of.grad for of in leaves.values()]


TARGETS = {
    "verl-losses": Target(
        modules=MODULES, runs=tuple(Run(name, functools.partial(_train, name), LossAudit) for name in CASES)
    )
}
