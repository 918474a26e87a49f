"""What `rlstep plan` says to many launches, kept as data, so that a change of the plan's code changes no plan.

    python -m tests.golden.plan_dump make FILE              launches of all tests, and random ones; needs the tests' environment
    python -m tests.golden.plan_dump compare FILE [SYSTEM]  plan each launch again and show what differs
    python -m tests.golden.plan_dump choose FILE            write the small stored part, `plan_dump.jsonl`
    python -m tests.golden.plan_dump reword FILE            take over the words of notes, where nothing else differs

Each line of a file is one launch (words, options, files beside it) with its answer. The launches are kept, not made again: the
comparison does not depend on what the generator knows of the systems. What may differ is data: `ALLOWED`.
"""

from __future__ import annotations

import base64
import contextlib
import json
import os
import random
import re
import sys
import tempfile
from collections import Counter, defaultdict
from fractions import Fraction
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from rlstep_hooks.launch.text import LaunchError
from rlstep_hooks.planning.launched import Options
from rlstep_hooks.planning.schedule import encode_fraction
from rlstep_hooks.systems.engine import index, launches
from rlstep_hooks.systems.engine.launches import plan_launch, reading_of

if TYPE_CHECKING:
    from collections.abc import Iterator

STORED = Path(__file__).with_name("plan_dump.jsonl")
TESTS = Path(__file__).parents[1]
SEED = 15
LAUNCHES = 2_000
LARGEST_FILE = 50_000


class Launch(msgspec.Struct, frozen=True):
    """One launch, as `rlstep plan` is given it: "{files}" stands for the folder of its files, "{tests}" for this folder."""

    words: list[str]
    options: dict[str, Any] = {}
    files: dict[str, str] = {}
    """Name and text; a file that is no text as "base64:..."."""


class Case(msgspec.Struct, frozen=True):
    """A launch and what was said to it."""

    system: str
    origin: str
    """The test that has it, or "random"."""
    launch: Launch
    answer: dict[str, Any]


class Allowed(msgspec.Struct, frozen=True):
    """A difference that is meant."""

    why: str
    system: str = ""
    """Empty for all systems."""
    field: str = ""
    """A path's beginning, for example "schedule.sources"; empty for the whole answer."""
    before: str = ""
    """Pattern that the value before must have."""
    after: str = ""
    only_refused: bool = False
    """Whether it is meant for launches that are refused only."""
    now: str = ""
    """Pattern of the words that must now be said in place of the plan."""


IMPOSSIBLE = "is not a whole number|is neither true nor false|is not a number|it must be at least"
"""Words about a value that a setting cannot have: said first, also where the launch would be
refused for something else, or where the schedule does not depend on the setting."""

