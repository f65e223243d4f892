"""Acting in time: so far, blocks that must give back what they took."""
