"""Stands for flash_attn.utils."""
