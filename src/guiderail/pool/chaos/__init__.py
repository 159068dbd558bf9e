"""Proof by violence: clients, server and machines are killed and frozen, replies lost; an oracle counts what happened.

Run it as `python -m guiderail.pool.chaos`. `referee` does the harm, `client` is one victim, `proxy` loses replies,
`oracle` judges from logs that the pool has no hand in.
"""
