"""Makes pages while mkdocs builds: one for each system, one for each rule, and the output of commands.

mkdocs calls the functions named `on_...` (mkdocs.yml, `hooks`). Nothing made here is committed, so it is never out of date:

- each system of the index has a page, made from its declaration and from the plan of one launch (`docs/launches`);
  `docs/attach/<system>.md`, if it exists, says how to attach to it;
- the page of links says, from the declarations, what each framework's runs are compared with between reward and weight;
- each rule has a page from its docstring;
- a block of code with the language `run` is replaced by its command and the output of that;
- CHANGELOG.md, CONTRIBUTING.md and BENCHMARKS.md of the repository become pages.
"""

from __future__ import annotations

import inspect
import io
import json
import os
import re
import shlex
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_args

from mkdocs.exceptions import PluginError
from mkdocs.structure.files import File

from rlstep_hooks.cli import main
from rlstep_hooks.launch.settings import MISSING
from rlstep_hooks.record.cadence import WORDS
from rlstep_hooks.systems.engine import index, links
from rlstep_hooks.systems.engine.entry import named
from rlstep_hooks.systems.engine.index import system_of
from rlstep_hooks.version import PLACEHOLDER
from rlstep_hooks.version import REPOSITORY as ADDRESS

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from mkdocs.config.defaults import MkDocsConfig
    from mkdocs.structure.files import Files
    from mkdocs.structure.pages import Page

DOCS = Path(__file__).parent
REPOSITORY = DOCS.parent
WIDTH = "96"
"""Width of printed output on a page, in columns."""

# mkdocs' events


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """Add the pages that are made here to the navigation."""
    os.environ |= {"COLUMNS": WIDTH, "NO_COLOR": "1"}
    for section, names in (("Systems", ["links", *systems()]), ("Rules", [rule.code for rule in rules()])):
        pages = next(part[section] for part in config.nav if isinstance(part, dict) and section in part)
        folder = section.lower()
        pages += [f"{folder}/{name}.md" for name in names]
    return config


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the pages that are made here."""
    made = {
        "systems/index.md": systems_page(),
        "systems/links.md": links_page(),
        **{f"systems/{name}.md": system_page(name) for name in systems()},
        "rules/index.md": rules_page(),
        **{f"rules/{rule.code}.md": rule_page(rule) for rule in rules()},
        **{f"{name.lower()}.md": repository_page(name) for name in ("CHANGELOG", "CONTRIBUTING", "BENCHMARKS")},
    }
    for path, text in made.items():
        if (written := files.get_file_from_path(path)) is not None:
            files.remove(written)
        files.append(File.generated(config, path, content=text))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Run the commands of a page and add their output; insert the docstrings that the page names, and the repository's address."""
    if ADDRESS:
        markdown = markdown.replace(PLACEHOLDER, ADDRESS)
    markdown = re.sub(r"^```run\n(.*?)^```$", lambda block: console(block[1]), markdown, flags=re.MULTILINE | re.DOTALL)
    return re.sub(r"^<!-- docstring of ([\w.]+) -->$", lambda named: docstring(named[1]), markdown, flags=re.MULTILINE)


def on_post_page(output: str, page: Page, config: MkDocsConfig) -> str:
    """Refuse a page that loads something from the network."""
    loaded = re.findall(r"<(?:script|img|iframe)[^>]*\ssrc=\"?(?:https?:)?//[^\s>]+", output)
    loaded += re.findall(
        r"<link[^>]*rel=\"?(?:stylesheet|preconnect|preload)[^>]*href=\"?(?:https?:)?//[^\s>]+", output
    )
    if loaded:
        raise PluginError(f"{page.file.src_uri} loads {loaded}")
    return output


# Commands


def console(lines: str) -> str:
    """A command, which may span several lines, and its output."""
    return f"```console\n$ {lines.rstrip()}\n{printed(lines)}\n```"


