"""Writes parts to an object store, which has neither hard links nor rename."""
