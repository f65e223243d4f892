"""Writing one dataset from many workers: each part is committed completely or not at all."""
