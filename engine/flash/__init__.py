"""The second architecture: sparse attention, streams, per-layer embeddings, n-grams"""
