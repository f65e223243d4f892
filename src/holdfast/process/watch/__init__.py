"""Keeps samples of processes in SQLite and serves them: a live page, /metrics, /healthz and JSON."""
