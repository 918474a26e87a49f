"""The documented losses against verl's own `ppo_loss`, for random micro-batches of every covered kind."""

from __future__ import annotations

import itertools
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.systems.verl.launch import CPU_FOLDER, ENVIRONMENT

AGGREGATIONS = ("token-mean", "token-sum", "seq-mean-token-sum", "seq-mean-token-sum-norm", "seq-mean-token-mean")
MODES = ("vanilla", "gspo", "sapo", "gpg", "cispo", "dro")
KINDS = ("k1", "abs", "k2", "k3", "low_var_kl", "k3+")
LENGTHS = (5, 9, 1, 7)
RANKS = 2
SAMPLES = 16
"""Of a mini-batch, over all ranks."""


@pytest.fixture(scope="module")
def found() -> list[dict[str, Any]]:
    """What verl and the formula give for each kind of loss; in a process of its own, because importing verl settles its platform."""
    environment = os.environ | ENVIRONMENT | {"VERL_USE_EXTERNAL_MODULES": "verl_cpu.plugin"}
    root = str(Path(__file__).parents[3])
    environment["PYTHONPATH"] = os.pathsep.join([str(CPU_FOLDER), root, os.environ.get("PYTHONPATH", "")])
    done = subprocess.run(
        [sys.executable, __file__], env=environment, capture_output=True, text=True, timeout=300, check=False
    )
    assert done.returncode == 0, done.stderr[-3000:]
    outcomes: list[dict[str, Any]] = json.loads(done.stdout.splitlines()[-1])
    return outcomes


def test_the_formula_gives_what_verl_computes(found: list[dict[str, Any]]) -> None:
    covered = [case for case in found if "gap" in case and "reduced" not in case]
    assert len(covered) == len(MODES) * len(AGGREGATIONS) * 2 + len(KINDS) + len(AGGREGATIONS) * 2
    assert {case["followed"] for case in covered} == {True}, "gradients are compared too"
    # In roundings of float32; the order of sums explains one or two.
    assert [case for case in covered if case["gap"] > 8 or case["like"]] == []
    assert {case["clipped"] is None for case in covered if case["mode"] not in ("vanilla", "gspo")} == {True}
    # verl's fraction leaves out what the dual clip cuts, and counts it apart.
    for case in covered:
        if case["mode"] in ("vanilla", "gspo"):
            assert case["clipped"] == pytest.approx(case["verl_clipped"], abs=1e-5)


def test_rounding_to_bfloat16_is_no_other_loss(found: list[dict[str, Any]]) -> None:
    cases = [case for case in found if "reduced" in case]
    assert len(cases) == (len(MODES) + 1) * SEEDS
    assert [case for case in cases if case["gap"] > 32] == []
    # Where rounding may decide at each token, no gradient is compared.
    compared = [case for case in cases if case["gradient"] is not None]
    assert len(compared) > len(cases) * 0.9
    assert [case for case in compared if case["gradient"] > 32] == []


def test_a_loss_that_is_not_the_documented_one_is_named(found: list[dict[str, Any]]) -> None:
    wrong = {case["wrong"]: (case["like"], case["ratio"]) for case in found if "wrong" in case}
    assert {name: like for name, (like, _) in wrong.items()} == {
        "quarter": "the documented one divided by 4",
        "sign": "the documented one with its sign flipped",
        "no kl": "without its KL term",
        "no entropy": "without its entropy bonus",
        "no weights": "without the importance weights",
        "ratio 1": "that of old log-probs equal to the current ones (ratio 1)",
        "no last token": "that of a mask without the last token of each completion",
        "no negative advantages": "that of advantages whose negative ones are 0",
        "seq-mean-token-sum": "that of loss_agg_mode=seq-mean-token-sum",
        "one rank": f"not multiplied by the {RANKS} ranks",
        "24 samples": "that of a mini-batch of 24 samples, where this one has 16",
        "one trainer": f"not multiplied by the {RANKS} ranks",
        "no size": "that of the micro-batch alone, not a part of its update",
        "no entropies": "without its entropy bonus",
        "backward": "",
        "nothing known": "",
        "gradient of the opposite sign": "-1 times the documented one",
        "half of the gradient": "0.5 times the documented one",
        "no gradient": "0 at every token",
        "values: no clip": "that without a clip of the values",
        "values: returns of the next token": "that of the returns of the token after",
        "values: returns of the next sample": "that of the returns of the sample after",
        "values: mask": "that of a mask without the last token of each completion",
        "values: not halved": "the documented one multiplied by 2",
        "values: gradient": "-1 times the documented one",
    }
    (gaps,) = [{case["wrong"]: case["gradient"] for case in found if "wrong" in case}]
    assert {name for name, gap in gaps.items() if gap is not None and gap > 32} == {
        "gradient of the opposite sign",
        "half of the gradient",
        "no gradient",
        "values: gradient",
    }
    assert max(case["gradient"] for case in found if "gap" in case and "reduced" not in case) < 16
    assert wrong["quarter"][1] == pytest.approx(0.25)
    (into_backward,) = [case["backward"] for case in found if case.get("wrong") == "backward"]
    assert into_backward == 3
    assert {case["backward"] for case in found if "backward" in case and "wrong" not in case} == {1.0}


