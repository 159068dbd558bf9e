"""Training loops: supervised warm-up and group-relative policy optimisation."""
