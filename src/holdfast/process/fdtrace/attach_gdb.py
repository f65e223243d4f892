# Runs inside gdb, which has just stopped the process: loads the tracing library into it and starts it.
#
# A call into the process is only safe in a thread that holds no lock of malloc or the dynamic loader. A thread that
# waits in one of these system calls holds none. If none waits, the process runs until Python reaches a pending call.
# Prints one line, "holdfast: ok" or "holdfast: " and what failed.

import os
import resource
import signal
import threading

import gdb  # type: ignore[import-untyped]

_WAITS_S = 10
# read, poll, select, nanosleep, recvfrom, recvmsg, accept, wait4, pause, futex, epoll_wait, clock_nanosleep, waitid,
# pselect6, ppoll, epoll_pwait, accept4, epoll_pwait2
_WAITING = {0, 7, 23, 35, 45, 47, 43, 61, 34, 202, 232, 230, 247, 270, 271, 281, 288, 441}


def _waits() -> bool:
    pc = int(gdb.parse_and_eval("(unsigned long)$pc"))
    before = bytes(gdb.selected_inferior().read_memory(pc - 2, 2))
    return before == b"\x0f\x05" and int(gdb.parse_and_eval("(long)$orig_rax")) in _WAITING


def _choose_thread() -> bool:
    for thread in sorted(gdb.selected_inferior().threads(), key=lambda one: one.num):
        thread.switch()
        if _waits():
            return True
    return False


def _run_to_pending_call() -> str:
    """Lets the process run until Python calls PyCallable_Check(NULL). Returns what failed, or nothing."""
    gdb.execute("sharedlibrary python")
    gdb.selected_inferior().threads()[-1].switch()
    try:
        gdb.parse_and_eval("((int(*)(void*,void*))Py_AddPendingCall)((void*)&PyCallable_Check, 0)")
        gdb.execute("tbreak PyCallable_Check")
    except gdb.error:
        return "it is busy and runs no Python: there is no moment at which the library could be loaded"
    # As Ctrl-C would: gdb stops the process, and removes its breakpoint when it detaches.
    timer = threading.Timer(_WAITS_S, os.kill, (os.getpid(), signal.SIGINT))
    timer.start()
    try:
        gdb.execute("continue")
    except KeyboardInterrupt:
        pass
    finally:
        timer.cancel()
    if not gdb.selected_inferior().pid:
        return "the process has ended"
    if gdb.selected_frame().name() != "PyCallable_Check":
        return f"it ran no Python code for {_WAITS_S} s: a call into C holds the interpreter; try again later"
    return ""


def _raise_limit() -> None:
    """Sets the first limit of descriptors that the system allows, while the process is stopped; -1 is unlimited."""
    words = [int(word) for word in os.environ["HOLDFAST_ATTACH_NOFILE"].split()]
    for soft, hard in zip(words[::2], words[1::2], strict=True):
        try:
            resource.prlimit(gdb.selected_inferior().pid, resource.RLIMIT_NOFILE, (soft, hard))
            return
        except OSError:
            continue


def _load() -> str:
    for name in ("libc", "libdl", "ld-linux"):
        gdb.execute(f"sharedlibrary {name}")
    if not _choose_thread():
        failure = _run_to_pending_call()
        if failure:
            return failure
    _raise_limit()
    library, folder = os.environ["HOLDFAST_ATTACH_LIBRARY"], os.environ["HOLDFAST_ATTACH_FOLDER"]
    options, arm_above = os.environ["HOLDFAST_ATTACH_OPTIONS"], os.environ["HOLDFAST_ATTACH_ARM_ABOVE"]
    handle = gdb.parse_and_eval(f'((void*(*)(const char*,int))dlopen)("{library}", 0x1002)')  # NOW | NODELETE
    if not int(handle):
        reason = gdb.parse_and_eval("((char*(*)(void))dlerror)()").string()
        return f"the process cannot load the tracing library: {reason}"
    gdb.execute("sharedlibrary _fdtrace")
    start = "((int(*)(const char*,unsigned,unsigned))hf_trace_attach)"
    error = int(gdb.parse_and_eval(f'{start}("{folder}", {options}, {arm_above})'))
    if error == 16:
        return "the process is traced already"
    return f"the process cannot write its log: {os.strerror(error)}" if error else "ok"


try:
    _result = _load()
except gdb.error as error:
    _result = f"gdb: {error}"
print(f"holdfast: {_result}", flush=True)
