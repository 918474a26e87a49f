# plan: --rows 57000
python -m playground.orz_7b_ppo
