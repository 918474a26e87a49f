'''A system as one declaration: settings, formulas, refusals, notes. This page is all that one needs to write one.

A complete one, in `rlstep_hooks/systems/example.py`:

    """Example: prompts of a rollout in whole mini-batches; the last, smaller batch of the loader is dropped."""

    from rlstep_hooks.systems.declaration import REQUIRED, Check, Entry, Formula, Note, System, count, flag, number

    _TRAINER = "Example 1.2 trainer.py"

    SYSTEM = System(
        name="example",
        title="Example",
        version="1.2",
        releases=("1.0", "2.0"),
        recognised=(Entry("example", programs=("module:example.train",), keys=("rollout.prompts",)),),
        overrides=True,
        rows_from=("data.files",),
        settings={
            "rollout.prompts": count(REQUIRED),
            "rollout.n": count(8),
            "update.prompts": count(None),
            "update.passes": count(1, also=("update.epochs",)),
            "train.epochs": count(1),
            "train.max_steps": count(None),
            "train.warmup": number(0),
            "train.save_every": count(),
            "loss.use_kl": flag(False),
        },
        let={
            "size": "update.prompts or rollout.prompts",
            "reuse_epochs": "update.passes",
            "reference_source": "'at_rollout' if loss.use_kl else 'none'",
        },
        always={"algorithm": "GRPO", "loader": "drops", "syncs": "first_and_after_updates"},
        formulas=(
            Formula("prompts_per_rollout", "rollout.prompts", f"{_TRAINER} generate"),
            Formula("samples_per_prompt", "rollout.n", f"{_TRAINER} generate"),
            Formula("samples_per_update", "size * rollout.n", f"{_TRAINER} update"),
            Formula("updates_per_rollout", "update.passes * rollout.prompts / size", f"{_TRAINER} update"),
            Formula("rollouts_per_epoch", "floor(rows / rollout.prompts)", f"{_TRAINER} loader (drop_last)"),
            Formula("rollouts", "limited(train.epochs * rollouts_per_epoch, train.max_steps)", f"{_TRAINER} fit"),
        ),
        checks=(
            Check(
                "rollout.prompts % size == 0",
                "rollout.prompts ({rollout.prompts}) must be divisible by update.prompts ({size})",
                fix="update.prompts = {nearest(size, it <= rollout.prompts and rollout.prompts % it == 0)}",
                when="at start-up",
                source=f"{_TRAINER} __init__",
            ),
        ),
        notes=(
            Note("unit", "rollout.prompts and update.prompts count prompts, not samples"),
            Note("shrinks", "max_steps ends the run after {rollouts} rollouts", "known(rows) and rollouts == train.max_steps"),
        ),
        facts={"lr_warmup": "floor(train.warmup * rollouts)", "save_every": "train.save_every"},
    )

**The text of a formula is the code.** It is evaluated, and `rlstep plan --explain` shows it with the numbers that went in.
The language is described in `rlstep_hooks.planning.formula`. Names are settings (as they are declared, with their dots), the
quantities of `let`, `formulas` and `always`, and these:

    rows            rows of the training set: `--rows`, else counted in the files of `rows_from`; else unknown
    world_size      `--world-size`, else the quantity `processes` where it is declared, else as the launcher starts processes, else 1
    program         the program's name, for example "train_async.py"
    program_kind    "module", "script", "executable" or "config"
    version         the release as text
    release         the release as numbers: `release >= (0, 17)`
    launch          the whole `Request`, for functions of Python

- Order does not matter, but for checks: a quantity is worked out when something needs it. Settings that are `REQUIRED` or given are
  read first, so a value that a setting cannot have is said before anything is refused.
- `let` holds steps without a source of their own. In what is shown, one that is no field of the Schedule stands in its place (`size`
  above is shown as "update.prompts" or "rollout.prompts", whichever was taken). A rule of the framework is no step: it is a `Formula`
  with its source.
- A setting that only some launches look at says so: `count(4, where="critic")`. In others it is neither demanded nor shown.
- Several formulas of one quantity are alternatives: the first whose `where` holds is taken, with its source.
- Within its own formula a name means the setting, or what stands above: `"rows": "min(rows, data.max_samples)"`.
- A setting that is not set is None: `update.prompts is None`, `update.prompts or 8`. What cannot be known before the run, such as
  rows that nobody gave, makes all that needs it unknown, with the reason; a check or a note that is unknown does nothing.
- Every formula and every check cites its source: release or commit, file, function.
- A launch that writes its settings in another form (positional arguments, a file of its own) is brought under the declared names by
  the function `given_of`.
- Where the framework needs Python (a loader's walk, a size that is itself a small language), write a function with its source in its
  docstring, name it in `functions` and call it in the expression. It gets values (or `launch`) and returns one.

**Quantities** that become the Schedule are its fields: see `rlstep_hooks.planning.schedule.Schedule` for each. Needed are
`prompts_per_rollout`, `samples_per_prompt` and `algorithm`; also, where the defaults are wrong: `reuse_epochs`,
`samples_per_microbatch`, `samples_per_update`, `updates_per_rollout`, `minibatches`, `updates`, `remainder`,
`old_logprob_source`, `lr_clock`, `lr_horizon`, `step_unit`, `frozen_rollouts`, `max_age` and the others. What is not declared, or is
None, is derived (`planning.phases`). In a declaration there is one more: `loader`, what becomes of the rows:

    "drops"   the last rollout of a pass is dropped where the rows do not fill it
    "keeps"   it is smaller
    "wraps"   rollouts go on at the beginning of the rows; the run's length is given
    "none"    the run samples from an environment

`rollouts` is declared for all of them. `minibatches` follow from `samples_per_update` and `remainder` ("keep": `slices`, "drop":
`whole_slices`, else `parts`). A critic is there where the quantity `critic` is true; it has the policy's sizes, but for what is
declared as `critic.<field>`.

**What is kept in a file of Python, and not here:** a live configuration's reading, hooks, deviations with code (`plan.py`,
`observe/`, `deviations.py` in the folder of an observed system, whose `system.py` holds SYSTEM: nothing is loaded where a framework
imports the hooks alone). A system whose plan cannot be said in expressions names a function instead:
`System(..., plan="rlstep_hooks.systems.verl.launch:read")`. It gets the launch's `Quantities`, in which each setting is read as it is
declared, and returns a `Reading`.
'''

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Literal

