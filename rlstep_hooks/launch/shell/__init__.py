"""Shell scripts: their syntax tree, their variables, and the commands that they would run. Nothing is executed."""
