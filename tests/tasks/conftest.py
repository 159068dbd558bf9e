"""No per-example deadline for hypothesis: a loaded machine is not a failure."""

from hypothesis import settings

settings.register_profile("tasks", deadline=None)
settings.load_profile("tasks")
