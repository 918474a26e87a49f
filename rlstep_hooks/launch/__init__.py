"""Reading launch commands, shell scripts and configuration files. Nothing is executed, expanded by a shell or imported."""
