"""What every rehearsal of a launch shares in the child process, and in every Python process that it starts.

`site/sitecustomize.py` makes way for the user's script: `child` registers what is changed at which import, `models` puts a tiny random
model in the place of the real one, `data` makes rows in the place of sets that are not here. No framework is known here: its system's
folder `rehearse` holds what it needs besides, and `framework` says what that must give. Nothing of this is active in any other process.
`rlstep_hooks.cli.rehearse` starts the child and makes the table of what it says (`messages`).
"""

from pathlib import Path

SITE = Path(__file__).parent / "site"
"""The folder with the `sitecustomize` of a rehearsal."""
