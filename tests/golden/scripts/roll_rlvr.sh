# plan: --rows 10000
# expect: framework=roll samples_per_rollout=512 updates_per_rollout=1
CONFIG_PATH=examples/rlvr
python examples/start_rlvr_pipeline.py --config_path $CONFIG_PATH --config_name rlvr_config