import msgspec

from rlstep_hooks.launch.command import Command, Program
from rlstep_hooks.launch.settings import MISSING, Setting, Settings, plain
from rlstep_hooks.launch.text import LaunchError, SettingError, UnknownValueError
from rlstep_hooks.planning import formula as language
from rlstep_hooks.planning.explained import shown
from rlstep_hooks.planning.formula import FormulaError, NotKnownError, Unknown
from rlstep_hooks.planning.reading import Formula, Note, Reading
from rlstep_hooks.planning.refusal import PlanError, refuse
from rlstep_hooks.planning.shape import shaped
from rlstep_hooks.systems.entry import Entry, named
from rlstep_hooks.systems.request import Request, release_of

if TYPE_CHECKING:
    from rlstep_hooks.planning.reading import Conversion
    from rlstep_hooks.planning.schedule import Schedule

__all__ = [
    "NOTHING", "REQUIRED", "Check", "Demand", "Entry", "Formula", "Keys", "Note", "System", "Typed", "count", "flag", "number", "text",
]  # fmt: skip

REQUIRED: Any = MISSING
"""The default of a setting that the framework demands."""


class _Nothing:
    def __repr__(self) -> str:
        return "NOTHING"


NOTHING: Any = _Nothing()
"""The default of a setting that is only read where it is given, and is not shown among those behind a plan."""


DERIVED = {
    "samples_per_rollout": "prompts_per_rollout * samples_per_prompt",
    "samples_per_update": "samples_per_rollout",
    "reuse_epochs": "1",
    "frozen_rollouts": "0",
    "updates": "floor(max(rollouts - frozen_rollouts, 0) * updates_per_rollout)",
}
"""Quantities that expressions may name where the declaration does not state them."""


