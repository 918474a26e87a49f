"""Names of release 0.1 that people typed; each only leads to its home of today."""
