"""Merges HDF5 files along their first axis. api.py owns the output; child.py does the work in a sandboxed process."""
