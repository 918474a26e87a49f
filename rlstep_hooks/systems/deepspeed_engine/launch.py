"""What a launch says of DeepSpeed, and which faults of the release that is installed here concern it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

from rlstep_hooks.launch.files import find_file
from rlstep_hooks.launch.text import LaunchError, UnknownValueError
from rlstep_hooks.systems.engine.installed import release_here

if TYPE_CHECKING:
    from rlstep_hooks.systems.engine.request import Request

PACKAGE = "deepspeed"
SHIPPED = {"zero1": 1, "zero2": 2, "zero3": 3}
"""Configurations of accelerate that TRL ships, with their stages (trl/accelerate_configs 1.16.0: none offloads the optimizer)."""


class EngineConfig(msgspec.Struct, frozen=True):
    """How DeepSpeed is configured."""

    stage: int
    """The stage of ZeRO."""
    offload: bool = False
    """Whether the optimizer is offloaded."""


def config_in(launch: Request) -> EngineConfig | None:
    """The engine of a launch: from the file that its `deepspeed` names (transformers' TrainingArguments), else from its configuration
    of accelerate; None where there is none, or nobody can read it here."""
    try:
        own = launch.settings.text("deepspeed")
        named = launch.settings.text("accelerate_config") or launch.settings.text("config_file")
    except UnknownValueError:
        return None
    if own:
        return _of_engine(_read(own, launch))
    processes = launch.command.processes
    named = named or (processes.config if processes is not None else None)
    if not named:
        return None
    if named in SHIPPED:
        return EngineConfig(SHIPPED[named])
    found = _read(named, launch)
    if found.get("distributed_type") != "DEEPSPEED":
        return None
    inner = found.get("deepspeed_config.deepspeed_config_file")
    if inner:
        return _of_engine(_read(str(inner), launch))
    # accelerate 1.15.0 utils/dataclasses.py DeepSpeedPlugin: without a file, `zero_stage` and `offload_optimizer_device`.
    device = found.get("deepspeed_config.offload_optimizer_device") or "none"
    return _config(found.get("deepspeed_config.zero_stage", 2), device)


def _of_engine(found: dict[str, Any]) -> EngineConfig | None:
    """What DeepSpeed's own configuration asks for; without a stage it is 0 (deepspeed/runtime/zero/config.py 0.19.8)."""
    if not found:
        return None
    device = found.get("zero_optimization.offload_optimizer.device") or "none"
    return _config(found.get("zero_optimization.stage", 0), device)


def _config(stage: Any, device: Any) -> EngineConfig | None:
    whole = isinstance(stage, int) and not isinstance(stage, bool)
    return EngineConfig(stage, offload=str(device) not in ("none", "auto")) if whole else None


def _read(name: str, launch: Request) -> dict[str, Any]:
    """The settings of a YAML or JSON file by their names; empty where it cannot be read."""
    from rlstep_hooks.launch.yaml_file import parse_yaml, read_text

    file = find_file(name, launch.folder, launch.command.folder)
    if file is None:
        return {}
    try:
        return {setting.name: setting.value for setting in parse_yaml(read_text(file), str(file)).values()}
    except (OSError, LaunchError):
        return {}


def faults_of_launch(config: EngineConfig | None, *, reduced: bool, microbatches: int) -> list[dict[str, str]] | None:
    """What a plan's rule is told of faults of the installed release that concern a launch; None where there are none.

    Args:
        config: As `config_in` gives it, or as the launch's own options say.
        reduced: Whether it trains weights in 16 bits.
        microbatches: Of an update.
    """
    release = release_here(PACKAGE) if config is not None else ""
    if config is None or not release:
        return None
    from rlstep_hooks.systems.deepspeed_engine.faults import OFFLOAD, faults_of, told

    deployment = (f"ZeRO-{config.stage}", *([OFFLOAD] if config.offload else []))
    return told(faults_of(release, deployment, reduced=reduced, microbatches=microbatches), release) or None
