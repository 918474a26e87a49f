'''A system as one declaration: settings, formulas, refusals, notes. This page is all that one needs to write one.

A complete one, in `rlstep_hooks/systems/example.py`:

    """Example: prompts of a rollout in whole mini-batches; the last, smaller batch of the loader is dropped."""

    from rlstep_hooks.systems.engine.declaration import REQUIRED, Check, Entry, Formula, Note, System, count, flag, number

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

    rows            rows of the training set: `--rows`, else counted in the files of `rows_from`, else as `rows_written`; else unknown
    world_size      `--world-size`, else the quantity `processes` where it is declared, else as the launcher starts processes, else 1
    program         the program's name, for example "train_async.py"
    program_kind    "module", "script", "executable" or "config"
    no_program      whether the launch is a configuration file alone, which does not say which program reads it
    reader          the checkout's own program that is taken to read a configuration file alone; empty where there is none
    version         the release as text
    release         the release as numbers: `release >= (0, 17)`
    launch          the whole `Request`, for functions of Python

- Order matters for checks only: a quantity is computed when something needs it. Settings that are `REQUIRED` or given are read
  first, so an impossible value is reported before any check.
- `let` holds intermediate steps without a source of their own. A step that is not a field of the Schedule is shown as its expression
  (`size` above is shown as "update.prompts" or "rollout.prompts", whichever was taken). A rule of the framework is not a step: write
  it as a `Formula` with its source.
- A setting that only some launches use says so: `count(4, where="critic")`. In other launches it is neither required nor shown.
- Several formulas of one quantity are alternatives: the first whose `where` holds is taken, with its source.
- Within its own formula a name means the setting, or the value before this formula: `"rows": "min(rows, data.max_samples)"`.
- A setting with which a count depends on the run (a filter by reward, an early stop) is in the table `depends`: then no exact number
  is given for the counts that it names.
- A setting that is not set is None: `update.prompts is None`, `update.prompts or 8`. A value that cannot be known before the run,
  such as rows that nobody gave, makes every quantity that needs it unknown, with the reason. An unknown check or note does nothing.
- Every formula and every check cites its source: release or commit, file, function.
- If a launch writes its settings in another form (positional arguments, a file of its own), the function `given_of` returns them under
  the declared names.
- Where the framework needs Python (a loader's walk, a size that is itself a small language), write a function with its source in its
  docstring, name it in `functions` and call it in the expression. It gets values (or `launch`) and returns one.

**Quantities** that become the Schedule are its fields: see `rlstep_hooks.planning.schedule.Schedule` for each. Needed are
`prompts_per_rollout`, `samples_per_prompt` and `algorithm`; also, where the defaults are wrong: `reuse_epochs`,
`samples_per_microbatch`, `samples_per_update`, `updates_per_rollout`, `minibatches`, `updates`, `remainder`,
`old_logprob_source`, `lr_clock`, `lr_horizon`, `step_unit`, `frozen_rollouts`, `max_age` and the others. Where samples may have an
age, `correction` says what corrects for it, "none" where nothing does, with `correction_inert` and `correction_biased`. What is not
declared, or is None, is derived (`planning.phases`). A declaration states one more quantity, `loader`: what happens at the end of the
rows.

    "drops"   the last rollout of a pass is dropped where the rows do not fill it
    "keeps"   it is smaller
    "wraps"   rollouts go on at the beginning of the rows; the run's length is given
    "none"    the run samples from an environment

`rollouts` is declared for all of them. `minibatches` follow from `samples_per_update` and `remainder` ("keep": `slices`, "drop":
`whole_slices`, else `parts`). There is a critic if the quantity `critic` is true; it has the policy's sizes, except those
declared as `critic.<field>`.

**What belongs into a Python module of its own:** functions that expressions call, hooks, deviations with code (`launch.py`,
`observe/`, `deviations.py` in the folder of an observed system, whose `system.py` holds SYSTEM: nothing is loaded where a framework
imports the hooks alone). A live configuration or trainer is planned by the same formulas: `plan.py` reads its settings, and
`rlstep_hooks.systems.engine.reader.read_config` plans them. A system whose plan cannot be written as expressions names a function:
`System(..., plan="rlstep_hooks.systems.own_loop.system:read")`. It gets the launch's `Quantities`, in which each setting is read as it
is declared, and returns a `Reading`.

**A run whose loader triggers rollouts and updates** (TRL's) says `loop: "loader"`. Then nothing is derived: the declaration states
every field of the Schedule (`rlstep_hooks.systems.trl.loader` has the expressions).
'''

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import msgspec

from rlstep_hooks.judge.settings import Knob
from rlstep_hooks.launch.settings import Setting
from rlstep_hooks.launch.text import LaunchError
from rlstep_hooks.planning.reading import Formula, Note
from rlstep_hooks.systems.engine.entry import Entry, named
from rlstep_hooks.systems.engine.links import Link, LinkName
from rlstep_hooks.systems.engine.parts import (
    NOTHING,
    REQUIRED,
    Check,
    Demand,
    Depends,
    Keys,
    Limited,
    Typed,
    Writes,
    count,
    flag,
    number,
    program_assumed,
    text,
)
from rlstep_hooks.systems.engine.request import Request, release_of

