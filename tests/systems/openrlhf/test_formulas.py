"""OpenRLHF's loss and estimators on random numbers, by its own functions and by the documented formulas."""

from __future__ import annotations

import itertools
import sys
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from rlstep_hooks.systems.openrlhf.rehearse.cpu import STUBS

sys.path.append(str(STUBS))  # a stand-in for flash_attn, which OpenRLHF imports
pytest.importorskip("openrlhf")

from openrlhf.models.loss import PolicyLoss, ValueLoss, aggregate_loss
from openrlhf.models.utils import compute_approx_kl
from openrlhf.trainer.ppo_utils.experience import Experience
from openrlhf.trainer.ppo_utils.experience_maker import RemoteExperienceMaker
from openrlhf.trainer.ppo_utils.kl_controller import AdaptiveKLController

from rlstep_hooks.observe.loss_causes import Compared, named_together
from rlstep_hooks.observe.losses import LossBatch
from rlstep_hooks.systems.openrlhf.observe.advantages import AdvantageWatch
from rlstep_hooks.systems.openrlhf.observe.entropies import gradient_gap
from rlstep_hooks.systems.openrlhf.observe.kl_coefficient import AdaptiveCoefficient
from rlstep_hooks.systems.openrlhf.observe.loss import policy_formula, read_settings
from rlstep_hooks.systems.openrlhf.observe.value_loss import ValueSettings, value_formula

NAMES = ("log_probs", "old", "advantages", "mask", "engine", "reference", "entropies")


def arguments(**changed: Any) -> Any:
    """OpenRLHF's arguments, as far as advantages and loss need them."""
    given = {
        "estimator": "reinforce", "gamma": 0.9, "lambd": 0.8, "no_std_norm": False, "clip_range": (-10, 10), "level": "off",
        "mode": "mask", "gating": "ratio", "threshold": (0.5, 5.0), "type": "ppo", "agg": "token-mean", "dual": None,
        "kl_loss": False, "kl": "k3", "overlong": None, "properly": None, "samples": 2,
        "entropy": None, "unbiased": False,
    } | changed  # fmt: skip
    advantage = SimpleNamespace(
        estimator=given["estimator"],
        gamma=given["gamma"],
        lambd=given["lambd"],
        no_std_norm=given["no_std_norm"],
        is_correction_level=given["level"],
        is_correction_mode=given["mode"],
        is_correction_gating=given["gating"],
        is_correction_threshold=given["threshold"],
    )
    return SimpleNamespace(
        algo=SimpleNamespace(
            advantage=advantage,
            kl=SimpleNamespace(
                use_loss=given["kl_loss"], init_coef=0.1, estimator=given["kl"], unbiased_gradient=given["unbiased"]
            ),
        ),
        actor=SimpleNamespace(
            policy_loss_type=given["type"],
            eps_clip_low_high=(0.2, 0.3),
            dual_clip=given["dual"],
            loss_agg_mode=given["agg"],
            entropy_coef=given["entropy"],
        ),
        reward=SimpleNamespace(
            clip_range=given["clip_range"],
            overlong_buffer_len=given["overlong"],
            overlong_penalty_factor=1.5,
            stop_properly_penalty_coef=given["properly"],
        ),
        rollout=SimpleNamespace(n_samples_per_prompt=given["samples"], max_new_tokens=6),
        data=SimpleNamespace(max_len=64),
    )


def numbers(seed: int) -> dict[str, torch.Tensor]:
    torch.manual_seed(seed)
    mask = (torch.arange(6) < torch.tensor([[6], [2], [4], [1]])).float()
    given = {name: 0.5 * torch.randn(4, 6) - 2 for name in NAMES}
    return given | {"mask": mask, "advantages": torch.randn(4, 1).expand(4, 6) * mask}


def batch_of(tensors: dict[str, torch.Tensor], mask: torch.Tensor, dtype: torch.dtype) -> LossBatch:
    return LossBatch(
        tensors={name: tensor.detach().double() for name, tensor in tensors.items()},
        mask=mask.double(),
        tokens=20.0,
        samples=7.0,
        ranks=2,
        epsilons={"policy": torch.finfo(dtype).eps},
    )