ALLOWED: tuple[Allowed, ...] = (
    Allowed("a declared setting that is given is read", field="unused", after="^null$"),
    *(
        Allowed("parts of a rollout", field=f"schedule.{of}parts_per_rollout", before="^null$")
        for of in ("", "critic.")
    ),
    *(
        Allowed("separate_async ticks once a part", system="verl", field=f"schedule.{of}lr_clock", before="rollout")
        for of in ("", "critic.")
    ),
    Allowed("the age is said in updates too", field="schedule.max_age_updates", before="^null$"),
    Allowed("the age is said in updates too", field="schedule.critic.max_age_updates", before="^null$"),
    *(
        Allowed("a range where the data decide", field=f"schedule.{of}updates_{end}", before="^null$")
        for of in ("", "critic.")
        for end in ("from", "to")
    ),
    Allowed("what corrects for the age of samples", field="schedule.correction", before="^null$"),
    Allowed("what corrects for the age of samples", field="facts.correct_by", before="^null$"),
    Allowed(
        "what TRL's RLOO up to 0.21 counts as steps",
        system="trl_ppo",
        field="notes",
        after="global_step adds|progress bar expects",
    ),
    Allowed(
        "what OpenRLHF's filter may leave untrained", system="openrlhf", field="notes", after="filtering drops prompts"
    ),
    Allowed("no empty list of nearest values", field="findings", after="no value nearby fits"),
    Allowed("how a rollout gets more updates", field="facts.more_updates", before="^null$"),
    *(
        Allowed("settings of the correction are read", system=system, field="schedule.settings.", before="^null$")
        for system in ("slime", "areal", "skyrl", "open_instruct")
    ),
    Allowed("old samples that nothing corrects", field="findings", after="RLS117"),
    Allowed("nothing to fix is not said of old samples", field="findings", before="RLS102"),
    Allowed(
        "rows that vary with turns are said of in more words",
        system="rllm",
        field="notes",
        before="each sample is one row",
    ),
    Allowed("where the age was read", field="schedule.sources.max_age"),
    Allowed(
        "refused: what the framework would have read is not unused",
        field="unused",
        only_refused=True,
    ),
    Allowed("there are more systems to name", field="words", before=" paper, trlx", after=" paper, trlx"),
    Allowed("a plainer word", field="words", before="stands twice", after="occurs twice"),
    Allowed("a plainer word", field="notes", before="others each time", after="a different set each pass"),
    Allowed("a plainer word", field="words", before="has no default for it", after="requires it"),
    Allowed("weights are synced, in one word", field="schedule.not_evaluated.syncs", before="pushe[sd]", after="sync"),
    Allowed("a demand that is about a setting", field="error", before="LaunchError", after="SettingError"),
    Allowed("what is not known says why", field="schedule.not_evaluated", before="^null$"),
    Allowed("what is not known says why", field="schedule.critic.not_evaluated", before="^null$"),
    Allowed(
        "a file that is not there, in other words",
        field="schedule.not_evaluated",
        before="not a file here",
        after="there is no such file here",
    ),
    Allowed("a formula is shown as it ran", field="formulas.", before=r"^\[", after=r"^\["),
    Allowed("more formulas are shown", field="formulas", before="^null$"),
    Allowed("more formulas are shown", field="schedule.sources", before="^null$"),
    Allowed(
        "a formula that does not apply is not shown", system="rllm", field="formulas.rollouts_per_epoch", after="^null$"
    ),
    Allowed(
        "a formula that does not apply is not shown",
        system="rllm",
        field="schedule.sources.rollouts_per",
        after="^null$",
    ),
    Allowed("as the launch says it under its other name", system="rllm", field="schedule.settings.rllm.trainer."),
    Allowed("sizes as they were written", system="rllib", field="schedule.settings."),
    Allowed(
        "an unknown release is refused in one form",
        field="words",
        before="is not supported: |PPOTrainer of TRL|has no step|is not known; 3 and 4",
        after="is not known: ",
    ),
    Allowed("the default of RLOOConfig, which the plan always took", system="trl", field="schedule.settings.beta"),
    Allowed(
        "the default of the release that the launch is read as",
        system="openrlhf",
        field="schedule.settings.rollout.micro",
    ),
    Allowed(
        "the default of the release that the launch is read as",
        system="openrlhf",
        field="schedule.critic.settings.rollout.micro",
    ),
    Allowed(
        "ms-swift computes old log-probs with every rollout since 3.11",
        system="swift",
        field="schedule.old_logprob_source",
        before='^"detach"$',
        after='^"at_rollout"$',
    ),
    Allowed(
        "ms-swift computes old log-probs with every rollout since 3.11",
        system="swift",
        field="schedule.sources.old_logprob_source",
        before='old_policy"$',
        after='_prepare_batch_inputs"$',
    ),
    Allowed("num_timesteps as it was written", system="baselines", field="schedule.settings.num_timesteps"),
    Allowed(
        "as the launch says it, not as the plan took it",
        system="swift",
        field="schedule.settings.steps_per_generation",
        after="^null$",
    ),
    Allowed(
        "the place of the setting is said too",
        system="swift",
        field="words",
        before="cannot be shared by copies",
        after="argument .* cannot be shared by copies",
    ),
    Allowed(
        "sequences that are shared only where the launch says so",
        system="roll",
        field="schedule.settings.",
        before="^1$",
        after="^null$",
    ),
    Allowed("as the launch says it, not as the plan took it", system="prime_rl", field="schedule.settings."),
    Allowed("num_envs as it was written, of one process", system="cleanrl", field="schedule.settings.num_envs"),
    Allowed(
        "a demand that is about a setting says its place",
        field="words",
        before=r'^"\d+ GPUs .*cannot be shared by copies',
        after="of the command: .*cannot be shared by copies",
    ),
    Allowed(
        "gradients wait for the next rollout: sizes are known all the same",
        system="oat",
        field="schedule.critic.microb",
        before="^0$",
    ),
    Allowed(
        "gradients wait for the next rollout: sizes are known all the same",
        system="oat",
        field="schedule.critic.samples_per_u",
        before="^null$",
    ),
    Allowed("settings of the other recipe are unused", system="torchtune", field="unused", before="^null$"),
    Allowed("both recipes demand it", system="torchtune", now="forward_batch_size = True is not a whole number"),
    Allowed(
        "a critic's sizes count with a critic", system="skyrl", field="schedule.settings.trainer.critic", after="^null$"
    ),
    Allowed(
        "a critic's sizes count with a critic",
        system="skyrl",
        field="schedule.settings.trainer.placement.critic",
        after="^null$",
    ),
    Allowed("a critic's sizes count with a critic", system="skyrl", field="unused", before="^null$"),
    Allowed("a setting that no release has is a finding", field="findings", after="RLS116"),
    Allowed("a horizon a few ticks off is information", field="findings", before="RLS601", after='RLS601.*"info"'),
    Allowed(
        "a demand that is about a setting says its place",
        system="nemo_rl",
        field="words",
        before="generation takes all GPUs",
    ),
    Allowed(
        "settings of the other trainer are unused",
        system="nemo_rl",
        field="unused",
        before="^null$",
        after="ppo|grpo|value",
    ),
    Allowed("the settings of GFPO and DPPO count", system="trl", field="schedule.old_logprob_source", after="engine"),
    Allowed("a critic shows no settings of its own", field="schedule.critic.settings", after="^null$"),
    Allowed("a critic shows no settings of its own", field="schedule.critic.sources", after="^null$"),
    Allowed(
        "which setting has the rows",
        system="openrlhf",
        field="schedule.not_evaluated.",
        after="data.prompt_dataset|^null$",
    ),
    Allowed(
        "no rows are dropped, however many there are",
        system="openrlhf",
        field="schedule.rows_dropped_per_epoch",
        before="^null$",
        after="^0$",
    ),
    Allowed(
        "a check's source is the fork's",
        system="simplerl_v0",
        field="findings",
        before="OpenRLHF 0.5.0",
        after="SimpleRL v0 2702a87",
    ),
    Allowed(
        "a plainer word", field="schedule.not_evaluated.syncs", before="syncs no weights", after="syncs no weights"
    ),
    Allowed(
        "a plainer word",
        field="schedule.critic.not_evaluated.syncs",
        before="syncs no weights",
        after="syncs no weights",
    ),
    *(
        Allowed(why, system=fork, field=field, after=after)
        for fork in ("tinyzero", "simplerl")
        for why, field, after in (
            ("each formula says its source", "schedule.sources.", "^null$"),
            ("a critic has the commit of its policy", "schedule.critic.version", "95df88f|cf1c785"),
        )
    ),
    *(
        Allowed(
            "why the rows are not known",
            system=fork,
            field="schedule.not_evaluated.",
            before="rows of the training set",
        )
        for fork in ("tinyzero", "simplerl")
    ),
    Allowed("whether there is an adapter changes no plan", system="trl", field="unused", after="use_peft"),
    Allowed("the rows are missing, whoever calls step()", system="trl_ppo_step", field="schedule.not_evaluated."),
    Allowed(
        "gradients of the last rollout of a pass: how many there are depends on the rows",
        system="trl_ppo_step",
        field="schedule.updates",
        after="^null$",
    ),
    Allowed("as the launch says it", system="trl_ppo_step", field="schedule.settings.", before="^null$"),
    Allowed("no rollout, no update", system="trl_ppo", field="schedule.updates", before="^null$", after="^0$"),
    Allowed("no rollout, no update", system="trl_ppo", field="schedule.lags"),
    Allowed("refused: what its sizes mean is said", field="notes", only_refused=True),
    Allowed("refused: what its sizes mean is said", field="formulas", only_refused=True, before="^null$"),
    Allowed(
        "a number of processes that nothing gives is named", field="notes", after="assumes: 1 process: the launch does"
    ),
    Allowed(
        "a source is said of the quantity that its formula gives",
        system="verl",
        field="schedule.sources.",
        after="^null$",
    ),
    Allowed(
        "what both roles take from the loader",
        system="verl",
        field="schedule.critic.",
        before="^null$",
        after='^[\\d"]',
    ),
    Allowed(
        "one reason for all that the rows decide",
        system="verl",
        field="schedule.not_evaluated.",
        before="the rows of the training set are not known",
    ),
    Allowed(
        "one reason for all that the rows decide",
        system="verl",
        field="schedule.critic.not_evaluated.",
        before="the rows of the training set are not known",
    ),
    Allowed("refused, also where use_kl_loss decides", system="skyrl", now="use_kl_in_reward = .* is neither true"),
)


