"""PPO's loss in classic RL, on a mini-batch computed by hand, and the mistakes that it names."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch

from rlstep_hooks.observe.classic_ppo import ClassicPPO, batch_of, gradients

SETTINGS = ClassicPPO(clip=0.2, value=0.5, largest_error=10.0, entropy=0.1, kl=0.3)
MASK = torch.tensor([True, True, False])
TENSORS = {
    "log_probs": torch.tensor([-1.0, -2.0, 9.0]),
    "old": torch.tensor([-1.5, -2.0, 0.0]),
    "advantages": torch.tensor([2.0, -1.0, 5.0]),
    "values": torch.tensor([1.0, 5.0, 3.0]),
    "targets": torch.tensor([2.0, 0.0, 0.0]),
    "entropies": torch.tensor([0.6, 0.4, 3.0]),
    "kl": torch.tensor([0.02, 0.0, 1.0]),
}


def _loss(settings: ClassicPPO, **changed: torch.Tensor) -> float:
    """By hand, for the two rows that count."""
    given = {name: of.tolist() for name, of in (TENSORS | changed).items()}
    total = 0.0
    for row in (0, 1):
        ratio, advantage = math.exp(given["log_probs"][row] - given["old"][row]), given["advantages"][row]
        clipped = min(max(ratio, 1 - settings.clip), 1 + settings.clip)
        error = min((given["values"][row] - given["targets"][row]) ** 2, settings.largest_error)
        total -= min(ratio * advantage, clipped * advantage)
        total += settings.value * error - settings.entropy * given["entropies"][row] + settings.kl * given["kl"][row]
    return total / 2


def _compared(loss: float) -> tuple[float, float, str]:
    columns, like = SETTINGS.formula().columns(batch_of(TENSORS, MASK), torch.tensor(loss, dtype=torch.float32))
    return float(columns["loss_gap"]), float(columns["loss_ratio"]), like()


def test_the_loss_by_hand_is_right() -> None:
    gap, ratio, _ = _compared(_loss(SETTINGS))
    assert gap < 32
    assert ratio == pytest.approx(1, abs=1e-6)


@pytest.mark.parametrize(
    ("loss", "words"),
    [
        (_loss(replace(SETTINGS, clip=1e9)), "that without a clip"),
        (_loss(replace(SETTINGS, largest_error=1e9)), "that without a clip of the squared errors of values"),
        (_loss(replace(SETTINGS, entropy=-0.1)), "that with the sign of the entropy bonus flipped"),
        (_loss(replace(SETTINGS, entropy=0.0)), "without its entropy bonus"),
        (_loss(replace(SETTINGS, kl=0.0)), "without its KL term"),
        (_loss(replace(SETTINGS, value=0.0)), "without the value's term"),
        (_loss(replace(SETTINGS, value=1.0)), "that with a value's term 2 times as large"),
        (_loss(SETTINGS, old=TENSORS["log_probs"]), "that of old log-probs equal to the current ones (ratio 1)"),
        (-_loss(SETTINGS), "the documented one with its sign flipped"),
        (3 * _loss(SETTINGS), "the documented one multiplied by 3"),
    ],
)
def test_mistakes_are_named(loss: float, words: str) -> None:
    gap, _, like = _compared(loss)
    assert gap > 32
    assert like == words


def _of_values(values: torch.Tensor, logits: torch.Tensor) -> dict[str, torch.Tensor]:
    return TENSORS | {"values": values, "log_probs": TENSORS["log_probs"] + logits[:, 0]}


def test_gradients_by_hand() -> None:
    """Of rows that count, over their number: -ratio * advantage where no clip acts, and 2 * weight * error where it is not bounded."""
    outputs = {"logits": torch.zeros(3, 1), "values": TENSORS["values"]}
    found = gradients(SETTINGS, outputs, _of_values, MASK)
    # Row 0: the ratio exp(0.5) is beyond the clip. Row 1: the ratio is 1, and the error 25 is beyond its bound of 10.
    expected = {"logits": [[0.0], [0.5], [0.0]], "values": [0.5 * (1.0 - 2.0) * 2 / 2, 0.0, 0.0]}
    for name, (gradient, rounding) in found.items():
        assert gradient.flatten().tolist() == pytest.approx(torch.tensor(expected[name]).flatten().tolist())
        assert (rounding < 1e-4).all()


def test_nothing_is_said_of_a_gradient_where_rounding_decides_whether_a_clip_acts() -> None:
    at_clip = TENSORS | {"old": TENSORS["log_probs"] - math.log(1.2)}
    outputs = {"logits": torch.zeros(3, 1), "values": TENSORS["targets"] + math.sqrt(10.0)}
    found = gradients(
        SETTINGS,
        outputs,
        lambda values, logits: at_clip | {"values": values} | {"log_probs": TENSORS["log_probs"] + logits[:, 0]},
        MASK,
    )
    assert all(rounding[:2].isinf().all() for _, rounding in found.values())
