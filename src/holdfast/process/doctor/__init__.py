"""Finds descriptor leaks: samples a process, classifies its descriptors and their trend, and renders the verdict."""