BESIDE = ("unobserved", "reference", "ratio")
"""Notes that are not compared: that a run cannot be recorded, what the reference is, why a ratio is not what its lag says."""


# Asking.


def answer(launch: Launch) -> dict[str, Any]:
    """All that a plan says, as plain JSON; without what is None or empty."""
    with beside(launch) as (words, options):
        try:
            plan = plan_launch(words, Options(**options))
        except (LaunchError, OSError) as error:
            said: dict[str, Any] = {"error": type(error).__name__, "words": str(error)}
        except Exception as fault:  # noqa: BLE001
            said = {"fault": f"{type(fault).__name__}: {fault}"}
        else:
            said = {
                "framework": plan.framework,
                "version": plan.version,
                "schedule": plan.schedule,
                "formulas": {formula.quantity: [formula.text, formula.source] for formula in plan.formulas},
                "notes": [f"{note.kind}: {note.text}" for note in plan.notes if note.kind not in BESIDE],
                "findings": plan.findings,
                "unused": {setting.name: str(setting.value) for setting in plan.unused},
            }
            if plan.schedule is not None:
                said["facts"] = reading_of(words, Options(**options)).facts
        text = msgspec.json.encode(said, enc_hook=_encoded).decode()
        folder = os.getcwd()
    plain: dict[str, Any] = _without_nothing(json.loads(text.replace(folder, "{files}").replace(str(TESTS), "{tests}")))
    return plain


