"""What a configuration says will happen: quantities, and the formulas that give them. Integers and fractions; no torch."""
