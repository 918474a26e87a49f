"""Systems whose runs are planned and not observed: one file or folder for each, a declaration with its cited formulas."""
