"""Events, their wire form, and where they are written: ledger, sinks, remote copies."""
