"""Assets for training verl on a CPU in tests, and a module that installs what `rlstep_hooks.systems.verl.rehearse.cpu` has for it.

Put this package's parent folder on `PYTHONPATH` and name `verl_cpu.plugin` in `VERL_USE_EXTERNAL_MODULES`: verl then
imports it in the driver and in every Ray worker. Also set the variables of `rlstep_hooks.systems.verl.rehearse.cpu.ENVIRONMENT`,
and a logical GPU for Ray's scheduler.
"""
