"""guiderail: reproducible reinforcement learning of GUI agents, from provisioning to the report."""

__version__ = "0.1.0"
