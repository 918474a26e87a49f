"""How the audit reaches an engine process of vLLM. Imports nothing but the standard library: vLLM loads it wherever vLLM runs.

The process takes part in a run if its environment names the run's folder and its name, which a process of the run has set. A server
that a user starts names a folder for its engines.
"""

from __future__ import annotations

from rlstep_hooks.systems.vllm_engine.environment import place


def setup() -> None:
    """Attach this engine process, where it belongs to an audited run."""
    if place() is None:
        return
    try:
        from rlstep_hooks.systems.vllm_engine.worker import attach

        attach()
    except Exception as error:  # noqa: BLE001 - a plugin must not keep an engine from starting
        from rlstep_hooks.record.logger import not_evaluated

        not_evaluated(f"the audit could not attach to the engine: {error!r}")