CORRECTIONS = [{}] + [
    {"level": level, "mode": mode, "gating": gating, "threshold": (0.0 if gating != "ratio" else 0.5, 1.5)}
    for level, mode, gating in itertools.product(("token", "seq"), ("mask", "clip"), ("ratio", "binary_kl", "tv"))
    if mode != "clip" or (level, gating) == ("token", "ratio")
]


@pytest.mark.parametrize("correction", CORRECTIONS, ids=lambda one: "-".join(map(str, one.values())) or "off")
@pytest.mark.parametrize("kind", ["ppo", "gspo"])
@pytest.mark.parametrize(
    "more",
    [
        *({}, {"dual": 3.0}, {"agg": "seq-mean"}, {"kl_loss": True, "kl": "k1"}, {"kl_loss": True}, {"entropy": 0.05}),
        *({"kl_loss": True, "kl": kind, "unbiased": True} for kind in ("k1", "k2", "k3")),
    ],
)
def test_the_loss(kind: str, correction: dict[str, Any], more: dict[str, Any]) -> None:
    for seed in range(5):
        args, given = arguments(type=kind, **correction, **more), numbers(seed)
        given["log_probs"].requires_grad_()
        given["entropies"].requires_grad_()
        own = args.algo.advantage
        loss = PolicyLoss(
            *args.actor.eps_clip_low_high,
            dual_clip=args.actor.dual_clip,
            token_level_loss=args.actor.loss_agg_mode == "token-mean",
            policy_loss_type=kind,
            is_correction_level=own.is_correction_level,
            is_correction_mode=own.is_correction_mode,
            is_correction_gating=own.is_correction_gating,
            is_correction_threshold=own.is_correction_threshold,
        )
        totals = {"dp_size": 2, "batch_num_tokens": torch.tensor(20.0), "global_batch_size": torch.tensor(7.0)}
        value = loss(given["log_probs"], given["old"], given["advantages"], given["mask"], given["engine"], **totals)[0]
        if args.algo.kl.use_loss:
            kl = compute_approx_kl(
                given["log_probs"],
                given["reference"],
                given["old"],
                kl_estimator=args.algo.kl.estimator,
                unbiased_gradient=args.algo.kl.unbiased_gradient,
            )
            value = value + 0.1 * aggregate_loss(kl, given["mask"], **totals)
        if args.actor.entropy_coef:
            value = value - args.actor.entropy_coef * aggregate_loss(given["entropies"], given["mask"], **totals)
        batch = batch_of({name: given[name] for name in NAMES}, given["mask"], torch.float32)
        formula = policy_formula(read_settings(args, 0.1))
        expected = float(formula.value(batch)[0])
        arrived, at_entropies = torch.autograd.grad(value, (given["log_probs"], given["entropies"]), allow_unused=True)
        found = formula.compare(batch, float(value), 2, arrived.double())
        assert found.loss_gap is not None
        assert found.loss_gap <= 32
        if args.actor.entropy_coef:
            assert gradient_gap(batch, args.actor.entropy_coef, at_entropies.double().flatten()) <= 32
            assert gradient_gap(batch, args.actor.entropy_coef, torch.zeros(24)) > 1e6
        if not bool((formula.gradient(batch)[2] | (batch.mask == 0)).all()):
            assert found.gradient_gap is not None
            assert found.gradient_gap <= 32
        assert any(words and abs(other + expected) < 1e-12 for words, other in formula.others(batch, 2))


@pytest.mark.parametrize("clip", [None, 0.2, 1e-3])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_the_critics_loss(clip: float | None, dtype: torch.dtype) -> None:
    for seed in range(20):
        given = numbers(seed)
        values, old, targets = (given[name].to(dtype) for name in ("log_probs", "old", "engine"))
        totals = {"dp_size": 2, "batch_num_tokens": torch.tensor(20.0), "global_batch_size": torch.tensor(7.0)}
        values.requires_grad_()
        loss = ValueLoss(clip)(values, old, targets, action_mask=given["mask"], **totals)
        (arrived,) = torch.autograd.grad(loss, values)
        value = float(loss)
        batch = batch_of({"values": values, "old": old, "targets": targets}, given["mask"], dtype)
        formula = value_formula(ValueSettings(clip))
        found = formula.compare(batch, value, 2, arrived.double())
        assert found.loss_gap is not None
        assert found.gradient_gap is not None
        assert found.loss_gap <= 32
        assert found.gradient_gap <= 32


