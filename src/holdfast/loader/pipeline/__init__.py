"""From places of the order to batches.

    fetch ─▶ functions ─▶ cache ─▶ functions ─▶ batch ─▶ functions ─▶ read-ahead ─▶ the user

item.py        what goes through: the rows of one step
fetch.py       rows of data for places of the order
shelf.py       blocks that are held until their window is passed, within a bound of memory
beforehand.py  blocks of windows to come, read meanwhile
room.py        how the memory is shared between blocks and batches
around.py      samples of a shard in which some are damaged
work.py        the user's functions on one step, and the batch made of it
stages.py      where that runs: here, on threads, in processes
pipeline.py    the stages of an iteration, put together
keep.py        the cache of samples
ahead.py       batches made ready before they are asked for
collate.py     samples into a batch
pad.py         lists of different lengths made equal
samples.py     a batch as samples, and how much of it there is
halt.py        ends the waits of an iteration that another thread closes
losses.py      what was skipped, and why
stats.py       where the time goes
"""
