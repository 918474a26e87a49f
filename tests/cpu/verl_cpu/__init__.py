"""What lets verl 0.9 train without a GPU, for tests. No file of verl is changed.

Put this package's parent folder on `PYTHONPATH` and name `verl_cpu.plugin` in `VERL_USE_EXTERNAL_MODULES`: verl then
imports it in the driver and in every Ray worker. Also set `VERL_PLATFORM=cpu`, `VERL_ENGINE_DEVICE=cuda` (verl registers
its FSDP engine for accelerators only, workers/engine/base.py:403) and a logical GPU for Ray's scheduler.
"""
