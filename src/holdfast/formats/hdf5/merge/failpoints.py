"""Named places where a test may have a merge killed."""

from __future__ import annotations

from ...._base.failpoint import VARIABLE, failpoint

__all__ = ["CHILD", "PARENT", "REPEATED", "VARIABLE", "failpoint"]

CHILD = ("merge-surveyed", "merge-packed", "merge-made", "merge-filled", "merge-proven")
PARENT = ("merge-began", "merge-result", "merge-linked", "merge-cleaned")
REPEATED = ("merge-packing", "merge-filling")