def _encoded(value: Any) -> Any:
    return encode_fraction(value) if isinstance(value, Fraction) else str(value)


def _without_nothing(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _without_nothing(inner) for name, inner in value.items() if inner not in (None, [], {}, "")}
    return [_without_nothing(inner) for inner in value] if isinstance(value, list) else value


@contextlib.contextmanager
def beside(launch: Launch) -> Iterator[tuple[list[str], dict[str, Any]]]:
    """A folder with the launch's files, which is the working directory meanwhile."""
    before = Path.cwd()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name).resolve()
        for path, text in launch.files.items():
            file = folder / path
            file.parent.mkdir(parents=True, exist_ok=True)
            if text.startswith("base64:"):
                file.write_bytes(base64.b64decode(text.removeprefix("base64:")))
            else:
                file.write_text(text.replace("{files}", str(folder)).replace("{tests}", str(TESTS)))
        words = [word.replace("{files}", str(folder)).replace("{tests}", str(TESTS)) for word in launch.words]
        os.chdir(folder)
        try:
            yield words, launch.options
        finally:
            os.chdir(before)


# Comparing.


def differences(case: Case) -> list[tuple[str, Any, Any]]:
    """Path, value before and value now of everything that differs and is not allowed to."""
    now = answer(case.launch)
    said = now.get("words", "")
    was_read = "schedule" in case.answer and not any(name in said for name in case.answer.get("unused", {}))
    if re.search(IMPOSSIBLE, said) and not was_read:
        return []
    return [
        found
        for found in _differing("", _compared(case.answer), _compared(now))
        if not any(_fits(allowed, case, *found) and re.search(allowed.now, said) for allowed in ALLOWED)
    ]


def _compared(said: dict[str, Any]) -> dict[str, Any]:
    """What is compared of an answer. Of a finding: code, severity and numbers, for its words are the rule's; of a refusal the words
    of the framework. The note which release is assumed is left out: the release itself is compared."""
    findings = [
        {name: text for name, text in found.items() if name not in ("title", "planned")}
        if found["code"] == "RLS110"
        else {
            "code": found["code"],
            "severity": found["severity"],
            "numbers": [_numbers(found[name]) for name in ("expected", "observed", "fix")],
        }
        for found in said.get("findings", [])
    ]
    said = said | {"findings": findings} if "findings" in said else dict(said)
    notes = [note for note in said.pop("notes", []) if not note.endswith("--version names another")]
    return said | ({"notes": notes} if notes else {})


