"""Opens a file fifty times a second, and closes none."""

import time

kept = []
for _ in range(9999):
    kept.append(open("/dev/null"))
    time.sleep(0.02)
