/* Copies chunks from one file to another and checks them on both sides, with the GIL released throughout. In Python a
 * batch takes seven calls, each of which may wait for the GIL. */
#define _FILE_OFFSET_BITS 64
#define _XOPEN_SOURCE 700
#include "crc32c.h"
#include "py.h"

#include <errno.h>
#include <unistd.h>

typedef struct {
    int from, to;
    off_t offset, place;
    const int64_t *sizes, *wanted;
    size_t n, total;
    uint8_t *here, *again;
    uint32_t *crcs;
} job;

static int read_all(int fd, uint8_t *into, size_t n, off_t at) {
    while (n) {
        ssize_t got = pread(fd, into, n, at);
        if (got < 0 && errno == EINTR) {
            continue;
        }
        if (got <= 0) {
            return 0;
        }
        into += got, at += got, n -= (size_t)got;
    }
    return 1;
}

static int write_all(int fd, const uint8_t *from, size_t n, off_t at) {
    while (n) {
        ssize_t put = pwrite(fd, from, n, at);
        if (put < 0 && errno == EINTR) {
            continue;
        }
        if (put <= 0) {
            return 0;
        }
        from += put, at += put, n -= (size_t)put;
    }
    return 1;
}

static int copy(const job *j) {
    if (!read_all(j->from, j->here, j->total, j->offset)) {
        return 0;
    }
    size_t at = 0;
    for (size_t i = 0; i < j->n; at += (size_t)j->sizes[i++]) {
        j->crcs[i] = hf_crc32c(0, j->here + at, (size_t)j->sizes[i]);
        if (j->wanted[i] != -1 && j->wanted[i] != (int64_t)j->crcs[i]) {
            return 0;
        }
    }
    if (!write_all(j->to, j->here, j->total, j->place) || !read_all(j->to, j->again, j->total, j->place)) {
        return 0;
    }
    at = 0;
    for (size_t i = 0; i < j->n; at += (size_t)j->sizes[i++]) {
        if (hf_crc32c(0, j->again + at, (size_t)j->sizes[i]) != j->crcs[i]) {
            return 0;
        }
    }
    return 1;
}

/* Checks the sizes of the buffers; sets a Python error if they do not fit. */
static int fits(job *j, const Py_buffer *sizes, const Py_buffer *wanted, const Py_buffer *here,
                const Py_buffer *again) {
    j->n = (size_t)sizes->len / sizeof(int64_t);
    if (sizes->len != wanted->len || sizes->len % (Py_ssize_t)sizeof(int64_t)) {
        PyErr_SetString(PyExc_ValueError, "expected a size and a checksum, as int64, for every chunk");
        return 0;
    }
    uint64_t room = (uint64_t)(here->len < again->len ? here->len : again->len);
    uint64_t total = 0;
    for (size_t i = 0; i < j->n; i++) {
        uint64_t size = (uint64_t)j->sizes[i];
        if (size > room - total) {
            PyErr_SetString(PyExc_ValueError, "expected two buffers that hold all chunks");
            return 0;
        }
        total += size;
    }
    j->total = (size_t)total;
    return 1;
}

PyObject *hf_py_copy_checked(PyObject *module, PyObject *args) {
    (void)module;
    Py_buffer sizes, wanted, here, again;
    long long offset, place;
    job j = {0};
    if (!PyArg_ParseTuple(args, "iLiLy*y*w*w*", &j.from, &offset, &j.to, &place, &sizes, &wanted, &here, &again)) {
        return NULL;
    }
    j.offset = (off_t)offset, j.place = (off_t)place;
    j.sizes = sizes.buf, j.wanted = wanted.buf, j.here = here.buf, j.again = again.buf;
    PyObject *found = NULL;
    if (fits(&j, &sizes, &wanted, &here, &again)) {
        found = PyBytes_FromStringAndSize(NULL, (Py_ssize_t)(j.n * sizeof(uint32_t)));
    }
    if (found) {
        j.crcs = (uint32_t *)(void *)PyBytes_AsString(found);
        int good;
        Py_BEGIN_ALLOW_THREADS;
        good = copy(&j);
        Py_END_ALLOW_THREADS;
        if (!good) {
            Py_DECREF(found);
            found = Py_NewRef(Py_None);
        }
    }
    PyBuffer_Release(&sizes);
    PyBuffer_Release(&wanted);
    PyBuffer_Release(&here);
    PyBuffer_Release(&again);
    return found;
}
