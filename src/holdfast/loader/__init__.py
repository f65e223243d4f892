"""From files to batches in one order, within a budget.

entry.py       hold.read and hold.mix
dataset.py     what is read and how, said step by step
settings.py    the same as data
iteration.py   one pass over it
access.py      single samples by number
after.py       where a pass stands by the number of batches that were taken of it
progress.py    how far an epoch is
sources/       what was given, as shards: files, URLs, several datasets; open within a budget
order/         one order of all samples; needs no file
flow/          from places of the order to batches: fetch, functions, cache, read-ahead, statistics
pool/          functions in other processes
"""
