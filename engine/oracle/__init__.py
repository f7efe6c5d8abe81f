"""What every model's layers compute, in JAX float64, token by token: the oracle of their tests

Written from the published formulas. Nothing is fused, chunked or batched, and nothing is shared
with the engines but the configuration and the published tensor names.
"""
