"""Benchmarks, one folder for each subject, run from the top of the repository: `python -m benchmarks.read --quick`."""
