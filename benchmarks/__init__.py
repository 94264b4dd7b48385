"""Measurements, side by side; results/ holds the data behind every published number."""
