# plan:
python -m tinker_cookbook.recipes.math_rl.train env=arithmetic model_name=Qwen/Qwen3.5-9B \
  groups_per_batch=100 group_size=4 num_substeps=2 learning_rate=1e-4 max_tokens=5 \
  loss_fn=importance_sampling max_steps=50
