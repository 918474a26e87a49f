"""Fuzzing of what reads other people's text: launch commands and recorded files."""
