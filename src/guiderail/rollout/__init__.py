"""Rollouts: episodes played by a policy in pooled environments, and their records."""
