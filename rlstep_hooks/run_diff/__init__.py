"""Where two recorded runs part, or a recorded run and a plan. Computes only; `rlstep_hooks.render.run_diff` shows it."""
