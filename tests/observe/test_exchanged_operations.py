"""Losses of a formula in which one operation is another: each is named, and no other mistake is called one of them.

What a trainer computes is written here a second time, in float32 and without the package, with a place for each mistake.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

torch = pytest.importorskip("torch")

from rlstep_hooks.observe import loss_causes  # noqa: E402 - torch may be missing
from rlstep_hooks.observe.exchanged_operations import evaluated, exchanges  # noqa: E402
from rlstep_hooks.observe.loss_causes import Compared  # noqa: E402
from rlstep_hooks.observe.losses import LossBatch, Term  # noqa: E402
from tests.observe.test_changed_inputs import EPSILON, KL, MicroBatch, critic, likes, policy  # noqa: E402

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

SEEDS = 2

Written = dict[str, Any]
"""Parts of a trainer's loss that are written otherwise, by name."""


def loss_of_policy(given: dict[str, Any], mask: Any, **other: Any) -> float:
    """PPO's clipped surrogate with importance weights and a KL term, with parts that may be written otherwise."""
    written: Written = {
        "log_ratio": lambda new, old: new - old,
        "exp": torch.exp,
        "clip": lambda ratio: torch.clip(ratio, 0.8, 1.2),
        "first": lambda advantages, ratio: -advantages * ratio,
        "second": lambda advantages, kept: -advantages * kept,
        "larger": torch.maximum,
        "weighted": lambda parts, weights: parts * weights,
        "behind": lambda reference, new: reference - new,
        "kl": lambda behind: torch.exp(behind) - behind - 1,
        "mean": lambda parts: (parts * mask).sum() / mask.sum(),
        "kl_mean": lambda parts: (parts * mask).sum() / mask.sum(),
        "both": lambda of_policy, of_kl: of_policy + KL * of_kl,
    } | other
    new, advantages = given["log_probs"], given["advantages"]
    ratio = written["exp"](written["log_ratio"](new, given["old"]))
    first = written["first"](advantages, ratio)
    second = written["second"](advantages, written["clip"](ratio))
    parts = written["weighted"](written["larger"](first, second), given["weights"])
    of_kl = written["kl"](written["behind"](given["reference"], new))
    return float(written["both"](written["mean"](parts), written["kl_mean"](of_kl)))


def loss_of_critic(given: dict[str, Any], mask: Any, **other: Any) -> float:
    """Half of the larger square, with parts that may be written otherwise."""
    written: Written = {
        "kept": lambda values, old: torch.clip(values - old, -0.2, 0.2) + old,
        "error": lambda values, returns: values - returns,
        "square": torch.square,
        "larger": torch.maximum,
        "mean": lambda parts: 0.5 * (parts * mask).sum() / mask.sum(),
    } | other
    values, returns = given["values"], given["returns"]
    kept = written["kept"](values, given["old"])
    plain = written["square"](written["error"](values, returns))
    return float(written["mean"](written["larger"](plain, (kept - returns) ** 2)))


def compared(batch: MicroBatch, **other: Any) -> Compared:
    """The loss of a trainer that writes some parts otherwise, beside the documented one."""
    loss_of, formula = (loss_of_critic, critic()) if batch.of_critic else (loss_of_policy, policy())
    loss = loss_of(batch.given, batch.mask, **other)
    given = LossBatch(
        tensors={name: of.double() for name, of in batch.given.items()},
        mask=batch.mask.double(),
        epsilons={"policy": EPSILON},
    )
    return Compared(formula, given, loss, formula.compare(given, loss, microbatches=1))


SURROGATE = "maximum(-advantages * ratio, -advantages * clamp(ratio, 0.8, 1.2))"
K3 = "exp(reference - log_probs) - (reference - log_probs)"

