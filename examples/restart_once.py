"""Asks to be started again, once: that is what exit code 75 means."""

import os
import sys

if os.path.exists("done"):
    sys.exit(0)
os.mkdir("done")
sys.exit(75)
