"""Reads and writes training data: formats, loader, writers."""
