"""Configurations over their parents: `defaults` of both dialects, compared with Hydra and with OmegaConf's merge."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from rlstep_hooks.launch.inheritance import read_config
from rlstep_hooks.launch.text import LaunchError

if TYPE_CHECKING:
    from pathlib import Path


def laid_out(folder: Path, files: dict[str, str]) -> None:
    for name, text in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)


def values(path: Path, choices: dict[str, str] | None = None) -> dict[str, Any]:
    read = read_config(path, choices)
    assert not read.missing
    return {name: setting.value for name, setting in read.settings.items()}


# One parent beside the file, or several: NeMo-RL.


def test_a_text_names_the_parent(tmp_path: Path) -> None:
    laid_out(
        tmp_path,
        {
            "base.yaml": "grpo: {steps: 10, prompts: 32}\npolicy: {batch: 512}\n",
            "recipes/one.yaml": "defaults: ../base.yaml\ngrpo: {steps: 20}\n",
            "recipes/deep/two.yaml": "defaults: ../one.yaml\npolicy: {batch: 64}\n",
        },
    )
    assert values(tmp_path / "recipes/deep/two.yaml") == {"grpo.prompts": 32, "grpo.steps": 20, "policy.batch": 64}
    read = read_config(tmp_path / "recipes/deep/two.yaml")
    assert str(read.settings["grpo.steps"].place).endswith("recipes/deep/../one.yaml:2:8")


def test_the_later_of_several_parents_holds(tmp_path: Path) -> None:
    laid_out(
        tmp_path,
        {
            "a.yaml": "x: 1\ny: 1\nz: 1\n",
            "b.yml": "y: 2\nz: 2\n",
            "c.yaml": "z: 3\ndefaults: [a.yaml, b.yml]\n",
        },
    )
    assert values(tmp_path / "c.yaml") == {"x": 1, "y": 2, "z": 3}


@pytest.mark.parametrize(
    ("below", "above"),
    [
        ("a: {b: 1, c: 2}", "a: null"),
        ("a: {b: 1, c: 2}", "a: {}"),
        ("a: {b: 1, c: 2}", "a: 5"),
        ("a: {b: 1, c: 2}", "a: ???"),
        ("a: {b: 1, c: 2}", "a: {b: '???'}"),
        ("a: null", "a: {b: 1}"),
        ("a: 7", "a: {b: {c: 1}}"),
        ("a: [1, 2, 3]", "a: [4]"),
        ("a: {}", "a: {b: 1}"),
        ("a: 1e3", "a: 1_000"),
    ],
)
def test_files_are_laid_over_each_other_as_omegaconf_merges(below: str, above: str, tmp_path: Path) -> None:
    omegaconf = pytest.importorskip("omegaconf")
    laid_out(tmp_path, {"below.yaml": below, "above.yaml": f"{above}\ndefaults: below.yaml\n"})
    merged = omegaconf.OmegaConf.merge(omegaconf.OmegaConf.create(below), omegaconf.OmegaConf.create(above))
    assert values(tmp_path / "above.yaml") == flat(omegaconf.OmegaConf.to_container(merged))


def test_a_section_that_overrides_forgets_what_was_in_it(tmp_path: Path) -> None:
    laid_out(
        tmp_path,
        {
            "base.yaml": "data: {train: {name: a, split: b}, seed: 1}\nother: {x: 1}\n",
            "child.yaml": "defaults: base.yaml\ndata: {_override_: true, train: {name: c}}\n",
        },
    )
    assert values(tmp_path / "child.yaml") == {"other.x": 1, "data.train.name": "c"}


@pytest.mark.parametrize("defaults", ["nowhere.yaml", "[nowhere.yaml]", "[nowhere, _self_]", "[{group: nowhere}]"])
def test_a_parent_that_is_not_here_is_named(defaults: str, tmp_path: Path) -> None:
    (tmp_path / "c.yaml").write_text(f"x: 1\ndefaults: {defaults}\n")
    (missing,) = read_config(tmp_path / "c.yaml").missing
    assert "nowhere" in missing.name
    assert str(missing.place).endswith("c.yaml:2:1")


def test_a_file_that_inherits_from_itself(tmp_path: Path) -> None:
    laid_out(tmp_path, {"a.yaml": "defaults: b.yaml\n", "b.yaml": "defaults: a.yaml\n"})
    with pytest.raises(LaunchError, match="from itself"):
        read_config(tmp_path / "a.yaml")


def test_defaults_that_are_a_setting_stay_one(tmp_path: Path) -> None:
    (tmp_path / "c.yaml").write_text("defaults: {batch: 4}\n")
    assert values(tmp_path / "c.yaml") == {"defaults.batch": 4}


# Hydra.

TREES: dict[str, dict[str, str]] = {
    "self last": {
        "main.yaml": "defaults: [base, _self_]\ntrainer: {epochs: 15}\n",
        "base.yaml": "trainer: {epochs: 30, nodes: 1}\n",
    },
    "self first": {
        "main.yaml": "defaults: [_self_, base]\ntrainer: {epochs: 15}\n",
        "base.yaml": "trainer: {epochs: 30, nodes: 1}\n",
    },
    "no self": {
        "main.yaml": "defaults: [base]\ntrainer: {epochs: 15}\n",
        "base.yaml": "trainer: {epochs: 30, nodes: 1}\n",
    },
    "group": {
        "main.yaml": "defaults: [{actor: dp}, _self_]\nlr: 1\n",
        "actor/dp.yaml": "batch: 256\n",
    },
    "package": {
        "main.yaml": "defaults: [{actor@a.b.actor: dp}, _self_]\na: {b: {actor: {epochs: 2}}}\n",
        "actor/dp.yaml": "batch: 256\nepochs: 1\n",
    },
    "one group twice": {
        "main.yaml": "defaults: [{model@a: m}, {model@b: m}, _self_]\n",
        "model/m.yaml": "x: 1\n",
    },
    "packages within packages": {
        "main.yaml": "defaults: [{actor@r.actor: dp}]\n",
        "actor/dp.yaml": "defaults: [{../optim@optim: fsdp}, actor, _self_]\nengine: dp\n",
        "actor/actor.yaml": "defaults: [{../profiler@profiler: p}]\nbatch: 1\nengine: none\n",
        "optim/fsdp.yaml": "lr: 1e-6\n",
        "profiler/p.yaml": "enable: false\n",
    },
    "global and absolute": {
        "main.yaml": "defaults: [{actor@r: dp}]\n",
        "actor/dp.yaml": "defaults: [{/optim@_global_.o: fsdp}, {/optim: fsdp}]\nbatch: 1\n",
        "optim/fsdp.yaml": "lr: 1\n",
    },
    "header": {
        "main.yaml": "defaults: [{experiment: one}, {experiment@e: one}, {deep/er: two}]\n",
        "experiment/one.yaml": "# @package _global_\nbatch: 1\n",
        "deep/er/two.yaml": "# @package else.where\nbatch: 2\n",
    },
    "a chosen name in another": {
        "main.yaml": "defaults: [{engine: dp}, {actor@a: '${engine}_actor'}, _self_]\n",
        "engine/dp.yaml": "name: dp\n",
        "actor/dp_actor.yaml": "batch: 1\n",
    },
    "optional and null": {
        "main.yaml": "defaults: [{optional db: nothing}, {actor: null}, _self_]\nx: 1\n",
        "actor/dp.yaml": "batch: 1\n",
    },
    "override": {
        "main.yaml": "defaults: [base, {override actor: two}, _self_]\n",
        "base.yaml": "defaults: [{actor: one}]\n",
        "actor/one.yaml": "batch: 1\n",
        "actor/two.yaml": "batch: 2\n",
    },
    "override in a package": {
        "main.yaml": "defaults: [base, {override actor@r.actor: two}, _self_]\n",
        "base.yaml": "defaults: [{actor@r.actor: one}]\n",
        "actor/one.yaml": "batch: 1\n",
        "actor/two.yaml": "batch: 2\n",
    },
    "several of a group": {
        "main.yaml": "defaults: [{data: [a, b]}]\n",
        "data/a.yaml": "x: 1\ny: 1\n",
        "data/b.yaml": "y: 2\n",
    },
    "a name with a folder": {"main.yaml": "defaults: [sub/base]\nx: 1\n", "sub/base.yaml": "y: 1\n"},
    "hydra's own settings": {
        "main.yaml": "defaults: [base, {override hydra/job_logging: disabled}]\nhydra: {run: {dir: x}}\nx: 1\n",
        "base.yaml": "y: 1\n",
    },
}


@pytest.mark.filterwarnings("ignore:In 'main'")
@pytest.mark.parametrize("name", TREES)
def test_a_tree_is_composed_as_hydra_composes_it(name: str, tmp_path: Path) -> None:
    laid_out(tmp_path, TREES[name])
    assert values(tmp_path / "main.yaml") == composed(tmp_path)


@pytest.mark.parametrize(
    ("name", "choices"),
    [
        ("a chosen name in another", {"engine": "mcore"}),
        ("override", {"actor": "one"}),
        ("override in a package", {"actor@r.actor": "one"}),
        ("optional and null", {"actor": "dp"}),
    ],
)
def test_a_command_chooses_a_file(name: str, choices: dict[str, str], tmp_path: Path) -> None:
    more = {
        "engine/mcore.yaml": "name: mcore\n",
        "actor/mcore_actor.yaml": "batch: 9\n",
    }
    laid_out(tmp_path, {**more, **TREES[name]})
    assert values(tmp_path / "main.yaml", choices) == composed(tmp_path, choices)


def composed(folder: Path, choices: dict[str, str] | None = None) -> dict[str, Any]:
    hydra = pytest.importorskip("hydra")
    omegaconf = pytest.importorskip("omegaconf")
    with hydra.initialize_config_dir(config_dir=str(folder), version_base=None):
        config = hydra.compose("main", overrides=[f"{group}={name}" for group, name in (choices or {}).items()])
    return flat(omegaconf.OmegaConf.to_container(config))


def flat(config: Any, above: str = "") -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name, value in config.items():
        found |= flat(value, f"{above}{name}.") if isinstance(value, dict) and value else {f"{above}{name}": value}
    return found


def test_the_folders_that_are_searched(tmp_path: Path) -> None:
    laid_out(
        tmp_path,
        {
            "verl/trainer/config/ppo_trainer.yaml": "defaults: [{actor: dp}, _self_]\nx: 1\n",
            "verl/trainer/config/actor/dp.yaml": "batch: 1\n",
            "recipe/a/config/file.yaml": "hydra: {searchpath: ['file://verl/trainer/config']}\ndefaults: [ppo_trainer, _self_]\nx: 2\n",
            "recipe/a/config/pkg.yaml": "hydra: {searchpath: ['pkg://verl.trainer.config']}\ndefaults: [ppo_trainer, _self_]\nx: 3\n",
        },
    )
    assert values(tmp_path / "recipe/a/config/file.yaml") == {"actor.batch": 1, "x": 2}
    assert values(tmp_path / "recipe/a/config/pkg.yaml") == {"actor.batch": 1, "x": 3}


# What merges in YAML itself.


@pytest.mark.parametrize("name", ["a", "learning_rate"])
def test_what_a_mapping_says_itself_holds_over_what_it_merges(name: str, tmp_path: Path) -> None:
    """https://yaml.org/type/merge.html: own keys hold, then those of the earlier mapping.

    PyYAML is no witness, nor what loads with it: 6.0.4 gives `u` the value of `p` where the key is one character, and lets the later
    mapping of a list hold where the key is longer.
    """
    text = f"p: &p {{{name}: 1, b: {{c: 1}}}}\nq: &q {{{name}: 2, d: 2}}\nr: {{<<: [*p, *q], b: {{e: 3}}}}\n"
    text += f"s: {{f: 1, <<: *p}}\nt: &t {{<<: *p, {name}: 5}}\nu: {{<<: *t}}\n"
    (tmp_path / "c.yaml").write_text(text)
    assert values(tmp_path / "c.yaml") == {
        f"p.{name}": 1, "p.b.c": 1,
        f"q.{name}": 2, "q.d": 2,
        f"r.{name}": 1, "r.b.e": 3, "r.d": 2,
        "s.f": 1, f"s.{name}": 1, "s.b.c": 1,
        f"t.{name}": 5, "t.b.c": 1,
        f"u.{name}": 5, "u.b.c": 1,
    }  # fmt: skip


def test_what_is_merged_must_be_a_mapping(tmp_path: Path) -> None:
    (tmp_path / "c.yaml").write_text("a: {<<: [{b: 1}, 2]}\n")
    with pytest.raises(LaunchError, match="no mapping"):
        values(tmp_path / "c.yaml")


def test_toml_files_of_a_toml_file(tmp_path: Path) -> None:
    pytest.importorskip("tomllib", reason="Python 3.10 has no reader of TOML")
    laid_out(tmp_path, {"base.toml": "a = 1\n[b]\nc = 2\n", "x/child.toml": 'toml_files = ["../base.toml"]\na = 3\n'})
    assert values(tmp_path / "x/child.toml") == {"b.c": 2, "a": 3}
