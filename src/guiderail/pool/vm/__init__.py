"""What runs inside a machine of the pool."""
