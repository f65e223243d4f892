"""Closes a number twice: the second close hits another file, whose reader fails."""

import os

old = os.open("/etc/hostname", os.O_RDONLY)
os.close(old)
new = os.open("/etc/passwd", os.O_RDONLY)
os.close(old)
os.read(new, 10)
