"""What the package costs: in training, on the command line, and in judging."""
