"""What the kernel knows of processes now. Facts only; judging them is another room's work."""
