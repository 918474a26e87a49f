"""What all observers share: patches, probes, deferred values, containment. Nothing here judges."""
