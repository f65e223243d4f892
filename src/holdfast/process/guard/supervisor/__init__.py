"""Runs copies of a program, watches them from outside, and restarts those that end, leak or no longer work."""
