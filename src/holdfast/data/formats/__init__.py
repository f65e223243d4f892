"""Reads, writes, verifies and salvages TFRecord, HDF5 and tar files, and reads folders of small files."""
