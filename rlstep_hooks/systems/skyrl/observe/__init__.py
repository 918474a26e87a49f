"""Hooks on a running trainer: what each sees and which event it gives."""
