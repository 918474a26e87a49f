"""The variables that connect the processes of an audited OpenRLHF run. Imports nothing, because every process loads it."""

FOLDER = "RLSTEP_DIR"
"""Where the run is recorded."""
RUN = "RLSTEP_RUN"
"""The run's name, for the engine processes, which know nothing of Ray."""
