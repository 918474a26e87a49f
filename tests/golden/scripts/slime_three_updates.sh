# plan: --rows 1000
# expect: framework=slime updates_per_rollout=3 samples_per_update=85 samples_dropped_per_rollout=1
python train.py --num-rollout 10 --rollout-batch-size 32 --n-samples-per-prompt 8 --num-steps-per-rollout 3 --use-dynamic-batch-size --max-tokens-per-gpu 9216 \
  --actor-num-nodes 1 --actor-num-gpus-per-node 1
