"""Stands for flash-attention, which SkyRL imports and, with `trainer.flash_attn=false`, does not call."""
