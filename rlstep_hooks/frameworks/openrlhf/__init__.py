"""Names of release 0.1 for OpenRLHF; today they are in `rlstep_hooks.openrlhf`."""
