"""TRL with the real vLLM on the CPU (`nox -s vllm`)."""
