"""From what was seen of a process to a verdict: pure functions over dataclasses, no I/O and no clock."""
