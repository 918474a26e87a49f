"""Every declaration holds together, the index is what they say, and a package of somebody else's adds a system."""

from __future__ import annotations

import re
import sys
from typing import TYPE_CHECKING, Any

import msgspec
import pytest

from rlstep_hooks.judge.settings import WORDS
from rlstep_hooks.launch.text import LaunchError
from rlstep_hooks.planning import formula as language
from rlstep_hooks.planning.launched import Options
from rlstep_hooks.planning.schedule import Schedule
from rlstep_hooks.show.plan import plan_rows
from rlstep_hooks.systems.engine import index
from rlstep_hooks.systems.engine.declaration import Check, System
from rlstep_hooks.systems.engine.entry import named
from rlstep_hooks.systems.engine.keys import key_list
from rlstep_hooks.systems.engine.launches import plan_launch
from rlstep_hooks.systems.engine.quantities import DERIVED
from rlstep_hooks.systems.engine.reader import read_config, with_values
from rlstep_hooks.systems.swift import system as swift
from tests.scripted import make_plan

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

HOMES = [index.home_of(name) for name in dict.fromkeys(entry.name for entry in index.entries())]
SYSTEMS: list[System] = [home.SYSTEM for home in HOMES if not home.SYSTEM.plan]
SYSTEMS.append(swift.MEGATRON)
"""Those whose plan is said in expressions."""
GIVEN = {
    "rows",
    "world_size",
    "program",
    "program_kind",
    "no_program",
    "reader",
    "version",
    "release",
    "launch",
    *DERIVED,
}


def test_the_index_is_what_the_declarations_say() -> None:
    """`python -m rlstep_hooks.systems.engine.index` makes it."""
    assert index.text_of(index.collected()) == index._FILE.read_text()


@pytest.mark.parametrize("system", list(index.observed()), ids=lambda system: system.name)
def test_the_settings_that_people_turn_are_those_of_the_framework(system: System) -> None:
    """`rlstep why` names them; a loop of one's own has no names."""
    assert system.knobs.keys() <= WORDS.keys()
    if system.name == "own_loop":
        assert not system.knobs
        return
    assert {"learning_rate", "updates", "length"} <= system.knobs.keys()
    if system.keys is not None:
        listed = key_list(system.keys.file)
        assert not [name for name in system.knobs.values() if not listed.has(name, system.version)]


def test_a_plan_is_spoken_of_in_the_names_of_its_own_trainer() -> None:
    assert index.knobs_of(None) == {}
    assert index.knobs_of(make_plan())["kl_coefficient"] == "beta"
    other = msgspec.structs.replace(make_plan(), framework="nobody's")
    assert index.knobs_of(other) == {}
    ppo = msgspec.structs.replace(make_plan(), settings={"num_ppo_epochs": 4, "num_mini_batches": 1})
    assert index.knobs_of(ppo)["passes"] == "num_ppo_epochs"


def expressions(system: System) -> Iterator[tuple[str, str]]:
    """Every expression of a declaration, and the quantity whose it is."""
    yield from ((text, name) for name, text in system.let.items())
    yield from ((text, "") for text in system.facts.values())
    yield from ((typed.where or "True", "") for typed in system.settings.values())
    for formula in system.formulas:
        yield formula.text, formula.quantity
        yield formula.where or "True", ""
    for note in system.notes:
        yield note.when or "True", ""
    for check in system.checks:
        yield check.holds, ""
        yield check.where or "True", ""
    for template in templates(system):
        yield from ((text, "") for text in re.findall(r"\{([^{}]+)\}", template))


def templates(system: System) -> Iterator[str]:
    yield from (note.text for note in system.notes)
    yield from (formula.source for formula in system.formulas)
    yield from (text for text in system.always.values() if isinstance(text, str))
    for check in system.checks:
        yield check.says
        if isinstance(check, Check):
            yield from (check.fix, check.source)


