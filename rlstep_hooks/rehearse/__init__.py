"""`rlstep rehearse`: the user's own launch in small on this machine, before a GPU is rented.

`run` starts the user's script in a child process and reads what it leaves behind; `outcome` makes the table of it. In the child, and in
every Python process that it starts, `site/sitecustomize.py` makes way for the script: `child` registers what is changed at which
import, `models` puts a tiny random model in the place of the real one, `data` makes rows in the place of sets that are not here.
What a framework needs besides is in a package of its own (`trl`); `framework` says what that must give. Nothing of this is active
in any other process.
"""
