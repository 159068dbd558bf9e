"""Benchmarks: what an evaluation measured, and how sure one can be of it."""
