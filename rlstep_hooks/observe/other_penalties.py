"""KL penalties of the rewards that the documented one is mistaken for: of log-probs that were changed on their way into it.

(B, T) each: B samples, T tokens.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from rlstep_hooks.observe.changed_inputs import changes
from rlstep_hooks.observe.loss_inputs import OLD, REFERENCE
from rlstep_hooks.observe.losses import LossBatch

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from torch import Tensor

    Penalty = Callable[[Tensor, Tensor], Tensor]
    """Gives a penalty (B, T) from log-probs of the policy that sampled and of the reference."""


def other_penalties(
    old: Tensor,
    reference: Tensor,
    mask: Tensor,
    penalty: Penalty,
    estimates: Iterable[tuple[str, Penalty]] = (),
) -> Iterator[tuple[str, Tensor]]:
    """Other penalties, in words that follow "the advantages are".

    Args:
        old: Log-probs of the policy that sampled.
        reference: Those of the reference.
        mask: Not 0 on tokens that count.
        penalty: Gives the penalty from both.
        estimates: Penalties of other estimates of the divergence, each with its name.
    """
    documented = penalty(old, reference)
    yield "those without the KL penalty", 0 * documented
    yield "those with a KL penalty of the opposite sign", -documented
    for name, other in estimates:
        yield f"those with a KL penalty of the estimate {name}", other(old, reference)
    batch = LossBatch(tensors={"log_probs": old, "old": old, "reference": reference}, mask=mask)
    for change in changes((OLD, REFERENCE)):
        made = change.made(batch)
        if made is not None:
            given = made[0].tensors
            yield f"those with a KL penalty of {change.what}", penalty(given["old"], given["reference"])
