"""Copies of TRL's GRPOTrainer in other repositories: planned by the formulas of the release that they were made of."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from rlstep_hooks.systems.engine.declaration import PLANNED_ONLY
from rlstep_hooks.systems.trl.system import SYSTEM as TRL

if TYPE_CHECKING:
    from rlstep_hooks.systems.engine.declaration import Entry, System


def copy(name: str, title: str, version: str, until: str, *recognised: Entry) -> System:
    """The declaration of a copy, which is only planned: TRL's hooks and deviations hold for TRL itself.

    Args:
        name: Name for `--framework`.
        title: The system's name as people write it.
        version: The release of TRL that it was made of.
        until: The first release of TRL that it is not.
        recognised: How its launches are recognised.
    """
    return msgspec.structs.replace(
        TRL,
        name=name,
        title=title,
        version=version,
        releases=(version.rpartition(".")[0], until),
        keys=None,
        recognised=recognised,
        trainers={},
        # Only observers look at use_peft.
        settings={setting: typed for setting, typed in TRL.settings.items() if setting != "use_peft"},
        package="",
        **PLANNED_ONLY,
    )
