"""Checkpoints: resumable state, manifests, merging and verification."""
