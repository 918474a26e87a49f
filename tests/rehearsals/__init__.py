"""Launches to rehearse: real ones, and ones that are broken on purpose."""