@pytest.mark.parametrize("system", SYSTEMS, ids=lambda system: system.name)
def test_every_name_of_a_declaration_has_a_meaning(system: System) -> None:
    quantities = {*system.let, *system.always, *(formula.quantity for formula in system.formulas)}
    for text, own in expressions(system):
        for name in language.names_in(text):
            known = quantities - {own} | set(system.settings) | GIVEN
            assert name in known, f"{name} in {text!r}"
        for function in re.findall(r"\b([a-z_]+)\(", re.sub(r"'[^']*'", "", text)):
            known_functions = {
                *language.FUNCTIONS,
                *system.functions,
                "given",
                "nearest",
                "and",
                "or",
                "not",
                "in",
                "if",
                "else",
            }
            assert function in known_functions, f"{function} in {text!r}"


@pytest.mark.parametrize("system", SYSTEMS, ids=lambda system: system.name)
def test_every_quantity_of_a_declaration_is_used(system: System) -> None:
    used = set().union(*(language.names_in(text) - {own} for text, own in expressions(system)), system.shown or ())
    fields = {
        *Schedule.__struct_fields__,
        "loader",
        "processes",
        *(f"critic.{name}" for name in Schedule.__struct_fields__),
    }
    quantities = {*system.let, *system.always, *(formula.quantity for formula in system.formulas)}
    assert quantities <= used | fields
    assert set(system.settings) <= used | quantities


@pytest.mark.parametrize("system", SYSTEMS, ids=lambda system: system.name)
def test_formulas_and_checks_cite_their_source(system: System) -> None:
    assert all(formula.source for formula in system.formulas)
    assert all(check.source and check.fix and check.when for check in system.checks if isinstance(check, Check))
    assert system.recognised or system is swift.MEGATRON


@pytest.mark.parametrize("name", [entry.name for entry in index.entries()])
def test_what_a_declaration_names_is_there(name: str) -> None:
    home = index.home_of(name)
    if hasattr(home, "SYSTEM"):
        system = home.SYSTEM
        places = (system.plan, system.live, system.writes if isinstance(system.writes, str) else "")
        assert all(callable(named(place)) for place in places if place)
        assert not system.deviations or named(system.deviations)


def test_deviations_are_those_of_the_framework_and_the_release() -> None:
    names = {name: {one.name for one in index.deviations_of(name, "0.17")} for name in ("TRL", "TRL PPO", "nobody's")}
    assert any(name.startswith("trl-ppo") for name in names["TRL"]), names["TRL"]  # PPOTrainer is TRL's too
    assert not names["TRL PPO"]
    assert not names["nobody's"]


