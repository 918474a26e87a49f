"""Losses of advantages that were changed on their way: each change is named, and no other mistake is called one of them.

What a trainer computes is written here a second time, in float32 and without the package.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

torch = pytest.importorskip("torch")

from rlstep_hooks.observe.changed_inputs import changes  # noqa: E402 - torch may be missing
from rlstep_hooks.observe.loss_causes import Compared, named_together  # noqa: E402
from rlstep_hooks.observe.loss_inputs import INPUTS  # noqa: E402
from rlstep_hooks.observe.losses import Formula, LossBatch, Term, clipped_surrogate, k3, near_clip  # noqa: E402

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

Advantages = Any
"""(B, T), float32."""


def documented(kl: float) -> Formula[float]:
    """PPO's clipped surrogate, a mean over tokens, and a KL term."""

    def ratio(batch: LossBatch) -> Any:
        return (batch.tensors["log_probs"] - batch.tensors["old"]).exp()

    def terms(kl: float, batch: LossBatch) -> Iterator[Term]:
        yield Term(clipped_surrogate(ratio(batch), batch.tensors["advantages"], 0.2, 0.2), "token-mean")
        if kl:
            of_kl = k3(batch.tensors["reference"] - batch.tensors["log_probs"])
            yield Term(of_kl, "token-mean", kl, sizes=of_kl.abs() + 2)

    return Formula(
        kl,
        "log_probs",
        terms,
        lambda _, batch: near_clip(ratio(batch), 0.8, 1.2, rounding=1e-6),
        lambda *_: None,
        lambda *_: (),
    )


class MicroBatch:
    """A random micro-batch, with what a trainer would make of it.

    Args:
        generator: Draws it.
        samples: B.
        per_token: Whether tokens have advantages of their own.
    """

    def __init__(self, generator: Any, samples: int, *, per_token: bool = False) -> None:
        def normal(*shape: int) -> Any:
            return torch.randn(*shape, generator=generator)

        lengths = torch.randint(2, 8, (samples, 1), generator=generator)
        self.mask = (torch.arange(7) < lengths).float()
        self.log_probs = (-1 - normal(samples, 7).abs()) * self.mask
        self.old = (self.log_probs + 0.3 * normal(samples, 7)) * self.mask
        self.reference = (self.log_probs + 0.3 * normal(samples, 7)) * self.mask
        self.advantages = normal(samples, 7 if per_token else 1).expand(samples, 7) * self.mask * 1.5

    def loss(self, advantages: Any, kl: float, *, clip: float = 0.2, mask: Any = None) -> float:
        """What a trainer computes."""
        mask = self.mask if mask is None else mask
        ratio = torch.exp(self.log_probs - self.old)
        parts = -torch.minimum(ratio * advantages, torch.clip(ratio, 1 - clip, 1 + clip) * advantages)
        behind = self.reference - self.log_probs
        parts = parts + kl * (torch.exp(behind) - behind - 1)
        return float((parts * mask).sum() / mask.sum())

    def compared(self, loss: float, kl: float) -> Compared:
        """The loss beside the documented one."""
        names = ("log_probs", "old", "reference", "advantages")
        batch = LossBatch(
            tensors={name: getattr(self, name).double() for name in names},
            mask=self.mask.double(),
            epsilons={"policy": torch.finfo(torch.float32).eps},
        )
        formula = documented(kl)
        return Compared(formula, batch, loss, formula.compare(batch, loss, microbatches=1))


def rows_of(batch: MicroBatch) -> Any:
    """(B, 1), the one advantage of each sample."""
    return batch.advantages[:, :1]


def spread(batch: MicroBatch, rows: Any) -> Advantages:
    return rows * batch.mask


