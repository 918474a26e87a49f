"""SkyRL as the checkout beside a launch has it: the loop that its trainer runs, and programs with a loop of their own."""
