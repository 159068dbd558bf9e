"""Rewards: outcomes, the match of an action with the expert's."""
