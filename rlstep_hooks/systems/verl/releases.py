"""What differs between releases of verl, as one table. Read in the source of each named release; see `plan` for the formulas."""

from __future__ import annotations

from functools import lru_cache

import msgspec
from packaging.version import Version

FIRST = Version("0.2")
"""First release that is planned."""
FIRST_UNSUPPORTED = Version("0.10")
"""First release after those that were read."""
SUPPORTED = "0.2 to 0.9"
"""The releases that are planned, in words."""


class VerlRelease(msgspec.Struct, frozen=True):
    """The behaviour of one release of verl."""

    verl: str

    @property
    def supported(self) -> bool:
        """Whether the source of this release was read."""
        return FIRST <= Version(Version(self.verl).base_version) < FIRST_UNSUPPORTED

    def since(self, release: str) -> bool:
        """Whether this is the named release of verl or a later one."""
        return Version(Version(self.verl).base_version) >= Version(release)

    @property
    def has_v1_trainer(self) -> bool:
        """0.9 and later: `trainer.use_v1` picks the trainers of `trainer/ppo/v1`, else RayPPOTrainer."""
        return self.since("0.9")

    @property
    def has_legacy_workers(self) -> bool:
        """Up to 0.7 `workers/fsdp_workers.py` trains unless `trainer.use_legacy_worker_impl` is "disable"."""
        return not self.since("0.8")

    @property
    def leaves_last_rollout_out(self) -> bool:
        """0.2 counts its step up and then compares it with the total, so that the last rollout never comes
        (ray_trainer.py 0.2 fit; from 0.3 on `is_last_step` is found before)."""
        return not self.since("0.3")

    @property
    def reads_epochs(self) -> bool:
        """0.3 and later pass `ppo_epochs` times over a rollout; the FSDP workers of 0.2 do not read it (dp_actor.py 0.2:216-285,
        0.3.0.post1:251)."""
        return self.since("0.3")

    @property
    def critic_counts_prompts(self) -> bool:
        """0.4 and later multiply `critic.ppo_mini_batch_size` by the samples of a prompt, as the policy's; before it counts
        samples (fsdp_workers.py 0.3.0.post1:647, 0.4.0:800)."""
        return self.since("0.4")

    @property
    def detaches_single_update(self) -> bool:
        """0.6 and later take the detached current log-probs where a rollout makes a single update (dp_actor.py 0.6.0:390)."""
        return self.since("0.6")

    @property
    def always_has_reference(self) -> bool:
        """0.2 and 0.3 always start a reference model and compute its log-probs (main_ppo.py 0.3.0.post1:115); 0.4 and later do so
        only with a KL term, of the loss or of the reward."""
        return not self.since("0.4")

    @property
    def has_loader_batch(self) -> bool:
        """0.4 and later read `data.gen_batch_size` (ray_trainer.py 0.4.0 `_create_dataloader`)."""
        return self.since("0.4")

    @property
    def syncs_within_generation(self) -> bool:
        """Up to 0.7.0 weights go to the engine each time it wakes to generate (`rollout_mode`, fsdp_workers.py), validation
        included; from 0.7.1 the trainer calls `CheckpointEngineManager.update_weights`."""
        return not self.since("0.7.1")

    @property
    def syncs_in_warmup(self) -> bool:
        """0.8 and later sync weights also after a rollout that trains the critic only; 0.7.1 does so only after an update of
        the policy (ray_trainer.py 0.7.1:1504-1533, 0.8.0:1643-1645)."""
        return self.since("0.8")

    @property
    def critic_engine_section(self) -> str:
        """Where the settings of the critic's engine are, below `critic` (ray_trainer.py 0.7.1:716, 0.8.0:812)."""
        return "fsdp" if self.since("0.8") else "model.fsdp_config"

    @property
    def engine_critic_reads_microbatch_size(self) -> bool:
        """Only 0.6 gives `critic.ppo_micro_batch_size_per_gpu` and `critic.use_dynamic_bsz` to the critic of an engine
        (workers/roles/critic.py); later ones leave the engine's own default, which counts tokens (workers/config/engine.py
        0.9.1:100, trainer/ppo/v1/trainer_base.py 0.9.1:266-268)."""
        return not self.since("0.7")


@lru_cache(maxsize=1)
def installed_release() -> VerlRelease | None:
    """The release that is installed here, or None without verl. Looked up once: reading metadata takes milliseconds."""
    from importlib.metadata import PackageNotFoundError  # 15 ms that a plan of a launch does not need
    from importlib.metadata import version as installed

    try:
        return VerlRelease(installed("verl"))
    except PackageNotFoundError:
        return None