def printed(command: str) -> str:
    """The output of a command line of `rlstep`, run in the folder of the launches."""
    program, *words = shlex.split(command.replace("\\\n", " "))
    if program != "rlstep":
        raise PluginError(f"only rlstep is run while pages are built, not {program}")
    output = io.StringIO()
    with redirect_stdout(output), redirect_stderr(output), standing_in(DOCS / "launches"):
        try:
            main(words)
        except SystemExit as end:
            if end.code not in (0, 1):
                raise PluginError(f"`{command.strip()}` ended with status {end.code}") from None
    return output.getvalue().rstrip()


@contextmanager
def standing_in(folder: Path) -> Iterator[None]:
    """A context in another working directory (contextlib has this since Python 3.11)."""
    before = Path.cwd()
    os.chdir(folder)
    try:
        yield
    finally:
        os.chdir(before)


# Systems


def systems() -> list[str]:
    """All systems by the names of `--framework`, in the order of their titles."""
    return sorted(index.names(), key=lambda name: system_of(name).title.lower())


def systems_page() -> str:
    """The table of systems, below what is written in `docs/systems/index.md`."""
    observed = [name for name in systems() if getattr(system_of(name), "attaches_by", "")]
    planned = [name for name in systems() if name not in observed]
    return "\n".join(
        [
            (DOCS / "systems" / "index.md").read_text(),
            "## Planned, and observed while they train\n",
            *release_table(observed),
            "\n`noxfile.py` has the exact pins of what is trained with.\n",
            *system_table(observed),
            "\n## Planned only\n",
            *system_table(planned),
            "",
        ]
    )


def release_table(names: Iterable[str]) -> Iterator[str]:
    """Releases of the systems that are observed: which are planned, which observed, and which the tests train with."""
    yield "| system | planned | observed | trained with in the tests |"
    yield "|---|---|---|---|"
    for name in names:
        found = system_of(name)
        observed = between(found.observed_releases or found.releases)
        planned = between(found.releases) if found.releases else f"read at {found.version}"
        yield f"| [{found.title}]({name}.md) | {planned} | {observed} | {', '.join(found.trained_releases)} |"


def between(bounds: tuple[str, str] | None) -> str:
    """The releases between two bounds, of which the second is the first that is excluded."""
    return f"{bounds[0]} to before {bounds[1]}" if bounds else "all"


def system_table(names: Iterable[str]) -> Iterator[str]:
    """Systems with the release whose formulas were read, and the programs that identify them."""
    yield "| system | read at | recognised by |"
    yield "|---|---|---|"
    for name in names:
        found = system_of(name)
        shown = [*programs(name), *(f"`{key}`" for entry in index.entries_of(name) for key in entry.keys)]
        yield f"| [{found.title}]({name}.md) | {found.version} | {', '.join(shown[:3])}{', ...' if shown[3:] else ''} |"


def programs(name: str) -> list[str]:
    """The commands that identify a system, as one writes them."""
    written = {"module": "python -m {}", "script": "python {}", "executable": "{}"}
    found = []
    for entry in index.entries_of(name):
        for pattern in entry.programs:
            kind, _, program = pattern.partition(":")
            more = f" with `{entry.with_key}`" if entry.with_key else ""
            found.append(f"`{written[kind].format(program)}`{more}")
    return found


def system_page(name: str) -> str:
    """The page of one system."""
    found = system_of(name)
    launch, options = example(name)
    plan = json.loads(printed(f"rlstep plan --json {options} {launch.name}"))
    if any(finding["code"] == "RLS110" for finding in plan["findings"]):
        raise PluginError(f"{launch.name} is refused")
    body = [
        f"# {found.title}\n",
        f"{summary(name)}\n",
        *recognition(name),
        *attaching(name),
        "\n## A launch, and what it means\n",
        f'```{"bash" if launch.suffix == ".sh" else launch.suffix[1:]} title="{launch.name}"',
        "\n".join(line for line in launch.read_text().splitlines() if not line.startswith("# plan:")),
        "```\n",
        console(f"rlstep plan {options} {launch.name}".replace("  ", " ")),
        *formulas(found, plan),
        *notes(found, plan),
        *depends(found),
        *checks(found),
        *settings(found),
        *deviations(found),
        *sources(name),
    ]
    return "\n".join(body) + "\n"