MISTAKES: dict[str, Callable[[MicroBatch], Advantages]] = {
    "advantages whose negative ones are 0": lambda batch: torch.relu(batch.advantages),
    "advantages whose positive ones are 0": lambda batch: -torch.relu(-batch.advantages),
    "advantages without their sign": lambda batch: torch.where(batch.advantages < 0, -1, 1) * batch.advantages,
    "advantages of the opposite sign": lambda batch: -1 * batch.advantages,
    "advantages that are all 0": lambda batch: 0 * batch.advantages,
    "advantages that are all 1": lambda batch: 0 * batch.advantages + 1,
    "the signs of the advantages": lambda batch: torch.where(batch.advantages < 0, -1.0, 1.0),
    "advantages that are 1 where they were positive, and else 0": lambda batch: (batch.advantages > 0).float(),
    "advantages cut to [-1, 1]": lambda batch: torch.clip(batch.advantages, -1, 1),
    "advantages cut to [0, 1]": lambda batch: torch.clip(batch.advantages, 0, 1),
    "the advantages of the sample before": lambda batch: torch.cat([batch.advantages[-1:], batch.advantages[:-1]]),
    "the advantages of the sample after": lambda batch: spread(batch, torch.cat([rows_of(batch)[1:], rows_of(batch)[:1]])),
    "the advantages of the samples in the opposite order": lambda batch: spread(batch, rows_of(batch).flip(0)),
    "advantages normalised again over the samples of the micro-batch": lambda batch: spread(
        batch, (rows_of(batch) - rows_of(batch).mean()) / (rows_of(batch).std() + 1e-4)
    ),
    "advantages normalised again over the tokens of the micro-batch": lambda batch: (
        batch.advantages - batch.advantages[batch.mask > 0].mean()
    )
    / (batch.advantages[batch.mask > 0].std(correction=0) + 1e-8),
    "advantages less their mean over the samples of the micro-batch": lambda batch: spread(
        batch, rows_of(batch) - rows_of(batch).mean()
    ),
    "advantages divided by their standard deviation over the samples of the micro-batch": lambda batch: (
        batch.advantages / rows_of(batch).std()
    ),
    "the mean of the advantages over the samples of the micro-batch": lambda batch: spread(
        batch, rows_of(batch).mean().expand(len(batch.mask), 1)
    ),
    "the mean of the advantages over the tokens of the micro-batch": lambda batch: (
        batch.advantages[batch.mask > 0].mean() + 0 * batch.advantages
    ),
}  # fmt: skip
"""What was done to the advantages, by how it is named."""

SEEDS = 6


def trained(
    seed: int, mistake: Callable[[MicroBatch], Advantages] | None, kl: float, sizes: list[int], begins: int = 0
) -> list[str]:
    """What the losses of an update's micro-batches are called; a mistake is made from one of them on."""
    generator = torch.Generator().manual_seed(seed)
    found = []
    for index, samples in enumerate(sizes):
        batch = MicroBatch(generator, samples)
        changed = batch.advantages if mistake is None or index < begins else mistake(batch)
        found.append(batch.compared(batch.loss(changed, kl), kl))
    return [numbers.loss_like for numbers in named_together(found, []) if not numbers.loss_is_documented]


def is_flipped(like: str) -> bool:
    """Whether a loss is called one whose sign is flipped, which is the same where no ratio is beyond the clip."""
    return like in {"the documented one with its sign flipped", "that with the sign of the policy's term flipped"}


@pytest.mark.parametrize("kl", [0.0, 0.1])
@pytest.mark.parametrize("what", MISTAKES)
def test_each_change_is_named_by_all_micro_batches_together(what: str, kl: float) -> None:
    alone = 0
    for seed in range(SEEDS):
        likes = [like for like in trained(seed, MISTAKES[what], kl, [6, 5, 7], begins=seed % 2) if not is_flipped(like)]
        assert likes or what == "advantages of the opposite sign"
        # Where no advantage was above 1, those cut to [0, 1] are as well those without the negative ones: both are said.
        assert all(what in like.removeprefix("that of ").split(", or of ") for like in likes), (seed, likes)
        alone += set(likes) <= {f"that of {what}"}
    assert alone >= 0.8 * SEEDS


