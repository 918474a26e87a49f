"""The variables that connect an engine process of vLLM with its run. Imports nothing, because vLLM loads it wherever it runs."""

FOLDER = "RLSTEP_DIR"
"""Where the run is recorded."""
RUN = "RLSTEP_RUN"
"""The run's name."""
