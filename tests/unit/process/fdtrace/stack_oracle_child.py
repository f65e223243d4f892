"""Opens descriptors in many ways, and writes the stacks that Python itself reports at those lines, thread by thread."""

import gc
import json
import os
import sys
import threading

expected = {}


def note(frame):
    stack = []
    while frame is not None:
        stack.append((frame.f_code.co_filename, frame.f_lineno, frame.f_code.co_qualname))
        frame = frame.f_back
    expected[threading.get_native_id()].append(stack)


def plain(depth):
    if depth:
        return plain(depth - 1)
    fd = os.open("/dev/null", 0); note(sys._getframe())  # fmt: skip  # noqa: E702
    return os.close(fd)


def generated(count):
    for _ in range(count):
        fd = os.open("/dev/null", 0); note(sys._getframe())  # fmt: skip  # noqa: E702
        yield os.close(fd)


async def awaited():
    fd = os.open("/dev/null", 0); note(sys._getframe())  # fmt: skip  # noqa: E702
    os.close(fd)


def run_coroutine():
    try:
        awaited().send(None)
    except StopIteration:
        pass


class Größe:
    @property
    def wert(self):
        fd = os.open("/dev/null", 0); note(sys._getframe())  # fmt: skip  # noqa: E702
        os.close(fd)

    def __del__(self):
        fd = os.open("/dev/null", 0); note(sys._getframe())  # fmt: skip  # noqa: E702
        os.close(fd)


OPEN = "fd = os.open('/dev/null', 0); note(sys._getframe())"


def execd(turn):
    """Runs code that is freed at once: the next one often has its address, its names and its line table's address."""
    names = {"os": os, "sys": sys, "note": note}
    if turn % 3 == 0:  # the same file, function, first line and length of the table; another line of the call
        before = turn // 3 % 4
        lines = [
            "def f(x=0):",
            *["  x += 1"] * before,
            "  " + OPEN,
            *["  x += 1"] * (3 - before),
            "  os.close(fd)",
            "f()",
        ]
        file = "<string>"
    else:
        lines = [""] * (turn % 7) + [f"def f{turn % 50}():", "  " + OPEN, "  os.close(fd)", f"f{turn % 50}()"]
        file = f"<möde {turn % 20}>" if turn % 2 else f"<generated-code-{turn % 300}>"
    exec(compile("\n".join(lines), file, "exec"), names)


def work(rounds):
    expected[threading.get_native_id()] = []
    for turn in range(rounds):
        plain(turn % 20)
        list(generated(3))
        run_coroutine()
        Größe().wert  # noqa: B018
        execd(turn)
        list(map(lambda depth: plain(depth), range(2)))  # noqa: C417
        [plain(1) for _ in range(1)]
        cycle = Größe()
        cycle.me = cycle
        del cycle
        if turn % 20 == 19:
            gc.collect()
    gc.collect()


output, rounds, threads = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
gc.disable()  # only at the turns above, so that the number of events is known
started = [threading.Thread(target=work, args=(rounds,)) for _ in range(threads)]
for thread in started:
    thread.start()
work(rounds)
for thread in started:
    thread.join()
with open(output, "w") as file:
    json.dump(expected, file)
