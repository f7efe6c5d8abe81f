"""The layers of the hybrid, each beside its token-by-token reference."""
