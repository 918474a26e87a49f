"""Runs of the Tinker cookbook against a server on this machine that really trains."""
