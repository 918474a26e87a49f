"""Whether a configured seed ever reached the generators that the whole process shares.

Once training begins, nobody can say which seed a generator was given, because numbers may have been drawn since. But both generators
tell a seed that somebody set from one that they drew themselves: torch 2.4 to 2.13 begins with a seed beyond 32 bits, and numpy 1.26 to
2.4 keeps the `SeedSequence` of its own choice until `numpy.random.seed` is called (numpy/random/_mt19937.pyx, `_legacy_seeding`).
A script that seeds them otherwise than configured is legal, and not told from one that follows its configuration.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from collections.abc import Collection

SEEDS_OF_PEOPLE = 2**32
"""numpy takes no seed from here on, and frameworks give both the same one."""


def seed_facts(seed: int | None, generators: Collection[str] = ("torch", "numpy")) -> dict[str, Any]:
    """The fact `seeds` of a run: the configured seed, the generators that were looked at, and those that nobody has seeded.

    Args:
        seed: The seed as configured; with None, or one that numpy does not take, nothing is looked at.
        generators: The generators that the framework seeds.
    """
    if seed is None or not 0 <= seed < SEEDS_OF_PEOPLE:
        return {}
    found = {"torch": torch.initial_seed() < SEEDS_OF_PEOPLE} | _of_numpy()
    seeded = {name: was for name, was in found.items() if name in generators}
    return {
        "seeds": {"seed": seed, "compared": list(seeded), "unseeded": [name for name, was in seeded.items() if not was]}
    }


def _of_numpy() -> dict[str, bool]:
    """Whether numpy's shared generator was seeded; nothing where numpy is not loaded or its generator tells nothing."""
    shared = getattr(getattr(sys.modules.get("numpy"), "random", None), "get_bit_generator", None)
    if shared is None:
        return {}
    generator = shared()
    return {"numpy": generator.seed_seq is None} if hasattr(generator, "seed_seq") else {}
