"""hold.read, hold.concat and hold.mix: from files to batches, in a reproducible order and within limits."""
