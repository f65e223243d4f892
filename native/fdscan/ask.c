/* Asks poll whether the other ends of pipes are still open. */
#define _GNU_SOURCE

#include "fdscan.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#ifndef F_GETPIPE_SZ
#define F_GETPIPE_SZ 1032
#endif
#ifndef SYS_pidfd_getfd
#define SYS_pidfd_getfd 438 /* the same number on every architecture */
#endif

#define MOST_AT_ONCE 256

enum { READS = 1, WRITES = 2, DEAD = 4 };

static unsigned char answer(int fd, short events) {
    if (fcntl(fd, F_GETPIPE_SZ) < 0) {
        return 0; /* another thing by now */
    }
    /* A read end without writers hangs up, a write end without readers is an error. */
    if (events == POLLHUP) {
        return READS | DEAD;
    }
    if (events == POLLERR) {
        return WRITES | DEAD;
    }
    int flags = fcntl(fd, F_GETFL);
    if (flags < 0) {
        return 0;
    }
    switch (flags & O_ACCMODE) {
    case O_RDONLY:
        return READS;
    case O_WRONLY:
        return WRITES;
    case O_RDWR:
        return READS | WRITES;
    default:
        return 0;
    }
}

/* Fills `answers`. 0: errno says why not. */
static int ask(const int *fds, Py_ssize_t n, struct pollfd *polled, unsigned char *answers) {
    for (Py_ssize_t i = 0; i < n; i++) {
        polled[i] = (struct pollfd){.fd = fds[i]};
    }
    int ready;
    do {
        ready = poll(polled, (nfds_t)n, 0);
    } while (ready < 0 && errno == EINTR); /* a signal counts even where nothing is waited for */
    if (ready < 0) {
        return 0;
    }
    for (Py_ssize_t i = 0; i < n; i++) {
        answers[i] = answer(fds[i], polled[i].revents);
    }
    return 1;
}

PyObject *hf_ask(PyObject *module, PyObject *list) {
    (void)module;
    Py_ssize_t n;
    int *fds = hf_numbers(list, &n);
    if (!fds) {
        return NULL;
    }
    struct pollfd *polled = PyMem_Malloc(sizeof *polled * (size_t)(n + 1));
    PyObject *found = polled ? PyBytes_FromStringAndSize(NULL, n) : PyErr_NoMemory();
    if (found) {
        unsigned char *answers = (unsigned char *)PyBytes_AsString(found);
        int good;
        Py_BEGIN_ALLOW_THREADS;
        good = ask(fds, n, polled, answers);
        Py_END_ALLOW_THREADS;
        if (!good) {
            PyErr_SetFromErrno(PyExc_OSError);
            Py_CLEAR(found);
        }
    }
    PyMem_Free(polled);
    PyMem_Free(fds);
    return found;
}

/* Ends of another process, borrowed for a moment. */
typedef struct {
    int pidfd;
    int fds[MOST_AT_ONCE];
    Py_ssize_t places[MOST_AT_ONCE]; /* which of theirs each one is */
    Py_ssize_t n;
    struct pollfd polled[MOST_AT_ONCE];
    unsigned char answers[MOST_AT_ONCE];
} loan;

/* Takes theirs from `at` on; returns where to go on, or -1: no more can be had. */
static Py_ssize_t borrow(loan *l, const int *theirs, Py_ssize_t at, Py_ssize_t stop, Py_ssize_t most) {
    for (l->n = 0; at < stop && l->n < most; at++) {
        int fd = (int)syscall(SYS_pidfd_getfd, l->pidfd, theirs[at], 0);
        if (fd >= 0) {
            l->fds[l->n] = fd;
            l->places[l->n++] = at;
        } else if (errno == EMFILE || errno == ENFILE) {
            return l->n ? at : -1; /* as many as there is room for; the next ones in their place */
        } else if (errno != EBADF) {
            return -1; /* no right to it, or it has ended */
        }
    }
    return at;
}

static void give_back(const loan *l) {
    for (Py_ssize_t i = 0; i < l->n; i++) {
        close(l->fds[i]);
    }
}

static void ask_other(loan *l, const int *theirs, Py_ssize_t stop, Py_ssize_t most, unsigned char *answers) {
    for (Py_ssize_t at = 0; at >= 0 && at < stop;) {
        at = borrow(l, theirs, at, stop, most);
        if (at >= 0 && ask(l->fds, l->n, l->polled, l->answers)) {
            for (Py_ssize_t i = 0; i < l->n; i++) {
                answers[l->places[i]] = l->answers[i];
            }
        }
        give_back(l);
    }
}

PyObject *hf_ask_other(PyObject *module, PyObject *args) {
    (void)module;
    loan l;
    PyObject *list;
    Py_ssize_t most, n;
    if (!PyArg_ParseTuple(args, "iOn", &l.pidfd, &list, &most)) {
        return NULL;
    }
    if (most < 1 || most > MOST_AT_ONCE) {
        return PyErr_Format(PyExc_ValueError, "expected to borrow 1 to %d at a time, got %zd", MOST_AT_ONCE, most);
    }
    int *theirs = hf_numbers(list, &n);
    PyObject *found = theirs ? PyBytes_FromStringAndSize(NULL, n) : NULL;
    if (found) {
        unsigned char *answers = (unsigned char *)PyBytes_AsString(found);
        memset(answers, 0, (size_t)n);
        Py_BEGIN_ALLOW_THREADS;
        ask_other(&l, theirs, n, most, answers);
        Py_END_ALLOW_THREADS;
    }
    PyMem_Free(theirs);
    return found;
}
