"""Hooks on the client and on the loop: what each sees and which event it gives."""
