"""Judges of OSWorld tasks: getters fetch from the guest, metrics compare in a child process of their own."""