def test_what_no_formula_covers_says_so(found: list[dict[str, Any]]) -> None:
    refused = {case["refused"]: case["reason"] for case in found if "refused" in case}
    assert "policy_loss.loss_mode=kl_cov" in refused["kl_cov"]
    assert "policy_loss.loss_mode=mine" in refused["mine"]
    assert "bypass_mode" in refused["bypass with rejection"]
    assert refused["bypass"] == ""


def test_a_loss_that_is_not_the_policys_says_so(found: list[dict[str, Any]]) -> None:
    reasons = {case["other"]: case["reason"] for case in found if "other" in case}
    assert reasons == {
        "of fine-tuning": "the policy's loss is sft_loss, which is not verl's ppo_loss",
        "of the critic": "the policy's loss is value_loss, which is not verl's ppo_loss",
        "of somebody's own": "the policy's loss is others.<locals>.<lambda>, which is not verl's ppo_loss",
        "without a configuration": "the policy's loss was given no configuration by name",
    }


def config(**changes: Any) -> Any:
    from verl.workers.config import FSDPActorConfig, PolicyLossConfig

    mode, correction = changes.pop("mode", "vanilla"), changes.pop("correction", {})
    return FSDPActorConfig(
        strategy="fsdp2",
        rollout_n=2,
        ppo_micro_batch_size_per_gpu=len(LENGTHS),
        policy_loss=PolicyLossConfig(loss_mode=mode, dro_beta=0.1, rollout_correction=correction),
        **changes,
    )


def microbatch(*, reference: bool = False, weights: bool = False, seed: int = 0) -> tuple[Any, dict[str, Any]]:
    """Random data of a micro-batch and the model's output, with a masked token and a masked sample."""
    import torch
    from tensordict import TensorDict

    draw = torch.Generator().manual_seed(seed)

    def rows(make: Any) -> Any:
        return torch.nested.as_nested_tensor([make(length) for length in LENGTHS], layout=torch.jagged)

    def normal(length: int, size: float = 1.0) -> Any:
        return torch.randn(length, generator=draw) * size

    prompts = 3
    log_probs = [normal(length + prompts) - 4 for length in LENGTHS]
    shifted = iter(log_probs)
    fields = {
        "input_ids": rows(lambda length: torch.ones(length + prompts, dtype=torch.long)),
        "prompts": rows(lambda length: torch.ones(prompts, dtype=torch.long)),
        "responses": rows(lambda length: torch.ones(length, dtype=torch.long)),
        "response_mask": torch.nested.as_nested_tensor(
            [torch.ones(5), torch.tensor([1.0] * 4 + [0.0] * 2 + [1.0] * 3), torch.zeros(1), torch.ones(7)],
            layout=torch.jagged,
        ),
        "old_log_probs": rows(lambda length: next(shifted)[prompts - 1 : -1] + normal(length, 0.4)),
        "advantages": rows(normal),
    }
    fields["loss_mask"] = fields["response_mask"]
    if reference:
        fields["ref_log_prob"] = rows(lambda length: normal(length) - 4)
    if weights:
        fields["rollout_is_weights"] = rows(lambda length: normal(length).exp())
    data = TensorDict(fields, batch_size=[len(LENGTHS)])
    from verl.utils import tensordict_utils

    tensordict_utils.assign_non_tensor(data, dp_size=RANKS, batch_num_tokens=61, global_batch_size=SAMPLES)
    output = {
        "log_probs": torch.nested.as_nested_tensor(log_probs, layout=torch.jagged),
        "entropy": rows(lambda length: normal(length + prompts).abs()),
    }
    return data, output