def example(name: str) -> tuple[Path, str]:
    """A launch of a system, and the options of `rlstep plan` that its first line names."""
    (launch,) = (DOCS / "launches").glob(f"{name}.*")
    return launch, launch.read_text().splitlines()[0].removeprefix("# plan:").strip()


def recognition(name: str) -> Iterator[str]:
    """Names and releases."""
    found = system_of(name)
    yield "| | |"
    yield "|---|---|"
    yield f"| name for `--framework` | `{name}` |"
    yield f"| formulas read at | {found.version} |"
    if releases := getattr(found, "releases", None):
        yield f"| releases | {between(releases)} |"
    if commands := programs(name):
        yield f"| recognised by the command | {'<br>'.join(commands)} |"
    if keys := sorted({f"`{key}`" for entry in index.entries_of(name) for key in entry.keys}):
        yield f"| recognised by a setting | {'<br>'.join(keys)} |"
    if calls := sorted({f"`{call}`" for entry in index.entries_of(name) for call in entry.calls}):
        yield f"| recognised by a call in a Python file | {', '.join(calls)} |"
    if getattr(found, "attaches_by", ""):
        bounds = found.observed_releases or found.releases
        yield f"| observed while it trains | releases {between(bounds)} |"
        yield f"| trained with in this project's tests | {', '.join(found.trained_releases)} |"
        yield f"| attach by | {found.attaches_by} |\n"
    else:
        yield "| observed while it trains | no, the plan only |\n"


def links_page() -> str:
    """Of each link from the reward to the weight, what is compared in each framework, or why not."""
    found = [system for system in index.observed() if system.links]
    lines = [
        "# From the reward to the weight\n",
        "Each number of an update is computed again from what went into it, and compared, where nothing else is said at each rollout",
        "and update. The report says which of these links a run showed. `rlstep doctor trl` prints those of TRL.\n",
        "A link is proved where this project's tests train and compare it: in the deployments that the last column names.",
        "In any other deployment it is not proved.\n",
    ]
    for name in links.NAMES:
        codes = ", ".join(f"[{code}](../rules/{code}.md)" for code in links.RULES[name])
        lines += [
            f"## {name.capitalize()}\n",
            f"Rules: {codes}\n",
            "| framework | compared | in which cycles of rollouts | not compared | proved in |",
            "|---|---|---|---|---|",
        ]
        for system in found:
            link = system.links[name]
            proved = "; ".join((system.proved_in, *link.proved)) if link.compared else ""
            often = WORDS[link.often] or ("all" if link.compared else "")
            lines.append(
                f"| {system.title} | {cell(link.compared) or 'no'} | {often} | {cell(link.not_compared)} | {proved} |"
            )
        lines.append("")
    return "\n".join([*lines, *deployments(found)])


def deployments(systems: Iterable[Any]) -> Iterator[str]:
    """In which deployments the links of each system are proved, besides its own."""
    yield "## By deployment\n"
    yield "A report of a run in a deployment without a mark calls the link right in part at most, and names the deployment.\n"
    for system in systems:
        named = [of for of in get_args(links.Deployment) if any(of in link.proved for link in system.links.values())]
        if not named:
            continue
        yield f"### {system.title}\n"
        yield f"| link | {system.proved_in} | {' | '.join(named)} |"
        yield "|---|---|" + "---|" * len(named)
        for name in links.NAMES:
            link = system.links[name]
            if link.compared:
                yield f"| {name} | yes | {' | '.join('yes' if of in link.proved else '' for of in named)} |"
        yield ""


def attaching(name: str) -> Iterator[str]:
    """How to attach to a system (`docs/attach`), and what its declaration lists as observed."""
    path = DOCS / "attach" / f"{name}.md"
    if path.exists():
        yield path.read_text()
    found = system_of(name)
    if getattr(found, "attaches_by", ""):
        yield "\n**Observed**: " + cell("; ".join(found.observes)) + ".\n"
        yield "**Not observed**: " + cell("; ".join(found.does_not_observe)) + ".\n"


