"""What does this GRPOConfig mean? The plan, without training.

python examples/trl_plan.py
"""

from __future__ import annotations

from rich.console import Console
from trl import GRPOConfig

from rlstep_hooks import plan
from rlstep_hooks.show.console import plan_table


def main() -> None:
    """Print the plan of two configurations that look alike."""
    console = Console()
    for num_iterations in (1, 4):
        config = GRPOConfig(
            output_dir="unused",
            per_device_train_batch_size=8,
            gradient_accumulation_steps=4,
            num_generations=8,
            num_iterations=num_iterations,
            num_train_epochs=1,
            use_cpu=True,
            bf16=False,
            report_to=[],
        )
        schedule = plan(config, rows=1000, world_size=8)
        console.print(plan_table(schedule))
        console.print(
            f"updates on samples older than the weights: {'none' if schedule.lags == (0,) else schedule.lags[1:]}\n"
        )


if __name__ == "__main__":
    main()
