"""Does 200 jobs that leak: the guard has the worker replaced, and no job is lost or done twice."""

import os
import resource
import time

import holdfast as hold

resource.setrlimit(resource.RLIMIT_NOFILE, (512, 512))
done, kept = open("done", "a+"), []
with hold.Guard("worker", every="0.1s") as guard:
    while not guard.draining and done.tell() < 200:
        with guard.job("resize"):
            kept.append(os.pipe())  # the leak
            time.sleep(0.02)
            print(end=".", file=done, flush=True)
raise SystemExit(guard.exit_code)
