"""`rlstep doctor`."""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError, version

from rich.console import Console
from rich.table import Table

from rlstep_hooks.frameworks.trl.releases import FIRST, FIRST_UNSUPPORTED, Release, installed_release

_OBSERVED = (
    "rollouts, old log-probs, micro-batches, updates, learning rate, weights, evaluation: GRPOTrainer and RLOOTrainer",
    "weights pushed to vLLM: the push is recorded; the engine itself is not looked into",
)
_NOT_OBSERVED = ("log-probs inside a liger loss; updates made by DeepSpeed's engine; other trainers",)


def show() -> int:
    """Print what is here; the exit status: 0 if something can be audited."""
    console = Console()
    table = Table.grid(padding=(0, 2))
    for package in ("rlstep-hooks", "torch", "transformers", "accelerate", "trl", "vllm", "peft", "deepspeed"):
        try:
            table.add_row(package, version(package))
        except PackageNotFoundError:
            table.add_row(package, "[dim]not installed[/dim]")
    console.print(table, "")
    release = installed_release()
    console.print(_trl_line(release), highlight=False)
    for line in _OBSERVED:
        console.print(f"  observed      {line}", highlight=False)
    for line in _NOT_OBSERVED:
        console.print(f"  not observed  {line}", highlight=False)
    return 0 if release is not None and release.supported else 2


def _trl_line(release: Release | None) -> str:
    supported = f"supported are {FIRST} to {FIRST_UNSUPPORTED} (excluded)"
    if release is None:
        return f"TRL: not installed; {supported}"
    state = "[green]supported[/green]" if release.supported else f"[red]not supported[/red]: {supported}"
    return f"TRL {release.trl} with transformers {release.transformers}: {state}"