class Typed(msgspec.Struct, frozen=True, kw_only=True):
    """One setting: what its value must be, and what holds without it."""

    kind: Literal["count", "number", "flag", "text"]
    default: Any
    least: int = 1
    """Of a count: the smallest value that is accepted."""
    also: tuple[str, ...] = ()
    """Other names of the setting."""
    off: str = ""
    """Of a flag: another flag that turns it off, for example "no_anneal_lr"."""
    since: tuple[tuple[str, Any], ...] = ()
    """Other defaults: release from which on, and default, ascending."""
    where: str = ""
    """The condition under which the framework looks at it: only then is it demanded, read and shown."""

    def default_in(self, version: str) -> Any:
        """The default of a release."""
        found = self.default
        for first, default in self.since:
            if release_of(version) >= release_of(first):
                found = default
        return found


def count(
    default: Any = NOTHING, *, least: int = 1, also: tuple[str, ...] = (), since: Any = (), where: str = ""
) -> Typed:
    """A whole number of at least `least`."""
    return Typed(kind="count", default=default, least=least, also=also, since=since, where=where)


def number(default: Any = NOTHING, *, also: tuple[str, ...] = (), since: Any = (), where: str = "") -> Typed:
    """Any number, exact."""
    return Typed(kind="number", default=default, also=also, since=since, where=where)


def flag(
    default: Any = NOTHING, *, also: tuple[str, ...] = (), off: str = "", since: Any = (), where: str = ""
) -> Typed:
    """True or false; without a default false where the launch does not say it, and None with the default None."""
    return Typed(kind="flag", default=default, also=also, off=off, since=since, where=where)


def text(default: Any = NOTHING, *, also: tuple[str, ...] = (), since: Any = (), where: str = "") -> Typed:
    """A text."""
    return Typed(kind="text", default=default, also=also, since=since, where=where)


class Check(msgspec.Struct, frozen=True):
    """A launch that the framework itself ends."""

    holds: str
    """Refused where this is false."""
    says: str
    """How the run ends, in the framework's own words; with {expressions}, as is `fix`."""
    fix: str
    """The smallest change, with the nearest values that work."""
    when: str
    """When the user would see it."""
    source: str
    where: str = ""
    """The condition under which the framework looks at all."""


class Demand(msgspec.Struct, frozen=True):
    """A launch of which no plan can be made, for the framework's behaviour then was not read, or means nothing."""

    holds: str
    says: str
    about: str = ""
    """The setting whose place is shown; "program" for that of the program."""
    where: str = ""


class Keys(msgspec.Struct, frozen=True, kw_only=True):
    """The names of a framework's settings, release by release; see `rlstep_hooks.systems.release`."""

    file: str
    """The list, below `rlstep_hooks/systems`: "verl/keys.json"."""
    refusal: str
    """What the framework says of a setting that it does not have, with {name} and {written}."""
    strict: tuple[str, ...]
    """Programs that know these settings only: patterns of `Program.matches`."""
    unless: str = ""
    """A function of the given settings, "module:function": whether the launch has a configuration of its own."""
    also: tuple[str, ...] = ()
    """Patterns of further settings that these programs take."""
    abbreviated: bool = False
    """Whether the beginning of a name stands for it, as argparse has it."""
    forked: bool = False
    """Whether somebody's own program with settings that no release has is a fork, and not a script with flags of its own."""
    no_effect: tuple[str, ...] = ()
    """Patterns of settings that were looked at: the schedule does not depend on them."""


