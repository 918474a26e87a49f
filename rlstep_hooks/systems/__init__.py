"""One home for each system: how its launches are read, what its formulas are, how a run is observed."""
