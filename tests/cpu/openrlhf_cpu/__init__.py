"""What tests of OpenRLHF 0.11 train with: a tiny model, its rows, a reward, and the patches for the CPU in every process.

Put `site` of this folder, and the folder above it, on `PYTHONPATH`: every Python process of the launch then loads
`site/sitecustomize.py`, which installs `rlstep_hooks.systems.openrlhf.rehearse.cpu`, the patches of `rlstep rehearse`. DeepSpeed's own
Adam is real here, so a compiler is needed.
"""
