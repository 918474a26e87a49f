"""Compares what happened with what was planned. Imports no framework."""
