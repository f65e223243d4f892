"""One HDF5 file from many, along their first axis.

Two processes: the caller's, which owns the target's name, and a child (work.py), which alone has to do with the HDF5
library. The child goes through

    survey.py     what is in each source: objects, attributes, and where each chunk lies
    agree.py      do they fit together, and what becomes of each object
    order.py      which rows of which source, in which order; the same for all columns of a table
    plan.py       of each chunk of the result: a copy of a source's, or to be built from rows
    build.py      chunks that no source has: rows.py reads, encode.py packs; packed ones wait in a spool
    skeleton.py   the result without its chunks: the library makes all that describes them and leaves the room
    fill.py       chunks go into that room, past the library, checked, and read again
    prove.py      opened anew: is everything where it was put; the checksum of the file (crc.py)

What was done is noted in the folder beside the target (workfolder.py), so that a killed merge goes on. merge.py is the
face, ahead.py and room.py see to room on the disk and for descriptors, facts.py is what all of them speak of.
"""
