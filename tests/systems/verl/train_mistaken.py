"""`train_mistaken.py FOLDER STRATEGY`, started once for each rank: trains verl's policy worker with mistakes of a machine in its
source, one after the other, each in the configuration that it was drawn for.

Ray, engine and controller are left out, so that a case takes seconds: verl's worker, engine, loop and loss are real, the samples are
random tokens, and what a controller would record is written by the session. The observer is the one of real runs.
"""

from __future__ import annotations

import os
import sys
import warnings
from pathlib import Path
from typing import Any

os.environ |= {"VERL_USE_EXTERNAL_MODULES": "verl_cpu.plugin", "WG_PREFIX": "test"}

import torch
import verl  # noqa: F401 - installs what stands in for a GPU
from hydra import compose, initialize_config_module
from verl.trainer.ppo import core_algos  # noqa: F401 - registers its losses
from verl.utils import tensordict_utils
from verl.workers import engine_workers
from verl.workers.utils.padding import left_right_2_no_padding, no_padding_2_padding

from rlstep_hooks.observe.patches import Patches
from rlstep_hooks.record import cadence
from rlstep_hooks.systems.verl.observe import trainer as observed
from rlstep_hooks.systems.verl.observe import trainer_hooks
from rlstep_hooks.systems.verl.observe.environment import FOLDER
from tests.mutants.on_ranks import Mistaken, mistaken, with_lines
from tests.mutants.training import digest
from tests.systems.trl_ranks.cases import Outcome
from tests.systems.trl_ranks.rank_loop import each_case
from tests.systems.verl import flat_on_cpu
from tests.systems.verl.launch import Assets, grpo
from tests.systems.verl.mutants_on_ranks import PASSES, PROMPT, RESPONSE, ROLLOUT, ROLLOUTS, RUNS, UPDATE

VOCABULARY = 200


def configuration(folder: Path, strategy: str, more: dict[str, Any]) -> Any:
    """verl's, of the policy's worker."""
    assets = Assets(folder / "model", folder / "none", folder / "none")
    flags = grpo(assets, ranks=2) | {
        "actor_rollout_ref.actor.strategy": strategy,
        "actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu": 2,
        "actor_rollout_ref.rollout.log_prob_micro_batch_size_per_gpu": 2,
        "actor_rollout_ref.rollout.n": 1,
        "actor_rollout_ref.actor.ppo_mini_batch_size": UPDATE,
        "actor_rollout_ref.actor.optim.total_training_steps": ROLLOUTS,
    }
    # Each key without a mark may be in verl's configuration or not: "++" sets both.
    words = [f"++{name.lstrip('+')}={value}" for name, value in (flags | more).items()]
    with initialize_config_module("verl.trainer.config", version_base=None):
        return compose("ppo_trainer", overrides=words).actor_rollout_ref


def samples(rollout: int) -> Any:
    """Those of one rank, of uneven lengths, as the controller hands them out."""
    draw = torch.Generator().manual_seed(2 * rollout + int(os.environ["RANK"]))
    lengths = torch.randint(3, RESPONSE + 1, (ROLLOUT,), generator=draw)
    mask = (torch.arange(RESPONSE) < lengths[:, None]).long()
    tokens = torch.randint(5, VOCABULARY, (ROLLOUT, PROMPT + RESPONSE), generator=draw)
    attention = torch.cat([torch.ones(ROLLOUT, PROMPT, dtype=torch.long), mask], 1)
    tokens = tokens * attention
    places = torch.arange(PROMPT + RESPONSE).expand(ROLLOUT, -1) * attention
    names = [f"{rollout}-{os.environ['RANK']}-{row}" for row in range(ROLLOUT)]
    return tensordict_utils.get_tensordict(
        tensor_dict={
            "prompts": tokens[:, :PROMPT],
            "responses": tokens[:, PROMPT:],
            "input_ids": tokens,
            "attention_mask": attention,
            "position_ids": places,
            "response_mask": mask,
            "advantages": torch.randn(ROLLOUT, 1, generator=draw) * mask,
            "uid": names,
        },
        non_tensor_dict={"temperature": 1.0, "pad_token_id": 0},
    )


def nothing_is_sent(trainer: Any, number: int) -> None:
    """A sync of weights, of which nobody gets any."""
    trainer.checkpoints.begins()
    trainer.begin("sync")
    trainer.send_numbers()
    trainer.synced(number)
    trainer.end("sync")


def train(folder: Path, place: Path, strategy: str, run: str) -> Outcome:
    """Train a configuration, and leave its record."""
    os.environ[FOLDER] = str(place)
    observed.run_of_ray = lambda: "run"
    trainer_hooks._trainer = None
    torch.manual_seed(int(os.environ["RANK"]))
    config = configuration(folder, strategy, RUNS[run])
    worker = engine_workers.ActorRolloutRefWorker(config, "actor")
    worker.init_model()
    trainer = trainer_hooks._trainer
    assert trainer is not None
    nothing_is_sent(trainer, 0)
    for rollout in range(ROLLOUTS):
        data = left_right_2_no_padding(samples(rollout))
        tensordict_utils.assign_non_tensor(data, calculate_entropy=True, compute_loss=False)
        answer = worker.compute_log_prob(data)
        data["old_log_probs"] = no_padding_2_padding(answer["log_probs"], data).float()
        tensordict_utils.assign_non_tensor(
            data,
            calculate_entropy=config.actor.entropy_coeff != 0,
            global_batch_size=UPDATE,
            mini_batch_size=UPDATE,
            epochs=PASSES[run],
            seed=config.actor.data_loader_seed,
            dataloader_kwargs={"shuffle": config.actor.shuffle},
            compute_loss=True,
        )
        worker.update_actor(data)
        nothing_is_sent(trainer, rollout + 1)
    stepped = [of for group in worker.actor.engine.optimizer.param_groups for of in group["params"]]
    return Outcome(trained=digest(stepped))


def main(folder: Path, strategy: str) -> None:
    """Train all cases that have no outcome yet."""
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    cadence.ALL_OF_FIRST = 1 << 30
    flat_on_cpu.place()
    trainer_hooks.place_hooks(Patches(), engine_workers)

    def one(place: Path, of: Mistaken) -> Outcome:
        with mistaken(of.mutation):
            return with_lines(place, of.traced, lambda: train(folder, place, strategy, of.run))

    each_case(folder, Mistaken, one)
    os._exit(0)  # torch aborts or hangs now and then when the interpreter of a rank exits, after all is done


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2])