def _numbers(text: str) -> list[str]:
    """The numbers of a text, however thousands are written."""
    return re.findall(r"\d+(?:[./]\d+)?", re.sub(r"(?<=\d) (?=\d{3}\b)", "", text))


def _differing(path: str, before: Any, after: Any) -> Iterator[tuple[str, Any, Any]]:
    if isinstance(before, dict) and isinstance(after, dict):
        for name in dict.fromkeys((*before, *after)):
            yield from _differing(f"{path}.{name}" if path else name, before.get(name), after.get(name))
    elif before != after:
        yield path, before, after


def _fits(allowed: Allowed, case: Case, path: str, before: Any, after: Any) -> bool:
    return (
        allowed.system in ("", case.system)
        and path.startswith(allowed.field)
        and not (allowed.only_refused and "schedule" in case.answer)
        and re.search(allowed.before, json.dumps(before)) is not None
        and re.search(allowed.after, json.dumps(after)) is not None
    )


def read(path: Path) -> list[Case]:
    """The cases of a file."""
    return [msgspec.json.decode(line, type=Case) for line in path.read_bytes().splitlines()]


def write(path: Path, cases: list[Case]) -> None:
    """The inverse of `read`."""
    path.write_bytes(b"".join(msgspec.json.encode(case) + b"\n" for case in cases))


# The tests' own launches.


class Collector:
    """Notes every launch that a test asks for, as a pytest plugin."""

    def __init__(self) -> None:
        self.launches: dict[str, tuple[str, Launch]] = {}
        self._test = ""

    def pytest_runtest_setup(self, item: Any) -> None:
        """Remember whose launches come."""
        self._test = item.nodeid

    def see(self, words: list[str], options: Options) -> None:
        """One call of `find_launch`."""
        text = " ".join(words)
        folders = {str(path) for path in map(Path, re.findall(r"/tmp/[^\s'\"=]*pytest-\d+/[^/\s'\"=]+", text))}
        here = Path.cwd()
        if "/pytest-" in str(here):
            folders.add(str(here))
        if len(folders) > 1:
            return
        folder = next(iter(folders), None)
        files = _files(Path(folder)) if folder else {}
        if files is None:
            return

        def plain(value: str) -> str:
            value = value.replace(folder, "{files}") if folder else value
            return value.replace(str(TESTS), "{tests}").replace(str(TESTS.parent), "{tests}/..")

        given = {name: value for name, value in msgspec.structs.asdict(options).items() if value not in (None, {})}
        launch = Launch([plain(word) for word in words], given, {name: plain(text) for name, text in files.items()})
        self.launches.setdefault(msgspec.json.encode(launch).decode(), (self._test, launch))


def _files(folder: Path) -> dict[str, str] | None:
    """All files of a folder; None where they are large."""
    files: dict[str, str] = {}
    for path in sorted(folder.rglob("*")):
        if not path.is_file():
            continue
        data = path.read_bytes()
        if len(data) > LARGEST_FILE or len(files) > 20:
            return None
        try:
            files[str(path.relative_to(folder))] = data.decode()
        except UnicodeDecodeError:
            files[str(path.relative_to(folder))] = "base64:" + base64.b64encode(data).decode()
    return files


def collect() -> list[Case]:
    """Every launch of the golden tests and of the command's tests, with its answer."""
    import pytest

    collector = Collector()
    found = launches.find_launch

    def seen(words: list[str], options: Options) -> Any:
        collector.see(words, options)
        return found(words, options)

    launches.find_launch = seen  # type: ignore[assignment]
    try:
        folders = [
            str(TESTS / "golden"),
            str(TESTS / "systems" / "plans"),
            str(TESTS / "cli" / "test_plan_command.py"),
            str(TESTS / "judge" / "test_plan_rules.py"),
        ]
        pytest.main(["-q", "-p", "no:cacheprovider", "-p", "no:randomly", *folders], plugins=[collector])
    finally:
        launches.find_launch = found
    cases = []
    for test, launch in collector.launches.values():
        said = answer(launch)
        cases.append(Case(said.get("framework", _system_of(test)), test, launch, said))
    return cases


def _system_of(test: str) -> str:
    named = re.search(r"plans/test_(\w+)\.py", test)
    return named.group(1) if named else ""