class Nobody:
    """Stands in for a record: nothing fails here."""

    def cannot(self, what: str, why: str) -> None:
        """What a failure of the comparison comes to."""
        assert "a hook failed" not in why, why


def held(
    actor: Any,
    data: Any,
    output: dict[str, Any],
    change: Any = None,
    factor: float = 1.0,
    *,
    critic: bool = False,
    ranks: int = RANKS,
) -> dict[str, Any]:
    """What verl computes, against the formula."""
    from functools import partial

    import torch
    from verl.workers.utils import losses

    from rlstep_hooks.systems.verl.observe.loss_kinds import CRITIC, POLICY
    from rlstep_hooks.systems.verl.observe.loss_meter import LossMeter

    meter = LossMeter(CRITIC if critic else POLICY, Nobody())
    meter.next_rollout()
    function = losses.value_loss if critic else losses.ppo_loss
    meter.begin(0, data, partial(function, config=actor), ranks)
    assert not meter.reason
    name = "values" if critic else "log_probs"
    leaf = output[name].values().clone().requires_grad_()
    output = output | {name: torch.nested.nested_tensor_from_jagged(leaf, output[name].offsets())}
    padded = losses.no_padding_2_padding
    followed: list[Any] = []

    def follow(values: Any, of: Any) -> Any:
        result = padded(values, of)
        if values is output[name]:
            followed.append(result)
            meter.follow(result)
        return result

    losses.no_padding_2_padding = follow
    try:
        loss, numbers = function(actor, dict(output), data)
    finally:
        losses.no_padding_2_padding = padded
    changed = loss if change is None else change(loss)
    meter.end(changed, {key: value.detach() for key, value in output.items()}, scaled=False)
    (changed * factor).backward()
    # Another micro-batch of the same update that was not held, with the rest of its samples.
    meter._update.add(SAMPLES // RANKS - len(LENGTHS), None)
    meter.send()
    (compared,) = meter.arrived().values()
    pg = {
        name: torch.as_tensor(value.values[0] if hasattr(value, "values") else value) for name, value in numbers.items()
    }
    clipped = sum(float(pg[name]) for name in ("actor/pg_clipfrac", "actor/pg_clipfrac_lower") if name in pg)
    return {
        "gap": compared.loss_gap,
        "like": compared.loss_like,
        "ratio": compared.loss_ratio,
        "backward": compared.backward_ratio,
        "gradient": compared.gradient_gap,
        "clipped": compared.clipped,
        "followed": len(followed) == 1,
        "verl_clipped": clipped,
    }


def covered() -> list[dict[str, Any]]:
    outcomes = []
    for mode, aggregation, full in itertools.product(MODES, AGGREGATIONS, (False, True)):
        actor = config(
            mode=mode,
            loss_agg_mode=aggregation,
            clip_ratio_low=0.1,
            clip_ratio_high=0.3,
            entropy_coeff=0.01 if full else 0.0,
            loss_scale_factor=12 if full else None,
        )
        outcomes.append({"mode": mode} | held(actor, *microbatch(weights=full)))
    for kind in KINDS:
        actor = config(use_kl_loss=True, kl_loss_type=kind, kl_loss_coef=0.05)
        outcomes.append({"mode": "vanilla"} | held(actor, *microbatch(reference=True)))
    for aggregation, scale in itertools.product(AGGREGATIONS, (None, 12)):
        critic = value_config(loss_agg_mode=aggregation, loss_scale_factor=scale)
        outcomes.append({"mode": "values"} | held(critic, *value_microbatch(), critic=True))
    return outcomes


def value_config(**changes: Any) -> Any:
    from verl.workers.config import CriticConfig

    return CriticConfig(**{"strategy": "fsdp2", "ppo_micro_batch_size_per_gpu": 4, "cliprange_value": 0.2} | changes)


def value_microbatch(seed: int = 1) -> tuple[Any, dict[str, Any]]:
    """Random data of a micro-batch and the critic's output."""
    import torch

    data, output = microbatch()
    draw = torch.Generator().manual_seed(seed)
    for name in ("values", "returns"):
        rows = [torch.randn(length, generator=draw) for length in LENGTHS]
        data[name] = torch.nested.as_nested_tensor(rows, layout=torch.jagged)
    of_all = output["log_probs"]
    values = torch.randn(len(of_all.values()), generator=draw)
    return data, {"values": torch.nested.nested_tensor_from_jagged(values, of_all.offsets())}


SEEDS = 25
NEARER = 8


def reduced() -> list[dict[str, Any]]:
    """What verl computes from numbers in bfloat16, whose rounding decides at many a token on which side of the clip it is."""
    outcomes = []
    for mode, seed in itertools.product(MODES, range(SEEDS)):
        actor = config(mode=mode, clip_ratio_low=0.05, clip_ratio_high=0.06)
        outcomes.append({"reduced": mode, "seed": seed} | held(actor, *in_bfloat16(*microbatch(seed=seed))))
    for seed in range(SEEDS):
        found = held(value_config(cliprange_value=0.05), *in_bfloat16(*value_microbatch(seed)), critic=True)
        outcomes.append({"reduced": "values", "seed": seed} | found)
    return [{name: outcome[name] for name in ("reduced", "seed", "gap", "gradient")} for outcome in outcomes]


def in_bfloat16(data: Any, output: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
    """The numbers of likely tokens, as a model in bfloat16 and its trainer have them; masks stay as they are.

    Log-probs near 0 are close together in bfloat16, so that their differences come near to each limit.
    """
    import torch

    data = data.clone()
    for name in {"old_log_probs", "advantages", "values", "returns"} & set(data.keys()):
        data[name] = (data[name] / NEARER).to(torch.bfloat16)
    return data, {name: (of / NEARER).to(torch.bfloat16) for name, of in output.items()}


def wrong() -> list[dict[str, Any]]:
    import torch

    full = {"use_kl_loss": True, "kl_loss_coef": 0.05, "entropy_coeff": 0.01}
    data, output = microbatch(reference=True, weights=True)
    outcomes = []

    def case(name: str, change: Any = None, factor: float = 1.0) -> None:
        outcomes.append({"wrong": name} | _not_covered(held(config(**full), data, output, change, factor)))

    def other(changes: dict[str, Any], altered: Any = None) -> Any:
        from verl.workers.utils.losses import ppo_loss

        value = ppo_loss(config(**full | changes), dict(output), data if altered is None else altered)[0]
        return lambda loss: loss * 0 + value

    case("quarter", lambda loss: loss / 4)
    case("sign", lambda loss: -loss)
    case("no kl", other({"use_kl_loss": False}))
    case("no entropy", other({"entropy_coeff": 0.0}))
    without = data.clone()
    without.pop("rollout_is_weights")
    case("no weights", other({}, without))
    same = data.clone()
    same["old_log_probs"] = torch.nested.as_nested_tensor(
        [row[-length - 1 : -1] for row, length in zip(output["log_probs"].unbind(), LENGTHS, strict=True)],
        layout=torch.jagged,
    )
    case("ratio 1", other({}, same))
    shorter = data.clone()
    shorter["response_mask"] = torch.nested.as_nested_tensor(
        [torch.cat([row[:-1], torch.zeros(1)]) for row in data["response_mask"].unbind()], layout=torch.jagged
    )
    case("no last token", other({}, shorter))
    best = data.clone()
    best["advantages"] = torch.nested.as_nested_tensor(
        [row.clamp(min=0) for row in data["advantages"].unbind()], layout=torch.jagged
    )
    case("no negative advantages", other({}, best))
    case("seq-mean-token-sum", other({"loss_agg_mode": "seq-mean-token-sum"}))
    case("one rank", lambda loss: loss / RANKS)
    outcomes += [
        of_size("24 samples", global_batch_size=24),
        of_size("no size", ranks=1, global_batch_size=None, dp_size=1),
        of_size("one trainer", dp_size=1),
    ]
    alone = {name: of for name, of in output.items() if name != "entropy"}
    outcomes.append({"wrong": "no entropies"} | _not_covered(held(config(**full), data, alone)))
    case("backward", factor=3.0)
    case("nothing known", lambda loss: loss * 0.8731)
    case("gradient of the opposite sign", lambda loss: 2 * loss.detach() - loss)
    case("half of the gradient", lambda loss: (loss + loss.detach()) / 2)
    case("no gradient", lambda loss: loss.detach().requires_grad_())
    return outcomes + wrong_values()


def of_size(name: str, ranks: int = RANKS, **said: Any) -> dict[str, Any]:
    """What is found where verl's data say other sizes of the mini-batch, or another number of trainers, than there are."""
    from verl.utils import tensordict_utils

    data, output = microbatch()
    tensordict_utils.assign_non_tensor(data, **said)
    return {"wrong": name} | _not_covered(held(config(loss_agg_mode="seq-mean-token-sum"), data, output, ranks=ranks))


def wrong_values() -> list[dict[str, Any]]:
    from verl.workers.utils.losses import value_loss

    data, output = value_microbatch()
    outcomes = []

    def case(name: str, change: Any) -> None:
        found = held(value_config(), data, output, change, critic=True)
        outcomes.append({"wrong": f"values: {name}"} | _not_covered(found))

    def other(altered: Any = data, **changes: Any) -> Any:
        value = value_loss(value_config(**changes), dict(output), altered)[0]
        return lambda loss: loss * 0 + value

    def rolled(name: str, dimension: int) -> Any:
        import torch

        padded = data[name].to_padded_tensor(0.0).roll(-1, dimension)
        changed = data.clone()
        rows = [row[:length] for row, length in zip(padded, LENGTHS, strict=True)]
        changed[name] = torch.nested.as_nested_tensor(rows, layout=torch.jagged)
        return changed

    import torch

    shorter = data.clone()
    shorter["response_mask"] = torch.nested.as_nested_tensor(
        [without_last_counted(row) for row in data["response_mask"].unbind()], layout=torch.jagged
    )
    case("no clip", other(cliprange_value=1e9))
    case("returns of the next token", other(rolled("returns", 1)))
    case("returns of the next sample", other(rolled("returns", 0)))
    case("mask", other(shorter))
    case("not halved", lambda loss: 2 * loss)
    case("gradient", lambda loss: 2 * loss.detach() - loss)
    return outcomes


def without_last_counted(row: Any) -> Any:
    """A row of a mask without the last token that it counts."""
    row = row.clone()
    counted = row.nonzero()
    if len(counted):
        row[counted[-1]] = 0
    return row


def _not_covered(outcome: dict[str, Any]) -> dict[str, Any]:
    return {name: outcome[name] for name in ("like", "ratio", "backward", "gradient")}


def refused() -> list[dict[str, Any]]:
    from rlstep_hooks.systems.verl.observe.loss import read_settings

    bypass = {"mode": "bypass_mode", "correction": {"loss_type": "ppo_clip"}}
    cases = {
        "kl_cov": {"mode": "kl_cov"},
        "mine": {"mode": "mine"},
        "bypass": bypass,
        "bypass with rejection": bypass | {"correction": {"loss_type": "ppo_clip", "rollout_rs": "token_k1"}},
    }
    outcomes = []
    for name, changes in cases.items():
        settings = read_settings(config(**changes))
        outcomes.append({"refused": name, "reason": settings if isinstance(settings, str) else ""})
    return outcomes


def others() -> list[dict[str, Any]]:
    """What is said of losses that are given to the policy's engine in the place of its own."""
    from functools import partial

    from verl.workers.utils import losses

    from rlstep_hooks.systems.verl.observe.loss_kinds import POLICY
    from rlstep_hooks.systems.verl.observe.loss_meter import LossMeter

    given = {
        "of fine-tuning": partial(losses.sft_loss, config=None),
        "of the critic": partial(losses.value_loss, config=value_config()),
        "of somebody's own": lambda model_output, data, dp_group: model_output["log_probs"].values().mean(),
        "without a configuration": partial(losses.ppo_loss, config()),
    }
    outcomes = []
    for name, function in given.items():
        meter = LossMeter(POLICY, Nobody())
        meter.next_rollout()
        meter.begin(0, microbatch()[0], function, RANKS)
        outcomes.append({"other": name, "reason": meter.reason})
    return outcomes


if __name__ == "__main__":
    print(json.dumps([*covered(), *reduced(), *wrong(), *refused(), *others()]))