class System(msgspec.Struct, frozen=True, kw_only=True):
    """One system; see the module."""

    name: str
    """For `--framework`: lower case, for example "skyrl"."""
    title: str
    """As people write it, for example "SkyRL"."""
    version: str
    """Release or commit whose formulas were read; the default of `--version`."""
    releases: tuple[str, str] | None = None
    """First release that is known, and the first that is not any more; None where one commit was read."""
    other_releases: str = ""
    """What is to be said of those."""
    keys: Keys | None = None
    """All settings of each release, where there is a list."""
    recognised: tuple[Entry, ...] = ()
    overrides: bool = False
    """Whether arguments are Hydra overrides (`key=value`) rather than flags (`--key value`)."""
    config_settings: tuple[str, ...] = ("config",)
    """Settings that name a YAML or TOML file with further settings."""
    own_configs: Mapping[str, Mapping[str, Any]] = {}
    """Configurations that the framework ships, by the ends of their names, with what they set unlike the defaults declared here. Where
    one is named and not at hand, this is taken for it, and said."""
    script_configs: dict[str, str] = {}
    """Script -> the configuration beside it that it reads where the command names none (`run.py` -> "configs/base.yaml")."""
    resolvers: dict[str, Callable[..., Any]] = {}
    """What the framework registers as resolvers of OmegaConf: `${name:...}`."""
    settings: dict[str, Typed] = {}
    keywords_of: tuple[str, ...] = ()
    """Classes or functions whose keywords in a Python file are these settings too, where no flag of that name is given."""
    helpers: Mapping[str, Mapping[str, Any]] = {}
    """Functions of the framework that make a configuration (`default_ppo_config()`), with what it sets."""
    defaults_of: Callable[[Request], Mapping[str, Any]] | None = None
    """Defaults that depend on the launch: those of a script, of an experiment."""
    instead: Callable[[Request], System | None] | None = None
    """Another declaration for some launches: a second trainer of the same program, with settings of its own."""
    reads_as: Callable[[Request], tuple[str, tuple[Note, ...]]] | None = None
    """The release that the launch's settings fit, where that is another one than asked for, with a note that says so."""
    given_of: Callable[[Request], Mapping[str, Setting]] | None = None
    """What the launch sets, under the names of `settings`, where it is written otherwise: positional arguments, a file of its own."""
    rows_from: tuple[str, ...] = ()
    """Setting (and its other names) that lists the files of the training set."""
    let: dict[str, str] = {}
    always: dict[str, Any] = {}
    """Quantities that are the same in every launch: values, no expressions; texts with {expressions}."""
    formulas: tuple[Formula, ...] = ()
    checks: tuple[Check | Demand, ...] = ()
    notes: tuple[Note, ...] = ()
    facts: dict[str, str] = {}
    """For rules: `lr_constant`, `lr_warmup` (ticks), `save_every` and `eval_every` (in this framework's steps), `minibatch_unit`,
    `nominal_updates_per_rollout`."""
    functions: dict[str, Any] = {}
    shown: tuple[str, ...] | None = None
    """Settings and quantities that the Schedule shows as behind it; None for all settings that are declared with a default."""
    resolved: dict[str, str] = {}
    """Of those, settings that are shown with the value of an expression, not as they were written."""
    writes: Any = None
    """A function that writes a Schedule as a launch, or its name as "module:function"; None where there is no conversion."""
    plan: str = ""
    """Function that reads a launch where expressions cannot say it, "module:function": `Quantities` -> `Reading`."""
    live: str = ""
    """Function that plans a live configuration or trainer, "module:function"; see `rlstep_hooks.systems.live_plan`."""
    framework: str = ""
    """Its name in a Schedule, where that is not the title."""
    package: str = ""
    """Distribution whose installed release counts, for example "trl"."""
    deviations: str = ""
    """Where the known deviations are, "module:NAME"."""
    observed_releases: tuple[str, str] | None = None
    """First release of which a run is observed, and the first that is not any more; None where they are those that are planned."""
    trained_releases: tuple[str, ...] = ()
    """Releases that this project's tests train with; `noxfile.py` pins them."""
    observes: tuple[str, ...] = ()
    """What of a run is recorded, in the words of the glossary."""
    does_not_observe: tuple[str, ...] = ()
    attaches_by: str = ""
    """How an audit gets into a run, in one sentence; empty for systems that are only planned."""
    on_import: dict[str, str] = {}
    """How `rlstep run` attaches: module of the framework -> what is called with it once it is imported, "module:function"."""

    def defaults(self, version: str) -> Mapping[str, Any]:
        """What the framework does without a setting.

        Raises:
            LaunchError: This release is not known.
        """
        if self.releases is not None:
            first, end = self.releases
            if not release_of(first) <= release_of(version) < release_of(end):
                more = f" ({self.other_releases})" if self.other_releases else ""
                raise LaunchError(f"{self.title} {version} is not known: {first} to before {end} are{more}")
        known = {name: typed.default_in(version) for name, typed in self.settings.items()}
        return {name: default for name, default in known.items() if default is not NOTHING}

    def read(self, request: Request) -> Reading:
        """The Schedule that a launch means.

        Raises:
            SettingError: A setting has a value that it cannot have, or one that the plan needs is missing.
            UnknownValueError: A setting that the plan needs cannot be known.
            PlanError: The framework itself would end the run with an error.
        """
        other = self.instead(request) if self.instead is not None else None
        if other is not None:
            request.settings.add_defaults(other.defaults(request.version))
            return other.read(request)
        notes: tuple[Note, ...] = ()
        if self.reads_as is not None:
            version, notes = self.reads_as(request)
            request.settings.add_defaults(self.defaults(version))
            request = msgspec.structs.replace(request, version=version)
        if self.given_of is not None:
            request = msgspec.structs.replace(request, settings=request.settings.over(self.given_of(request)))
        reading = self._read(request)
        return msgspec.structs.replace(reading, notes=(*notes, *reading.notes))

    def _read(self, request: Request, *, checked: bool = False) -> Reading:
        """The Schedule of a launch whose settings have the names that are declared."""
        if self.defaults_of is not None:
            request.settings.add_defaults(self.defaults_of(request))
        launch = Quantities(self, request)
        if self.plan:
            reading: Reading = named(self.plan)(launch)
            return reading
        try:
            return _read(self, launch, checks=() if checked else self.checks)
        except PlanError:
            for name in launch.settings_looked_at():
                launch.given(name)  # what the framework reads is not unused, also where it ends before
            raise

    def read_config(
        self,
        config: Mapping[str, Any],
        *,
        version: str = "",
        program: str = "",
        rows: int | None = None,
        rows_unknown: str = "",
        world_size: int | None = None,
        checked: bool = False,
    ) -> Reading:
        """The Schedule of a live configuration.

        Args:
            config: It, nested or flat, with the names of the settings.
            version: The release; the one that was read, if left out.
            program: Name of the program that would have such a configuration, where the formulas ask for it.
            rows: Rows of the training set; None if not known.
            rows_unknown: Why they are not known.
            world_size: Data-parallel processes, where the configuration does not say.
            checked: Whether the framework itself has checked the configuration, so that what it refuses is not asked again.

        Raises:
            As `read` does.
        """
        version = version or self.version
        given = {name: Setting(name, value) for name, value in _flat(config)}
        request = Request(
            settings=Settings(given, self.defaults(version)),
            version=version,
            command=Command(Program("config", program or self.name), ()),
            rows_given=rows,
            rows_unknown=rows_unknown,
            world_size_given=world_size,
        )
        return self._read(request, checked=checked)

    def write(self, schedule: Schedule) -> Conversion:
        """A launch of this framework with the same schedule.

        Raises:
            LaunchError: This framework cannot be converted to.
        """
        if self.writes is None:
            raise LaunchError(f"there is no conversion to {self.title}")
        writer = named(self.writes) if isinstance(self.writes, str) else self.writes
        conversion: Conversion = writer(schedule)
        return conversion


