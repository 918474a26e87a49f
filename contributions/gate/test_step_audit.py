"""Training as a regression gate: schedule, advantages, loss and optimizer of GRPO against their formulas.

For the tests of a framework that has GRPOTrainer's interface. It takes the place of tests that train and then ask whether a number is
below a bound that somebody chose, such as `assert gap <= 0.1`: each number is compared with what the same inputs give, and
the bound is what the dtype rounds. `COMPARED` keeps the gate from passing because it looked at nothing.
"""

import pytest
from datasets import Dataset
from trl import GRPOConfig, GRPOTrainer

from rlstep_hooks import StepAuditCallback

MODEL = "trl-internal-testing/tiny-Qwen2ForCausalLM-2.5"
COMPARED = {
    "RLS201",  # rollouts come where the schedule has them: whole numbers
    "RLS204",  # and updates
    "RLS313",  # log-probs of the loss are those of sampling, within 0.0001 on average in float32
    "RLS516",  # advantages are those of the rewards, within what float32 loses in a mean, a difference and a division
    "RLS801",  # the loss is that of its formula
    "RLS806",  # the step is that of the optimizer's formula
}


def reward(completions, **kwargs):
    """Differs between completions, and is the same each time."""
    return [float(sum(map(ord, completion)) % 7) for completion in completions]


@pytest.mark.parametrize("loss_type", ["dapo", "bnpo", "dr_grpo"])
@pytest.mark.rlstep(expect_rollouts=2, expect_updates=4, strict=True)
def test_grpo_is_what_its_configuration_says(loss_type: str, tmp_path, step_audit: StepAuditCallback) -> None:
    """Two updates for each of two rollouts, of two micro-batches each."""
    trainer = GRPOTrainer(
        model=MODEL,
        reward_funcs=reward,
        args=GRPOConfig(
            output_dir=str(tmp_path),
            per_device_train_batch_size=4,
            num_generations=4,
            gradient_accumulation_steps=2,
            num_iterations=2,
            max_completion_length=8,
            max_steps=4,
            loss_type=loss_type,
            learning_rate=1e-4,
            bf16=False,
            report_to="none",
        ),
        train_dataset=Dataset.from_dict({"prompt": [f"What is {number} plus two?" for number in range(8)]}),
        callbacks=[step_audit],
    )
    trainer.train()
    compared = {rule.code for rule in step_audit.report.rules if rule.verdict != "NOT_EVALUATED"}
    assert compared >= COMPARED
