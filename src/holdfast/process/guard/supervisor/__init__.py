"""Runs one or more workers, watches them from outside, and restarts those that end, leak or no longer work."""
