"""The variable that asks for an audit of a verl run. Imports nothing: every process that verl starts loads it."""

FOLDER = "RLSTEP_DIR"
"""Where the run is recorded."""
