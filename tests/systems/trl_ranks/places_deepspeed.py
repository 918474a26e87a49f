"""Run by torchrun from test_places: the places of all elements in real DeepSpeed engines, one for each case, against what they hold."""

from __future__ import annotations

import json
import os
import sys
import warnings
from pathlib import Path
from typing import Any

import deepspeed
import torch
from torch import nn

from rlstep_hooks.observe.sharding.zero import why_no_places, wrapped_optimizer, zero_places
from rlstep_hooks.observe.shards import local_shard

LIMIT = 0.05
"""Of the gradient norm, small enough to clip."""


def model() -> nn.Module:
    """Three layers, of which the first has more elements than a rank's part and the last is frozen."""
    torch.manual_seed(0)
    layers = nn.Sequential(nn.Linear(7, 23), nn.Tanh(), nn.Linear(23, 5), nn.Tanh(), nn.Linear(5, 3))
    layers[4].requires_grad_(False)
    return layers


def settings(case: str) -> dict[str, Any]:
    """DeepSpeed's configuration of a case, such as `zero2-bf16-offload`."""
    words = case.split("-")
    zero: dict[str, Any] = {"stage": int(words[0][4:])}
    if "offload" in words:
        zero["offload_optimizer"] = {"device": "cpu"}
    if "round_robin" in words:
        zero["round_robin_gradients"] = True
    if "small" in words:
        zero["sub_group_size"] = 50
    more = {"data_types": {"grad_accum_dtype": "fp32"}} if "accumulated" in words else {}
    return more | {
        "train_micro_batch_size_per_gpu": 4,
        "gradient_accumulation_steps": 3,
        "gradient_clipping": LIMIT,
        "zero_allow_untested_optimizer": True,
        "zero_force_ds_cpu_optimizer": False,
        "bf16": {"enabled": "bf16" in words},
        "zero_optimization": zero,
    }


class Observed:
    """What this rank sees of one update through the places."""

    def __init__(self, engine: Any) -> None:
        self.places = zero_places(engine)
        self.local: dict[str, list[torch.Tensor]] = {of.name: [] for of in self.places}
        self.used: dict[str, dict[int, float]] = {of.name: {} for of in self.places}
        self.remove = [of.watch_local(self._kept(of.name)) for of in self.places]

    def _kept(self, name: str) -> Any:
        def see(gradient: torch.Tensor) -> None:
            self.local[name].append(gradient.detach().double().reshape(-1).clone())

        return see

    def before_step(self, optimizer: Any, args: Any, kwargs: Any) -> None:
        """The inner optimizer steps on some of the tensors."""
        stepped = {id(p) for group in optimizer.param_groups for p in group["params"]}
        for of in self.places:
            for element in range(of.numel):
                place = of.place_of(element)
                if place is not None and id(place.tensor) in stepped:
                    assert element not in self.used[of.name], "stepped once"
                    self.used[of.name][element] = float(place.tensor.grad.reshape(-1)[place.at])


def whole_weights(engine: Any) -> dict[str, torch.Tensor]:
    """All weights, gathered where they are cut into parts."""
    named = list(engine.module.named_parameters())
    if engine.zero_optimization_stage() < 3:
        return {name: p.detach().float().reshape(-1).clone() for name, p in named}
    with deepspeed.zero.GatheredParameters([p for _, p in named]):
        return {name: p.detach().float().reshape(-1).clone() for name, p in named}


def parts_of(engine: Any) -> dict[str, dict[str, list[float]]]:
    """What this rank's part of each weight is said to be, while the weights are cut into parts and while they are gathered."""
    if engine.zero_optimization_stage() < 3:
        return {}
    named = list(engine.module.named_parameters())
    for _, parameter in named:
        parameter.partition()  # small ones stay gathered otherwise
    shards = [(name, local_shard(parameter)) for name, parameter in named]
    cut = {name: of.detach().float().tolist() for name, of in shards}
    with deepspeed.zero.GatheredParameters([p for _, p in named]):
        return {"cut": cut, "gathered": {name: of.detach().float().tolist() for name, of in shards}}


def run(case: str) -> dict[str, Any]:
    """One update of three micro-batches."""
    layers = model()
    trained = [p for p in layers.parameters() if p.requires_grad]
    # The order of a round differs from that of a group with three tensors or more.
    groups = [{"params": trained}] if "round_robin" in case else [{"params": trained[:2]}, {"params": trained[2:]}]
    # Without decay: ZeRO-0 in bf16 steps once when it begins, and would shrink its copies.
    optimizer = torch.optim.AdamW(groups, lr=0.01, weight_decay=0.0)
    engine, *_ = deepspeed.initialize(model=layers, optimizer=optimizer, config=settings(case))
    reason = why_no_places(engine)
    weights = {name: of.tolist() for name, of in whole_weights(engine).items()}
    parts = parts_of(engine)
    observed = Observed(engine)
    held = {
        of.name: {e: float(place.tensor.detach().reshape(-1)[place.at]) for e, place in _places(of)}
        for of in observed.places
    }
    wrong = sum(weights[name][e] != weight for name, of in held.items() for e, weight in of.items())
    wrapped_optimizer(engine).register_step_pre_hook(observed.before_step)
    generator = torch.Generator().manual_seed(5 + engine.global_rank)
    for _ in range(3):
        rows = torch.randn(4, 7, generator=generator).to(next(layers.parameters()).dtype)
        engine.backward(engine(rows).float().square().mean())
        engine.step()
    for remove in observed.remove:
        remove()
    rows = torch.zeros(4, 7, dtype=next(layers.parameters()).dtype)
    engine.backward(engine(rows).float().square().mean())
    norm = engine.get_global_grad_norm()
    result = {
        "why": reason,
        "numel": {of.name: of.numel for of in observed.places},
        "owned": {name: sorted(of) for name, of in held.items()},
        "weights": weights,
        "parts": parts,
        "wrong": wrong,
        "passes": sorted({len(of) for of in observed.local.values()}),
        "local": {name: torch.stack(of).sum(0).tolist() for name, of in observed.local.items()},
        "used": {name: [[e, of[e]] for e in sorted(of)] for name, of in observed.used.items()},
        "norm": None if norm is None else float(norm),
    }
    engine.destroy()
    return result


def _places(of: Any) -> Any:
    found = ((element, of.place_of(element)) for element in range(of.numel))
    return [(element, place) for element, place in found if place is not None]


def main(folder: Path, cases: str) -> None:
    """Write what this rank sees in each case."""
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    deepspeed.init_distributed("gloo")
    results = {case: run(case) for case in cases.split(",")}
    (folder / f"rank{os.environ['RANK']}.json").write_text(json.dumps(results))
    torch.distributed.destroy_process_group()


main(Path(sys.argv[1]), sys.argv[2])
