# expect: framework=cleanrl updates_per_rollout=16 rollouts=976 updates=15616
for seed in 1
do
  python cleanrl/ppo.py --seed $seed --env-id CartPole-v1 --total-timesteps 500000 --num-envs 4 --num-steps 128
done
