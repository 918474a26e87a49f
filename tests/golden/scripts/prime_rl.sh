# plan: --rows 10000
# expect: framework=prime_rl updates_per_rollout=1
uv run rl --orchestrator.batch_size 128 --orchestrator.group_size 16 --max-steps 100
