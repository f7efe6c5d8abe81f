"""Live chat over the same caches: an OpenAI-compatible server, and a recorder."""
