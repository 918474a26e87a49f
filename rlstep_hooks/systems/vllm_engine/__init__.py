"""What is seen inside vLLM, whichever framework drives it: the weights that it is given and those that it holds."""
