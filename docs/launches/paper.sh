# plan: --rows 8532
paper --prompts-per-rollout 1024 --samples-per-prompt 8 --samples-per-update 2048 \
  --rollouts 100 --title "a paper"
