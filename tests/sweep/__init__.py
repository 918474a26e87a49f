"""Plans every launch of a folder of scripts and configurations: what is recognised, planned, refused and why, and how long it takes."""
