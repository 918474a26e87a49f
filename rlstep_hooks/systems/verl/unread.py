"""Settings that verl's program takes and does not read.

Up to 0.8 `main_ppo` moved the older sections of rewards to where they are read (`migrate_legacy_reward_impl`, main_ppo.py 0.8.0:47).
Since 0.9 the sections are still in its configuration (trainer/config/legacy_reward_impl.yaml 0.9.1), so that Hydra takes them, and
nothing moves them: a reward function of somebody's own is then not called, and verl's own rule gives the rewards.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from rlstep_hooks.launch.text import UnknownValueError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from rlstep_hooks.launch.settings import Settings
    from rlstep_hooks.systems.engine.request import Request

PROGRAM = "verl.trainer.main_ppo"
"""The program that does not read them; one of somebody's own may move them itself."""
SECTIONS = ("custom_reward_function", "reward_model", "sandbox_fusion")

_MOVED = {
    "reward_model.reward_manager": "reward.reward_manager.name",
    "reward_model.num_workers": "reward.num_workers",
    "reward_model.model.path": "reward.reward_model.model_path",
    "reward_model.reward_loop_source": "reward.reward_manager.source",
    "reward_model.reward_loop_module_path": "reward.reward_manager.module.path",
    "reward_model.reward_loop_class_name": "reward.reward_manager.module.name",
}
"""Names of 0.8 -> those that 0.9 reads, as `migrate_legacy_reward_impl` moves them; others keep their names below `reward`."""


def unread(names: Iterable[str], is_given: Callable[[str], bool]) -> dict[str, str]:
    """The settings that have no effect, with the names that are read; without those that are given under both names.

    Args:
        names: What the launch sets, by dotted names.
        is_given: Whether it sets a name.
    """
    older = [name for name in names if name.partition(".")[0] in SECTIONS]
    return {name: _now(name) for name in older if not is_given(_now(name))}


def _now(name: str) -> str:
    if name.startswith("reward_model.reward_kwargs."):
        return f"reward.{name.removeprefix('reward_model.')}"
    return _MOVED.get(name, f"reward.{name}")


def unread_in(launch: Request) -> str | None:
    """The settings of a launch of verl's program that have no effect, in words; None where there is none.

    Args:
        launch: One of 0.9 or later.
    """
    program, settings = launch.command.program, launch.settings
    if program.kind not in ("module", "script") or program.name not in (PROGRAM, "verl/trainer/main_ppo.py"):
        return None
    given = [f"{section}.{name}" for section in SECTIONS for name in settings.section_names(section)]
    found = unread([name for name in given if _is_set(settings, name)], lambda name: _is_set(settings, name))
    return worded(found) or None


def _is_set(settings: Settings, name: str) -> bool:
    """Whether the launch gives a setting another value than null."""
    if not settings.is_given(name):
        return False
    try:
        return settings.value(name) is not None
    except UnknownValueError:
        return True


def worded(found: dict[str, str]) -> str:
    """Each name with the one that is read.

    Args:
        found: What `unread` gives.
    """
    return ", ".join(f"{name} (now {now})" for name, now in found.items())
