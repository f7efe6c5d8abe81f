"""Recorded traffic: read it, drive the real caches with it, measure and report."""
