"""The env pool: environments behind HTTP, lent out by leases that expire."""