# Random launches.


class Vocabulary(msgspec.Struct, frozen=True):
    """What a system's launches are made of."""

    settings: tuple[str, ...]
    overrides: bool
    words: tuple[str, ...]
    versions: tuple[str, ...]


def vocabulary(system: str) -> Vocabulary:
    """Settings that a system knows, and words and releases that its code names."""
    reader = index.system_of(system)
    home = Path(index.__file__).parent / system
    files = sorted(home.glob("*.py")) if home.is_dir() else [home.with_suffix(".py")]
    text = "".join(file.read_text() for file in files)
    literals = re.findall(r"\"([A-Za-z_][\w.]*)\"", text)
    releases = re.findall(r"\"(\d+\.\d+(?:\.\d+)?)\"", text)
    return Vocabulary(
        settings=tuple(
            dict.fromkeys(
                (*reader.defaults(reader.version), *(name for name in literals if "_" in name or "." in name))
            )
        ),
        overrides=reader.overrides,
        words=tuple(dict.fromkeys(word for word in literals if len(word) < 30)),
        versions=tuple(dict.fromkeys(releases)),
    )


_NUMBER = re.compile(r"(?<![\w.\-/{])\d{1,7}(?![\w./])")


def random_cases(seeds: list[Case], count: int) -> list[Case]:
    """Launches of the tests, changed at random: about half of each system's are accepted, the others refused in many words."""
    rng = random.Random(SEED)
    of_system = defaultdict(list)
    for case in seeds:
        of_system[case.system].append(case.launch)
    systems = [system for system in of_system if system in index.names()]
    cases: list[Case] = []
    for number, system in enumerate(sorted(systems)):
        wanted = count * (number + 1) // len(systems) - len(cases)
        cases += _of_system(rng, system, of_system[system], wanted)
    return cases


def _of_system(rng: random.Random, system: str, seeds: list[Launch], wanted: int) -> list[Case]:
    known = vocabulary(system)
    kept: dict[bool, list[Case]] = {True: [], False: []}
    shapes: Counter[str] = Counter()
    seen = set()
    for _ in range(wanted * 12):
        if sum(map(len, kept.values())) == wanted:
            break
        launch = changed(rng, rng.choice(seeds), known)
        key = msgspec.json.encode(launch)
        if key in seen:
            continue
        seen.add(key)
        said = answer(launch)
        accepted = "schedule" in said
        shape = re.sub(r"[\d ]+", "0", said.get("words", "") or str(said.get("findings", "")))[:120]
        shapes[shape] += 1
        if len(kept[accepted]) < wanted / 2 and (accepted or shapes[shape] <= 8):
            kept[accepted].append(Case(system, "random", launch, said))
    return kept[True] + kept[False]


def changed(rng: random.Random, launch: Launch, known: Vocabulary) -> Launch:
    """A launch with one to four things changed."""
    words, files, options = list(launch.words), dict(launch.files), dict(launch.options)
    for _ in range(rng.choice((1, 1, 2, 2, 3, 4))):
        kind = rng.random()
        if kind < 0.5:
            _change_number(rng, words, files)
        elif kind < 0.75:
            _add_setting(rng, words, files, known)
        elif kind < 0.85:
            options["rows"] = rng.choice((1, 7, 100, 1000, 1024, 7473, 8532, 12800))
        elif kind < 0.95:
            options["world_size"] = rng.choice((1, 2, 3, 4, 8, 16))
        elif known.versions:
            options["version"] = rng.choice(known.versions)
    return Launch(words, options, files)


