"""Exact dynamics: no sampling, no networks."""
