"""`rlstep rehearse`: the user's own launch in small on this machine, before a GPU is rented.

`run` starts the user's script in a child process and reads what it leaves behind. In the child `site/sitecustomize.py` makes way for
the script: `child` registers what is changed at which import, `models` puts a tiny random model in the place of the real one, `data`
makes rows in the place of sets that are not here, `rewards` watches the reward functions, and `trl` makes the sizes small and the run
short. Nothing of this is active in any other process.
"""