@pytest.mark.parametrize(
    "what",
    [
        "advantages whose negative ones are 0",
        "advantages without their sign",
        "the signs of the advantages",
        "advantages cut to [-1, 1]",
    ],
)
def test_micro_batches_of_one_sample_are_told_by_those_beside_them(what: str) -> None:
    """Each alone is as well the loss of other changes: one without a negative advantage that of all 0, one of another sign flipped."""
    for seed in range(SEEDS):
        likes = trained(seed, MISTAKES[what], 0.0, [1] * 30)
        assert set(likes) == {f"that of {what}"}, seed


def test_a_loss_that_several_changes_give_is_called_by_all_of_them() -> None:
    def like(advantages: list[float], *told: str) -> str:
        batch = MicroBatch(torch.Generator().manual_seed(0), len(advantages))
        batch.advantages = torch.tensor(advantages)[:, None] * batch.mask
        (numbers,) = named_together([batch.compared(batch.loss(torch.relu(batch.advantages), 0.1), 0.1)], [*told])
        return numbers.loss_like

    small = [-0.3, -0.7, -1.1, 0.8, 0.4]
    assert like([*small, 1.2]) == "that of advantages whose negative ones are 0"
    assert like(small) == "that of advantages whose negative ones are 0, or of advantages cut to [0, 1]"
    # Without a positive one nothing of the policy's term is left, and the formula may be at fault as well.
    none_left = like([-0.3, -0.7, -1.1])
    assert none_left.startswith(
        "that of other advantages: more than one known change of them gives it, or that of a formula with "
    )
    assert none_left.endswith("of a formula with KL term * 0.1 in the place of policy term + KL term * 0.1")
    assert like([-0.3, -0.7, 1.1]) == "", "two samples may have a fault of their own"
    # What was told of a rollout before tells which of them it is.
    for advantages in (small, [-0.3, -0.7, -1.1], [-0.3, -0.7, 1.1]):
        before = "that of advantages whose negative ones are 0"
        assert like(advantages, "without its KL term", before) == before


@pytest.mark.parametrize("factor", [0.37, 1.7, 12.5])
def test_a_factor_that_is_common_to_all_micro_batches_is_named(factor: float) -> None:
    for seed in range(SEEDS):
        likes = trained(seed, lambda batch: factor * batch.advantages, 0.1, [4, 3, 4])
        assert set(likes) == {f"that of advantages {factor:g} times as large"}
        # Without a term beside, nothing tells whether the loss was multiplied.
        (like,) = set(trained(seed, lambda batch: factor * batch.advantages, 0.0, [4, 3, 4]))
        assert like == f"{factor:g} times the documented one, as advantages {factor:g} times as large would make it"


def test_a_policys_term_of_the_other_sign_is_no_change_of_advantages() -> None:
    """Where ratios are beyond the clip, the surrogate of opposite advantages is another number."""
    for seed in range(SEEDS):
        generator = torch.Generator().manual_seed(seed)
        batches = [MicroBatch(generator, samples) for samples in (4, 5, 4)]
        for factor, words in (
            (-1.0, "that with the sign of the policy's term flipped"),
            (-0.4, "that with a policy's term -0.4 times as large"),
        ):
            found = []
            for batch in batches:
                nothing = batch.loss(0 * batch.advantages, 0.1)
                loss = nothing + factor * (batch.loss(batch.advantages, 0.1) - nothing)
                found.append(batch.compared(loss, 0.1))
            assert {numbers.loss_like for numbers in named_together(found, [])} == {words}


def test_a_factor_of_one_loss_is_named_where_it_is_a_whole_number() -> None:
    for seed in range(SEEDS):
        assert trained(seed, lambda batch: 3 * batch.advantages, 0.1, [4]) == ["that of advantages 3 times as large"]
        assert trained(seed, lambda batch: 0.37 * batch.advantages, 0.1, [4]) == [""]
        assert trained(seed, lambda batch: 3 * batch.advantages, 0.0, [4]) == ["the documented one multiplied by 3"]


