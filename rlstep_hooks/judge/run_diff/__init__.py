"""The first difference between two recorded runs, or between a run and a plan. `rlstep_hooks.show.run_diff` shows it."""
