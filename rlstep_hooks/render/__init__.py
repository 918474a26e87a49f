"""Names of release 0.1 for views; today they are in `rlstep_hooks.show`."""