def formulas(found: Any, plan: dict[str, Any]) -> Iterator[str]:
    """Each formula with its source: all that a declaration has, else those of the launch above."""
    declared = [(one.quantity, one.text, one.source, one.where) for one in getattr(found, "formulas", ())]
    shown = declared or [(one["quantity"], one["text"], one["source"], "") for one in plan["formulas"]]
    if not shown:
        return
    yield "\n## Formulas\n"
    yield "`rlstep plan --explain` shows those that a launch uses, with the numbers that went in.\n"
    yield "| quantity | formula | source |"
    yield "|---|---|---|"
    for quantity, text, source, where in shown:
        yield f"| `{quantity}` | {code(text)}{f'<br>where {code(where)}' if where else ''} | {cell(source)} |"
    if steps := getattr(found, "let", {}):
        yield "\nNames in these formulas, and quantities that follow from settings directly:\n"
        yield "| name | is |"
        yield "|---|---|"
        yield from (f"| `{name}` | {code(text)} |" for name, text in steps.items())


def notes(found: Any, plan: dict[str, Any]) -> Iterator[str]:
    """Silent effects: all notes of the declaration, else the notes of the launch above."""
    declared = [(one.kind, one.text, one.when) for one in getattr(found, "notes", ())]
    said = [("assumes", text, "") for text in plan["assumptions"]] + [
        (one["kind"], one["text"], "") for one in plan["notes"]
    ]
    shown = declared or said
    if not shown:
        return
    yield "\n## What happens without a message\n"
    yield "Text in braces is filled in for a launch.\n" if declared else "In the launch above:\n"
    for kind, text, where in shown:
        yield f"- **{kind}**: {cell(text)}{f' (where {code(where)})' if where else ''}"


def depends(found: Any) -> Iterator[str]:
    """Settings with which a count depends on the run."""
    declared = getattr(found, "depends", ())
    if not declared:
        return
    yield "\n## What makes a count depend on the run\n"
    yield "With one of these, no exact number is given for the counts that it concerns.\n"
    yield "| where | why | counts | source |"
    yield "|---|---|---|---|"
    for one in declared:
        counts = ", ".join(f"`{name}`" for name in one.counts) or "`updates`: a bound"
        yield f"| {code(one.on)} | {cell(one.says)} | {counts} | {cell(one.source)} |"


def checks(found: Any) -> Iterator[str]:
    """Launches that the framework refuses, in its own words, and launches that cannot be planned."""
    declared = getattr(found, "checks", ())
    refused = [one for one in declared if hasattr(one, "fix")]
    if refused:
        yield "\n## What it refuses\n"
        yield "| refused unless | how the run ends | when, and source |"
        yield "|---|---|---|"
        for one in refused:
            where = f"<br>looked at where {code(one.where)}" if one.where else ""
            yield f"| {code(one.holds)}{where} | {cell(one.says)} | {cell(one.when)}; {cell(one.source)} |"
    if unread := [one for one in declared if not hasattr(one, "fix")]:
        yield "\n## Launches that cannot be planned\n"
        yield from (f"- unless {code(one.holds)}: {cell(one.says)}" for one in unread)


def settings(found: Any) -> Iterator[str]:
    """Settings that the plan reads, with the framework's defaults."""
    defaults, declared = found.defaults(found.version), getattr(found, "settings", {})
    if not (defaults or declared):
        return
    yield "\n## Settings\n"
    yield "| setting | default | other names |" if declared else "| setting | default |"
    yield "|---|---|---|" if declared else "|---|---|"
    for name in declared or defaults:
        others = f" {', '.join(f'`{one}`' for one in declared[name].also)} |" if declared else ""
        yield f"| `{name}` | {shown_default(defaults.get(name))} |{others}"


def shown_default(default: object) -> str:
    """A default as a reader of a table sees it."""
    if default is MISSING or default == "???":
        return "must be given"
    return "not set" if default is None or default == "" else f"`{default}`"


