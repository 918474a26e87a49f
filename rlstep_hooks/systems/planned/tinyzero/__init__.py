"""TinyZero (Jiayi-Pan/TinyZero), a copy of verl 0.1: its plan, read in the source at 95df88f."""
