"""Environments: the contract (`types`) and MiniWoB++ pages in a headless Chromium (`browser`)."""
