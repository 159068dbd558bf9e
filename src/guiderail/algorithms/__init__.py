"""Advantages, losses and KL estimators: pure functions that import nothing of ours."""
