"""The command that starts a script on several ranks of this machine."""

from __future__ import annotations

import sys


def torchrun(ranks: int, *arguments: str) -> list[str]:
    """The command of these arguments (a script or `-m` and a module, and its arguments) on `ranks` ranks.

    The ranks meet at the loopback address. Without it torch looks the machine's name up (torch 2.13.0,
    `distributed/elastic/rendezvous/api.py:90`), and on a machine whose name has no address the ranks wait for each other in vain.
    """
    return [
        sys.executable, "-m", "torch.distributed.run", "--standalone", "--local-addr", "127.0.0.1", "--nproc_per_node", str(ranks),
        *arguments,
    ]  # fmt: skip
