"""Ray, as far as guiderail uses it: a cluster started here or attached to, a split of its GPUs, actors that may be lost.

Nothing outside of `trainer.kind: ray` imports this package or Ray.
"""
