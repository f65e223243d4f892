"""One order of all samples, made of numbers alone.

chance.py      shuffling that is the same on every machine and for ever
blocks.py      runs of samples that are read in one go
lanes.py       one lane: some blocks in a row, shuffled a window at a time
sequence.py    all lanes together: one sequence of places
shards.py      which part of it a step, a rank and a worker take
split.py       parts of a split, and an order of some samples
state.py       where an epoch stands, and of which data that was
"""
