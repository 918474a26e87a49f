"""AReaL as the checkout beside a launch has it: its own defaults, and how its loss weighs what older weights sampled."""