def _flat(config: Mapping[str, Any], above: str = "") -> Iterator[tuple[str, Any]]:
    """The values of a nested configuration under their dotted names."""
    for name, value in config.items():
        if isinstance(value, Mapping):
            yield from _flat(value, f"{above}{name}.")
        else:
            yield f"{above}{name}", value


class Quantities:
    """The values of one launch by name, worked out when they are asked for."""

    def __init__(self, system: System, request: Request) -> None:
        self.system = system
        self.request = request
        self.functions: Mapping[str, Callable[..., Any]] = {**language.FUNCTIONS, **system.functions}
        self._known: dict[str, Any] = {}
        self._under_way: list[str] = []
        self.declared = {*system.let, *system.always, *(formula.quantity for formula in system.formulas)}

    def given(self, name: str) -> bool:
        """Whether the launch sets a setting."""
        return self.request.settings.is_given(*self.names(name))

    def __getitem__(self, name: str) -> Any:
        """The value of a setting or a quantity.

        Raises:
            NotKnownError: It cannot be known.
            FormulaError: There is none of that name, or it depends on itself.
        """
        value = self.value(name)
        if isinstance(value, Unknown):
            raise NotKnownError(value.reason)
        return value

    def said(self, name: str) -> Any:
        """The value of a quantity, `Unknown`, or None where the declaration says nothing of it."""
        return self.value(name) if name in self.declared else None

    def value(self, name: str) -> Any:
        """The value, or `Unknown`."""
        if self._under_way and self._under_way[-1] == name:
            return self._given_value(name)  # within its own formula a name means what was there before it
        if name not in self._known:
            if name in self._under_way:
                raise FormulaError(f"{self.system.name}: {' -> '.join((*self._under_way, name))} depends on itself")
            self._under_way.append(name)
            try:
                self._known[name] = self._worked_out(name)
            finally:
                self._under_way.pop()
        return self._known[name]

    def _worked_out(self, name: str) -> Any:
        if name in self.system.let:
            return self.evaluate(self.system.let[name])
        found = self.formula_of(name)
        if found is not None:
            return self.evaluate(found.text)
        if name in self.system.always:
            value = self.system.always[name]
            return self.fill(value) if isinstance(value, str) else value
        return None if name in self.declared else self._given_value(name)

    def formula_of(self, name: str) -> Formula | None:
        """The formula of a quantity whose condition holds."""
        formulas = (formula for formula in self.system.formulas if formula.quantity == name)
        return next((formula for formula in formulas if self.holds(formula.where)), None)

    def holds(self, condition: str) -> bool:
        """Whether a condition is known to be true; an empty one is."""
        value = self.evaluate(condition) if condition else True
        return not isinstance(value, Unknown) and bool(value)

    def evaluate(self, expression: str) -> Any:
        """The value of an expression, or `Unknown`.

        Raises:
            SettingError: A setting that it needs is not set.
            FormulaError: The expression is at fault.
        """
        try:
            return language.evaluate(expression, self)
        except FormulaError:
            for name in sorted(language.names_in(expression)):
                if name in self.system.settings and self._known.get(name, 0) is None:
                    settings, names = self.request.settings, self.names(name)
                    message = f"{settings.spelled(*names)} is not set, and the plan needs it"
                    raise SettingError(message, settings.place(*names)) from None
            raise

    def fill(self, template: str) -> str:
        """A text with its {expressions} replaced by their values."""
        return language.fill(template, self)

    # What is given.

    def _given_value(self, name: str) -> Any:
        if name in self.system.settings:
            return self._setting(name)
        if name == "rows":
            rows = self.request.rows(*self.system.rows_from)
            return Unknown(rows.source) if rows.count is None else rows.count
        if name == "world_size":
            return self.request.world_size(self["processes"] if "processes" in self.declared else None)
        program = self.request.command.program
        others: dict[str, Callable[[], Any]] = {
            "program": lambda: program.name,
            "program_kind": lambda: program.kind,
            "version": lambda: self.request.version,
            "release": lambda: release_of(self.request.version),
            "launch": lambda: self.request,
        }
        if name in DERIVED:
            return self.evaluate(DERIVED[name])
        if name not in others:
            raise FormulaError(f"{self.system.name}: there is no setting or quantity {name!r}")
        return others[name]()

    def names(self, name: str) -> tuple[str, ...]:
        """The names under which a setting may be given: a script passes its flags on to calls, so a flag comes first."""
        settings, typed = self.request.settings, self.system.settings.get(name)
        names = []
        for each in (name, *(typed.also if typed is not None else ())):
            names.append(each)
            if self.system.keywords_of and not settings.is_given(each):
                called = (f"{callee}.{each}" for callee in self.system.keywords_of)
                names += [other for other in called if settings.is_given(other)]
        return tuple(names)

    def _setting(self, name: str) -> Any:
        typed, settings, names = self.system.settings[name], self.request.settings, self.names(name)
        default = typed.default_in(self.request.version)
        needed = default not in (None, NOTHING) and not str(default).startswith("${")
        if typed.kind == "count":
            read = settings.count if needed else settings.optional_count
            return read(*names, least=typed.least)
        if typed.kind == "number":
            return (settings.number if needed else settings.optional_number)(*names)
        if typed.kind == "flag" and default is None and settings.text(*names) is None:
            return None
        if typed.kind == "flag":
            return False if typed.off and settings.is_given(typed.off) else settings.flag(*names)
        written = settings.text(*names)
        return written if written is not None or not needed else default

    def settings_looked_at(self) -> list[str]:
        """The settings that the framework looks at in this launch."""
        return [name for name, typed in self.system.settings.items() if self.holds(typed.where)]

    def written(self) -> dict[str, Any]:
        """The settings behind the plan, as they were written, with the defaults that hold."""
        settings, defaults = self.request.settings, self.system.defaults(self.request.version)
        looked_at, shown = self.settings_looked_at(), self.system.shown
        if shown is None:
            shown = tuple(name for name, value in defaults.items() if value is not REQUIRED or name in self._known)
        return {
            name: plain(
                self.evaluate(self.system.resolved[name])
                if name in self.system.resolved
                else settings.value(*self.names(name))
                if name in self.system.settings
                else self.value(name)
            )
            for name in shown
            if name in looked_at or name not in self.system.settings
        }


