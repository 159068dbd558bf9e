"""Our own suite of desktop tasks, in OSWorld's JSON: templates with parameters, scripted experts, judges."""
