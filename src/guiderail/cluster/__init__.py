"""Ray, as far as guiderail uses it: a cluster started here or attached to, a split of its GPUs, processes that may end.

Nothing outside of `trainer.kind: ray` imports this package or Ray.
"""
