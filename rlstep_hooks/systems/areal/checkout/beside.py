"""What the source of AReaL beside a launch says: the defaults of its dataclasses, and how its loss weighs what older weights sampled.

Releases before `rejection_sampling` weigh by the ratio of the proximal policy to the sampler, which a cap masks or cuts: first always
(`behav_imp_weight_cap`), later as `behave_imp_weight_mode` says.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from rlstep_hooks.launch.checkout import UNKNOWN
from rlstep_hooks.systems.areal.checkout.program import programs_of, refused
from rlstep_hooks.systems.engine.declaration import Beside, Demand, number, text
from rlstep_hooks.systems.engine.own_source import (
    Default,
    Fields,
    checkout_of,
    defaults_in,
    not_known,
    values_of,
    with_defaults,
    with_steps,
)

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from rlstep_hooks.launch.checkout import Checkout
    from rlstep_hooks.launch.command import Command
    from rlstep_hooks.launch.settings import Setting
    from rlstep_hooks.systems.engine.declaration import System

_ARGUMENTS = "api/cli_args.py"
_FIELDS = (
    Fields(_ARGUMENTS, ("BaseExperimentConfig", "PPOConfig", "GRPOConfig")),
    Fields(_ARGUMENTS, ("PPOActorConfig",), "actor."),
    Fields(_ARGUMENTS, ("OptimizerConfig",), "actor.optimizer."),
    Fields(_ARGUMENTS, ("PPOCriticConfig",), "critic."),
    Fields(_ARGUMENTS, ("GenerationHyperparameters",), "gconfig."),
    Fields(_ARGUMENTS, ("InferenceEngineConfig",), "rollout."),
    Fields(_ARGUMENTS, ("_DatasetConfig", "TrainDatasetConfig"), "train_dataset."),
    Fields(_ARGUMENTS, ("RejectionSamplingConfig",), "actor.rejection_sampling."),
)
_MODE = "actor.behave_imp_weight_mode"
_WITH_WEIGHTS = ("actor.use_decoupled_loss", "actor.recompute_logprob")
"""Settings without which no loss of AReaL weighs a sample: both of its old log-probs are the sampler's then."""
_EVENLY = "must be divisible by world_size"
_CAPS = ("actor.behave_imp_weight_cap", "actor.behav_imp_weight_cap")


def beside(system: System, command: Command, folder: Path, given: Mapping[str, Setting]) -> Beside | None:
    """What the configuration of the checkout says; None where there is none.

    Args:
        system: AReaL.
        command: The launch.
        folder: The folder that it lies in.
        given: What it sets.

    Raises:
        LaunchError: Its defaults are not plain values, it is not known how its loss weighs samples, or its episodes are not AReaL's.
    """
    checkout = checkout_of(system, "areal/api/cli_args.py", folder)
    if checkout is None:
        capped = {name: Default(UNKNOWN, "the launch") for name in (*_CAPS, _MODE) if name in given}
        return Beside(_with_weights(system, capped, given)) if capped else None
    found = defaults_in(checkout, _FIELDS)
    if "actor.ppo_n_minibatches" not in found:
        raise not_known(system, f"PPOActorConfig has no ppo_n_minibatches ({checkout.package.name}/{_ARGUMENTS})")
    programs = programs_of(command, folder, checkout.root)
    words = refused(command, programs, checkout.source(_ARGUMENTS), given)
    workflows = [each.workflow for each in programs if each.workflow is not None]
    if workflows and len(workflows) == len(programs) and not words:
        raise not_known(
            system,
            f"its episodes come from a workflow that is none of {checkout.package.name}/, and may make any number of samples of a "
            f"prompt: {workflows[0]}",
        )
    read, notes = with_defaults(_with_shares(system, checkout), found, given)
    known = {name: setting for name, setting in given.items() if name not in words}
    return Beside(_with_weights(read, found, known), notes=notes, refused=words)


def _with_shares(system: System, checkout: Checkout) -> System:
    """AReaL with what the checkout makes of prompts that its processes cannot share evenly.

    Before `create_dataloader` checked that, each program made a loader of `batch_size // data_parallel_world_size` prompts for each
    process, over the process's own share of the rows (examples/math/gsm8k_grpo.py of AReaL v0.3), and waited for as many.
    """
    loader = checkout.source("utils/dataloader.py")
    if loader is not None and _EVENLY in loader.text:
        return system
    shared = Demand(
        "prompts % world_size == 0",
        f"{{prompts}} prompts are not a multiple of {{world_size}} processes, and nothing in {checkout.package.name}/ refuses that: a "
        "program whose processes each load batch_size // {world_size} = {prompts // world_size} prompts is planned with "
        "train_dataset.batch_size={prompts // world_size * world_size}",
        about="train_dataset.batch_size",
    )
    checks = (shared, *(each for each in system.checks if _EVENLY not in each.says))
    return msgspec.structs.replace(system, checks=checks)


def _with_weights(system: System, found: Mapping[str, Default], given: Mapping[str, Setting]) -> System:
    """AReaL with the weights that the loss of the checkout has to the sampler."""
    values = values_of(system, given)
    if "actor.rejection_sampling" in found or not any(values.get(name) for name in _WITH_WEIGHTS):
        return system
    cap = next((name for name in _CAPS if name in found), _CAPS[0] if _MODE in found else "")
    if not cap:
        raise not_known(system, "its actor has neither rejection_sampling nor a cap of importance weights")
    if floor := next((name for name in found if "imp_weight_floor" in name), ""):
        raise not_known(system, f"its importance weights have a bound below too ({floor}, {found[floor].where})")
    # Without a mode, the weight of a token above the cap is 0 (as "token_mask" says it later).
    settings = {**system.settings, cap: number(_plain(found, cap)), _MODE: text(_plain(found, _MODE) or "token_mask")}
    weighed = (
        f"'decoupled loss, ' + {_MODE} + (' without a bound' if {cap} is None else ' at ' + quoted(decimal({cap})))"
    )
    return with_steps(
        msgspec.structs.replace(system, settings=settings),
        # Without the decoupled loss both log-probs are the same ones, so the weights are all 1.
        weighs=f"{_MODE} != 'disabled'",
        correction="'' if not actor.use_decoupled_loss and not actor.recompute_logprob "
        f"else 'none' if not weighs else {weighed}",
    )


def _plain(found: Mapping[str, Default], name: str) -> object:
    """A default that the source writes out; None where it does not, or has no such setting."""
    value = found[name].value if name in found else None
    return None if value is UNKNOWN else value
