"""From positions of the order to batches.

fetch ─▶ functions ─▶ cache ─▶ functions ─▶ batch ─▶ functions ─▶ prefetch ─▶ the user
"""
