# plan:
python ppo_mujoco.py collector.total_frames=1000000
