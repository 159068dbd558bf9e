"""Models: loading, prompts, frames, and exact log-probabilities of a Qwen3-VL policy."""