def deviations(found: Any) -> Iterator[str]:
    """Where the framework does not do what its documents say."""
    known = known_deviations(found)
    if not known:
        return
    yield "\n## Known deviations\n"
    yield "Frameworks do not always do what their documents say. Where a run differs in just such a way, the finding names the"
    yield "deviation, and its fix is the work-around.\n"
    for one in known:
        releases = f"from {one.since}, fixed in {one.fixed_in}" if one.fixed_in else f"from {one.since}"
        first, _, rest = one.title.partition(" ")
        yield f"### {first if '_' in first else first[:1].upper() + first[1:]} {cell(rest)} {{ #{one.name} }}\n"
        yield f"Releases: {releases}. Rules: {', '.join(f'[{rule}](../rules/{rule}.md)' for rule in sorted(one.codes))}.\n"
        yield f"- **What is said**: {cell(one.document)}"
        yield f"- **What happens**: {cell(one.code)}"
        yield f"- **Work-around**: {cell(one.workaround)}"
        yield f"- **Evidence**: {cell(one.evidence)}\n"


def known_deviations(found: Any) -> tuple[Any, ...]:
    """The deviations of a system, as data."""
    place = getattr(found, "deviations", "")
    return named(place) if place else ()


def summary(name: str) -> str:
    """The first sentence of a system's module, which says what is unusual about it."""
    return sentences(index.home_of(name))[0]


def sources(name: str) -> Iterator[str]:
    """Where the formulas were read: the module docstring of a system after its first paragraph."""
    rest = sentences(index.home_of(name))[1:]
    if rest:
        yield "\n## Sources\n"
        yield "\n\n".join(rest)


def sentences(module: Any) -> list[str]:
    """The paragraphs of a module's docstring."""
    return [cell(" ".join(part.split())) for part in inspect.cleandoc(module.__doc__ or "").split("\n\n")]


# Rules


def rules() -> list[Any]:
    """All rules by their codes."""
    from rlstep_hooks.judge.rules import BY_CODE

    return list(BY_CODE.values())


def rules_page() -> str:
    """The catalogue."""
    from rlstep_hooks.judge.rules import HUNDREDS

    body = [(DOCS / "rules" / "index.md").read_text()]
    for digit, (_, title) in HUNDREDS.items():
        body += [f"\n## RLS{digit}: {title}\n", "| code | severity | title |", "|---|---|---|"]
        body += [
            f"| [{rule.code}]({rule.code}.md) | {rule.severity} | {rule.title} |"
            for rule in rules()
            if rule.code[3] == digit
        ]
    return "\n".join(body) + "\n"


def rule_page(rule: Any) -> str:
    """The sections of a rule's page, as Markdown."""
    from rlstep_hooks.judge.rules.page import EXAMPLE, page

    summary, *sections = page(rule)
    body = [
        f"# {rule.code} {rule.title}\n",
        f"Severity: **{rule.severity}**\n",
        *(cell(block) for block in summary.blocks),
    ]
    for section in sections:
        body.append(f"\n## {section.heading}\n")
        if section.heading == EXAMPLE:
            body.append(f"```text\n{section.text}\n```")
        else:
            body += [linked(block) if section.heading == "Sources" else cell(block) for block in section.blocks]
    return "\n".join(body) + "\n"


def linked(source: str) -> str:
    """An item of the sources, with its address as a link."""
    address, _, words = source.removeprefix("- ").partition(": ")
    return f"- <{address}>: {cell(words)}"


# Text


def docstring(module: str) -> str:
    """The docstring of a module without its first line; indented blocks are code."""
    return inspect.cleandoc(import_module(module).__doc__ or "").partition("\n")[2]


def repository_page(name: str) -> str:
    """A page of the repository's root; its links are those of the built pages."""
    text = (REPOSITORY / f"{name}.md").read_text()
    text = re.sub(r"\]\(docs/([^)]*)\)", r"](\1)", text)
    return re.sub(r"\]\((CHANGELOG|CONTRIBUTING|BENCHMARKS)\.md", lambda found: f"]({found[1].lower()}.md", text)


def code(text: str) -> str:
    """Code in the cell of a table."""
    return "`" + " ".join(text.split()).replace("|", "\\|") + "`"


def cell(text: str) -> str:
    """Text in which characters of Markdown and HTML are escaped."""
    parts = re.split(r"(`[^`]*`)", text)
    return "".join(
        part if part.startswith("`") else re.sub(r"([<*|]|(?<=\w)_(?=_|\W|$)|(?<!\w)_)", r"\\\1", part)
        for part in parts
    )
