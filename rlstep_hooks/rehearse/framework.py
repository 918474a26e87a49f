"""What a system gives so that launches of its framework can be rehearsed; its declaration names it (`System.rehearsed_by`).

What its hooks say in the child is what the table at the end is made of (`messages.say`, `outcome`). The topics:

- `schedule`, when the real settings are known: `schedule`, the real Schedule as JSON. Or, at the level "problem", the text of the
  framework's own refusal.
- `sizes`, when the run was made small: `factor` (divisor of the samples of a rollout), `processes` (of the real launch), `group` and
  `real_group` (samples of a prompt), `samples` and `real_samples` (of a rollout), `rows`, `rollouts`, `rollouts_per_epoch`, `updates`,
  `real_updates` (None: not known), `limits` (what else is smaller, as text).
- `set`, when the rows are known: `rows`, a checksum that is the same in the first and in the resumed run.
- `drawn`, at each rollout: `rows`, a checksum for each row that it draws.
- `reward`: what reward functions gave, as text, and `signal`, whether rewards differ; at the level "problem" what one did wrong.
- `completions`, when the real settings are known: `tokens`, how many a completion may have.
- `asked`: what came of other texts that a reward function was asked about (`rewards.Watched`).
- `settings`, `rows`: what is wrong with the launch's own settings or rows, as text.
- `model`, `data`, `left out`: what stands in for what, as text.
- `learning rate`, over the updates of the whole run: text, and `own`, whether the script built the schedule.
- `training`, when training begins.
- `stop`: the script need not go on, and may not end by itself.
- `trained`, when training came to its end: `updates`, `output` (the folder of its checkpoints), `saves`, `evaluates`, `evaluations`.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pkgutil import resolve_name
from typing import TYPE_CHECKING, Any

from rlstep_hooks.rehearse.messages import settings

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from rlstep_hooks.rehearse.messages import Rehearsal


def _no_limit(program: str) -> str:
    return ""


def _no_variables(rehearsal: Rehearsal) -> dict[str, str]:
    return {}


def _no_template(model_type: str) -> str:
    return ""


@dataclass(frozen=True, kw_only=True)
class Framework:
    """How the launches of one framework are rehearsed."""

    hooks: Mapping[str, str]
    """Module -> "module:function", called with the module once it is imported, in the child and in every Python process that it starts.

    They make the real settings small before the framework looks for a device, put what this machine lacks in its place, cut the length,
    and say what `outcome` needs."""
    checkpoint: Callable[[Mapping[str, Any]], tuple[str, str]]
    """The values of `trained` -> the checkpoint that a second run resumes from, or "" and why there is none.

    The second run finds it in `messages.settings().checkpoint`; a hook has the framework resume from it."""
    limit: Callable[[str], str] = _no_limit
    """The program's name -> why it cannot be rehearsed, as one line; empty if it can. What only the settings tell is said in the child,
    at the level "impossible"."""
    environment: Callable[[Rehearsal], Mapping[str, str]] = _no_variables
    """Environment variables of the child."""
    executables: Mapping[str, str] = field(default_factory=dict)
    """Programs of the framework that are no Python file -> the module that each runs."""
    launcher_arguments: frozenset[str] = frozenset()
    """Arguments of these programs that are for a launcher of several processes, which a rehearsal leaves out."""
    template: Callable[[str], str] = _no_template
    """A model's type -> its family's chat template, where the framework ships one; for tokenizers that are not on this machine."""
    own_columns: tuple[str, ...] = ()
    """Columns of made rows where a program of the framework itself reads them; "[]" marks lists of messages."""
    sizes: Mapping[str, int] = field(default_factory=dict)
    """Settings of a tiny model's configuration that this framework's engine needs otherwise than `models` makes them."""
    free_settings: tuple[str, ...] = ()
    """Beginnings of arguments "name=value" that decide nothing in a rehearsal; one whose value only a shell would know is left out."""
    longest_folder: int | None = None
    """Characters that the path of the temporary folder may have; sockets, whose paths are limited to 107, may lie below it."""


def framework() -> Framework:
    """How the launch of this process is rehearsed."""
    found: Framework = resolve_name(settings().rehearsed_by)
    return found
