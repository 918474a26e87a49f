"""OpenRLHF: `openrlhf.cli.train_ppo_ray` with dotted flags (0.10.2 and later) or flat ones, and `train_ppo` of 0.5.

The formulas are those of `rlstep_hooks.systems.openrlhf.plan`, which also reads live arguments. Updates count samples over all
processes; DeepSpeed carries gradients that do not fill an update into the next rollout. Defaults: cli/train_ppo_ray.py.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from rlstep_hooks.systems.declaration import Entry, System
from rlstep_hooks.systems.openrlhf.names import KEYS
from rlstep_hooks.systems.openrlhf.releases import FIRST, FIRST_UNSUPPORTED
from rlstep_hooks.systems.openrlhf.settings import SETTINGS

if TYPE_CHECKING:
    from collections.abc import Mapping

    from rlstep_hooks.systems.request import Request


def _of_release(request: Request) -> Mapping[str, Any]:
    """The defaults of the release that fits the flags."""
    from rlstep_hooks.systems.openrlhf.launch import release_of_flags

    release, _ = release_of_flags(request)
    return {name: typed.default_in(release.openrlhf) for name, typed in SETTINGS.items()}


SYSTEM = System(
    name="openrlhf",
    title="OpenRLHF",
    version="0.11.2",
    releases=(str(FIRST), str(FIRST_UNSUPPORTED)),
    package="openrlhf",
    keys=KEYS,
    recognised=(
        Entry(
            "openrlhf",
            programs=(
                "module:openrlhf.cli.train_ppo_ray",
                "module:openrlhf.cli.train_ppo",
                "script:train_ppo_ray.py",
                "script:train_ppo.py",
            ),
        ),
    ),
    rows_from=("data.prompt_dataset", "prompt_data"),
    settings=SETTINGS,
    defaults_of=_of_release,
    plan="rlstep_hooks.systems.openrlhf.launch:read",
    live="rlstep_hooks.systems.openrlhf.plan:plan_live",
    writes="rlstep_hooks.systems.openrlhf.launch:write",
    deviations="rlstep_hooks.systems.openrlhf.deviations:DEVIATIONS",
    attaches_by="`rlstep run -- <command>`, or `RLSTEP_DIR` and `RAY_RUNTIME_ENV_HOOK=rlstep_hooks.openrlhf.runtime_env_hook`.",
    # 0.7 and later: imported by the driver before it starts Ray.
    on_import={
        "openrlhf": "rlstep_hooks.systems.openrlhf.observe.ray_hooks:imported",
    },
    observed_releases=("0.11", str(FIRST_UNSUPPORTED)),
    trained_releases=("0.11.2",),
    observes=(
        "rollouts with the policy version and the settings that sampled them",
        "prompts and rewards, up to the advantages",
        "refreshes of old log-probs",
        "micro-batches",
        "updates of policy and critic",
        "the scale of the policy's loss",
        "learning rate",
        "syncs, at the trainer and at the engine",
        "a checksum of the reference",
        "checkpoints on resume",
    ),
    does_not_observe=(
        "weights that colocated engines take through CUDA IPC",
        "engines and references on other machines than the controller",
        "the processes of reward models",
        "how rewards are computed",
    ),
)
