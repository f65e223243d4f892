"""HDF5: datasets as columns, rows along their first axis as samples.

Imports nothing: every sandboxed process imports this package, and a corrupt file may need a dozen of them.
"""
