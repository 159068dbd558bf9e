"""Capacity: what a run needs of memory, compute and screens, reckoned before it starts."""
