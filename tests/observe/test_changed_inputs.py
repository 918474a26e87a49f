"""Losses of inputs that were changed on their way: each change is named, and no other mistake is called one of them.

What a trainer computes is written here a second time, in float32 and without the package.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

torch = pytest.importorskip("torch")

from rlstep_hooks.observe import loss_causes  # noqa: E402 - torch may be missing
from rlstep_hooks.observe.changed_inputs import changes  # noqa: E402
from rlstep_hooks.observe.loss_causes import Compared, named_together  # noqa: E402
from rlstep_hooks.observe.loss_inputs import INPUTS, OLD_BEHIND_RATIOS, inputs_of  # noqa: E402
from rlstep_hooks.observe.losses import Formula, LossBatch, Term, clipped_surrogate, k3, near_clip  # noqa: E402

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

Given = dict[str, Any]
"""What a loss is computed from: (B, T) by name, float32."""

EPSILON = torch.finfo(torch.float32).eps
KL = 0.1
SEEDS = 4


def policy() -> Formula[None]:
    """PPO's clipped surrogate times importance weights, a mean over tokens, and a KL term."""

    def ratio(batch: LossBatch) -> Any:
        return (batch.tensors["log_probs"] - batch.tensors["old"]).exp()

    def terms(_: None, batch: LossBatch) -> Iterator[Term]:
        given = batch.tensors
        losses = clipped_surrogate(ratio(batch), given["advantages"], 0.2, 0.2) * given["weights"]
        yield Term(losses, "token-mean", sizes=losses.abs() * (1 + given["log_probs"].abs() + given["old"].abs()))
        of_kl = k3(given["reference"] - given["log_probs"])
        yield Term(of_kl, "token-mean", KL, sizes=of_kl.abs() + 2)

    edges = lambda _, batch: near_clip(ratio(batch), 0.8, 1.2, rounding=1e-6)  # noqa: E731
    return Formula(None, "log_probs", terms, edges, lambda *_: None, lambda *_: ())


def critic() -> Formula[None]:
    """Half of the larger square, of the value and of the value near the old one."""

    def terms(_: None, batch: LossBatch) -> Iterator[Term]:
        values, old, returns = (batch.tensors[name] for name in ("values", "old", "returns"))
        kept = torch.maximum(torch.minimum(values, old + 0.2), old - 0.2)
        squares = torch.maximum((values - returns).square(), (kept - returns).square())
        sizes = squares + squares.sqrt() * (values.abs() + returns.abs() + old.abs())
        yield Term(squares, "token-mean", 0.5, sizes=sizes)

    return Formula(None, "values", terms, lambda _, batch: batch.mask < 0, lambda *_: None, lambda *_: ())


def loss_of_policy(given: Given, mask: Any) -> float:
    """What a trainer computes."""
    ratio = torch.exp(given["log_probs"] - given["old"])
    kept = torch.clip(ratio, 0.8, 1.2)
    parts = -torch.minimum(ratio * given["advantages"], kept * given["advantages"]) * given["weights"]
    behind = given["reference"] - given["log_probs"]
    parts = parts + KL * (torch.exp(behind) - behind - 1)
    return float((parts * mask).sum() / mask.sum())


def loss_of_critic(given: Given, mask: Any) -> float:
    """What a trainer computes."""
    kept = torch.clip(given["values"] - given["old"], -0.2, 0.2) + given["old"]
    parts = torch.maximum((given["values"] - given["returns"]) ** 2, (kept - given["returns"]) ** 2)
    return float(0.5 * (parts * mask).sum() / mask.sum())


class MicroBatch:
    """A random micro-batch of a policy, or of a critic."""

    def __init__(self, generator: Any, samples: int, *, of_critic: bool = False) -> None:
        def normal() -> Any:
            return torch.randn(samples, 7, generator=generator)

        lengths = torch.randint(3, 8, (samples, 1), generator=generator)
        self.mask = (torch.arange(7) < lengths).float()
        self.of_critic = of_critic
        if of_critic:
            values = normal()
            given = {"values": values, "old": values + 0.3 * normal(), "returns": values + normal()}
        else:
            log_probs = -0.3 - 2 * normal().abs()
            given = {
                "log_probs": log_probs,
                "old": log_probs + 0.3 * normal(),
                "reference": log_probs + 0.3 * normal(),
                "advantages": 1.5 * normal()[:, :1].expand(samples, 7),
                "weights": (0.3 * normal()).exp(),
            }
        self.given = {name: of * self.mask for name, of in given.items()}

    def compared(self, given: Given | None = None, mask: Any = None) -> Compared:
        """The loss of what it was given beside the documented one."""
        loss_of, formula = (loss_of_critic, critic()) if self.of_critic else (loss_of_policy, policy())
        loss = loss_of(self.given if given is None else given, self.mask if mask is None else mask)
        batch = LossBatch(
            tensors={name: of.double() for name, of in self.given.items()},
            mask=self.mask.double(),
            epsilons={"policy": EPSILON},
        )
        return Compared(formula, batch, loss, formula.compare(batch, loss, microbatches=1))


