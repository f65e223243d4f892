"""Reads the current state of processes from the kernel. Classifying what it finds is left to `doctor`."""
