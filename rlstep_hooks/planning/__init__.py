"""From the quantities of a configuration to a `Schedule`. Pure: integers and fractions, no torch, no framework."""
