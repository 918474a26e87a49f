"""SkyRL: sizes in prompts, mini-batches contiguous and in order, one learning-rate tick an update.

Read at commit a956457 (2026-08-21): skyrl/train/config/config.py (defaults), skyrl/train/utils/utils.py `validate_batch_sizes`,
skyrl/train/trainer.py (`train`, `_execute_training_step`).
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from rlstep_hooks.launch.text import SettingError
from rlstep_hooks.planning.phases import Passes, equal_minibatches, schedule_in_phases
from rlstep_hooks.planning.reading import Conversion, Formula, Note, Reading, nearest
from rlstep_hooks.planning.refusal import PlanError
from rlstep_hooks.systems.reader import Reader, Request

if TYPE_CHECKING:
    from collections.abc import Mapping

    from rlstep_hooks.launch.settings import Settings
    from rlstep_hooks.planning.schedule import Schedule

_TRAINER = "SkyRL a956457 skyrl/train/trainer.py"
_CHECKS = "SkyRL a956457 skyrl/train/utils/utils.py validate_batch_sizes"

DEFAULTS: dict[str, Any] = {
    "trainer.train_batch_size": 1024,
    "trainer.policy_mini_batch_size": 256,
    "trainer.critic_mini_batch_size": 256,
    "trainer.micro_train_batch_size_per_gpu": 1,
    "trainer.update_epochs_per_batch": 1,
    "trainer.epochs": 1,
    "trainer.max_training_steps": None,
    "trainer.max_tokens_per_microbatch": -1,
    "trainer.ckpt_interval": 10,
    "trainer.eval_interval": 5,
    "trainer.algorithm.advantage_estimator": "grpo",
    "trainer.algorithm.use_kl_loss": True,
    "trainer.algorithm.use_kl_in_reward": False,
    "trainer.policy.optimizer_config.scheduler": "constant_with_warmup",
    "trainer.policy.optimizer_config.num_warmup_steps": 0,
    "trainer.policy.sequence_parallel_size": 1,
    "trainer.critic.sequence_parallel_size": 1,
    "trainer.placement.policy_num_nodes": 1,
    "trainer.placement.policy_num_gpus_per_node": 1,
    "trainer.placement.critic_num_nodes": 1,
    "trainer.placement.critic_num_gpus_per_node": 1,
    "trainer.policy.megatron_config.tensor_model_parallel_size": 1,
    "trainer.policy.megatron_config.pipeline_model_parallel_size": 1,
    "trainer.policy.megatron_config.context_parallel_size": 1,
    "trainer.critic.model.path": None,
    "generator.n_samples_per_prompt": 5,
}

FORMULAS = (
    Formula(
        "samples_per_rollout",
        "trainer.train_batch_size * generator.n_samples_per_prompt",
        "SkyRL a956457 skyrl/train/config/config.py GeneratorConfig.n_samples_per_prompt",
    ),
    Formula(
        "updates_per_rollout",
        "trainer.update_epochs_per_batch * trainer.train_batch_size / trainer.policy_mini_batch_size",
        f"{_TRAINER} _execute_training_step",
    ),
    Formula(
        "samples_per_update",
        "trainer.policy_mini_batch_size * generator.n_samples_per_prompt",
        "SkyRL a956457 skyrl/train/config/config.py TrainerConfig.policy_mini_batch_size",
    ),
    Formula("rollouts_per_epoch", "floor(rows / trainer.train_batch_size)", f"{_TRAINER} train (drop_last)"),
    Formula("updates", "rollouts * updates_per_rollout", f"{_TRAINER} train"),
)


class SkyRL(Reader):
    """SkyRL's synchronous trainer (`skyrl.train.entrypoints.main_base` and its examples)."""

    name = "skyrl"
    title = "SkyRL"
    version = "a956457"
    overrides = True

    def defaults(self, version: str) -> Mapping[str, Any]:
        """The defaults of skyrl/train/config/config.py."""
        return DEFAULTS

    def read(self, request: Request) -> Reading:
        """The Schedule; see the module for its sources."""
        settings = request.settings
        prompts = settings.count("trainer.train_batch_size")
        samples_per_prompt = settings.count("generator.n_samples_per_prompt")
        epochs = settings.count("trainer.update_epochs_per_batch")
        processes = _processes(settings, "policy")
        world_size = request.world_size(processes)
        estimator = settings.text("trainer.algorithm.advantage_estimator") or "grpo"
        minibatches = _minibatches(settings, "policy", prompts, samples_per_prompt, world_size)
        rows = request.rows("data.train_data")
        passes = Passes.dropping(
            rows.count,
            prompts,
            epochs=settings.count("trainer.epochs"),
            limit=settings.optional_count("trainer.max_training_steps"),
            why=rows.source,
        )
        critic = None
        if settings.text("trainer.critic.model.path") is not None:
            critic = schedule_in_phases(
                framework=self.title,
                version=request.version,
                algorithm=estimator.upper(),
                passes=passes,
                prompts_per_rollout=prompts,
                samples_per_prompt=samples_per_prompt,
                minibatches=_minibatches(
                    settings, "critic", prompts, samples_per_prompt, _processes(settings, "critic")
                ),
                world_size=_processes(settings, "critic"),
                reuse_epochs=epochs,
                samples_per_microbatch=_microbatch(settings, _processes(settings, "critic")),
            )
        with_reference = settings.flag("trainer.algorithm.use_kl_loss") or settings.flag(
            "trainer.algorithm.use_kl_in_reward"
        )
        schedule = schedule_in_phases(
            framework=self.title,
            version=request.version,
            algorithm="PPO" if critic is not None else estimator.upper(),
            passes=passes,
            prompts_per_rollout=prompts,
            samples_per_prompt=samples_per_prompt,
            minibatches=minibatches,
            world_size=world_size,
            reuse_epochs=epochs,
            samples_per_microbatch=_microbatch(settings, world_size),
            syncs="first_and_after_updates",
            reference_source="at_rollout" if with_reference else "none",
            critic=critic,
            settings=settings.written(*DEFAULTS),
            formulas=FORMULAS,
        )
        scheduler = settings.text("trainer.policy.optimizer_config.scheduler") or ""
        return Reading(
            schedule=schedule,
            formulas=FORMULAS,
            notes=(Note("unit", "train_batch_size and policy_mini_batch_size count prompts, not samples"),),
            facts={
                "lr_constant": scheduler.startswith("constant"),
                "lr_warmup": settings.count("trainer.policy.optimizer_config.num_warmup_steps", least=0),
                "save_every": settings.count("trainer.ckpt_interval", least=-1),
                "eval_every": settings.count("trainer.eval_interval", least=-1),
            },
        )

    def write(self, schedule: Schedule) -> Conversion:
        """The same schedule as a launch of SkyRL."""
        from rlstep_hooks.planning.writing import Target

        target = Target(schedule, self.title)
        target.whole_prompts()
        target.divides_evenly()
        minibatch = target.prompts_per_update()
        command = [
            "python", "-m", "skyrl.train.entrypoints.main_base",
            f"trainer.train_batch_size={target.prompts}",
            f"generator.n_samples_per_prompt={schedule.samples_per_prompt}",
            f"trainer.policy_mini_batch_size={minibatch}",
            f"trainer.update_epochs_per_batch={schedule.reuse_epochs}",
            f"trainer.micro_train_batch_size_per_gpu={target.microbatch_per_process()}",
            f"trainer.placement.policy_num_gpus_per_node={schedule.world_size}",
            *(f"trainer.epochs={epochs}" for epochs in [target.passes_of_rows()] if epochs),
            *(f"trainer.max_training_steps={schedule.rollouts}" for _ in [0] if schedule.rollouts),
        ]  # fmt: skip
        target.keeps(lr_clock="update", source="recompute", critic=False, loader="drops")
        return Conversion(tuple(command), target.lost())


