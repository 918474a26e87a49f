"""What each rank reads of tensors that all ranks should hold alike."""

from __future__ import annotations

from typing import Any

import pytest

torch = pytest.importorskip("torch")

from rlstep_hooks.observe.replicas import Replicated, ReplicaWatch  # noqa: E402 - torch may be missing


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("place", range(8))
def test_any_bit_of_any_weight_shows(dtype: Any, place: int) -> None:
    """Sums had lost their highest 16 bits, and with them each fourth number in bfloat16."""
    words = {torch.float32: torch.int32, torch.bfloat16: torch.int16}
    weight = torch.ones(8, dtype=dtype)
    replicas = ReplicaWatch([Replicated("weights", [("w", weight)])])
    replicas.look(0, "begin")
    for bit in range(8 * weight.element_size()):
        weight.view(words[dtype])[place] ^= torch.tensor(
            -(2**bit) if bit == 8 * weight.element_size() - 1 else 2**bit
        ).to(words[dtype])
        replicas.look(bit + 1, "after")
    replicas.send()
    sums = [look.sums for look in replicas.arrived(lambda: 0.0, wait=True)]
    assert len({*sums}) == len(sums)
    assert all(0 <= number < 2**48 for (number,) in sums)
