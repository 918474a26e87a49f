"""`python -m rlstep_hooks`: the same as the `rlstep` command."""

from rlstep_hooks.cli import main

main()