def _change_number(rng: random.Random, words: list[str], files: dict[str, str]) -> None:
    places: list[tuple[Any, int, re.Match[str]]] = []
    for place, word in enumerate(words):
        places += [(words, place, match) for match in _NUMBER.finditer(word)]
    for name, text in files.items():
        places += [(files, name, match) for match in _NUMBER.finditer(text)]  # type: ignore[misc]
    if not places:
        return
    holder, key, match = rng.choice(places)
    number = int(match.group())
    new = rng.choice(
        (number * 2, number * 2, max(number // 2, 1), max(number // 2, 1), number * 4, number + 1, number * 3, 1, 0)
    )
    holder[key] = holder[key][: match.start()] + str(new) + holder[key][match.end() :]


def _add_setting(rng: random.Random, words: list[str], files: dict[str, str], known: Vocabulary) -> None:
    name = rng.choice(known.settings)
    value = rng.choice((*("1", "2", "3", "4", "8", "16", "true", "false", "0"), rng.choice(known.words or ("1",))))
    alone = len(words) == 1
    text = next((file for file in files if words[-1].endswith(file)), None)
    if not alone or " " in words[0]:
        more = [f"{name}={value}"] if known.overrides else [f"--{name}", value]
        if alone:
            words[0] = " ".join((words[0], *more))
        else:
            words += more
    elif text is not None and text.endswith(".py"):
        shown = value if value.isdigit() else value.title() if value in ("true", "false") else repr(value)
        last = name.rpartition(".")[2]
        files[text] = re.sub(r"\b([A-Z]\w*Config|Args|training)\(", rf"\g<1>({last}={shown}, ", files[text], count=1)
    elif text is not None and "." not in name:
        files[text] += f"\n{name} = {value}\n" if text.endswith(".toml") else f"\n{name}: {value}\n"
    elif text is not None and text.endswith((".yaml", ".yml")):
        parent, _, last = name.rpartition(".")
        files[text] = re.sub(
            rf"^( *){re.escape(parent.rpartition('.')[2])}:\n",
            rf"\g<0>\g<1>  {last}: {value}\n",
            files[text],
            count=1,
            flags=re.M,
        )


# The stored part.


def reworded(case: Case) -> Case:
    """The case with today's words of its notes, if these are of the same kinds and nothing else differs."""
    before = case.answer.get("notes", [])
    if [path for path, _, _ in differences(case)] != ["notes"]:
        return case
    now = answer(case.launch)["notes"]
    same = [note.partition(":")[0] for note in before] == [note.partition(":")[0] for note in now]
    return Case(case.system, case.origin, case.launch, {**case.answer, "notes": now}) if same else case


def chosen(cases: list[Case], each: int = 4, bytes_each: int = 4_500) -> list[Case]:
    """A few small launches of every system, half of them refused, each with something to say that the others did not."""
    picked: list[Case] = []
    of_system = defaultdict(list)
    for case in cases:
        if case.system and case.origin == "random":
            of_system[case.system].append(case)
    for system in sorted(of_system):
        for accepted in (True, False):
            some = [case for case in of_system[system] if ("schedule" in case.answer) is accepted]
            some.sort(key=lambda case: len(msgspec.json.encode(case)))
            small = [case for case in some if len(msgspec.json.encode(case)) < bytes_each] or some[:each]
            said: set[str] = set()
            for case in sorted(small, key=lambda case: -_richness(case)):
                spoken = [case.answer.get(part, "") for part in ("notes", "words", "findings")]
                shape = re.sub(r"[\d ]+", "0", str(spoken))
                if shape not in said and len(said) < each // 2:
                    said.add(shape)
                    picked.append(case)
    return picked


def _richness(case: Case) -> int:
    return (
        len(case.answer.get("notes", [])) + len(case.answer.get("findings", [])) + len(case.answer.get("formulas", {}))
    )


# The command.


def main(arguments: list[str]) -> int:
    """See the module."""
    verb, path, *systems = arguments
    if verb == "make":
        seeds = collect()
        write(Path(path), seeds + random_cases(seeds, LAUNCHES))
    elif verb == "choose":
        write(STORED, chosen(read(Path(path))))
    elif verb == "reword":
        write(Path(path), [reworded(case) for case in read(Path(path))])
    cases = read(Path(path))
    if verb != "compare":
        for system, number in sorted(Counter(case.system for case in cases).items()):
            accepted = sum("schedule" in case.answer for case in cases if case.system == system)
            print(f"{system or '(none)':22} {number:5} launches, {accepted:5} accepted")
        return 0
    differing = 0
    for case in cases:
        if systems and case.system not in systems:
            continue
        found = differences(case)
        differing += bool(found)
        if found:
            print(f"{case.system}: {' '.join(case.launch.words)[:300]} {case.launch.options}")
            for where, before, after in found:
                print(f"    {where}: {json.dumps(before)[:400]}\n        now {json.dumps(after)[:400]}")
    looked_at = sum(not systems or case.system in systems for case in cases)
    print(f"{looked_at} launches, {differing} differ")
    return 1 if differing else 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
