"""Finds the Python objects that keep a descriptor open, from inside the process (`owners`) or outside (`listen`)."""
