"""Stands for the part of vLLM that SkyRL sends weights with."""
