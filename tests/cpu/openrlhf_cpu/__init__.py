"""What lets OpenRLHF 0.11 train without a GPU, for tests. No file of an installed package is changed.

Put `site` and `stubs` of this folder, and the folder above it, on `PYTHONPATH`: every Python process of the launch then loads
`site/sitecustomize.py`, which installs `shims`. Real are Ray, DeepSpeed (ZeRO, its optimizers and schedulers), vLLM's CPU engine, its
sampling and the loading of every weight that is synced to it. Replaced is what needs CUDA: device names, NCCL, flash-attn.
"""
