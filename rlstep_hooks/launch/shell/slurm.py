"""The variables that Slurm gives a job's script, as its `#SBATCH` lines set them (sbatch(1), "OUTPUT ENVIRONMENT VARIABLES"), and those
that it gives each task (srun(1))."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from rlstep_hooks.launch.text import UnknownText

if TYPE_CHECKING:
    from rlstep_hooks.launch.text import Token

_OPTION = re.compile(r"^#SBATCH[ \t]+(-N|-n|-c|-J|--[a-z-]+)(?:[= \t]+|(?<=-[Nnc]))(\S+)", re.MULTILINE)
_NAMES = {"-N": "--nodes", "-n": "--ntasks", "-c": "--cpus-per-task", "-J": "--job-name"}
_VARIABLES = {
    "--nodes": ("SLURM_NNODES", "SLURM_JOB_NUM_NODES"),
    "--ntasks": ("SLURM_NTASKS", "SLURM_NPROCS"),
    "--ntasks-per-node": ("SLURM_NTASKS_PER_NODE",),
    "--cpus-per-task": ("SLURM_CPUS_PER_TASK",),
    "--gpus-per-node": ("SLURM_GPUS_PER_NODE",),
    "--job-name": ("SLURM_JOB_NAME",),
}
_OF_TASKS = ("SLURM_PROCID", "SLURM_NODEID", "SLURM_LOCALID")
"""Variables whose value tells the tasks of one `srun` apart."""


def job_variables(text: str) -> dict[str, str]:
    """The variables that a job's own `#SBATCH` lines set; options of the `sbatch` command would override them."""
    found: dict[str, str] = {}
    for option, value in _OPTION.findall(text):
        name = _NAMES.get(option, option)
        found.update(dict.fromkeys(_VARIABLES.get(name, ()), value))
        if name == "--gpus-per-node" or (name == "--gres" and value.startswith("gpu")):
            found["SLURM_GPUS_ON_NODE"] = value.rpartition(":")[2] if ":" in value or value.isdigit() else "1"
    return {name: value for name, value in found.items() if name == "SLURM_JOB_NAME" or value.isdigit()}


def task_variables(program: Token) -> dict[str, UnknownText]:
    """The variables that each task has a value of its own of, where `srun` starts them: none is the one that speaks for all.

    Args:
        program: The first word of a command.
    """
    if program.text != "srun":
        return {}
    return {name: UnknownText(name, f"${name}, which srun sets for each task", program.place) for name in _OF_TASKS}
