"""What is read: from a path, a glob, a folder or a URL to shards that can be opened.

find.py        what read() was given, as a list of shards
names.py       what a name says about a file
local.py       finding files here, and what is wrong with them
stores.py      remote stores, by fsspec
remote.py      copies of remote shards in a bounded folder
catalog.py     what all shards are, learned by opening each once
damage.py      damage found while the shards are looked at
stamps.py      whether a file is still the one that was looked at
small_files.py a folder of small files as a shard
budget.py      how many files may be open, and what to say when none may
handles.py     open files within that budget
library.py     the shards of all catalogs under one numbering
source.py      where a dataset's samples come from
mix.py         several datasets in one sequence
"""
