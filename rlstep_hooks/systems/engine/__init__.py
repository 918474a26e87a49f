"""What reads every declaration: recognising a launch, its settings and release, quantities, corrections. It names no system."""