@pytest.mark.parametrize("clip", [None, 0.2])
def test_targets_that_are_changed_on_their_way_into_the_critics_loss(clip: float | None) -> None:
    totals = {"dp_size": 2, "batch_num_tokens": torch.tensor(20.0), "global_batch_size": torch.tensor(7.0)}
    for change, words in (
        (lambda targets: targets.roll(1, 1), "that of the returns of the token before"),
        (lambda targets: targets.clamp(min=-1.83), "that of returns cut from below at -1.83"),
    ):
        formula, found = value_formula(ValueSettings(clip)), []
        for seed in range(4):
            given = numbers(seed)
            values, old, targets = (given[name] for name in ("log_probs", "old", "engine"))
            loss = float(ValueLoss(clip)(values, old, change(targets), action_mask=given["mask"], **totals))
            batch = batch_of({"values": values, "old": old, "targets": targets}, given["mask"], torch.float32)
            found.append(Compared(formula, batch, loss, formula.compare(batch, loss, 2)))
        assert {of.loss_like for of in named_together(found, []) if not of.loss_is_documented} == {words}


def experiences(seed: int, samples: int) -> list[Experience]:
    """Two parts of a rollout, of different widths."""
    torch.manual_seed(seed)
    order, found = torch.randperm(4 * samples).tolist(), []
    for part, width in ((order[: 2 * samples], 6), (order[2 * samples :], 8)):
        lengths = torch.randint(1, 7, (len(part),))
        mask = (torch.arange(width) < lengths[:, None]).long()
        kl, values = 0.3 * torch.randn(len(part), width), torch.randn(len(part), width)
        found.append(
            Experience(
                sequences=torch.randint(0, 9, (len(part), width + 1)),
                attention_mask=torch.ones(len(part), width + 1, dtype=torch.long),
                action_mask=mask,
                rewards=torch.randint(0, 3, (len(part),)).float(),
                kl=kl * mask,
                values=values,
                response_length=lengths,
                truncated=lengths >= 6,
                index=part,
                info={},
            )
        )
    return found


ESTIMATORS = ("gae", "reinforce", "rloo", "reinforce_baseline", "group_norm", "dr_grpo", "flash_reinforce")


@pytest.mark.parametrize("estimator", ESTIMATORS)
@pytest.mark.parametrize(
    "more",
    [{}, {"no_std_norm": True}, {"clip_range": (-0.4, 0.4)}, {"overlong": 3}, {"properly": 0.5}, {"properly": -0.5}],
)
def test_advantages(estimator: str, more: dict[str, Any]) -> None:
    for seed in range(5):
        args = arguments(estimator=estimator, samples=3, **more)
        maker = object.__new__(RemoteExperienceMaker)
        maker.strategy, maker.advantage_estimator = SimpleNamespace(args=args), estimator
        maker.kl_ctl = SimpleNamespace(value=0.1)
        watch, given = AdvantageWatch(args), experiences(seed, 3)
        watch.before(given)
        made = maker.compute_advantages_and_returns(given)
        found = watch.after(made, 0.1, 0)
        assert found is not None
        assert found.advantages_off is not None
        assert found.advantages_off <= 1, (seed, found)

        watch.before(given := experiences(seed, 3))
        made = maker.compute_advantages_and_returns(given)
        for experience in made:
            experience.advantages = -experience.advantages
        found = watch.after(made, 0.1, 1)
        assert found is not None
        assert found.advantages_fit == "of the opposite sign"


