"""Acting in time: blocks that must give back what they took, locks, and who holds them."""