def likes(compared: list[Compared]) -> list[str]:
    """What wrong losses are called together."""
    return [numbers.loss_like for numbers in named_together(compared, []) if not numbers.loss_is_documented]


def mean_of_tokens(name: str) -> Callable[[Given, Any], Given]:
    def mean(given: Given, mask: Any) -> Given:
        return {name: (given[name].sum(1, keepdim=True) / mask.sum(1, keepdim=True)).expand_as(mask)}

    return mean


def one(name: str, change: Callable[[Any], Any]) -> Callable[[Given, Any], Given]:
    """A change of one input by itself."""
    return lambda given, mask: {name: change(given[name])}


OF_POLICY: dict[str, Callable[[Given, Any], Given]] = {
    "old log-probs cut from below at -1": one("old", lambda of: of.clamp(min=-1)),
    "old log-probs cut from above at -0.5": one("old", lambda of: of.clamp(max=-0.5)),
    "old log-probs that are all 0": one("old", torch.zeros_like),
    "old log-probs of the opposite sign": one("old", torch.neg),
    "the old log-probs of the sample before": one("old", lambda of: torch.cat([of[-1:], of[:-1]])),
    "the old log-probs of the token after": one("old", lambda of: torch.cat([of[:, 1:], of[:, :1]], 1)),
    "the old log-probs of the token before": one("old", lambda of: torch.cat([of[:, :1], of[:, :-1]], 1)),
    "the mean of the old log-probs over the tokens of each sample": mean_of_tokens("old"),
    "probabilities in the place of old log-probs": one("old", torch.exp),
    "old log-probs 0.8 times as large": one("old", lambda of: 0.8 * of),
    "the reference log-probs in the place of the old log-probs": lambda given, mask: {"old": given["reference"]},
    "old log-probs mixed with the current ones, 0.37 of them": lambda given, mask: {
        "old": 0.63 * given["old"] + 0.37 * given["log_probs"]
    },
    "old log-probs cut from below at -1.37": one("old", lambda of: of.clamp(min=-1.37)),
    "old log-probs cut from above at -0.83": one("old", lambda of: of.clamp(max=-0.83)),
    "old log-probs 1.37 times as large": one("old", lambda of: of * 1.37),
    "old log-probs with 0.25 added to each": one("old", lambda of: of + 0.25),
    "reference log-probs cut from below at -2": one("reference", lambda of: of.clamp(min=-2)),
    "reference log-probs that are all 0": one("reference", torch.zeros_like),
    "the reference log-probs of the token after": one("reference", lambda of: torch.cat([of[:, 1:], 0 * of[:, :1]], 1)),
    "the old log-probs in the place of the reference log-probs": lambda given, mask: {"reference": given["old"]},
    "reference log-probs 1.3 times as large": one("reference", lambda of: 1.3 * of),
    "the inverse of each of the importance weights": one("weights", lambda of: 1 / of.clamp(min=1e-9)),
    "the squares of the importance weights": one("weights", lambda of: of**2),
    "importance weights cut from above at 1": one("weights", lambda of: of.clamp(max=1)),
    "importance weights cut from above at 1.15": one("weights", lambda of: of.clamp(max=1.15)),
    "importance weights cut from below at 0.8": one("weights", lambda of: of.clamp(min=0.8)),
    "the importance weights of the sample before": one("weights", lambda of: torch.cat([of[-1:], of[:-1]])),
    "the importance weights of the token before": one("weights", lambda of: torch.cat([of[:, -1:], of[:, :-1]], 1)),
    "the mean of the importance weights over the tokens of each sample": mean_of_tokens("weights"),
}  # fmt: skip
"""What was done to an input of the policy's loss, by how it is named."""

