"""The variables by which the processes of an audited OpenRLHF run know of each other. Imports nothing: every process loads it."""

FOLDER = "RLSTEP_DIR"
"""Where the run is recorded."""
RUN = "RLSTEP_RUN"
"""The run's name, for the engine processes, which know nothing of Ray."""