@pytest.mark.parametrize(
    ("more", "field", "words"),
    [
        ({"overlong": 3}, "response_length", "penalties for other lengths than those of the answers"),
        ({"properly": 0.5}, "truncated", "penalties for other answers than those that were cut off"),
    ],
)
def test_penalties_by_what_a_sample_wrongly_says_are_named(more: dict[str, Any], field: str, words: str) -> None:
    args = arguments(estimator="reinforce_baseline", samples=3, **more)
    maker = object.__new__(RemoteExperienceMaker)
    maker.strategy, maker.advantage_estimator = SimpleNamespace(args=args), "reinforce_baseline"
    maker.kl_ctl = SimpleNamespace(value=0.1)
    watch, given = AdvantageWatch(args), experiences(0, 3)
    for experience in given:
        experience.rewards += 1.0
        for tokens, lengths, cut in zip(
            experience.sequences, experience.response_length, experience.truncated, strict=True
        ):
            spans = {"observation_tokens": tokens.tolist(), "action_ranges": [(1, 1 + int(lengths))]}
            response = spans | {"truncated": bool(cut)}
            watch.generated(response, 64, SimpleNamespace(sequences=tokens.unsqueeze(0)))
        right = getattr(experience, field)
        setattr(experience, field, ~right if field == "truncated" else right + 3)
    watch.before(given)
    found = watch.after(maker.compute_advantages_and_returns(given), 0.1, 0)
    assert found is not None
    assert found.advantages_off is not None
    assert found.advantages_off > 100
    assert found.advantages_fit == words


def test_a_penalty_beside_the_term_of_the_loss_is_found() -> None:
    args = arguments(estimator="reinforce", samples=3, kl_loss=True)
    maker = object.__new__(RemoteExperienceMaker)
    maker.strategy, maker.advantage_estimator = SimpleNamespace(args=args), "reinforce"
    maker.kl_ctl = SimpleNamespace(value=0.1)
    for penalised in (False, True):
        watch, given = AdvantageWatch(args), experiences(0, 3)
        for experience in given:  # OpenRLHF hands over zeros
            experience.kl = experience.kl if penalised else torch.zeros_like(experience.kl)
        watch.before(given)
        found = watch.after(maker.compute_advantages_and_returns(given), 0.1, 0)
        assert found is not None
        assert found.advantages_off is not None
        assert (found.advantages_off > 1) is penalised


@pytest.mark.parametrize(
    ("kind", "change", "words"),
    [
        ("k1", lambda own, theirs: (own, theirs, "k2"), "those with a KL penalty of the estimate k2"),
        ("k2", lambda own, theirs: (own, theirs, "k3"), "those with a KL penalty of the estimate k3"),
        (
            "k1",
            lambda own, theirs: (own, theirs.roll(1, -1), "k1"),
            "those with a KL penalty of the reference log-probs of the token before",
        ),
        ("k3", lambda own, theirs: (own.clamp(min=-2), theirs, "k3"), "those with a KL penalty of old log-probs cut from below at -2"),
        ("k2", lambda own, theirs: (own, 1.2 * theirs, "k2"), "those with a KL penalty of reference log-probs 1.2 times as large"),
        ("k1", lambda own, theirs: (own, theirs + 0.2 * torch.randn_like(theirs), "k1"), ""),
    ],
)  # fmt: skip
def test_a_penalty_of_other_log_probs_is_named(kind: str, change: Any, words: str) -> None:
    args = arguments(estimator="reinforce", samples=3, kl=kind)
    maker = object.__new__(RemoteExperienceMaker)
    maker.strategy, maker.advantage_estimator = SimpleNamespace(args=args), "reinforce"
    maker.kl_ctl = SimpleNamespace(value=0.1)
    for seed in range(3):
        for wrong in (False, True):
            watch, given = AdvantageWatch(args), experiences(seed, 3)
            answers = [(-3 * torch.rand(of.kl.shape), -3 * torch.rand(of.kl.shape)) for of in given]
            for experience, (own, theirs) in zip(given, answers, strict=True):
                of, against, estimator = change(own, theirs) if wrong else (own, theirs, kind)
                experience.kl = compute_approx_kl(of, against, kl_estimator=estimator)
            watch.before(given, answers)
            found = watch.after(maker.compute_advantages_and_returns(given), 0.1, 0)
            assert found is not None
            assert found.advantages_off is not None
            assert (found.advantages_off > 1) is wrong
            assert found.advantages_fit == (words if wrong else "")


