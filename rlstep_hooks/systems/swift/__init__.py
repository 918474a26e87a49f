"""ms-swift: its GRPO on transformers' Trainer, planned and observed, and the one on Megatron, planned only."""
