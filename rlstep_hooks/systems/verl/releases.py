"""What differs between releases of verl, as one table. Read in the source of each named release; the formulas name its lines."""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING

import msgspec

from rlstep_hooks.record.variables import judged_as

if TYPE_CHECKING:
    from packaging.version import Version

FIRST = "0.2"
"""First release that is planned."""
FIRST_UNSUPPORTED = "0.10"
"""First release after those that were read."""
SUPPORTED = "0.2 to 0.9"
"""The releases that are planned, in words."""

DIFFERENCES: dict[str, str] = {
    # 0.9 and later: `trainer.use_v1` picks the trainers of `trainer/ppo/v1`, else RayPPOTrainer.
    "has_v1": "release >= (0, 9)",
    # Only 0.8 has `main_ppo_sync`, which sets `transfer_queue.enable` itself; RayPPOTrainer reads it nowhere
    # (main_ppo_sync.py 0.8.0:1853).
    "has_queue": "release >= (0, 8) and release < (0, 9)",
    # Up to 0.7 `workers/fsdp_workers.py` trains unless `trainer.use_legacy_worker_impl` is "disable".
    "has_legacy_workers": "release < (0, 8)",
    # 0.2 counts its step up and then compares it with the total, so that the last rollout never comes (ray_trainer.py 0.2 fit; from
    # 0.3 on `is_last_step` is found before).
    "leaves_last_rollout_out": "release < (0, 3)",
    # 0.3 and later pass `ppo_epochs` times over a rollout; the FSDP workers of 0.2 do not read it (dp_actor.py 0.2:216-285,
    # 0.3.0.post1:251).
    "reads_epochs": "release >= (0, 3)",
    # 0.4 and later multiply `critic.ppo_mini_batch_size` by the samples of a prompt, as the policy's; before it counts samples
    # (fsdp_workers.py 0.3.0.post1:647, 0.4.0:800).
    "critic_counts_prompts": "release >= (0, 4)",
    # 0.6 and later take the detached current log-probs where a rollout makes a single update (dp_actor.py 0.6.0:390).
    "detaches_single_update": "release >= (0, 6)",
    # 0.2 and 0.3 always start a reference model and compute its log-probs (main_ppo.py 0.3.0.post1:115); 0.4 and later do so only
    # with a KL term, of the loss or of the reward.
    "always_has_reference": "release < (0, 4)",
    # 0.4 and later read `data.gen_batch_size` (ray_trainer.py 0.4.0 `_create_dataloader`).
    "has_loader_batch": "release >= (0, 4)",
    # Up to 0.7.0 weights go to the engine each time it wakes to generate (`rollout_mode`, fsdp_workers.py), validation included; from
    # 0.7.1 the trainer calls `CheckpointEngineManager.update_weights`.
    "syncs_within_generation": "release < (0, 7, 1)",
    # 0.8 and later sync weights also after a rollout that trains the critic only; 0.7.1 does so only after an update of the policy
    # (ray_trainer.py 0.7.1:1504-1533, 0.8.0:1643-1645).
    "syncs_in_warmup": "release >= (0, 8)",
    # Where the settings of the critic's engine are: `critic.fsdp`, or `critic.model.fsdp_config` (ray_trainer.py 0.7.1:716, 0.8.0:812).
    "critic_has_engine_section": "release >= (0, 8)",
    # Only 0.6 gives `critic.ppo_micro_batch_size_per_gpu` and `critic.use_dynamic_bsz` to the critic of an engine
    # (workers/roles/critic.py); later ones leave the engine's own default, which counts tokens (workers/config/engine.py 0.9.1:100,
    # trainer/ppo/v1/trainer_base.py 0.9.1:266-268).
    "engine_critic_reads_microbatch_size": "release < (0, 7)",
    # Where the sizes are checked, and in which words: `validate_config` of utils/config.py, before it the trainer.
    "has_config_classes": "release >= (0, 6)",
}
"""Quantities that the formulas name."""


class VerlRelease(msgspec.Struct, frozen=True):
    """One release of verl."""

    verl: str

    @property
    def supported(self) -> bool:
        """Whether the source of this release was read."""
        return _numbered(FIRST) <= _numbered(self.verl) < _numbered(FIRST_UNSUPPORTED)

    def since(self, release: str) -> bool:
        """Whether this is the named release of verl or a later one."""
        return _numbered(self.verl) >= _numbered(release)


def _numbered(release: str) -> Version:
    """A release to compare, without what is behind its numbers ("0.9.1.dev0" is 0.9.1)."""
    from packaging.version import Version  # 3 ms that a plan of a launch does not need

    return Version(Version(release).base_version)


@lru_cache(maxsize=1)
def installed_release() -> VerlRelease | None:
    """The release that is installed here, or None without verl. Looked up once: reading metadata takes milliseconds.
    The release that `RLSTEP_AS_RELEASE` names stands for the one that is installed."""
    from importlib.metadata import PackageNotFoundError  # 15 ms that a plan of a launch does not need
    from importlib.metadata import version as installed

    try:
        return VerlRelease(judged_as("verl") or installed("verl"))
    except PackageNotFoundError:
        return None
