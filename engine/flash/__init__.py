"""The second architecture: sparse attention, residual streams, per-layer embeddings, n-grams."""
