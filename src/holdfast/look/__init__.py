"""Watching processes for a while, and judging what was seen."""
