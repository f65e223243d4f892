"""Metrics and arrays of a training, from every worker, in one run.hold.

entry.py     the public face: log(), Log
columns.py   values as they come from a training, as rows of one schema
pieces.py    one worker's rows as parts of a folder, a part for every few rows
served.py    one worker's rows through a central writer
"""
