"""From one format to another: TFRecord, HDF5 and tar, all six ways, and proven.

names.py      what a target's name says: its format, and the names of its shards
sources.py    what is to be converted: files, folders, runs; whether they are whole
plain.py      packed files unpacked beside the target, so that any part of them can be read
columns.py    which columns there are; what would be lost is refused
blocks.py     a shard's samples, some at a time
digest.py     a checksum over all values in order, whatever format they come from
shards.py     where one target ends and the next begins
targets.py    the three writers behind one face
staging.py    new files that appear together, when all are whole
work.py       the whole way, from sources to proven targets
entry.py      the public face: convert()
"""
