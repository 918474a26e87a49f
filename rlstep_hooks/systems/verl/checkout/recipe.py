"""The trainer of DAPO's recipe beside a launch: forks change its loop as they change that of the common trainer."""

from __future__ import annotations

import ast
from typing import TYPE_CHECKING

from rlstep_hooks.launch.checkout import none_known, taken
from rlstep_hooks.systems.verl.checkout.loop import read_loop
from rlstep_hooks.systems.verl.checkout.program import RECIPES_TRAINER
from rlstep_hooks.systems.verl.settings import ROLLOUT

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from rlstep_hooks.launch.checkout import Checkout, Function, Line, Source
    from rlstep_hooks.systems.verl.checkout.loop import Loop

_FILTERS = "algorithm.filter_groups.enable"
_CUT = (
    "traj_bsz = self.config.data.train_batch_size * self.config.actor_rollout_ref.rollout.n",
    "batch = batch[:traj_bsz]",
)
_FILTERING = frozenset(
    (
        "batch = new_batch if batch is None else DataProto.concat([batch, new_batch])",
        "if max_num_gen_batches <= 0 or num_gen_batches < max_num_gen_batches:",
        "batch = batch[:traj_bsz]",
        # Where groups are filtered, generated batches are counted: how many rollouts they make, no source says.
        "if is_last_step:",
    )
)
"""The lines with which the releases fill a rollout: verl 0.4.1 recipe/dapo/dapo_ray_trainer.py:212-228, the same from 0.3 to 0.7."""


def fit_of_recipe(checkout: Checkout, inner: str) -> tuple[Source, Function] | None:
    """The file of DAPO's trainer and its `fit`; None where it has none.

    Args:
        checkout: The folder of recipes.
        inner: The recipe's own in it.
    """
    source = checkout.source(f"{inner}/{RECIPES_TRAINER}")
    fits = source.methods("fit", of="RayDAPOTrainer") if source is not None else []
    return (source, fits[0]) if source is not None and fits else None


def read_recipe(
    source: Source, fit: Function, values: Mapping[str, object], remedy: str, others: Iterable[Line] = ()
) -> str:
    """What the loop of a trainer does that may leave groups out, as DAPO's.

    Args:
        source: The file of the trainer.
        fit: Its `fit`.
        values: The settings that are known.
        remedy: What a user does if the loop is not known.
        others: What is not known of its workers.

    Raises:
        LaunchError: It has lines that may change the length or the sizes, and that are not known.
    """
    values = {_FILTERS: False, **values}
    filters = bool(values[_FILTERS])
    loop = read_loop(fit, source, values, _FILTERING if filters else ())
    unknown = [
        *loop.unknown,
        *others,
        *(line for name, line in loop.repeats.items() if name not in (f"{ROLLOUT}.n", "1")),
    ]
    group = loop.repeats.get(f"{ROLLOUT}.n")
    lacks = _lacks(loop, fit, values) if loop.is_read else ()
    said = [*map(str, unknown), *(f"{each} ({source.shown})" for each in lacks)]
    if said:
        raise none_known("the trainer of DAPO's recipe", said, remedy)
    return f"{_ends(loop.stop, filters=filters)}; {group}"


def _lacks(loop: Loop, fit: Function, values: Mapping[str, object]) -> list[str]:
    """What a loop that was read lacks of those of the releases."""
    said = []
    if f"{ROLLOUT}.n" not in loop.repeats:
        said.append(f"nothing repeats a prompt {ROLLOUT}.n times")
    if values[_FILTERS] and not _cuts(fit, values):
        said.append("nothing cuts what the filter left to data.train_batch_size prompts")
    if not values[_FILTERS] and (loop.stop is None or loop.shortfall):
        said.append(str(loop.stop) if loop.stop is not None else "nothing ends it at its total of steps")
    return said


def _ends(stop: Line | None, *, filters: bool) -> str:
    if filters:
        return "batches are generated until the filter leaves enough prompts, and the rest of them is cut off"
    return f"the run ends at {stop}"


def _cuts(fit: Function, values: Mapping[str, object]) -> bool:
    """Whether what the filter left is cut to the size of a rollout."""
    lines = {ast.unparse(node) for node in taken(fit, values) if isinstance(node, ast.Assign)}
    return lines.issuperset(_CUT)
