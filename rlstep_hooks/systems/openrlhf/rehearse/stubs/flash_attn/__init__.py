"""Stands for flash-attn, which `openrlhf.models.ring_attn_utils` imports at its top."""
