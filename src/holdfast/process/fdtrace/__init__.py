"""Records who opened, copied and closed each descriptor of a program, and reports what is left open and why."""
