"""Rewards beyond the score an environment gives. There are none yet."""
