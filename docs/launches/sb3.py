# plan:
from stable_baselines3 import PPO
from stable_baselines3.common.env_util import make_vec_env

env = make_vec_env("CartPole-v1", n_envs=4)
PPO("MlpPolicy", env, n_steps=150, batch_size=256, n_epochs=3).learn(100_000)
