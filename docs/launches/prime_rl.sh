# plan: --rows 10000
uv run rl --orchestrator.batch_size 128 --orchestrator.group_size 16 --max-steps 100