if TYPE_CHECKING:
    from rlstep_hooks.planning.reading import Conversion
    from rlstep_hooks.planning.schedule import Schedule

__all__ = [
    "NOTHING", "PLANNED_ONLY", "REQUIRED", "Check", "Demand", "Depends", "Entry", "Formula", "Keys", "Note", "System", "Typed",
    "Writes", "count", "flag", "number", "program_assumed", "text",
]  # fmt: skip


class Beside(msgspec.Struct, frozen=True):
    """What the source beside a launch says of it."""

    system: System
    """The declaration with what was read in the place of what a release has."""
    first: str = ""
    """The first release that has lines like those of the source; empty for a system of which one commit was read."""
    end: str = ""
    """The first later release that has not."""
    notes: tuple[Note, ...] = ()
    settings: Mapping[str, Setting] = {}
    """All settings of the program's own configuration with their values there; empty where it was not read."""
    refused: Mapping[str, str] = {}
    """The settings of the launch that this source refuses, each with the words in which it does."""
    fields: frozenset[str] = frozenset()
    """The fields of this source's own configuration class: a launch may give them, whether or not a release has them."""
    of_trainer: bool = False
    """Whether the very trainer that the launch makes was read, and samples as the system's does."""


class System(msgspec.Struct, frozen=True, kw_only=True):
    """One system; see the module."""

    name: str
    """The name that `--framework` takes: lower case, for example "skyrl"."""
    title: str
    """The system's name as people write it, for example "SkyRL"."""
    version: str
    """Release or commit whose formulas were read; the default of `--version`."""
    releases: tuple[str, str] | None = None
    """The first release that is known, and the first later one that is not; None where one commit was read."""
    other_releases: str = ""
    """A remark on other releases, for the error message."""
    keys: Keys | None = None
    """All settings of each release, where there is a list."""
    limited: Mapping[str, Limited] = {}
    """Settings that some releases do not have, where there is no list of all of them."""
    recognised: tuple[Entry, ...] = ()
    trains: tuple[str, ...] = ()
    """Patterns of names: a Python file that trains with this system uses at least one of them. A file with settings of this system
    that is not one of its own programs and uses none of these names is not planned. Empty to plan every such file."""
    trainers: Mapping[str, tuple[str, ...]] = {}
    """Classes of its packages that train, each with the methods that decide the schedule: a class of somebody's own that overrides one
    of them is another trainer. Empty where a launch names a program and no class."""
    trainer_keywords: Mapping[str, frozenset[str]] = {}
    """Trainers of its package with the keywords that any release of them takes: they refuse others (`repeated_training.NOT_TAKEN`)."""
    trainer_file: str = ""
    """The file of its package with these trainers: a copy of it beside the launch may take others."""
    generates: tuple[str, ...] = ()
    """Methods of its trainers that make a rollout and what is known of it (old log-probs, those of the reference): a class of
    somebody's own that overrides one is assumed to make as much, and to take each from where the framework does."""
    overrides: bool = False
    """Whether arguments are Hydra overrides (`key=value`) rather than flags (`--key value`)."""
    config_settings: tuple[str, ...] = ("config",)
    """Settings that name a YAML or TOML file with further settings."""
    keeps_last_key: bool = False
    """Whether its loader of YAML keeps the last of a key that occurs several times, as PyYAML does; OmegaConf's refuses the file."""
    own_configs: Mapping[str, Mapping[str, Any]] = {}
    """Configurations that the framework ships, by the ends of their names, with the values that differ from the defaults declared
    here. If a launch names one that is not here, these values are assumed, with a note."""
    is_library: bool = False
    """Whether no module of its package, which has the system's name, is a program: its programs are scripts beside it."""
    home: str = ""
    """A file of its package that a copy of the framework has: where one lies beside a launch, a configuration that is not in it is
    not there for the run either, and nothing is assumed for it."""
    script_configs: dict[str, str] = {}
    """Script -> the configuration beside it that it reads if the command names none (`run.py` -> "configs/base.yaml")."""
    resolvers: dict[str, Callable[..., Any]] = {}
    """OmegaConf resolvers that the framework registers: `${name:...}`."""
    settings: dict[str, Typed] = {}
    keywords_of: tuple[str, ...] = ()
    """Classes or functions whose keyword arguments in a Python file also give these settings, if no flag of that name is given."""
    helpers: Mapping[str, Mapping[str, Any]] = {}
    """Functions of the framework that make a configuration (`default_ppo_config()`), with what it sets."""
    defaults_of: Callable[[Request], Mapping[str, Any]] | None = None
    """Defaults that depend on the launch: those of a script, of an experiment."""
    instead: Callable[[Request], System | None] | None = None
    """Another declaration for some launches: a second trainer of the same program, with settings of its own."""
    reads_as: Callable[[Request], tuple[str, tuple[Note, ...]]] | None = None
    """The release that the launch's settings fit, with a note if it is not the one that was asked for."""
    given_of: Callable[[Request], Mapping[str, Setting]] | None = None
    """What the launch sets, under the names of `settings`, if it is written in another form: positional arguments, or a file."""
    rows_from: tuple[str, ...] = ()
    """Setting (and its other names) that lists the files of the training set."""
    rows_written: Writes | None = None
    """The framework's own program that writes the training set, which its scripts start before they train."""
    let: dict[str, str] = {}
    always: dict[str, Any] = {}
    """Quantities that are the same in every launch: values, no expressions; texts with {expressions}."""
    formulas: tuple[Formula, ...] = ()
    checks: tuple[Check | Demand, ...] = ()
    depends: tuple[Depends, ...] = ()
    """What makes counts depend on the run. A count that such a setting concerns is not given as an exact number."""
    notes: tuple[Note, ...] = ()
    facts: dict[str, str] = {}
    """What rules take from a launch besides its schedule: `lr_constant`, `lr_warmup` (ticks), `save_every` and `eval_every` (in
    this framework's steps), `minibatch_unit`, `nominal_updates_per_rollout`, `samples_selected` (samples are left out by their
    content, not by sizes that do not fit)."""
    functions: dict[str, Any] = {}
    shown: tuple[str, ...] | None = None
    """Settings and quantities that the Schedule lists as its settings; None for all settings that are declared with a default."""
    resolved: dict[str, str] = {}
    """Settings among these that are shown with the value of an expression, not with the written value."""
    writes: Any = None
    """A function that writes a Schedule as a launch, or its name as "module:function"; None if there is no conversion."""
    plan: str = ""
    """Function that reads a launch if expressions are not enough, "module:function": `Quantities` -> `Reading`."""
    live: str = ""
    """Function that plans a live configuration or trainer, "module:function"; see `rlstep_hooks.systems.engine.live_plan`."""
    framework: str = ""
    """The name in a Schedule, if it is not the title."""
    package: str = ""
    """Distribution whose installed release counts, for example "trl"."""
    pinned_package: str = ""
    """Distribution whose release a checkout pins, where that is no package of the system's own; empty where it is `package`."""
    commits: str = ""
    """The commits between its releases, below `rlstep_hooks/systems`: "trl/commits.json"; empty where there is no list."""
    deviations: str = ""
    """Where the known deviations are, "module:NAME"."""
    observed_releases: tuple[str, str] | None = None
    """The first release whose runs are observed, and the first later one whose runs are not; None where these are the planned ones."""
    trained_releases: tuple[str, ...] = ()
    """Releases that this project's tests train with; `noxfile.py` pins them."""
    observes: tuple[str, ...] = ()
    """What of a run is recorded, in the words of the glossary."""
    does_not_observe: tuple[str, ...] = ()
    links: Mapping[LinkName, Link] = {}
    """What is compared of each link from the reward to the weight, and what is not; a system that is observed states all of them."""
    rules: Mapping[str, Link] = {}
    """What single rules compare, by their codes, where more is to be said than of their link, or where they belong to none."""
    proved_in: str = "one process"
    """The deployment in which all of that was proved by real training."""
    knobs: Mapping[Knob, str] = {}
    """What the settings that people turn when a run goes wrong are called; without what this system does not have."""
    attaches_by: str = ""
    """How an audit gets into a run, in one sentence; empty for systems that are only planned."""
    on_import: dict[str, str] = {}
    """How `rlstep run` attaches: module of the framework -> what is called with it once it is imported, "module:function"."""

    ray_job: Mapping[str, str] | None = None
    """Variables with which the framework's own processes attach in a job of Ray; None where the job's Python has to find our
    `sitecustomize`."""

    rehearsed_by: str = ""
    """How `rlstep rehearse` runs its launches in small, "module:NAME" of a `rlstep_hooks.rehearse.framework.Framework`; empty where it
    does not."""

    reads_program: str = ""
    """Function that says whether the trainer that a program of somebody's own builds is read, "module:function": Command and folder ->
    truth value; empty where none but the framework's own trainers are."""
    checkout: str = ""
    """Function that reads the source beside a launch, "module:function": System, Command, folder and settings -> `Beside` or None."""

    def defaults(self, version: str) -> Mapping[str, Any]:
        """The default of each setting in a release.

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


PLANNED_ONLY: dict[str, Any] = {
    "live": "",
    "checkout": "",
    "reads_program": "",
    "commits": "",
    "writes": None,
    "deviations": "",
    "attaches_by": "",
    "knobs": {},
    "on_import": {},
    "ray_job": None,
    "rehearsed_by": "",
    "observes": (),
    "does_not_observe": (),
    "observed_releases": None,
    "trained_releases": (),
    "links": {},
    "rules": {},
}
"""What a copy of an observed system does not take from it: its launches are planned, and hooks and deviations hold for the original."""
