"""Loaded by every Python process of a launch, before its own code."""

import os

from rlstep_hooks.systems.openrlhf.rehearse.cpu import install

EXTRA_MODULE = "RLSTEP_TEST_MODULE"
"""Names a module that each process of the launch imports after the patches (faults)."""

install()
if os.environ.get(EXTRA_MODULE):
    __import__(os.environ[EXTRA_MODULE])
