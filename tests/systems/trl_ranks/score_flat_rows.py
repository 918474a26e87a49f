"""Run by torchrun: `score_flat_rows.py FOLDER`. Scores rows beside forwards of a model that FSDP1 shares out. Each rank leaves in
FOLDER/rank<N>.json how far rows are from those of a model that is whole, and whether training goes on as without them."""

from __future__ import annotations

import json
import os
import sys
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch.distributed.fsdp import FullyShardedDataParallel, MixedPrecision
from torch.distributed.fsdp.wrap import transformer_auto_wrap_policy
from transformers.models.qwen2.modeling_qwen2 import Qwen2DecoderLayer

from rlstep_hooks.observe.clean_forward import CleanForward, LayersAndHead, row_of
from rlstep_hooks.observe.forward_beside import inside_of, is_flat, why_not_beside
from rlstep_hooks.observe.guard import Guard
from rlstep_hooks.observe.scored_beside import PlacedRow, ScoringBeside
from rlstep_hooks.observe.slope_beside import SlopeBeside
from rlstep_hooks.testing.tiny_trl import tiny_model, tiny_tokenizer
from tests.observe.smaller_gradients import Fewer

PROMPT, COMPLETION, ROW = 8, 9, 2
TEMPERATURE = 0.9


class Refusals:
    """Keeps what cannot be observed."""

    def __init__(self) -> None:
        self.found: list[str] = []

    def cannot(self, what: str, why: str) -> None:
        """Keep it."""
        self.found.append(why)


def wrapped(*, orig: bool, bf16: bool) -> Any:
    """The tiny model as FSDP1 wraps it, layer by layer."""
    cast = MixedPrecision(param_dtype=torch.bfloat16, reduce_dtype=torch.float32) if bf16 else None
    return FullyShardedDataParallel(
        tiny_model(tiny_tokenizer(), layers=3),
        auto_wrap_policy=partial(transformer_auto_wrap_policy, transformer_layer_cls={Qwen2DecoderLayer}),
        use_orig_params=orig,
        mixed_precision=cast,
        device_id=torch.device("cpu"),
    )


def batch() -> tuple[Any, Any]:
    """Tokens and mask of four rows of this rank; that of `ROW` has padding before its prompt and behind its completion."""
    torch.manual_seed(1 + torch.distributed.get_rank())
    tokens = torch.randint(4, 20, (4, PROMPT + COMPLETION))
    mask = torch.ones_like(tokens)
    mask[ROW, :5] = mask[ROW, PROMPT + 6 :] = 0
    return tokens, mask


def trained(*, orig: bool, bf16: bool, beside: bool) -> dict[str, Any]:
    """Two steps, of which the second one's forward has weights that the first has changed."""
    model, refusals = wrapped(orig=orig, bf16=bf16), Refusals()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    tokens, mask = batch()
    row = row_of(*(of[ROW, part] for part in (slice(PROMPT), slice(PROMPT, None)) for of in (tokens, mask)))
    why = why_not_beside(inside_of(model))
    losses, scored = [], []
    for _ in range(2):
        scoring = ScoringBeside(inside_of(model), TEMPERATURE, Guard(refusals, ("",)))
        autocast = torch.autocast("cpu", dtype=torch.bfloat16) if bf16 else nullcontext()
        with scoring.beside([PlacedRow(ROW, row)]) if beside else nullcontext(), autocast:
            logits = model(input_ids=tokens, attention_mask=mask, use_cache=False).logits
        scored += scoring.take()
        loss = logits.float().logsumexp(-1).mean()
        losses.append(float(loss))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    plain = tiny_model(tiny_tokenizer(), layers=3)
    clean = CleanForward(LayersAndHead(plain, nullcontext), TEMPERATURE).score(row)
    return {
        "why": why,
        "flat": is_flat(model),
        "refusals": refusals.found,
        "scored": len(scored),
        "first": float((scored[0].log_probs - clean).abs().max()) if scored else None,
        "moved": float((scored[1].log_probs - scored[0].log_probs).abs().max()) if scored else None,
        "losses": losses,
    }


def slope(*, orig: bool, faulty: bool) -> dict[str, Any]:
    """The slope at the row of the layers, beside training's own backward pass."""
    model, refusals = wrapped(orig=orig, bf16=False), Refusals()
    inner = inside_of(model)
    if faulty:
        first = inside_of(inner.model.layers[0])
        first.mlp.register_forward_hook(lambda module, given, output: Fewer.apply(output))
    tokens, mask = batch()
    row = row_of(*(of[ROW, part] for part in (slice(PROMPT), slice(PROMPT, None)) for of in (tokens, mask)))
    seen = SlopeBeside(inner, row, ROW, Guard(refusals, ("",)))
    with seen.beside():
        logits = model(input_ids=tokens, attention_mask=mask, use_cache=False).logits
    (logits.log_softmax(-1).square().mean(-1) * mask).sum().backward()
    found = seen.slope()
    return {"refusals": refusals.found, "gap": None if found is None else found.gap}


def main(folder: Path) -> None:
    """Train with rows beside and without."""
    torch.set_num_threads(1)
    torch.distributed.init_process_group("gloo")
    found = {
        f"{'orig' if orig else 'flat'}-{'bf16' if bf16 else 'float32'}-{'beside' if beside else 'alone'}": trained(
            orig=orig, bf16=bf16, beside=beside
        )
        for orig in (False, True)
        for bf16 in (False, True)
        for beside in (True, False)
    }
    for orig in (False, True):
        for faulty in (False, True):
            name = f"{'orig' if orig else 'flat'}-{'faulty' if faulty else 'healthy'}-slope"
            found[name] = slope(orig=orig, faulty=faulty)
    (folder / f"rank{os.environ['RANK']}.json").write_text(json.dumps(found))
    torch.distributed.barrier()
    os._exit(0)  # torch aborts now and then when the interpreter of a rank exits


main(Path(sys.argv[1]))
