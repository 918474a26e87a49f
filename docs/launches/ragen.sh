# plan: --world-size 1
python train.py --config-name _2_sokoban trainer.experiment_name=sokoban-ppo \
  es_manager.train.env_groups=16 es_manager.train.env_configs.n_groups=[16] trainer.total_training_steps=100
