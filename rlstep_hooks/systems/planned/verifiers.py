"""verifiers' RLTrainer (`vf-rl`, `vf-train`, 0.1.7 and later): one update for each rollout, which is generated while the one before is
trained.

Read at PrimeIntellect-ai/verifiers v0.1.7, v0.1.8, v0.1.9 and v0.1.14 (there packages/verifiers-rl/verifiers_rl/rl/trainer): config.py
(`RLConfig`), trainer.py (`RLTrainer.training_step`, `update_vllm`, `get_train_dataloader`), orchestrator.py (`get_dataset_slice`,
`generate_batch`), scripts/rl.py (`build_train_command`) and scripts/train.py. As to the plan they are the same, but that from 0.1.8 on
each turn is a row of its own. The older GRPOTrainer is `rlstep_hooks.systems.planned.verifiers_grpo`.
"""

from rlstep_hooks.systems.engine.declaration import Check, Entry, Formula, Note, System, count, number, text

_SOURCE = "verifiers 0.1.14 verifiers_rl/rl/trainer"
_ORCHESTRATOR = f"{_SOURCE}/orchestrator.py"
_ARGS = "trainer.args"


def _args(name: str) -> tuple[str, ...]:
    return (f"{_ARGS}.{name}",)


SYSTEM = System(
    name="verifiers",
    title="verifiers RLTrainer",
    version="0.1.14",
    releases=("0.1.7", "0.2"),
    other_releases="0.1.2 to 0.1.6 have GRPOTrainer, and 0.2 no trainer",
    trainers={"RLTrainer": ("get_train_dataloader", "train", "training_step")},
    recognised=(
        Entry(
            "verifiers",
            programs=(
                "executable:vf-rl",
                "executable:vf-train",
                "module:verifiers.scripts.train",
                "module:verifiers_rl.scripts.train",
            ),
            keys=("trainer.args.rollouts_per_example", "trainer.args.micro_batch_size", "trainer.args.batch_size"),
            before="prime_rl",
        ),
        Entry("verifiers", calls=("RLTrainer", "RLConfig"), packages=("verifiers", "verifiers_rl")),
    ),
    settings={
        "rollouts_per_example": count(16, also=_args("rollouts_per_example")),
        "batch_size": count(512, also=_args("batch_size")),
        "micro_batch_size": count(8, also=_args("micro_batch_size")),
        "max_steps": count(500, also=_args("max_steps")),
        "lr_scheduler_type": text("constant", also=_args("lr_scheduler_type")),
        "warmup_steps": count(0, least=0, also=_args("warmup_steps")),
        "save_steps": number(50, also=_args("save_steps")),
        "trainer.gpus": count(1),
    },
    let={
        "samples_per_prompt": "rollouts_per_example",
        "samples_per_update": "samples_per_rollout",
        "processes": "1 if program_kind in ('executable', 'config') else None",
        "turns": "unknown('each turn of an episode is a row of its own: how many there are, only the episodes show')",
        "samples_per_microbatch": "micro_batch_size * world_size if release < (0, 1, 8) else turns",
        "updates": "rollouts",
        "rows_dropped_per_epoch": "0 if known(rows) else None",
    },
    always={
        "algorithm": "GRPO",
        "loader": "wraps",
        "rows_reshuffled": False,
        "reuse_epochs": 1,
        "updates_per_rollout": 1,
        "old_logprob_source": "engine",
        "syncs": "first_and_after_updates",
    },
    formulas=(
        Formula(
            "prompts_per_rollout", "floor(batch_size / rollouts_per_example)", f"{_ORCHESTRATOR} Orchestrator.__init__"
        ),
        Formula("samples_per_rollout", "prompts_per_rollout * rollouts_per_example", f"{_ORCHESTRATOR} generate_batch"),
        Formula("rollouts", "max_steps", f"{_SOURCE}/trainer.py get_train_dataloader"),
        Formula("max_age", "1", f"{_SOURCE}/trainer.py training_step (submits the next batch before it trains)"),
        Formula("lr_horizon", "max_steps", "transformers Trainer.create_scheduler"),
    ),
    checks=(
        Check(
            "batch_size % (micro_batch_size * world_size) == 0",
            "AssertionError: batch_size must be divisible by (micro_batch_size * num_processes).",
            fix="batch_size = {multiples(batch_size, micro_batch_size * world_size)}",
            when="when the configuration is built",
            source=f"{_SOURCE}/config.py __post_init__",
        ),
        Check(
            "rollouts_per_example > 1",
            "AssertionError: 2 or more rollouts per example are required.",
            fix="rollouts_per_example = 2 or more",
            when="when the configuration is built",
            source=f"{_SOURCE}/config.py __post_init__",
        ),
    ),
    notes=(
        Note(
            "unit", "batch_size counts samples: {batch_size} are {prompts_per_rollout} prompts x {rollouts_per_example}"
        ),
        Note(
            "shrinks",
            "{batch_size} // {rollouts_per_example} = {prompts_per_rollout} prompts: a rollout has {samples_per_rollout} samples, not "
            "{batch_size}",
            "batch_size % rollouts_per_example",
        ),
        Note(
            "assumes",
            "each rollout but the first is generated with the weights of one update before those that train on it",
        ),
        Note(
            "ignores",
            "trainer.gpus = {trainer.gpus}: vf-rl starts one process of vf-train, to which so many devices are visible",
            "trainer.gpus > 1",
        ),
    ),
    facts={
        "lr_constant": "starts(lr_scheduler_type, 'constant')",
        "lr_warmup": "warmup_steps",
        "save_every": "floor(save_steps) if save_steps >= 1 else None",
        "minibatch_unit": "'samples'",
        "nominal_updates_per_rollout": "1",
    },
)
