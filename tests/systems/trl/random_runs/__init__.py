"""Random legal configurations of GRPO and RLOO, drawn from the dataclass of the installed release and trained for real.

    python -m tests.systems.trl.random_runs --runs 500 --seed 1

A healthy run must have no finding. What the framework itself refuses is drawn again and counted.
"""
