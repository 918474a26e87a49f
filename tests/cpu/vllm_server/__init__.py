"""What a vLLM server needs on a CPU, and the trainer that sends weights to it.

Put `site` of this folder, and the folder above it, on `PYTHONPATH` of the server: each of its processes then loads
`site/sitecustomize.py`. The trainer's process calls `gloo.install` itself.
"""
