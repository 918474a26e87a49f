"""What happens between the reduction and the step: a clip multiplies all gradients of all ranks by one factor.

The factor is min(1, limit / (norm + 1e-6)) of the norm over all ranks (torch/nn/utils/clip_grad.py 2.13.0: clip_grads_with_norm_).
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, NamedTuple

from rlstep_hooks.judge.ranks.reduction.compare import BEYOND_DOUBT, SURELY, Difference, named_of
from rlstep_hooks.judge.ranks.reduction.mistakes import Seen
from rlstep_hooks.judge.rules.loss.optimizer import NORM_TOLERANCE

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rlstep_hooks.judge.ranks.reduction.compare import Earlier
    from rlstep_hooks.judge.ranks.reduction.parts import Joined
    from rlstep_hooks.record.events import GradientParts

ADDED = 1e-6
"""What torch adds to the norm."""
ROUNDED = 4
"""Roundings of a gradient that is multiplied by a factor, which was rounded itself."""
FINE = 2.0**-20
"""Gradients that are rounded less than this are float32."""


class _Read(NamedTuple):
    """One element on one rank, before and after the clip."""

    tensor: str
    rank: int
    reduced: float
    used: float
    rounding: float
    smallest: float


def total_norm(parts: Sequence[GradientParts], joined: Joined) -> float | None:
    """The norm of the gradients that the optimizers of all ranks use; None where it is not known."""
    norms = [of.norm for of in parts]
    known = [norm for norm in norms if norm is not None]
    if not joined.owners or len(known) < len(norms):
        return None
    return math.sqrt(sum(norm * norm for norm in known) / joined.owners)


def factor_before_read(parts: Sequence[GradientParts], joined: Joined) -> float | None:
    """What the gradients that were read as reduced were multiplied by already; None where that is not known."""
    if all(of.before_clip for of in parts):
        return 1.0
    scale, limit = parts[0].scale, parts[0].limit
    if scale is None or not scale:
        return None
    if limit is None:
        return 1.0 / scale
    norm = total_norm(parts, joined)
    return None if norm is None or norm >= limit * (1 - NORM_TOLERANCE["reduced"]) else 1.0 / scale


def compare_clip(parts: Sequence[GradientParts], joined: Joined, earlier: Earlier) -> tuple[int, list[Difference]]:
    """Compare what the optimizers use with what came of the reduction.

    Args:
        parts: The parts of all ranks, in the order of ranks.
        joined: The parts of all ranks, element by element.
        earlier: The elements of the update before, as `compare` takes them.

    Returns:
        How many elements were compared, and what differs.
    """
    if not all(of.before_clip and of.scale == 1.0 for of in parts):
        return 0, []
    read = [
        _Read(tensor.name, rank, element.reduced[rank], used, tensor.used_rounding, element.smallest)
        for tensor in joined.tensors
        for element in tensor.elements
        if element.finite
        for rank, used in element.used.items()
        if rank in element.reduced
    ]
    if not any(of.reduced for of in read):
        return len(read), []
    by_rank = {rank: [of for of in read if of.rank == rank] for rank in sorted({of.rank for of in read})}
    factors = {rank: factor for rank, of_rank in by_rank.items() if (factor := _factor(of_rank)) is not None}
    tensors = len(joined.tensors)
    own = [_altered(by_rank[rank], rank, factor, tensors) for rank, factor in factors.items()]
    altered = [difference for difference in own if difference is not None]
    if altered:
        altered = altered[:1] if len(altered) == len(factors) else altered
        return len(read), [_in_known_words(of, joined, earlier, len(parts)) for of in altered]
    exact = ROUNDED * max(of.rounding for of in read)
    apart = max(factors.values()) - min(factors.values())
    if apart > 2 * exact * max(map(abs, factors.values())):
        return len(read), [_parted(factors, tensors)]
    excess = _excess(parts, joined, next(iter(factors.values())), exact)
    return len(read), [] if excess is None else [excess]


def _factor(read: Sequence[_Read]) -> float | None:
    """What a rank's gradients were multiplied by, from the one with the most digits."""
    largest = max(read, key=lambda of: abs(of.reduced))
    return largest.used / largest.reduced if largest.reduced else None


def _altered(read: Sequence[_Read], rank: int, factor: float, tensors: int) -> Difference | None:
    """Gradients of a rank that were not multiplied by the factor of its others."""
    off = [
        (abs(of.used - factor * of.reduced) / (2 * ROUNDED * of.rounding * abs(factor * of.reduced) + of.smallest), of)
        for of in read
    ]
    wrong = [(distance, of) for distance, of in off if distance > SURELY]
    if not wrong:
        return None
    worst, of = max(wrong, key=lambda pair: pair[0])
    times = f"{of.used / of.reduced:.3g}" if of.reduced else "other than 0"
    return Difference(
        f"{times} times the reduced gradient in {of.tensor}, and {factor:.3g} times in others",
        "altered",
        "error" if worst > BEYOND_DOUBT else "warning",
        rank,
        "something between the reduction and the step changed gradients, and a clip by the norm changes all alike",
        "look for clipping by value or by parameter, and for code that writes to .grad before the step",
        tuple(dict.fromkeys(of.tensor for _, of in wrong)),
        tensors,
        worst,
        "RLS810",
    )


def _in_known_words(altered: Difference, joined: Joined, earlier: Earlier, ranks: int) -> Difference:
    """What a rank's optimizer uses, where a known mistake gives all of it."""
    of_rank = [
        Seen(element, altered.rank, element.used[altered.rank], earlier.get((tensor.name, position)))
        for tensor in joined.tensors
        for position, element in enumerate(tensor.elements)
        if altered.rank is not None and element.finite and altered.rank in element.used
    ]
    mistake = named_of(of_rank, ranks, None)
    if mistake is None:
        return altered
    return altered._replace(
        observed=f"{mistake.observed}, after the gradients had been reduced", why=mistake.why, fix=mistake.fix
    )


def _parted(factors: dict[int, float], tensors: int) -> Difference:
    listed = ", ".join(f"{factor:.6g} on rank {rank}" for rank, factor in list(factors.items())[:8])
    return Difference(
        f"the factor {listed}",
        "parted",
        "error",
        None,
        "each rank clips by a norm of its own, so parts of one gradient are scaled otherwise than the rest",
        "clip by the norm over all ranks: accelerator.clip_grad_norm_, or the one of the sharded model",
        (),
        tensors,
        math.inf,
    )


def _excess(parts: Sequence[GradientParts], joined: Joined, factor: float, exact: float) -> Difference | None:
    """A common factor that is not the one which norm and limit give."""
    norm, limit = total_norm(parts, joined), parts[0].limit
    tolerance = NORM_TOLERANCE["float32" if exact < FINE else "reduced"]
    if factor > 1 + exact or (limit is None and factor < 1 - exact):
        observed, off = f"{factor:.4g} times the reduced gradients", math.inf
    elif norm is None or limit is None or not factor:
        return None
    else:
        whole = norm / factor
        documented = min(1.0, limit / (whole + ADDED))
        off = abs(factor / documented - 1) / tolerance
        if off <= 1:
            return None
        observed = f"a factor of {factor:.4g} for a norm of {whole:.4g} over all ranks and a limit of {limit:g}"
    return Difference(
        observed,
        "factor",
        "error",
        None,
        "the clip was left out, made twice, or took another norm than that over all ranks",
        "look for a loop or wrapper that leaves out the clip, and for what it takes the norm of",
        (),
        len(joined.tensors),
        off,
    )
