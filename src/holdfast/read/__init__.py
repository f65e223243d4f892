"""From files to batches in one order, within a budget. The order itself needs no file.

chance.py    shuffling that is the same on every machine and for ever
blocks.py    runs of samples that are read in one go
lanes.py     one lane: some blocks in a row, shuffled a window at a time
order.py     all lanes together: which samples a global step is made of
shards.py    which part of it a rank and a worker take
state.py     where an epoch stands, and of which data that was
launch.py    which rank this process is, and who says so
budget.py    how many files may be open, and what to say when none may
handles.py   open files within that budget
"""
