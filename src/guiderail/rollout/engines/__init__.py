"""Engines that write completions for prompts."""