OF_POLICY: dict[str, Written] = {
    f"minimum in the place of {SURROGATE}": {"larger": torch.minimum},
    f"-advantages * clamp(ratio, 0.8, 1.2) in the place of {SURROGATE}": {"larger": lambda first, second: second},
    "old in the place of log_probs - old": {"log_ratio": lambda new, old: old},
    "old - log_probs in the place of log_probs - old": {"log_ratio": lambda new, old: old - new},
    "exp2 in the place of exp(log_probs - old)": {"exp": torch.exp2},
    "log_probs - old in the place of exp(log_probs - old)": {"exp": lambda log_ratio: log_ratio},
    "advantages in the place of -advantages": {"first": lambda advantages, ratio: advantages * ratio},
    "-advantages in the place of -advantages * ratio": {"first": lambda advantages, ratio: -advantages},
    "ratio in the place of -advantages * ratio": {"first": lambda advantages, ratio: ratio},
    "-advantages / ratio in the place of -advantages * ratio": {"first": lambda advantages, ratio: -advantages / ratio},
    "clamp(ratio, 0.8, none) in the place of clamp(ratio, 0.8, 1.2)": {"clip": lambda ratio: ratio.clip(min=0.8)},
    "clamp(ratio, none, 1.2) in the place of clamp(ratio, 0.8, 1.2)": {"clip": lambda ratio: ratio.clip(max=1.2)},
    "clamp(ratio, 1.2, 0.8) in the place of clamp(ratio, 0.8, 1.2)": {"clip": lambda ratio: ratio.clip(1.2, 0.8)},
    "clamp(ratio, 0.8, 0.2) in the place of clamp(ratio, 0.8, 1.2)": {"clip": lambda ratio: ratio.clip(0.8, 0.2)},
    "clamp(ratio, 0.8, 2.2) in the place of clamp(ratio, 0.8, 1.2)": {"clip": lambda ratio: ratio.clip(0.8, 2.2)},
    "weights in the place of maximum(...) * weights": {"weighted": lambda parts, weights: weights},
    "log_probs in the place of reference - log_probs": {"behind": lambda reference, new: new},
    "log_probs - reference in the place of reference - log_probs": {"behind": lambda reference, new: new - reference},
    f"exp(reference - log_probs) in the place of {K3}": {"kl": lambda behind: torch.exp(behind) - 1},
    f"{K3} in the place of {K3} - 1": {"kl": lambda behind: torch.exp(behind) - behind},
    f"reference - log_probs in the place of {K3}": {"kl": lambda behind: behind - 1},
    "exp2 in the place of exp(reference - log_probs)": {"kl": lambda behind: torch.exp2(behind) - behind - 1},
    f"exp(reference - log_probs) + reference - log_probs in the place of {K3}": {
        "kl": lambda behind: torch.exp(behind) + behind - 1
    },
    "0.1 in the place of KL term * 0.1": {"both": lambda of_policy, of_kl: of_policy + KL},
    "KL term in the place of KL term * 0.1": {"both": lambda of_policy, of_kl: of_policy + of_kl},
    "0.1 / KL term in the place of KL term * 0.1": {"both": lambda of_policy, of_kl: of_policy + KL / of_kl},
    "KL term / 0.1 in the place of KL term * 0.1": {"both": lambda of_policy, of_kl: of_policy + of_kl / KL},
    "policy term - KL term * 0.1 in the place of policy term + KL term * 0.1": {
        "both": lambda of_policy, of_kl: of_policy - KL * of_kl
    },
}  # fmt: skip
"""How a part of the policy's loss was written, by what it is called."""

OF_POLICY_WITH_MASK: dict[str, Callable[[Any], Written]] = {
    "the number of all tokens, padding included, in the place of sum(mask)": lambda mask: {
        "mean": lambda parts: (parts * mask).sum() / mask.numel()
    },
    "amax in the place of sum(policy term)": lambda mask: {"mean": lambda parts: (parts * mask).max() / mask.sum()},
    "sum(KL term) in the place of sum(KL term) / sum(mask)": lambda mask: {"kl_mean": lambda parts: (parts * mask).sum()},
    "mean in the place of sum(KL term)": lambda mask: {"kl_mean": lambda parts: (parts * mask).mean() / mask.sum()},
}  # fmt: skip
"""The same of sums."""

KEPT = "maximum(minimum(values, old + 0.2), old - 0.2) - returns"
OF_CRITIC: dict[str, Written] = {
    f"minimum in the place of maximum(square(values - returns), square({KEPT}))": {"larger": torch.minimum},
    "values + returns in the place of values - returns": {"error": lambda values, returns: values + returns},
    "abs in the place of square(values - returns)": {"square": torch.abs},
    "pow(values - returns, 3) in the place of square(values - returns)": {"square": lambda error: error**3},
    "values - returns in the place of square(values - returns)": {"square": lambda error: error},
}  # fmt: skip
"""How a part of the critic's loss was written, by what it is called."""


@pytest.mark.parametrize("what", [*OF_POLICY, *OF_POLICY_WITH_MASK, *OF_CRITIC])
def test_each_exchange_is_named_by_all_micro_batches_together(what: str) -> None:
    for seed in range(SEEDS):
        generator, found = torch.Generator().manual_seed(seed), []
        for index, samples in enumerate([6, 5, 7, 6]):
            batch = MicroBatch(generator, samples, of_critic=what in OF_CRITIC)
            mistake = (
                OF_POLICY_WITH_MASK[what](batch.mask) if what in OF_POLICY_WITH_MASK else (OF_POLICY | OF_CRITIC)[what]
            )
            found.append(compared(batch, **(mistake if index >= seed % 2 else {})))
        called = set(likes(found))
        # Where several give the same losses all of them are said.
        assert called, seed
        assert all(f"a formula with {what}" in like.removeprefix("that of ").split(", or of ") for like in called), (
            seed, called,
        )  # fmt: skip


def test_where_an_input_that_is_changed_gives_the_same_it_is_said_alone() -> None:
    batch = MicroBatch(torch.Generator().manual_seed(0), 16)
    for what, mistake in {
        "old log-probs of the opposite sign": {"log_ratio": lambda new, old: new + old},
        "reference log-probs that are all 0": {"behind": lambda reference, new: -new},
    }.items():
        assert likes([compared(batch, **mistake)]) == [f"that of {what}"]