OF_CRITIC: dict[str, Callable[[Given, Any], Given]] = {
    "returns that are all 0": one("returns", torch.zeros_like),
    "the returns of the token after": one("returns", lambda of: torch.cat([of[:, 1:], of[:, :1]], 1)),
    "the returns of the sample before": one("returns", lambda of: torch.cat([of[-1:], of[:-1]])),
    "the old values in the place of the returns": lambda given, mask: {"returns": given["old"]},
    "returns cut to [-1, 1]": one("returns", lambda of: of.clamp(-1, 1)),
    "returns cut from below at -0.37": one("returns", lambda of: of.clamp(min=-0.37)),
    "returns of the opposite sign": one("returns", torch.neg),
    "the mean of the returns over the tokens of each sample": mean_of_tokens("returns"),
    "returns 0.3 times as large": one("returns", lambda of: 0.3 * of),
    "returns with 1.5 added to each": one("returns", lambda of: 1.5 + of),
    "old values that are all 0": one("old", torch.zeros_like),
    "the old values of the token before": one("old", lambda of: torch.cat([of[:, -1:], of[:, :-1]], 1)),
    "the returns in the place of the old values": lambda given, mask: {"old": given["returns"]},
}  # fmt: skip
"""The same of the critic's."""


@pytest.mark.parametrize("what", [*OF_POLICY, *OF_CRITIC])
def test_each_change_is_named_by_all_micro_batches_together(what: str) -> None:
    of_critic = what in OF_CRITIC
    mistake, alone = (OF_CRITIC if of_critic else OF_POLICY)[what], 0
    for seed in range(SEEDS):
        generator, found = torch.Generator().manual_seed(seed), []
        for index, samples in enumerate([6, 5, 7, 6]):
            batch = MicroBatch(generator, samples, of_critic=of_critic)
            changed = mistake(batch.given, batch.mask) if index >= seed % 2 else {}
            found.append(batch.compared(batch.given | changed))
        called = {like for like in likes(found) if not like.startswith("the documented one")}
        # Where several give the same losses all of them are said.
        assert called, seed
        assert all(what in like.removeprefix("that of ").split(", or of ") for like in called), (seed, called)
        alone += called == {f"that of {what}"}
    assert alone >= SEEDS - 1


def test_a_cause_that_cannot_be_looked_for_leaves_the_loss_wrong(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(_: object) -> list[object]:
        raise KeyError("values")

    monkeypatch.setattr(loss_causes, "changes", fails)
    batch = MicroBatch(torch.Generator().manual_seed(0), 6)
    compared = batch.compared(batch.given | {"old": batch.given["old"].clamp(min=-1)})
    (numbers,) = named_together([compared], [])
    assert not numbers.loss_is_documented
    assert numbers.loss_gap == compared.numbers.loss_gap


def test_one_large_mini_batch_tells_a_change_by_itself() -> None:
    """Own loops have one loss at a time."""
    for seed in range(SEEDS):
        batch = MicroBatch(torch.Generator().manual_seed(seed), 16)
        for what in (
            "old log-probs cut from below at -1",
            "the old log-probs of the token after",
            "reference log-probs that are all 0",
        ):
            called = likes([batch.compared(batch.given | OF_POLICY[what](batch.given, batch.mask))])
            assert called == [f"that of {what}"], seed


def test_a_bound_of_its_own_needs_several_losses() -> None:
    generator = torch.Generator().manual_seed(0)
    batches = [MicroBatch(generator, 6) for _ in range(3)]

    def called(losses: int, bound: float) -> list[str]:
        return likes(
            [each.compared(each.given | {"old": each.given["old"].clamp(min=bound)}) for each in batches[:losses]]
        )

    assert called(1, -1.37) == [""]
    assert called(2, -1.37) == ["that of old log-probs cut from below at -1.37"] * 2
    assert called(2, -1.37283) == ["", ""]
    assert called(3, -1.37283) == ["that of old log-probs cut from below at -1.373"] * 3
    # What was told of a rollout before is looked for in one loss too.
    before = "that of old log-probs cut from below at -1.37"
    (each, *_) = batches
    found = [each.compared(each.given | {"old": each.given["old"].clamp(min=-1.37)})]
    assert [of.loss_like for of in named_together(found, ["without its KL term", before])] == [before]


def test_large_losses_that_nothing_explains_are_not_tried_again_and_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loss_causes, "LARGE", 10)
    batch, told = MicroBatch(torch.Generator().manual_seed(0), 16), ["without its KL term"]
    unknown = batch.compared(batch.given | {"old": torch.tanh(batch.given["old"])})
    known = batch.compared(batch.given | {"old": batch.given["old"].clamp(min=-1)})
    for _ in range(loss_causes.TRIES):
        named_together([known], told)
        named_together([unknown], told)
    assert told == ["without its KL term", "that of old log-probs cut from below at -1", "", "", ""]
    (numbers,) = named_together([known], told)
    assert numbers.loss_like == ""


