"""What the source of open-instruct beside a launch says: its defaults, how old a sample may get, and what weighs older samples.

Earlier versions cap importance weights with `truncated_importance_sampling_ratio_cap`, off by default, and drop no result for its age.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from rlstep_hooks.systems.engine.declaration import Beside, Formula, number
from rlstep_hooks.systems.engine.own_source import (
    Fields,
    checkout_of,
    defaults_in,
    not_known,
    with_defaults,
    with_steps,
)
from rlstep_hooks.systems.planned.open_instruct_flags import unknown_flags

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from rlstep_hooks.launch.checkout import Checkout
    from rlstep_hooks.launch.command import Command
    from rlstep_hooks.launch.settings import Setting
    from rlstep_hooks.systems.engine.declaration import System
    from rlstep_hooks.systems.engine.own_source import Default

_FIELDS = (
    Fields("grpo_fast.py", ("Args",)),
    Fields("olmo_core_utils.py", ("TrainingConfig",)),
    Fields("data_loader.py", ("StreamingDataLoaderConfig",)),
    Fields("grpo_utils.py", ("ExperimentConfig", "GRPOExperimentConfig")),
)
_SIZES = ("num_unique_prompts_rollout", "num_samples_per_prompt_rollout", "total_episodes", "num_mini_batches")
_CAP = "truncated_importance_sampling_ratio_cap"


def beside(system: System, command: Command, folder: Path, given: Mapping[str, Setting]) -> Beside | None:
    """What the trainer of the checkout says; None where there is none.

    Args:
        system: open-instruct.
        command: The launch.
        folder: The folder that it lies in.
        given: What it sets.

    Raises:
        LaunchError: Its defaults were not found, or are not plain values.
    """
    checkout = checkout_of(system, "open_instruct/grpo_fast.py", folder)
    if checkout is None:
        return None
    found = defaults_in(checkout, _FIELDS)
    absent = [name for name in _SIZES if name not in found]
    if absent:
        raise not_known(system, f"no dataclass of its trainer has {', '.join(absent)}")
    read, notes = with_defaults(_with_age(_with_weights(system, found, checkout), checkout), found, given)
    refused = unknown_flags(command, checkout)
    if refused is not None:
        read = msgspec.structs.replace(read, checks=(refused, *read.checks))
    return Beside(read, notes=notes)


def _with_weights(system: System, found: Mapping[str, Default], checkout: Checkout) -> System:
    """open-instruct with the importance weights that the checkout's loss has."""
    if "use_rho_correction" in found:
        return system
    settings = {name: typed for name, typed in system.settings.items() if "rho_" not in name}
    checks = tuple(each for each in system.checks if "use_rho_correction" not in each.holds)
    read = msgspec.structs.replace(system, settings=settings, checks=checks)
    if _CAP in found:
        facts = {**system.facts, "correct_by": f"'--{_CAP} 2'"}
        read = msgspec.structs.replace(read, settings={**settings, _CAP: number(0)}, facts=facts)
        weights = f"'token importance weights, at most ' + quoted(decimal({_CAP})) if {_CAP} > 0 else 'none'"
        biased = f"vllm_top_p < 1 and ({_CAP} > 0 or use_vllm_logprobs)"
    else:
        source = checkout.source("grpo_fast.py")
        if source is None or "importance_sampling" in source.text:
            raise not_known(system, "what weighs older samples in its loss was not found")
        weights, biased = "'none'", "vllm_top_p < 1 and use_vllm_logprobs"
    return with_steps(
        read,
        correction=f"'' if use_vllm_logprobs else {weights}",
        correction_biased=f"'vllm_top_p = ' + quoted(decimal(vllm_top_p)) if {biased} else ''",
    )


def _with_age(system: System, checkout: Checkout) -> System:
    """open-instruct without a bound of the age of samples, where the checkout's trainer drops none for its age."""
    loader = checkout.source("data_loader.py")
    if loader is not None and "result_is_stale" in loader.text:
        return system
    where = loader.shown if loader is not None else checkout.package.name
    unbounded = Formula("max_age", "unknown('the trainer beside the launch drops no result for its age')", where)
    formulas = tuple(unbounded if each.quantity == "max_age" else each for each in system.formulas)
    return msgspec.structs.replace(system, formulas=formulas)