def test_an_input_that_has_no_say_is_not_blamed_alone() -> None:
    """With bounds of a clip that are exchanged all ratios are one number, whatever the old log-probs are."""

    def terms(_: None, batch: LossBatch) -> Iterator[Term]:
        given = batch.tensors
        ratio = (given["log_probs"] - given["old"]).exp().clamp(0.8, 1.2)
        yield Term(-ratio * given["advantages"] * given["log_probs"], "token-mean")

    formula = replace(policy(), terms=terms)
    batch = MicroBatch(torch.Generator().manual_seed(0), 8)
    given = compared(batch).batch
    parts = -batch.given["advantages"] * batch.given["log_probs"] * 0.8
    loss = float((parts * batch.mask).sum() / batch.mask.sum())
    # Ratios of old log-probs that are 0, or likely, are below the bound at each token.
    (like,) = likes([Compared(formula, given, loss, formula.compare(given, loss, microbatches=1))])
    assert "old log-probs that are all 0" in like
    assert like.endswith(
        "or that of a formula with another operation: more than one known mistake in it gives the same"
    )


def test_one_large_mini_batch_tells_an_exchange_by_itself() -> None:
    """Own loops have one loss at a time."""
    for seed in range(SEEDS):
        batch = MicroBatch(torch.Generator().manual_seed(seed), 16)
        what = f"minimum in the place of {SURROGATE}"
        assert likes([compared(batch, **OF_POLICY[what])]) == [f"that of a formula with {what}"], seed


def test_healthy_losses_are_called_nothing() -> None:
    for seed in range(100):
        generator = torch.Generator().manual_seed(seed)
        found = [compared(MicroBatch(generator, samples, of_critic=seed % 2 > 0)) for samples in (1, 2, 4, 4)]
        assert likes(found) == [], seed


OTHER_MISTAKES: dict[str, Written] = {
    "another base": {"exp": lambda log_ratio: 2.5**log_ratio},
    "a power": {"exp": lambda log_ratio: torch.exp(log_ratio) ** 1.3},
    "a bound of its own": {"clip": lambda ratio: torch.clip(ratio, 0.87, 1.13)},
    "a soft maximum": {"larger": lambda a, b: torch.logaddexp(8 * a, 8 * b) / 8},
    "tanh of the ratio": {"log_ratio": lambda new, old: torch.tanh(new - old)},
    "a cubic term": {"kl": lambda behind: torch.exp(behind) - behind - 1 + behind**3 / 6},
    "roots of weights": {"weighted": lambda parts, weights: parts * weights.sqrt()},
    "another coefficient": {"both": lambda of_policy, of_kl: of_policy + 0.1371 * of_kl},
    "the middle of both": {"larger": lambda a, b: 0.4 * a + 0.6 * b},
    "a root of the mean": {"mean": lambda parts: parts.abs().mean().sqrt()},
}  # fmt: skip


@pytest.mark.parametrize("how", OTHER_MISTAKES)
def test_no_other_mistake_is_called_an_exchange(how: str, monkeypatch: pytest.MonkeyPatch) -> None:
    # Numbers of inputs that are changed are looked for afterwards, which takes most of the time.
    monkeypatch.setattr(loss_causes, "solved", lambda *_: [])
    for seed in range(30):
        generator, found = torch.Generator().manual_seed(seed), []
        for samples in [[4], [4, 5], [5, 4, 6, 5]][seed % 3]:
            found.append(compared(MicroBatch(generator, samples), **OTHER_MISTAKES[how]))
        assert not any("a formula with" in like for like in likes(found)), (seed, likes(found))


def test_what_only_says_how_exact_a_loss_is_is_no_mistake_in_it() -> None:
    """An exchange of it leaves the loss what it is, so that no wrong loss is called so."""
    batch = compared(MicroBatch(torch.Generator().manual_seed(0), 6)).batch
    plain = evaluated(policy(), batch)
    assert plain is not None
    assert torch.equal(plain.value, policy().value(batch)[0])
    of_sizes = [exchange for exchange in exchanges(policy(), batch) if "abs(old)" in exchange.what]
    assert of_sizes
    for exchange in of_sizes:
        found = evaluated(policy(), batch, exchange)
        assert found is not None
        assert torch.equal(found.value, plain.value)


def test_an_exchange_is_made_where_the_formula_of_another_micro_batch_has_other_numbers() -> None:
    first, second = (compared(MicroBatch(torch.Generator().manual_seed(seed), 6)).batch for seed in (0, 1))
    for exchange in exchanges(policy(), first):
        assert evaluated(policy(), second, exchange) is not None, exchange
    twice = second.with_tensors(reference=second.tensors["old"])  # one tensor by two names
    assert all(evaluated(policy(), twice, exchange) is not None for exchange in exchanges(policy(), first))