def test_healthy_losses_are_called_nothing() -> None:
    for seed in range(100):
        generator = torch.Generator().manual_seed(seed)
        assert (
            likes([MicroBatch(generator, samples, of_critic=seed % 2 > 0).compared() for samples in (1, 2, 4, 4)]) == []
        )


def noisy(name: str) -> Callable[[MicroBatch, Any], tuple[Given, Any]]:
    return lambda batch, noise: ({name: batch.given[name] * (1 + 0.1 * noise)}, None)


OTHER_MISTAKES: dict[str, Callable[[MicroBatch, Any], tuple[Given, Any]]] = {
    "noise on old log-probs": noisy("old"),
    "noise on reference log-probs": noisy("reference"),
    "noise on importance weights": noisy("weights"),
    "an offset of each sample": lambda batch, noise: ({"old": batch.given["old"] + 0.1 * noise[:, :1]}, None),
    "another bound for each sample": lambda batch, noise: (
        {"old": torch.maximum(batch.given["old"], -1 - noise[:, :1].abs())}, None
    ),
    "a token left out": lambda batch, noise: ({}, batch.mask * (torch.arange(7) != 1)),
    "old log-probs of some samples": lambda batch, noise: (
        {"old": batch.given["old"] * (torch.arange(len(noise)) != 1)[:, None]}, None
    ),
    "tanh": lambda batch, noise: ({"old": torch.tanh(batch.given["old"])}, None),
    "current log-probs that are noisy": noisy("log_probs"),
    "noise on advantages": noisy("advantages"),
}  # fmt: skip


@pytest.mark.parametrize("how", OTHER_MISTAKES)
def test_no_other_mistake_is_called_a_change_of_an_input(how: str) -> None:
    known = [change.what for change in changes(INPUTS)]
    for seed in range(34):
        generator, found = torch.Generator().manual_seed(seed), []
        for samples in [[4], [4, 5], [5, 4, 6, 5]][seed % 3]:
            batch = MicroBatch(generator, samples)
            changed, mask = OTHER_MISTAKES[how](batch, torch.randn(samples, 7, generator=generator))
            found.append(batch.compared(batch.given | changed, mask))
        for like in likes(found):
            assert not any(what in like for what in (*known, "log-probs", "weights", "other", "a formula with")), (
                seed,
                like,
            )


def test_old_log_probs_that_a_batch_has_as_ratios_are_read_and_put_back() -> None:
    """TRL's batches have how far the current log-probs are from the old ones: of tokens, and in RLOO of sequences."""
    batch = MicroBatch(torch.Generator().manual_seed(0), 5)
    new, old = batch.given["log_probs"].double(), batch.given["old"].double()
    of_tokens = LossBatch(tensors={"log_probs": new[None], "log_ratio": (new - old)[None]}, mask=batch.mask[None])
    assert inputs_of(of_tokens) == (OLD_BEHIND_RATIOS,)
    assert torch.allclose(OLD_BEHIND_RATIOS.read(of_tokens), old[None])
    changed = OLD_BEHIND_RATIOS.put(of_tokens, torch.full_like(old, -2.0)[None])
    assert torch.allclose(changed.tensors["log_ratio"], ((new + 2) * batch.mask)[None])
    sums = new.sum(1) - old.sum(1)
    of_sequences = replace(of_tokens, tensors={"log_probs": new[None], "log_ratio": sums[None]})
    assert torch.allclose(OLD_BEHIND_RATIOS.read(of_sequences), old.sum(1)[None, :, None])
    changed = OLD_BEHIND_RATIOS.put(of_sequences, torch.zeros(1, 5, 1))
    assert torch.allclose(changed.tensors["log_ratio"], new.sum(1)[None])
