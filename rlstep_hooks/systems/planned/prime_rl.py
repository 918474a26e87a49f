"""prime-rl: one update for each batch of the orchestrator, samples of a bounded age, the sampler's own log-probs in the ratio.

Read at commit 559b447 (2026-08-21): packages/prime-rl-configs/src/prime_rl/configs (orchestrator.py, trainer.py, rl.py),
src/prime_rl/orchestrator/train_sink.py `TrainSink`, src/prime_rl/trainer/rl/train.py `train`, src/prime_rl/trainer/rl/loss.py.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from rlstep_hooks.launch.text import SettingError
from rlstep_hooks.systems.engine.declaration import Check, Demand, Entry, Formula, Note, System, count, text

if TYPE_CHECKING:
    from rlstep_hooks.systems.engine.request import Request

_COMMIT = "prime-rl 559b447"
_CONFIGS = f"{_COMMIT} packages/prime-rl-configs/src/prime_rl/configs"
_BATCHING = f"{_CONFIGS}/orchestrator.py OrchestratorConfig.resolve_batching"
_RATE = f"{_CONFIGS}/trainer.py validate_scheduler"
_TRAINER = f"{_COMMIT} src/prime_rl/trainer/rl/train.py train"
_START_UP = "at start-up, when the configuration is read"


def _from_file(launch: Request, section: str) -> bool:
    """Whether a section has a file of its own (`--orchestrator @ FILE`)."""
    return launch.settings.is_given(section) and "@" in launch.settings.files(section)


def _group_sizes(launch: Request, common: int) -> tuple[int, ...]:
    """Samples of one prompt: a source may have a number of its own (`TrainSourceConfig.group_size`), else it has the common one.

    Raises:
        SettingError: One is no number.
    """
    sources = launch.settings.value("orchestrator.train.source")
    if not isinstance(sources, list):
        return (common,)
    sizes = {source.get("group_size", common) for source in sources if isinstance(source, dict)} or {common}
    if not all(isinstance(size, int) and size > 0 for size in sizes):
        place = launch.settings.place("orchestrator.train.source")
        raise SettingError("group_size of a source is not a whole number of at least 1", place)
    return tuple(sorted(sizes))


SYSTEM = System(
    name="prime_rl",
    title="prime-rl",
    version="559b447",
    recognised=(
        Entry(
            "prime_rl",
            programs=(
                "executable:rl",
                "executable:rl @",
                "module:prime_rl.entrypoints.rl",
                "executable:orchestrator",
                "module:prime_rl.entrypoints.orchestrator",
            ),
            keys=("orchestrator.batch_size", "orchestrator.rollouts_per_example", "orchestrator.group_size"),
        ),
    ),
    settings={
        # The standalone orchestrator has the same settings without the part in front.
        "orchestrator.batch_size": count(128, also=("batch_size",)),
        "orchestrator.token_batch_size": text(also=("token_batch_size",)),
        "orchestrator.group_size": count(1, also=("group_size",)),
        "orchestrator.rollouts_per_example": count(also=("rollouts_per_example",)),
        "orchestrator.algo.type": text(also=("algo.type",), where="given(orchestrator.algo.type)"),
        "orchestrator.max_off_policy_steps": count(8, least=0, also=("max_off_policy_steps",)),
        "max_steps": count(None),
        "trainer.max_steps": count(),
        "orchestrator.max_steps": count(),
        "trainer.scheduler.type": text("constant"),
        "trainer.scheduler.warmup_steps": count(10, least=0),
        "trainer.scheduler.decay_steps": count(10, least=0),
        "trainer.model.cp": count(1),
        "deployment.type": text("single_node"),
        "deployment.num_train_gpus": count(1),
        "deployment.num_train_nodes": count(),
        "deployment.gpus_per_node": count(8),
        "ckpt.interval": count(also=("trainer.ckpt.interval",)),
        "orchestrator.eval.interval": count(also=("eval.interval",)),
    },
    functions={
        "from_file": _from_file,
        "group_sizes": _group_sizes,
        "listed": lambda sizes: ", ".join(map(str, sizes)),
    },
    let={
        "batch": "orchestrator.batch_size",
        "group": "orchestrator.rollouts_per_example or orchestrator.group_size",
        "sizes": "group_sizes(launch, group)",
        "samples_per_prompt": "max(sizes)",
        "steps": "max_steps or orchestrator.max_steps",
        "updates": "rollouts",
        "gpus": "deployment.num_train_nodes * deployment.gpus_per_node if deployment.type == 'multi_node' "
        "else deployment.num_train_gpus",
        "processes": "max(gpus // trainer.model.cp, 1)",
        "linear": "trainer.scheduler.type == 'linear'",
        "warmup": "0 if trainer.scheduler.type == 'constant' else trainer.scheduler.warmup_steps",
        "decay": "trainer.scheduler.decay_steps",
        "constant": "trainer.scheduler.type == 'constant' or linear and decay == 0",
        "rows_dropped_per_epoch": "0 if known(rows) else None",
        "data_epochs": "unknown('samples are dropped and replaced as the run goes')",
        "loader_epochs": "data_epochs",
    },
    always={
        "algorithm": "GRPO",
        "loader": "wraps",
        "rows_bound": "data_dependent",
        "syncs": "first_and_after_updates",
        "old_logprob_source": "engine",
    },
    formulas=(
        Formula(
            "samples_per_rollout",
            "orchestrator.batch_size",
            f"{_COMMIT} src/prime_rl/orchestrator/train_sink.py process_batch",
        ),
        Formula("prompts_per_rollout", "orchestrator.batch_size / samples_per_prompt", _BATCHING),
        Formula("updates_per_rollout", "1", _TRAINER),
        Formula("rollouts", "steps or unknown('the run has no end')", _TRAINER),
        Formula("lr_ticks", "updates", _TRAINER),
        Formula(
            "max_age",
            "orchestrator.max_off_policy_steps",
            f"{_COMMIT} src/prime_rl/orchestrator/utils.py min_fresh_version",
        ),
    ),
    checks=(
        Demand(
            "orchestrator.algo.type != 'sft'",
            "orchestrator.algo.type = sft learns the texts of a teacher: the policy samples nothing",
            about="orchestrator.algo.type",
            where="given(orchestrator.algo.type)",
        ),
        *(
            Demand(
                f"not from_file(launch, '{section}')",
                f"--{section} @ FILE is not read here; put its settings into one file, below [{section}]",
                about=section,
            )
            for section in ("orchestrator", "trainer")
        ),
        Demand(
            "len(sizes) == 1",
            "the sources have several group sizes ({listed(sizes)}): samples for each prompt are not one number",
            about="orchestrator.train.source",
        ),
        Check(
            "not (given(orchestrator.token_batch_size) and given(orchestrator.batch_size))",
            "Set exactly one of batch_size or token_batch_size",
            fix="no token_batch_size",
            when=_START_UP,
            source=_BATCHING,
        ),
        Demand(
            "not given(orchestrator.token_batch_size)",
            "token_batch_size counts tokens: the samples of an update depend on their lengths; give batch_size for a plan",
            about="orchestrator.token_batch_size",
        ),
        Check(
            "batch % group == 0",
            "Batch size must be divisible by the number of samples per problem ({batch} % {group})",
            fix="orchestrator.batch_size = {multiples(batch, samples_per_prompt)}",
            when=_START_UP,
            source=_BATCHING,
        ),
        Check(
            "trainer.max_steps == orchestrator.max_steps",
            "Trainer max steps ({trainer.max_steps}) and orchestrator max steps ({orchestrator.max_steps}) are not the same. Please "
            "specify the same max steps for both.",
            fix="max_steps = {trainer.max_steps} for both",
            when=_START_UP,
            source=f"{_COMMIT} packages/prime-rl-configs/src/prime_rl/utils/validation.py validate_shared_max_steps",
            where="max_steps is None and given(trainer.max_steps)",
        ),
        Check(
            "warmup > 0 or decay > 0",
            "Linear scheduler requires warmup_steps > 0 or decay_steps > 0 (use the constant scheduler instead)",
            fix="trainer.scheduler.type = constant",
            when=_START_UP,
            source=_RATE,
            where="linear",
        ),
        Check(
            "constant or steps is not None",
            "Must specify max_steps when using a {'linear scheduler with decay_steps > 0' if linear else 'cosine scheduler'}",
            fix="max_steps = N",
            when=_START_UP,
            source=_RATE,
        ),
        Check(
            "warmup < steps",
            "warmup_steps ({warmup}) must be less than max_steps ({steps})",
            fix="trainer.scheduler.warmup_steps = {steps - 1} or less",
            when=_START_UP,
            source=_RATE,
            where="not constant and not linear",
        ),
        Check(
            "warmup + decay <= steps",
            "warmup_steps ({warmup}) + decay_steps ({decay}) must not exceed max_steps ({steps})",
            fix="max_steps = {warmup + decay} or more",
            when=_START_UP,
            source=_RATE,
            where="not constant and linear",
        ),
    ),
    notes=(
        Note(
            "unit",
            "batch_size counts samples; one that branches is several rows for the trainer, all in the same update",
        ),
        Note("drops", "samples older than max_off_policy_steps are dropped, and replaced by newer ones"),
        Note(
            "assumes",
            f"rollouts_per_example is group_size of {_COMMIT}, which does not take the older name",
            "given(orchestrator.rollouts_per_example)",
        ),
        Note("assumes", "without max_steps the run has no end", "steps is None"),
    ),
    facts={
        "lr_constant": "constant",
        "lr_warmup": "warmup",
        "save_every": "ckpt.interval",
        "eval_every": "orchestrator.eval.interval",
    },
)
