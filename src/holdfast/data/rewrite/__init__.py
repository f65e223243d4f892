"""Converts files between TFRecord, HDF5 and tar, and verifies the result (`hold.convert`)."""
