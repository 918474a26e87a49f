"""verl's training: whole launches with Ray of the trainer whose rollouts can be repeated; modules are mutated in every process.

A launch takes the better part of a minute, so that a hundred mutants take most of an hour.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from tests.mutants import verl_process
from tests.mutants.run import Target
from tests.systems.audited import read
from tests.systems.verl.audited import ROOT, alarms, logged, metrics
from tests.systems.verl.launch import Assets, critic, grpo, launch, reference

if TYPE_CHECKING:
    from pathlib import Path

    from tests.mutants.operators import Mutation
    from tests.systems.processes import Outcome

MODULES = (
    "verl.trainer.ppo.core_algos", "verl.trainer.ppo.ray_trainer", "verl.trainer.ppo.rollout_corr_helper",
    "verl.trainer.ppo.reward", "verl.workers.engine_workers", "verl.workers.utils.losses", "verl.workers.utils.padding",
    "verl.workers.engine.fsdp.transformer_impl", "verl.workers.engine.utils", "verl.utils.torch_functional",
    "verl.utils.seqlen_balancing", "verl.utils.fsdp_utils", "verl.utils.tensordict_utils",
    "verl.utils.dataset.dataset_utils",
)  # fmt: skip
ACTOR, ROLLOUT = "actor_rollout_ref.actor", "actor_rollout_ref.rollout"
REPEATABLE = {
    "trainer.use_v1": False,
    f"{ROLLOUT}.full_determinism": True,
    "trainer.total_training_steps": 3,
}
"""Rollouts of the newer trainers order samples by random names."""


def _passes(assets: Assets) -> dict[str, Any]:
    return critic(assets) | reference(loss=False) | {
        f"{ACTOR}.ppo_epochs": 2, f"{ACTOR}.shuffle": True, "critic.fsdp.full_determinism": True, "algorithm.gamma": 0.9,
        "algorithm.lam": 0.8, f"{ACTOR}.optim.lr_warmup_steps": 3, f"{ACTOR}.optim.lr_scheduler_type": "cosine",
        f"{ACTOR}.ppo_micro_batch_size_per_gpu": 2,
        "algorithm.kl_ctrl.type": "adaptive", "algorithm.kl_ctrl.horizon": 100, "algorithm.kl_ctrl.target_kl": 0.01,
    }  # fmt: skip


def _terms(assets: Assets) -> dict[str, Any]:
    return reference() | {
        f"{ACTOR}.entropy_coeff": 0.01, f"{ACTOR}.kl_loss_coef": 0.5, f"{ACTOR}.use_dynamic_bsz": True,
        f"{ACTOR}.clip_ratio_high": 0.28, f"{ACTOR}.ppo_max_token_len_per_gpu": 160, f"{ACTOR}.optim.clip_grad": 0.05,
        f"{ACTOR}.loss_agg_mode": "seq-mean-token-sum", f"{ACTOR}.optim.weight_decay": 0.1,
        f"{ROLLOUT}.calculate_log_probs": True, "algorithm.rollout_correction.rollout_is": "token",
        "algorithm.rollout_correction.rollout_is_threshold": 1.01,
    }  # fmt: skip


RUNS = {"passes": _passes, "terms": _terms}
"""Each has what the other lacks: a critic, passes, KL in the reward, a schedule; terms of the loss, weights, batches by tokens."""


@dataclass(frozen=True)
class Launched:
    """A launch of one configuration.

    Attributes:
        name: What it is called.
        overrides: Of verl's configuration, besides those of a tiny GRPO run.
        limit_s: Seconds after which it is ended.
    """

    name: str
    overrides: Any
    limit_s: float = 300.0

    def audited(self, folder: Path, mutation: Mutation | None = None) -> dict[str, Any]:
        """Train with the audit: the training, the verdict, and the findings that are more than information."""
        variables = {"RLSTEP_DIR": str(folder / "log")}
        if mutation is not None:
            variables[verl_process.MUTATION] = json.dumps(asdict(mutation))
        outcome = self._launch(folder, variables)
        if outcome.status != 0:
            return {"raised": _last_error(outcome.output)} if outcome.status is not None else {"hung": True}
        report = read(outcome, folder / "log").report
        return {
            "training": _training(outcome),
            "verdict": report.verdict,
            "findings": [
                {"code": f.code, "severity": f.severity, "title": f.title, "text": str(f)} for f in alarms(report)
            ],
            "not_evaluated": dict(report.not_evaluated),
        }

    def bare_with_lines(self, modules: tuple[str, ...], folder: Path) -> dict[str, Any]:
        """Train without the audit: the training, and the lines of some modules that ran."""
        outcome = self._launch(folder, {verl_process.TRACED: ",".join(modules)})
        if outcome.status != 0:
            return {"raised": _last_error(outcome.output)}
        lines: dict[str, set[int]] = {module: set() for module in modules}
        for file in outcome.folder.glob("lines*"):
            for module, line in map(json.loads, file.read_text().splitlines()):
                lines[module].add(line)
        return {"training": _training(outcome), "lines": {module: sorted(found) for module, found in lines.items()}}

    def _launch(self, folder: Path, variables: dict[str, str]) -> Outcome:
        folder.mkdir(parents=True, exist_ok=True)
        assets = Assets.write(folder)
        given = grpo(assets) | self.overrides(assets) | REPEATABLE
        environment = {"PYTHONPATH": str(ROOT), verl_process.FOLDER: str(folder)} | variables
        return launch(logged(given), folder, modules=[verl_process.MODULE], environment=environment, limit=self.limit_s)


def _training(outcome: Outcome) -> dict[str, Any]:
    steps = [file.read_text().splitlines() for file in outcome.folder.glob("steps*")]
    logs = [{name: repr(value) for name, value in entry.items()} for entry in metrics(outcome)]
    return {"steps": [step for of_process in steps for step in of_process], "weights": "", "logs": logs}


def _last_error(output: str) -> str:
    lines = [line.strip() for line in output.splitlines() if "Error" in line or "error:" in line]
    return (lines or ["no error is named"])[-1][:300]


TARGETS = {
    "verl": Target(modules=MODULES, runs=tuple(Launched(name, overrides) for name, overrides in RUNS.items())),
}
