"""Whether completions can be tested against the policy's own distributions (rules RLS413 and RLS519), and the sums that the test needs.

verl computes the entropy of each position together with old log-probs, in both trainers, with the weights that the rollout was
sampled from and at the temperature that it was asked for (0.9.1 trainer_base.py:1654 and ray_trainer.py:1479, `calculate_entropy`;
transformer_impl.py:1399 and 1489: of the logits over the temperature). The trainer's process has them on the CPU as it returns them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from rlstep_hooks.observe.identity import checksum_of
from rlstep_hooks.observe.improbable import Improbable, text_of
from rlstep_hooks.observe.surprisal import cap_of, surprisal_sums
from rlstep_hooks.systems.verl.observe.samples import completion_rows, rows_of
from rlstep_hooks.systems.verl.plan import is_fully_async, is_one_step_off

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch import Tensor

_OF_ENGINE = ("generation_config", "logits_processors", "override_generation_config", "speculative_config")
"""Keywords of an engine that may change what it draws from."""


def facts_of_vocabulary(engine: Any) -> dict[str, Any]:
    """What rule RLS413 needs to know of the policy: the cut of -log p and the number of tokens; nothing where that is not known."""
    config: Any = getattr(engine.module, "config", None)
    text = config.get_text_config() if hasattr(config, "get_text_config") else config
    vocabulary = int(getattr(text, "vocab_size", 0) or 0)
    if not vocabulary:
        return {}
    return {"surprise_cap": cap_of(vocabulary), "vocabulary": vocabulary, "sampled_by_engine": True}


def numbers_of(
    log_probs: Sequence[Tensor],
    entropies: Sequence[Tensor],
    masks: Sequence[Tensor],
    tokens: Sequence[Tensor],
    cap: float,
) -> dict[str, Any]:
    """The fields of `RolloutValues` about how the samples of one process were drawn. Rows are without padding.

    Args:
        log_probs: Log-probs of the tokens, as the refresh computed them.
        entropies: Entropies of the distributions at the tokens' positions.
        masks: 1 on tokens that count.
        tokens: The completions.
        cap: The cut of -log p.
    """
    mask = torch.cat([row.bool() for row in masks])
    sums = surprisal_sums(torch.cat(list(log_probs))[None], torch.cat(list(entropies))[None], mask[None], cap)
    seen: set[tuple[int, int]] = set()
    copied, nats = 0, 0.0
    improbable = Improbable()
    for row, counted, of_row in zip(tokens, masks, log_probs, strict=True):
        # A row that fills up a batch counts nothing (trainer/ppo/padding_utils.py 0.9.1).
        if not counted.any():
            continue
        text, of_text = (len(row), checksum_of(row)), -float((of_row.float() * counted).sum())
        if text in seen:
            copied += 1
            nats = max(nats, of_text)
        seen.add(text)
        improbable.add(text_of(row.contiguous().numpy().tobytes()), of_text)
    return {
        "drawn_tokens": int(mask.sum()),
        **{name: float(value) for name, value in sums.items()},
        "copied": copied,
        "copied_nats": nats,
        "improbable": str(improbable),
    }


def numbers_of_refresh(
    data: Any, result: Any, log_probs: Sequence[Tensor], tokens: Sequence[Tensor], cap: float | None
) -> dict[str, Any] | None:
    """How surprising the samples of a refresh are to the policy; None where what it takes is not at hand.

    Args:
        data: verl's, of the samples.
        result: What the model computed for them.
        log_probs: Log-probs of the completions.
        tokens: The completions.
        cap: The cut of -log p; None where the size of the vocabulary is not known.
    """
    masks = rows_of(data, "response_mask")
    if cap is None or masks is None or "entropy" not in result.keys():  # noqa: SIM118 - a TensorDict iterates over rows
        return None
    entropies = completion_rows(result["entropy"], [len(row) for row in tokens])
    return numbers_of(log_probs, entropies, masks, tokens, cap)


NO_ENTROPIES = "no entropies came with the old log-probs, or the size of the vocabulary is not known"


def why_not_sampled(config: Any, *, own_fit: bool, v1: bool) -> str:
    """Why the tokens of a run need not be drawn from the policy's distribution; empty where they are to be.

    Args:
        config: The configuration of the trainer.
        own_fit: Whether it has a loop of its own.
        v1: Whether it is a trainer of `verl.trainer.ppo.v1`.
    """
    rollout, algorithm = config.actor_rollout_ref.rollout, config.algorithm
    if own_fit:
        return "a loop of one's own may choose what it trains"
    if (algorithm.get("rollout_correction") or {}).get("bypass_mode", False):
        return "no entropies are computed where old log-probs are the engine's (bypass_mode)"
    if is_fully_async(config):
        return "completions that end early are trained first, so that they are not a fair draw (fully_async_policy)"
    if is_one_step_off(config):
        return "rollouts are sampled with other weights than compute their log-probs (one_step_off_policy)"
    mode = (config.trainer.get("v1") or {}).get("trainer_mode", "sync")
    if v1 and mode != "sync":
        return (
            f"with trainer_mode={mode} completions that end early are trained first, so that they are not a fair draw"
        )
    if v1 and (algorithm.get("filter_groups") or {}).get("enable", False):
        return "completions are picked by their rewards (filter_groups), so those that are left are not a fair draw"
    if float(rollout.get("over_sample_rate") or 0.0) > 0:
        return "completions that end late are dropped (over_sample_rate), so those that are left are not a fair draw"
    if (rollout.get("multi_turn") or {}).get("enable", False):
        return SEVERAL_TURNS
    if rollout.get("full_determinism", False):
        # vllm_async_server.py 0.9.1:627: equal requests are drawn with equal random numbers.
        return "each request is drawn with random numbers of its own seed (full_determinism)"
    if any((part or {}).get("enable", False) for part in (config.get("skip") or {}).values() if hasattr(part, "get")):
        return "completions of another run are served again (skip)"
    return _changed(rollout)


SEVERAL_TURNS = "some tokens are those of tools or of an environment"


def _changed(rollout: Any) -> str:
    """What configured settings change the distribution besides the temperature; empty where none does."""
    engine = (rollout.get("engine_kwargs") or {}).get(rollout.get("name")) or {}
    changed = [
        name
        for name, neutral in (
            ("temperature", float(rollout.get("temperature", 1.0)) > 0),
            ("do_sample", bool(rollout.get("do_sample", True))),
            ("top_p", float(rollout.get("top_p", 1.0)) >= 1),
            ("top_k", int(rollout.get("top_k", -1)) <= 0),
            ("mtp.enable_rollout", not (rollout.get("mtp") or {}).get("enable_rollout", False)),
            # These change the logits of the engine, and not those of the trainer.
            ("quantization", not rollout.get("quantization")),
            ("qat.enable", not (rollout.get("qat") or {}).get("enable", False)),
            *((f"engine_kwargs.{name}", engine.get(name) is None) for name in _OF_ENGINE),
        )
        if not neutral
    ]
    return f"tokens are sampled from a changed distribution, as configured: {', '.join(changed)}" if changed else ""