def plain_loss(given: dict[str, torch.Tensor], **changed: Any) -> float:
    """OpenRLHF's own loss of a policy, with a correction for the engine's log-probs."""
    settings = {
        "is_correction_level": "token", "is_correction_mode": "mask", "is_correction_gating": "ratio",
        "is_correction_threshold": [0.7, 1.5],
    }  # fmt: skip
    totals = {"dp_size": 2, "batch_num_tokens": torch.tensor(20.0), "global_batch_size": torch.tensor(7.0)}
    names = ("log_probs", "old", "advantages", "mask", "engine")
    return float(PolicyLoss(0.2, 0.3, **(settings | changed))(*(given[name] for name in names), **totals)[0])


def compared(given: dict[str, torch.Tensor], loss: float, **correction: Any) -> Any:
    """What the formula of a correction says of a loss."""
    args = arguments(**({"level": "token", "mode": "mask", "threshold": [0.7, 1.5]} | correction))
    batch = batch_of({name: given[name] for name in NAMES}, given["mask"], torch.float32)
    return policy_formula(read_settings(args, 0.0)).compare(batch, loss, 2)


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        (lambda advantages: advantages, None),
        (lambda advantages: advantages.clamp(min=0), "that of advantages whose negative ones are 0"),
        (torch.abs, "that of advantages without their sign"),
        (lambda advantages: 0.3 * advantages, "0.3 times the documented one, as advantages 0.3 times as large would make it"),
        (lambda advantages: advantages.roll(1, 0), "that of the advantages of the sample before"),
    ],
)  # fmt: skip
def test_advantages_that_are_changed_on_their_way_into_the_loss(changed: Any, words: str | None) -> None:
    formula, found = policy_formula(read_settings(arguments(), 0.0)), []
    for seed in range(3):
        given = numbers(seed)
        loss = plain_loss(given | {"advantages": changed(given["advantages"])}, is_correction_level="off")
        batch = batch_of({name: given[name] for name in NAMES}, given["mask"], torch.float32)
        found.append(Compared(formula, batch, loss, formula.compare(batch, loss, 2)))
    assert {None if of.loss_is_documented else of.loss_like for of in named_together(found, [])} == {words}


@pytest.mark.parametrize(
    ("name", "changed", "words"),
    [
        ("old", lambda old: old.clamp(min=-1.5), "that of old log-probs cut from below at -1.5"),
        ("old", lambda old: old.roll(-1, 1), "that of the old log-probs of the token after"),
        ("engine", lambda engine: engine.roll(1, -1), "that of the engine's log-probs of the token before"),
    ],
)
def test_log_probs_that_are_changed_on_their_way_into_the_loss(name: str, changed: Any, words: str) -> None:
    args = arguments(level="token", mode="mask", threshold=[0.7, 1.5])
    formula, found = policy_formula(read_settings(args, 0.0)), []
    for seed in range(6):
        given = numbers(seed)
        loss = plain_loss(given | {name: changed(given[name])})
        batch = batch_of({name: given[name] for name in NAMES}, given["mask"], torch.float32)
        found.append(Compared(formula, batch, loss, formula.compare(batch, loss, 2)))
    assert {of.loss_like for of in named_together(found, []) if not of.loss_is_documented} == {words}


