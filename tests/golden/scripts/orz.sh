# plan: --rows 57000
# expect: framework=open_reasoner_zero
set -o pipefail
DEBUG_MODE=False python -m playground.orz_7b_ppo 2>&1 | tee orz.log