@pytest.mark.parametrize("shift", [1, -1])
def test_advantages_of_another_token_are_named(shift: int) -> None:
    for seed in range(SEEDS):
        generator = torch.Generator().manual_seed(seed)
        batches = [MicroBatch(generator, 3, per_token=True) for _ in range(2)]
        losses = [batch.loss(batch.advantages.roll(shift, 1), 0.1) for batch in batches]
        assert likes(batches, losses) == {f"that of the advantages of the token {'before' if shift > 0 else 'after'}"}
        means = [batch.advantages.sum(1, keepdim=True) / batch.mask.sum(1, keepdim=True) for batch in batches]
        losses = [batch.loss(mean * batch.mask, 0.1) for batch, mean in zip(batches, means, strict=True)]
        assert likes(batches, losses) == {"that of the mean of the advantages over the tokens of each sample"}


def likes(batches: list[MicroBatch], losses: list[float]) -> set[str]:
    """What losses with a KL term are called together."""
    found = [batch.compared(loss, 0.1) for batch, loss in zip(batches, losses, strict=True)]
    return {numbers.loss_like for numbers in named_together(found, [])}


def test_healthy_losses_are_called_nothing() -> None:
    for seed in range(100):
        assert trained(seed, None, 0.1 * (seed % 2), [1, 2, 4, 4]) == []


OTHER_MISTAKES: dict[str, Callable[[MicroBatch, Any], tuple[Advantages, dict[str, Any]]]] = {
    "noise": lambda batch, noise: (batch.advantages * (1 + 0.1 * noise), {}),
    "an offset of each sample": lambda batch, noise: (batch.advantages + noise[:, :1], {}),
    "another clip": lambda batch, noise: (batch.advantages, {"clip": 0.1}),
    "a token left out": lambda batch, noise: (batch.advantages, {"mask": batch.mask * (torch.arange(7) != 1)}),
    "a power": lambda batch, noise: (batch.advantages * batch.advantages.abs(), {}),
    "divided by lengths": lambda batch, noise: (batch.advantages / batch.mask.sum(1, keepdim=True), {}),
    "some samples without": lambda batch, noise: (batch.advantages * (torch.arange(len(batch.mask)) != 1)[:, None], {}),
    "tanh": lambda batch, noise: (torch.tanh(batch.advantages), {}),
    "cut at another size": lambda batch, noise: (batch.advantages.clip(-0.7, 0.7), {}),
}  # fmt: skip


@pytest.mark.parametrize("how", OTHER_MISTAKES)
def test_no_other_mistake_is_called_a_change_of_advantages(how: str) -> None:
    known = [change.what for change in changes(INPUTS)]
    for seed in range(34):
        generator = torch.Generator().manual_seed(seed)
        found = []
        for samples in [4] if seed % 2 else [4, 5]:
            batch = MicroBatch(generator, samples)
            changed, other = OTHER_MISTAKES[how](batch, torch.randn(samples, 7, generator=generator))
            found.append(batch.compared(batch.loss(changed, 0.1 * (seed % 3), **other), 0.1 * (seed % 3)))
        for numbers in named_together(found, []):
            assert not any(what in numbers.loss_like for what in (*known, "advantages")), (seed, numbers)


def test_losses_of_coarse_rounding_are_not_called_a_change_of_advantages() -> None:
    batch = MicroBatch(torch.Generator().manual_seed(0), 4)
    found = batch.compared(batch.loss(torch.relu(batch.advantages), 0.0), 0.0)
    coarse = LossBatch(tensors=found.batch.tensors, mask=found.batch.mask, epsilons={"policy": 2.0**-8})
    numbers = found.formula.compare(coarse, 10 * found.loss + 3, microbatches=1)
    (numbers,) = named_together([Compared(found.formula, coarse, 10 * found.loss + 3, numbers)], [])
    assert (numbers.loss_is_documented, numbers.loss_like) == (False, "")
