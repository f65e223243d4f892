"""Reads on one of two processes of jax.distributed: `… data out rank coordinator`."""

from __future__ import annotations

import os
import sys

os.environ["JAX_PLATFORMS"] = "cpu"

import jax
from ranks import Ledger, batches, two_passes

from holdfast._util.rank import find_rank

if __name__ == "__main__":
    rank = int(sys.argv[3])
    jax.distributed.initialize(coordinator_address=sys.argv[4], num_processes=2, process_id=rank)
    ledger = Ledger()
    ledger.enter("said", str, find_rank())
    ledger.enter("jax", two_passes, batches())
    ledger.write(rank)
    jax.distributed.shutdown()
