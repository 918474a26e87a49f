"""Launch text -> Schedule: one small module a system. `catalogue` says which program belongs to which."""
