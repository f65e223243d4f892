"""Keeps a worker within its limits: caps, drain, heartbeat, supervisor, rescue."""
