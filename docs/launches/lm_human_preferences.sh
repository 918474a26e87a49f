# plan: --framework lm_human_preferences
python launch.py train_policy sentiment run
