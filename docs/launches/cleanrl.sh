# plan:
python cleanrl/ppo.py --env-id CartPole-v1 --total-timesteps 500000 --num-envs 4 \
  --num-steps 128
