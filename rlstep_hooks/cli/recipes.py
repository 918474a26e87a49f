"""`rlstep recipes`."""

from __future__ import annotations

from rich.text import Text

from rlstep_hooks.planning.words import number
from rlstep_hooks.show.terminal import Terminal
from rlstep_hooks.systems.recipes import available, plan_recipe


def show() -> int:
    """Print all recipes with their sources. Returns the exit status."""
    console = Terminal()
    for recipe in available():
        schedule = plan_recipe(recipe.name).schedule
        console.print(Text.assemble((f"recipe:{recipe.name}", "bold"), f"  {recipe.title}"))
        if schedule is not None:
            rollout = f"{number(schedule.prompts_per_rollout, 'prompts')} x {number(schedule.samples_per_prompt, 'samples')} a rollout"
            updates = f"{number(schedule.updates_per_rollout, 'updates')} of {number(schedule.samples_per_update, 'samples')} each"
            totals = f"{number(schedule.rollouts, 'rollouts')} · {number(schedule.updates, 'updates')}"
            console.print(Text(f"  {rollout} · {updates} · {totals}"))
        console.print(Text(f"  {recipe.source}", style="dim"))
        if recipe.remark:
            console.print(Text(f"  {recipe.remark}", style="dim"))
        console.print()
    console.print(
        Text("`rlstep diff recipe:NAME -- <launch command>` shows how a launch differs from a recipe", style="dim")
    )
    return 0
