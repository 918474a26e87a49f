# plan:
python -m baselines.run --alg=ppo2 --env=BreakoutNoFrameskip-v4 --num_timesteps=1e7 \
  --num_env=8 --nsteps=128 --noptepochs=3 --nminibatches=4
