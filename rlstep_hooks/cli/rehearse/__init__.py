"""`rlstep rehearse`: the user's own launch in small on this machine, before a GPU is rented.

`command` says what the launch runs, `run` runs it in a child process and reads what that leaves behind, `outcome` makes the table of
it. What is changed in the child is in `rlstep_hooks.rehearse`.
"""