def _processes(settings: Settings, role: str) -> int:
    """Data-parallel processes of a role: its GPUs over those that hold one copy of the model."""
    gpus = settings.count(f"trainer.placement.{role}_num_nodes") * settings.count(
        f"trainer.placement.{role}_num_gpus_per_node"
    )
    copies = settings.count(f"trainer.{role}.sequence_parallel_size")
    for parallel in ("tensor_model", "pipeline_model", "context"):
        name = f"trainer.{role}.megatron_config.{parallel}_parallel_size"
        copies *= settings.optional_count(name) or 1
    if gpus % copies:
        raise SettingError(f"{gpus} GPUs of the {role} cannot be shared by copies of the model on {copies} each")
    return gpus // copies


def _microbatch(settings: Settings, world_size: int) -> int | None:
    """Samples of one micro-batch over all processes; None where token counts decide."""
    if settings.count("trainer.max_tokens_per_microbatch", least=-1) > 0:
        return None
    return settings.count("trainer.micro_train_batch_size_per_gpu") * world_size


def _minibatches(
    settings: Settings, role: str, prompts: int, samples_per_prompt: int, world_size: int
) -> tuple[int, ...]:
    """Samples behind each update of one pass.

    Raises:
        PlanError: `validate_batch_sizes` refuses the sizes.
    """
    name = f"trainer.{role}_mini_batch_size"
    size = settings.count(name)
    when = "at start-up, when the configuration is checked"
    if prompts < size:
        raise PlanError(
            f"assert cfg.trainer.train_batch_size >= cfg.{name} ({prompts} < {size})",
            when=when,
            fix=f"{name} counts prompts, not samples; the largest that is accepted is {prompts}",
            source=_CHECKS,
        )
    if prompts % size:
        raise PlanError(
            f"train_batch_size {prompts} should be divisible by {role}_mini_batch_size {size}",
            when=when,
            fix=f"{name} = {nearest(size, lambda v: v <= prompts and prompts % v == 0)}",
            source=_CHECKS,
        )
    per_process = size * samples_per_prompt // world_size
    micro = settings.count("trainer.micro_train_batch_size_per_gpu")
    if settings.count("trainer.max_tokens_per_microbatch", least=-1) <= 0 and (per_process == 0 or per_process % micro):
        raise PlanError(
            f"normalized {role}_mini_batch_size_per_gpu {per_process} should be divisible by "
            f"micro_train_batch_size_per_gpu {micro}",
            when=when,
            fix=f"trainer.micro_train_batch_size_per_gpu = {nearest(micro, lambda v: math.gcd(v, per_process) == v)}",
            source=_CHECKS,
        )
    return equal_minibatches(prompts * samples_per_prompt, prompts // size)


READER = SkyRL()