MINE = """
from rlstep_hooks.systems.engine.declaration import Entry, Formula, System, count

SYSTEM = System(
    name="mine",
    title="Mine",
    version="1.0",
    recognised=(Entry("mine", programs=("module:my_trainer.*",)),),
    settings={"batch": count(64), "group": count(8), "passes": count(1), "minibatch": count(None), "steps": count(100),
        "unneeded": count(4)},
    let={"reuse_epochs": "passes"},
    always={"algorithm": "GRPO", "loader": "wraps"},
    formulas=(
        Formula("prompts_per_rollout", "batch", "mine"),
        Formula("samples_per_prompt", "group", "mine"),
        Formula("samples_per_update", "minibatch or batch * group", "mine"),
        Formula("updates_per_rollout", "passes * batch * group / samples_per_update", "mine"),
        Formula("rollouts", "steps", "mine"),
    ),
)
"""


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A package of somebody else's, as pip leaves it: the module, and its metadata with the entry point."""
    (tmp_path / "my_system.py").write_text(MINE)
    metadata = tmp_path / "my_system-1.0.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: my-system\nVersion: 1.0\n")
    (metadata / "entry_points.txt").write_text(
        "[rlstep_hooks.systems]\nmine = my_system:SYSTEM\nbroken = no_such_module:SYSTEM\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    index._others.cache_clear()
    yield tmp_path
    index._others.cache_clear()
    sys.modules.pop("my_system", None)


@pytest.mark.usefixtures("package")
def test_a_package_of_others_adds_a_system() -> None:
    plan = plan_launch(["python", "-m", "my_trainer.main", "--batch", "32", "--minibatch", "64"])
    assert plan.schedule is not None
    assert (plan.title, plan.schedule.updates_per_rollout, plan.schedule.updates) == ("Mine", 4, 400)
    assert "mine" in index.names()
    assert [formula.inputs for formula in plan.formulas if formula.quantity == "samples_per_update"] == [
        {"minibatch": 64}
    ]


@pytest.mark.usefixtures("package")
def test_a_setting_that_is_null_is_refused_only_where_the_plan_needs_it() -> None:
    launch = ["python", "-m", "my_trainer.main", "--minibatch", "64"]
    assert plan_launch([*launch, "--unneeded", "null"]).schedule is not None
    with pytest.raises(LaunchError, match="--group is not set, and the plan needs it"):
        plan_launch([*launch, "--group", "null"])


@pytest.mark.usefixtures("package")
def test_a_package_that_cannot_be_loaded_hinders_nobody_else() -> None:
    assert plan_launch(["python", "-m", "my_trainer.main"]).schedule is not None
    with pytest.raises(LaunchError, match=r"'broken' .* cannot be loaded"):
        index.system_of("broken")


def declared(**changes: Any) -> System:
    parts: dict[str, Any] = {"name": "x", "title": "X", "version": "2.0", "releases": ("1.0", "3.0")}
    return System(**{**parts, **changes})


def test_a_release_outside_the_bounds_is_refused() -> None:
    system = declared()
    assert system.defaults("2.9") == {}
    for version in ("0.9", "3.0"):
        with pytest.raises(LaunchError, match=r"X .* is not known: 1.0 to before 3.0 are"):
            system.defaults(version)


@pytest.mark.parametrize(
    ("fix", "said"),
    [
        ("a = 2 or 4", "a = 2 or 4"),
        ("a = , or b = 4", "b = 4"),
        ("a = 1, or b = ", "a = 1"),
        ("a = , or b = ", "no value nearby fits: change a or b"),
    ],
)
def test_alternatives_without_a_value_are_left_out_of_a_fix(fix: str, said: str) -> None:
    assert with_values(fix) == said


@pytest.mark.parametrize("system", SYSTEMS, ids=lambda system: system.name)
def test_where_rows_are_dropped_it_is_said_whether_each_pass_is_shuffled(system: System) -> None:
    """By a setting of the launch, or with the source that was read; nothing is supposed."""
    said = {**system.always, **system.let}
    if "drops" not in str(said.get("loader", "")):
        return
    formulas = [each for each in system.formulas if each.quantity == "rows_reshuffled"]
    text = str(said.get("rows_reshuffled", ""))
    assert formulas or not language.names_in(text).isdisjoint({*system.settings, "unknown"})


def test_a_declaration_that_drops_rows_and_does_not_say_which_is_at_fault() -> None:
    skyrl = index.system_of("skyrl")
    silent = [each for each in skyrl.formulas if each.quantity != "rows_reshuffled"]
    config = {"trainer": {"train_batch_size": 512, "policy_mini_batch_size": 512}}
    assert read_config(skyrl, config, rows=1025).schedule.rows_dropped_per_epoch == 1
    with pytest.raises(language.FormulaError, match="does not say rows_reshuffled"):
        read_config(msgspec.structs.replace(skyrl, formulas=tuple(silent)), config, rows=1025)


def test_where_nobody_says_whether_a_pass_is_shuffled_the_plan_says_that() -> None:
    words = ["paper", "--prompts-per-rollout", "256", "--samples-per-update", "128", "--epochs", "15"]
    plan = plan_launch(words, Options(framework="paper", rows=1000))
    assert plan.schedule is not None
    assert plan.schedule.rows_reshuffled is None
    assert "do not say" in plan.schedule.not_evaluated["rows_reshuffled"]
    (dropped,) = [finding for finding in plan.findings if finding.code == "RLS506"]
    assert (dropped.severity, "is not known" in dropped.why) == ("info", True)
    assert ("rows", "232 of 1 000 dropped in each pass", "not known whether the same each pass") in plan_rows(
        plan.schedule
    )
