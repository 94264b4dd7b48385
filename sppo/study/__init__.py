"""A grid of trainings: from a TOML file to records on disk, on this machine or on a cluster.

Importing this package loads neither torch nor Stable-Baselines3, so that planning and status stay instant.
"""
