"""Many workers, one dataset: parts that are there whole or not at all.

names.py        tasks and the names of their files
folder.py       a run's folder: made, reopened, looked through
workspace.py    where one attempt works until it commits; what the dead left is swept
stage.py        samples given one by one, checked, as columns
files.py        the file of a part, HDF5 or TFRecord
fit.py          do columns fit the schema; numpy only
part.py         one attempt of one task
record.py       what a part holds, as its .json says
commit.py       from a finished file to a committed part
place.py        where a run's parts are: a folder of this machine, or a store
verify.py       is everything there, and is it what was written
sequence.py     the order of parts, and of the rows a central writer took
consolidate.py  one file of all parts, proven
manifest.py     which parts went into which file
view.py         one virtual file over all parts
out.py          the public face: write(), Out
central/        one writer for many producers: server, journal, sealer, producer
remote/         the same in a store: S3 and others that fsspec knows
failpoints.py   where a test may have the process killed
"""
