"""What the fault corpora of all frameworks found, in one table: `nox -s detect`."""
