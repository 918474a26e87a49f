"""ROLL, RLVR and agentic: its plan, read in the source at 8eb27cc."""
