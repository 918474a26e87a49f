"""Adapters: one folder a framework. Each reads a live configuration (plan) and hooks a running trainer (observe)."""
