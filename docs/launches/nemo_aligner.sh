# plan: --rows 5200
python examples/nlp/gpt/train_gpt_ppo_actor.py trainer.num_nodes=1 trainer.devices=8 \
  trainer.ppo.max_epochs=2
