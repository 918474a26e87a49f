"""The configuration of the program beside a launch: which settings Hydra accepts there, and what they are if the launch is silent."""

from __future__ import annotations

import os.path
import re
from typing import TYPE_CHECKING

from rlstep_hooks.launch.inheritance import read_config
from rlstep_hooks.launch.text import LaunchError
from rlstep_hooks.launch.yaml_file import parse_yaml

if TYPE_CHECKING:
    from collections.abc import Mapping

    from rlstep_hooks.launch.checkout import Checkout, Source
    from rlstep_hooks.launch.settings import Setting

_ELSEWHERE = ("config_path", "config_dir", "cp", "cd")


def configuration(checkout: Checkout, main: Source, program: str, given: Mapping[str, Setting]) -> dict[str, Setting]:
    """The settings of the program's own YAML file; empty where it is not one file that lies in the checkout.

    Args:
        checkout: The package.
        main: The program's file.
        program: The path of the program below the package.
        given: What the launch sets.
    """
    decorated = re.search(r"@hydra\.main\((.*?)\)\s*$", main.text, re.MULTILINE | re.DOTALL)
    if decorated is None or any(name in given for name in _ELSEWHERE):
        return {}
    said = dict(re.findall(r"(config_path|config_name)\s*=\s*['\"]([^'\"]+)['\"]", decorated[1]))
    named = next((str(given[name].value) for name in ("config_name", "cn") if name in given), said.get("config_name"))
    if named is None or "config_path" not in said:
        return {}
    path = os.path.normpath(os.path.join(os.path.dirname(program), said["config_path"], named.removesuffix(".yaml")))
    source = None if path.startswith("..") else checkout.source(f"{path}.yaml")
    if source is None:
        return {}
    try:
        settings = parse_yaml(source.text, source.shown)
    except LaunchError:
        return {}
    if not any(name.partition(".")[0] == "defaults" for name in settings):
        return settings
    # A list of defaults brings further files in; a part of them says nothing of the whole.
    try:
        whole = read_config(checkout.package / f"{path}.yaml")
    except (LaunchError, OSError):
        return {}
    return {} if whole.missing else whole.settings
