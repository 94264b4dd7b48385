"""Vectorised environments that are fast and whose state can be captured and put back."""
