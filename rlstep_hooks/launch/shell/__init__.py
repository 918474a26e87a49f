"""Shell scripts -> the commands that they would run. Nothing is executed."""
