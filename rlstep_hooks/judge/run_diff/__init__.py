"""Where two recorded runs part, or a recorded run and a plan. Computes only; `rlstep_hooks.show.run_diff` shows it."""
