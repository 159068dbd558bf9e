"""Rewards: outcomes, the match of an action with the expert's, and judges of single steps."""
