"""Parts in a store that has no links and no rename.

exclusive.py    creating a file that must not be there, in the way of each store
store.py        a run's place in a store: small files, large files, what is there
place.py        where one attempt works, and how it commits
out.py          RemoteOut: what hold.write gives for a URL
"""
