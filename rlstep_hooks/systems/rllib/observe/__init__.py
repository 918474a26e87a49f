"""Hooks on a running algorithm: what each sees and which event it gives."""