def inverted(given: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    return given | {"engine": 2 * given["old"] - given["engine"]}


def of_current(given: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    return given | {"engine": given["engine"] - given["log_probs"] + given["old"]}


@pytest.mark.parametrize("mode", ["mask", "clip"])
@pytest.mark.parametrize(
    ("change", "words"),
    [
        (inverted, "that of the inverse of each importance weight"),
        (of_current, "that of importance weights of the current log-probs, and not of the old ones"),
    ],
)
def test_importance_weights_of_other_log_probs_are_named(change: Any, words: str, mode: str) -> None:
    for seed in range(5):
        given = numbers(seed)
        found = compared(given, plain_loss(change(given), is_correction_mode=mode), mode=mode)
        assert found.loss_like == words


@pytest.mark.parametrize(
    ("correction", "changed", "words"),
    [
        ({}, {"is_correction_level": "off"}, "without the correction for the engine's log-probs"),
        ({}, {"is_correction_level": "seq"}, "that of bounds on the weight of a sequence, and not of each token"),
        ({"level": "seq"}, {}, "that of bounds on the weight of each token, and not of a sequence"),
        ({}, {"is_correction_mode": "clip"}, "that of weights cut off at their bounds, and not made 0"),
        ({"mode": "clip"}, {}, "that of weights made 0 outside of their bounds, and not cut off"),
        ({}, {"is_correction_threshold": [0.0, 1e9]}, "that of importance weights without their bounds"),
        ({}, {"is_correction_threshold": [0.5, 5.0]}, "that of importance weights within OpenRLHF's own bounds"),
        (
            {"gating": "tv", "threshold": [0.0, 0.02]},
            {"is_correction_gating": "binary_kl", "is_correction_threshold": [0.0, 0.02]},
            "that of bounds on the binary KL divergence, and not on the total variation",
        ),
    ],
)
def test_another_way_to_weigh_is_named(correction: dict[str, Any], changed: dict[str, Any], words: str) -> None:
    named = set()
    for seed in range(20):
        given = numbers(seed)
        found = compared(given, plain_loss(given, **changed), **correction)
        # On few tokens two ways may come to the same, or bounds to act on none.
        named.add(found.loss_like)
    assert words in named


def test_what_a_correction_keeps_weighs_its_ratio() -> None:
    given = numbers(0)
    kept = ((given["old"] - given["engine"]).exp() - 1.1).abs() <= 0.4
    loss = plain_loss(given | {"advantages": given["advantages"] * kept}, is_correction_level="off")
    words = "that of tokens left out by the correction, where those that are kept weigh 1"
    assert compared(given, loss).loss_like == words


@pytest.mark.parametrize("gating", ["ratio", "binary_kl", "tv"])
def test_a_token_at_a_bound_hides_no_other(gating: str) -> None:
    given = numbers(3)
    given["engine"] = given["old"] + 0.1 * torch.randn(4, 6)
    given["engine"][0, 0] = given["old"][0, 0]  # the divergence is 0, and the ratio 1
    bounds = [1.0, 1.5] if gating == "ratio" else [0.0, 1e-2]
    right = plain_loss(given, is_correction_gating=gating, is_correction_threshold=bounds)
    found = compared(given, right, gating=gating, threshold=bounds)
    assert found.loss_gap is not None
    assert found.loss_gap <= 32
    wrong = compared(given, plain_loss(given, is_correction_level="off"), gating=gating, threshold=bounds)
    assert wrong.loss_like == "without the correction for the engine's log-probs"


def test_divergences_that_are_almost_0_are_compared() -> None:
    for seed, level in itertools.product(range(20), ("token", "seq")):
        given = numbers(seed)
        given["engine"] = given["old"] + 1e-3 * torch.randn(4, 6)
        own = {
            "is_correction_gating": "binary_kl",
            "is_correction_threshold": [0.0, 1e-7],
            "is_correction_level": level,
        }
        found = compared(given, plain_loss(given, **own), gating="binary_kl", threshold=[0.0, 1e-7], level=level)
        assert found.loss_gap is not None
        assert found.loss_gap <= 32


def test_the_kl_coefficient_that_adapts() -> None:
    args = SimpleNamespace(
        algo=SimpleNamespace(kl=SimpleNamespace(target=0.1, horizon=100, init_coef=0.01)),
        rollout=SimpleNamespace(batch_size=8, n_samples_per_prompt=2),
    )
    controller, followed = AdaptiveKLController(0.01, 0.1, 100), AdaptiveCoefficient(args)
    for measured in (0.0, 0.11, 0.3, -0.5, 0.0951):
        controller.update(measured, 16)
        followed.updates(measured)
        assert followed.differs(float(controller.value)) is None
    right = controller.value * (1 - 0.2 * 16 / 100)
    followed.updates(0.0)
    assert followed.differs(0.02) == pytest.approx(right), "another one was written"
    followed.updates(0.1)
    assert followed.differs(0.02) is None, "and is the one in force from then on"
