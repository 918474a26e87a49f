# plan: --framework rllib
from ray.rllib.algorithms.ppo import PPOConfig

config = (
    PPOConfig()
    .environment("CartPole-v1")
    .training(train_batch_size_per_learner=2000, minibatch_size=200, num_epochs=5)
    .learners(num_learners=2)
)
