"""Packed rows on a CPU: verl imports this module in every process, and it registers the attention that they need."""

from __future__ import annotations

import wrapt

from tests.systems.verl import packed_attention

MODULE = __name__
OVERRIDES = {
    "actor_rollout_ref.model.use_remove_padding": True,
    "+actor_rollout_ref.model.override_config.attn_implementation": packed_attention.NAME,
}

wrapt.register_post_import_hook(lambda module: packed_attention.install(), "verl.workers.engine.fsdp.transformer_impl")
