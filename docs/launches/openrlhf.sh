# plan: --rows 8000
python3 -m openrlhf.cli.train_ppo_ray --actor.num_nodes 1 --actor.num_gpus_per_node 8 \
  --actor.model_name_or_path OpenRLHF/Llama-3-8b-sft --data.prompt_dataset prompts \
  --rollout.batch_size 256 --rollout.n_samples_per_prompt 16 \
  --rollout.micro_batch_size 16 --train.batch_size 128 --train.micro_batch_size 8 \
  --train.max_epochs 1 --train.num_episodes 1 --algo.advantage.estimator group_norm \
  --vllm.num_engines 8 --train.colocate_all
