"""Triton kernels of the device path, each held to the torch code that a CPU runs."""
