"""From a configuration's quantities to a `Schedule`. Pure: integers and fractions, no torch, no framework."""
