"""The central writer: one process that many producers send rows to. No acknowledged row is lost.

    producer → frames → server → journal → sealer → parts

Neither the server nor producers load HDF5: only the sealer process does, which may crash.
"""
