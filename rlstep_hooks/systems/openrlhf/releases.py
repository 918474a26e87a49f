"""What differs between releases of OpenRLHF, as one table. Read in the wheel of each named release; see `plan` for the formulas."""

from __future__ import annotations

from functools import lru_cache

import msgspec
from packaging.version import Version

FIRST = Version("0.5")
"""First supported release."""
FIRST_UNSUPPORTED = Version("0.12")
"""First release after those that were read."""
SUPPORTED = "0.5 to 0.11"
"""The supported releases, in words."""


class OpenRLHFRelease(msgspec.Struct, frozen=True):
    """The behaviour of one release of OpenRLHF."""

    openrlhf: str

    @property
    def supported(self) -> bool:
        """Whether the source of this release was read."""
        return FIRST <= Version(Version(self.openrlhf).base_version) < FIRST_UNSUPPORTED

    def since(self, release: str) -> bool:
        """Whether this is the named release of OpenRLHF or a later one."""
        return Version(Version(self.openrlhf).base_version) >= Version(release)

    @property
    def has_dotted_names(self) -> bool:
        """0.10.2 and later: `--rollout.batch_size` and nested arguments, before `--rollout_batch_size` (cli/train_ppo_ray.py)."""
        return self.since("0.10.2")

    @property
    def ranks_generate(self) -> bool:
        """Up to 0.6 each trainer draws `rollout_batch_size // processes` prompts of its own and clears its buffer after every
        rollout (trainer/ray/ppo_actor.py 0.6.4:196-217 and :749); later one controller does."""
        return not self.since("0.7")

    @property
    def has_generate_batch(self) -> bool:
        """0.8.1 and later have `vllm_generate_batch_size` (cli/train_ppo_ray.py 0.8.3:307)."""
        return self.since("0.8.1")

    @property
    def loader_gives_generate_batch(self) -> bool:
        """Up to 0.9.0 the loader gives `vllm_generate_batch_size` prompts, all of which are one rollout
        (trainer/ppo_trainer.py 0.9.0:318)."""
        return self.has_generate_batch and not self.since("0.9.1")

    @property
    def buffers_generate_batch(self) -> bool:
        """0.10 and later generate `vllm_generate_batch_size` prompts and train at most `rollout_batch_size` of them at a time
        (trainer/ppo_utils/samples_generator.py 0.11.2:89-138); 0.9.1 to 0.9.10 do not read the setting."""
        return self.since("0.10")

    @property
    def replaces_filtered_prompts(self) -> bool:
        """0.9.1 and later replace a filtered prompt by the next one; before, whole batches are generated until enough are left
        (trainer/ppo_trainer.py 0.9.0:452-483)."""
        return self.since("0.9.1")

    def trains_partial_rollout(self, *, asynchronous: bool) -> bool:
        """Whether the rows that do not fill a rollout become a smaller one at the end of an episode.

        0.9.0 and before drop them in the loader, 0.9.1 to 0.9.8 after drawing them (experience_maker.py 0.9.1:311). From 0.9.9 on
        they are generated, and the asynchronous trainer trains them; the synchronous one throws them away until 0.11
        (trainer/ppo_trainer.py 0.10.4:322-323, 0.11.0:322-325).
        """
        return self.since("0.9.9") if asynchronous else self.since("0.11")

    @property
    def wastes_partial_rollout(self) -> bool:
        """0.9.9 to 0.10.4: the synchronous trainer generates the smaller rollout and does not train it."""
        return self.since("0.9.9") and not self.since("0.11")

    @property
    def repeats_episode_after_oversampling(self) -> bool:
        """0.10.0 to 0.11.0: with samples left in the buffer when the loader is exhausted, it is started anew within the episode
        (trainer/ppo_utils/samples_generator.py 0.11.0:96, 0.11.1:96)."""
        return self.since("0.10") and not self.since("0.11.1")

    @property
    def counts_steps_from_zero(self) -> bool:
        """0.9.1 and later compare a step that starts at 0 with the freezing steps, so that one rollout more is frozen
        (trainer/ppo_trainer.py 0.9.0:424 and 0.9.1:150)."""
        return self.since("0.9.1")

    @property
    def keeps_frozen_samples(self) -> bool:
        """0.7 and later clear the policy's buffer only when the policy is trained (trainer/ray/ppo_actor.py 0.7.5:459)."""
        return not self.ranks_generate

    @property
    def syncs_while_frozen(self) -> bool:
        """0.9.1 and later sync weights after every rollout, before only after those that train the policy
        (trainer/ppo_trainer.py 0.9.0:155-157, 0.9.1:130)."""
        return self.since("0.9.1")

    @property
    def limits_dynamic_updates(self) -> bool:
        """0.10.2 and later make no more updates than a short buffer fills (trainer/ppo_utils/replay_buffer.py 0.10.2:96-101)."""
        return self.since("0.10.2")


@lru_cache(maxsize=1)
def installed_release() -> OpenRLHFRelease | None:
    """The release that is installed here, or None without OpenRLHF. Looked up once: reading metadata takes milliseconds."""
    from importlib.metadata import PackageNotFoundError  # 15 ms that a plan of a launch does not need
    from importlib.metadata import version as installed

    try:
        return OpenRLHFRelease(installed("openrlhf"))
    except PackageNotFoundError:
        return None