def _read(system: System, launch: Quantities, checks: tuple[Check | Demand, ...]) -> Reading:
    for name in launch.settings_looked_at():
        if system.settings[name].default is REQUIRED:
            launch.value(name)
        elif launch.given(name):
            with suppress(UnknownValueError):  # whether the plan needs it is seen later, as for one that is null
                if launch.request.settings.text(*launch.names(name)) is not None:
                    launch.value(name)
    for check in checks:
        _apply(check, launch)
    formulas = tuple(_explained(system, launch))
    schedule = shaped(
        launch.said,
        framework=system.framework or launch.said("framework") or system.title,
        version=launch.request.version,
        rows=launch.value("rows"),
        world_size=launch.value("world_size"),
        settings=launch.written(),
        sources={formula.quantity: formula.source for formula in formulas},
        declared=launch.declared,
    )
    facts = {name: launch.evaluate(expression) for name, expression in system.facts.items()}
    return Reading(
        schedule=schedule,
        formulas=formulas,
        notes=tuple(Note(note.kind, launch.fill(note.text)) for note in system.notes if launch.holds(note.when)),
        facts={name: value for name, value in facts.items() if value is not None and not isinstance(value, Unknown)},
    )


def _apply(check: Check | Demand, launch: Quantities) -> None:
    """Refuse what the framework refuses; what cannot be known is not refused."""
    if not launch.holds(check.where) or launch.evaluate(check.holds):
        return
    if isinstance(check, Demand) and check.about in ("", "program"):
        raise LaunchError(launch.fill(check.says), launch.request.command.place if check.about else None)
    if isinstance(check, Demand):
        raise SettingError(launch.fill(check.says), launch.request.settings.place(*launch.names(check.about)))
    refuse(
        launch.fill(check.says),
        when=launch.fill(check.when),
        fix=launch.fill(check.fix),
        source=launch.fill(check.source),
    )


def _explained(system: System, launch: Quantities) -> list[Formula]:
    """The formulas of fields of the Schedule that were used, as they ran, with what went in."""
    from rlstep_hooks.planning.schedule import Schedule

    fields = Schedule.__struct_fields__
    steps = {name: step for name, step in system.let.items() if name.removeprefix("critic.") not in fields}
    for formula in system.formulas:
        if formula.quantity.rpartition(".")[2] not in fields:
            steps[formula.quantity] = (launch.formula_of(formula.quantity) or formula).text
    # What a function of Python says of the whole launch is shown by its name.
    steps = {name: step for name, step in steps.items() if "launch" not in language.names_in(step)}
    with_critic = bool(launch.said("critic"))
    found = []
    for formula in system.formulas:
        if formula.quantity in steps or (formula.quantity.startswith("critic.") and not with_critic):
            continue
        if launch.formula_of(formula.quantity) is formula and launch.value(formula.quantity) is not None:
            text, inputs = shown(formula.text, launch, steps)
            found.append(Formula(formula.quantity, text, launch.fill(formula.source), inputs=inputs))
    return found
