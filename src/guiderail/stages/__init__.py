"""The stages of the chain, one file each, and what runs them: `runner`, `context`, `paths`, `checks`, `meter`."""
