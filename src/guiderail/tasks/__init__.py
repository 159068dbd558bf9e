"""Tasks: templates, instances, splits and the scripted experts that solve them."""
