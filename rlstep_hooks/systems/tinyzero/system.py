"""TinyZero: a copy of verl 0.1, whose code makes one rollout fewer than configured and one pass over each.

The formulas are those of `rlstep_hooks.systems.tinyzero.plan`, read at Jiayi-Pan/TinyZero 95df88f.
"""

from __future__ import annotations

from rlstep_hooks.systems.declaration import Entry
from rlstep_hooks.systems.verl.forks import fork

SYSTEM = fork(
    "tinyzero",
    "TinyZero",
    "95df88f",
    Entry(
        "tinyzero",
        programs=("module:verl.trainer.main_ppo",),
        with_value={"trainer.project_name": "*tinyzero*"},
        before="verl",
    ),
)
