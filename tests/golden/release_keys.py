"""Makes the lists of settings by release, `rlstep_hooks/systems/*/keys.json`, of the frameworks' wheels.

    pip download --no-deps --dest WHEELS verl==0.9.1 verl==0.9.0 ...
    python tests/golden/release_keys.py WHEELS

A wheel is read as a file: nothing of it is installed, imported or copied but the names of settings.

- verl: the keys of the configurations that its wheel ships (`trainer/config/_generated_*.yaml`; before 0.5 `ppo_trainer.yaml`),
  for all engines.
- TRL: the fields of the dataclasses that `trl grpo` and `trl rloo` parse, and those of transformers' TrainingArguments, of the
  releases of transformers whose wheels are there.
- OpenRLHF: the flags of `cli/train_ppo_ray.py`.
"""

from __future__ import annotations

import ast
import json
import sys
import zipfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator

SYSTEMS = Path(__file__).parents[2] / "rlstep_hooks" / "systems"


def main(wheels: Path) -> None:
    """Write the list of each framework whose wheels are in the folder."""
    for name, keys_of in (("verl", verl_keys), ("trl", trl_keys), ("openrlhf", openrlhf_keys)):
        found = {wheel.name.split("-")[1]: wheel for wheel in wheels.glob(f"{name}-*.whl")}
        if found:
            releases = {release: keys_of(wheel, wheels) for release, wheel in found.items()}
            (SYSTEMS / name / "keys.json").write_text(text_of(releases), encoding="utf-8")


def text_of(releases: dict[str, set[str]]) -> str:
    """A list as it is stored: releases ascending, and each setting with its bits, on a line of its own."""
    from packaging.version import Version

    order = sorted(releases, key=Version)
    names = sorted(set().union(*releases.values()))
    bits = {name: sum(1 << i for i, release in enumerate(order) if name in releases[release]) for name in names}
    lines = ",\n".join(f"{json.dumps(name)}: {value}" for name, value in bits.items())
    return f'{{"releases": {json.dumps(order)},\n"keys": {{\n{lines}\n}}}}\n'


# verl.


def verl_keys(wheel: Path, _: Path) -> set[str]:
    """The keys of all configurations of PPO in a wheel of verl, without the interpolations and `_target_` names."""
    import yaml

    with zipfile.ZipFile(wheel) as content:
        names = [name for name in content.namelist() if "/trainer/config/" in name and name.endswith(".yaml")]
        generated = [name for name in names if "/_generated_ppo" in name]
        plain = [name for name in names if name.endswith(("/ppo_trainer.yaml", "/ppo_megatron_trainer.yaml"))]
        keys: set[str] = set()
        for name in generated or plain:
            keys.update(flat(yaml.safe_load(content.read(name))))
    return {key for key in keys if not key.endswith("_target_")}


def flat(config: dict[str, Any], above: str = "") -> Iterator[str]:
    """The dotted names of the leaves; an empty mapping is one."""
    for key, value in config.items():
        if isinstance(value, dict) and value:
            yield from flat(value, f"{above}{key}.")
        else:
            yield f"{above}{key}"


# TRL.

TRL_CLASSES = (
    ("trl/trainer/grpo_config.py", "GRPOConfig"),
    ("trl/trainer/rloo_config.py", "RLOOConfig"),
    ("trl/trainer/base_config.py", "_BaseConfig"),
    ("trl/trainer/model_config.py", "ModelConfig"),
    ("trl/scripts/utils.py", "ScriptArguments"),
    ("trl/scripts/utils.py", "DatasetMixtureConfig"),
    ("trl/scripts/utils.py", "DatasetConfig"),
    ("trl/scripts/grpo.py", "GRPOScriptArguments"),
    ("trl/scripts/rloo.py", "RLOOScriptArguments"),
    ("trl/utils.py", "ScriptArguments"),
    ("trl/commands/cli_utils.py", "ScriptArguments"),
)
OF_THE_CLI = {"config", "accelerate_config", "num_processes"}


def trl_keys(wheel: Path, wheels: Path) -> set[str]:
    """The fields that `trl grpo` and `trl rloo` know."""
    keys = set(OF_THE_CLI)
    with zipfile.ZipFile(wheel) as content:
        inside = set(content.namelist())
        for file, name in TRL_CLASSES:
            if file in inside:
                keys.update(fields_of(content.read(file).decode(), name))
    for transformers in wheels.glob("transformers-*.whl"):
        with zipfile.ZipFile(transformers) as content:
            keys.update(fields_of(content.read("transformers/training_args.py").decode(), "TrainingArguments"))
    return keys


def fields_of(source: str, name: str) -> set[str]:
    """The annotated fields of a class, by its source."""
    return {
        statement.target.id
        for node in ast.parse(source).body
        if isinstance(node, ast.ClassDef) and node.name == name
        for statement in node.body
        if isinstance(statement, ast.AnnAssign) and isinstance(statement.target, ast.Name)
        if "ClassVar" not in ast.unparse(statement.annotation)
    }


# OpenRLHF.


def openrlhf_keys(wheel: Path, _: Path) -> set[str]:
    """The flags of `train_ppo_ray`, and of `train_ppo` where the wheel has it."""
    keys: set[str] = set()
    with zipfile.ZipFile(wheel) as content:
        for file in content.namelist():
            if file.endswith(("openrlhf/cli/train_ppo_ray.py", "openrlhf/cli/train_ppo.py")):
                keys.update(flags_of(content.read(file).decode()))
    return keys


def flags_of(source: str) -> set[str]:
    """The names of `add_argument` calls, in the spelling that settings have; also of those in a loop over constant prefixes."""
    found: set[str] = set()
    _collect(ast.parse(source), {}, found)
    return {flag.lstrip("-").replace("-", "_") for flag in found}


def _collect(node: ast.AST, loop: dict[str, list[str]], found: set[str]) -> None:
    if isinstance(node, ast.For) and isinstance(node.target, ast.Name) and isinstance(node.iter, ast.Tuple | ast.List):
        values = [each.value for each in node.iter.elts if isinstance(each, ast.Constant)]
        loop = {**loop, node.target.id: [value for value in values if isinstance(value, str)]}
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "add_argument":
        found.update(text for argument in node.args for text in _texts(argument, loop) if text.startswith("--"))
    for child in ast.iter_child_nodes(node):
        _collect(child, loop, found)


def _texts(node: ast.expr, loop: dict[str, list[str]]) -> list[str]:
    """The texts that a constant, or an f-string with the name of a loop, stands for."""
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return [node.value]
    texts = [""]
    for part in node.values if isinstance(node, ast.JoinedStr) else ():
        if isinstance(part, ast.Constant):
            texts = [text + str(part.value) for text in texts]
        elif isinstance(part, ast.FormattedValue) and isinstance(part.value, ast.Name):
            texts = [text + value for text in texts for value in loop.get(part.value.id, [])]
    return texts if isinstance(node, ast.JoinedStr) else []


if __name__ == "__main__":
    main(Path(sys.argv[1]))
