"""Helpers for those who test their own adapters and training code. Imports no framework; the submodules do."""
