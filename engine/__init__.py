"""Models behind the adapter, decode by verify blocks, and the turn."""
