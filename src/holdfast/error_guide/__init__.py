"""What an error really means: pure functions over texts, exceptions and facts. Nothing here opens a file.

row.py           what the table's rows are made of
rows_*.py        the rows, by theme; a new kind of error is a new row
table.py         all rows, and which of them a line of text is
chain.py         from an exception to the ones behind it
stamps.py        when a line of a log was written
logs.py          a whole log, piece by piece: which rows, how often, first and last
names.py         the files a text speaks of
here.py          what was looked up about this machine
sentences*.py    what that means
explanation.py   the answer, and how it reads
compose.py       a row and the facts -> the answer
"""
