# plan: --rows 17398
python3 train.py --actor-num-nodes 1 --actor-num-gpus-per-node 8 --colocate \
  --prompt-data dapo-math-17k.jsonl --num-rollout 3000 --rollout-batch-size 32 \
  --n-samples-per-prompt 8 --num-steps-per-rollout 4 --optimizer adam --lr 1e-6 \
  --lr-decay-style constant
