#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include <errno.h>
#include <stdatomic.h>
#include <string.h>
#include <unistd.h>

#include "readahead.h"

/* Bytes of a file as they are. */
typedef struct {
    hf_job job;
    int fd;
    off_t offset;
    uint8_t *to;
    size_t size, got;
    int error; /* an errno, or 0 */
} range_job;

typedef struct {
    hf_job job;
    hf_rows rows;
    atomic_size_t failed; /* the first chunk that could not be read; the number of chunks: none */
} rows_job;

typedef struct wish {
    union {
        hf_job job;
        range_job range;
        rows_job rows;
    } of;
    long long number;
    Py_buffer memory, table; /* table.obj is NULL for a range */
    struct wish *next;
} wish;

typedef struct {
    PyObject_HEAD hf_readahead *thread; /* NULL: closed */
    pid_t owner;
    long long numbers;
    wish *wishes; /* begun, and not taken yet */
} reader;

static void run_range(hf_job *job, size_t piece, hf_scratch *scratch) {
    (void)piece, (void)scratch;
    range_job *r = (range_job *)job;
    while (r->got < r->size) {
        ssize_t n = pread(r->fd, r->to + r->got, r->size - r->got, r->offset + (off_t)r->got);
        if (n < 0 && errno == EINTR) {
            continue;
        }
        if (n < 0) {
            r->error = errno;
        }
        if (n <= 0) {
            return; /* the file ends here */
        }
        r->got += (size_t)n;
    }
}

static void run_rows(hf_job *job, size_t piece, hf_scratch *scratch) {
    rows_job *r = (rows_job *)job;
    if (!hf_read_chunk(&r->rows, piece, scratch)) {
        size_t before = atomic_load(&r->failed);
        while (piece < before && !atomic_compare_exchange_weak(&r->failed, &before, piece)) {
        }
    }
}

/* A forked child has no such thread, and its lock may have been held when the child was made: nothing of it is touched. */
static int is_here(const reader *self) { return self->thread && self->owner == getpid(); }

static void free_wish(wish *w) {
    PyBuffer_Release(&w->memory);
    if (w->table.obj) {
        PyBuffer_Release(&w->table);
    }
    PyMem_Free(w);
}

static void end(reader *self) {
    hf_readahead *thread = self->thread;
    int here = is_here(self);
    self->thread = NULL;
    if (here) {
        Py_BEGIN_ALLOW_THREADS;
        hf_readahead_end(thread);
        Py_END_ALLOW_THREADS;
    }
    while (self->wishes) {
        wish *w = self->wishes;
        self->wishes = w->next;
        free_wish(w);
    }
}

static PyObject *reader_new(PyTypeObject *type, PyObject *args, PyObject *kwargs) {
    static char *names[] = {"threads", NULL};
    int threads = 1;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "|i", names, &threads)) {
        return NULL;
    }
    allocfunc alloc = (allocfunc)PyType_GetSlot(type, Py_tp_alloc);
    reader *self = (reader *)alloc(type, 0);
    if (self) {
        self->owner = getpid();
        self->thread = hf_readahead_start(threads < 1 ? 1 : threads);
        if (!self->thread) {
            Py_DECREF(self);
            return PyErr_SetFromErrno(PyExc_OSError);
        }
    }
    return (PyObject *)self;
}

static void reader_dealloc(PyObject *op) {
    PyTypeObject *type = Py_TYPE(op);
    end((reader *)op);
    freefunc release = (freefunc)PyType_GetSlot(type, Py_tp_free);
    release(op);
    Py_DECREF(type);
}

static wish *new_wish(const reader *self) {
    if (!is_here(self)) {
        PyErr_SetString(PyExc_ValueError, "it was closed, or belongs to another process");
        return NULL;
    }
    wish *w = PyMem_Calloc(1, sizeof *w);
    if (!w) {
        PyErr_NoMemory();
    }
    return w;
}

/* Begins to read, and returns the number of the wish. */
static PyObject *begin(reader *self, wish *w) {
    PyObject *number = PyLong_FromLongLong(++self->numbers);
    if (!number) {
        free_wish(w);
        return NULL;
    }
    w->number = self->numbers;
    w->next = self->wishes;
    self->wishes = w;
    hf_readahead_begin(self->thread, &w->of.job);
    return number;
}

static PyObject *reader_begin(PyObject *op, PyObject *args) {
    reader *self = (reader *)op;
    int fd;
    long long offset;
    Py_ssize_t start, size;
    Py_buffer memory;
    if (!PyArg_ParseTuple(args, "iLw*nn", &fd, &offset, &memory, &start, &size)) {
        return NULL;
    }
    wish *w = NULL;
    if (start < 0 || size < 0 || start > memory.len - size) {
        PyErr_Format(PyExc_ValueError, "expected a place in %zd bytes, got %zd from %zd on", memory.len, size, start);
    } else {
        w = new_wish(self);
    }
    if (!w) {
        PyBuffer_Release(&memory);
        return NULL;
    }
    w->memory = memory;
    w->of.range = (range_job){.job = {.run = run_range, .pieces = 1}, .fd = fd, .offset = offset, .size = (size_t)size};
    w->of.range.to = (uint8_t *)memory.buf + start;
    return begin(self, w);
}

/* Reads the arguments of begin_rows and read_rows into a wish. Returns 0 with an exception set. */
static int parse_rows(wish *w, PyObject *args) {
    Py_buffer layout;
    long long first, start, stop;
    rows_job *r = &w->of.rows;
    *r = (rows_job){.job = {.run = run_rows}};
    hf_rows *rows = &r->rows;
    if (!PyArg_ParseTuple(args, "iy*y*LLLw*", &rows->fd, &layout, &w->table, &first, &start, &stop, &w->memory)) {
        return 0;
    }
    int good = !(layout.len % 8) && !((uintptr_t)layout.buf % 8) && !((uintptr_t)w->table.buf % 8) &&
               hf_layout_of(&rows->layout, layout.buf, (size_t)layout.len / 8);
    PyBuffer_Release(&layout);
    rows->first = first, rows->start = start, rows->stop = stop;
    rows->chunks = w->table.buf, rows->to = w->memory.buf;
    r->job.pieces = (size_t)w->table.len / sizeof(hf_chunk);
    atomic_init(&r->failed, r->job.pieces);
    if (!good || w->table.len % (Py_ssize_t)sizeof(hf_chunk) ||
        !hf_rows_fit(rows, r->job.pieces, (size_t)w->memory.len)) {
        PyErr_SetString(PyExc_ValueError, "expected a layout that can be read here, rows of it, and their chunks");
        PyBuffer_Release(&w->table);
        PyBuffer_Release(&w->memory);
        return 0;
    }
    return 1;
}

/* -1: all chunks were read. */
static PyObject *failed_chunk(const rows_job *r) {
    size_t failed = atomic_load(&r->failed);
    return PyLong_FromSsize_t(failed < r->job.pieces ? (Py_ssize_t)failed : -1);
}

static PyObject *reader_begin_rows(PyObject *op, PyObject *args) {
    reader *self = (reader *)op;
    wish *w = new_wish(self);
    if (w && !parse_rows(w, args)) {
        PyMem_Free(w);
        w = NULL;
    }
    return w ? begin(self, w) : NULL;
}

static PyObject *read_rows(PyObject *module, PyObject *args) {
    (void)module;
    wish w = {0};
    if (!parse_rows(&w, args)) {
        return NULL;
    }
    Py_BEGIN_ALLOW_THREADS;
    hf_scratch scratch = {0};
    for (size_t i = 0; i < w.of.job.pieces; i++) {
        run_rows(&w.of.job, i, &scratch);
    }
    hf_scratch_free(&scratch);
    Py_END_ALLOW_THREADS;
    PyObject *failed = failed_chunk(&w.of.rows);
    PyBuffer_Release(&w.table);
    PyBuffer_Release(&w.memory);
    return failed;
}

static PyObject *load_codec(PyObject *module, PyObject *args) {
    (void)module;
    const char *name, *path;
    if (!PyArg_ParseTuple(args, "ss", &name, &path)) {
        return NULL;
    }
    return PyBool_FromLong(hf_load_codec(name, path));
}

static PyObject *reader_take(PyObject *op, PyObject *arg) {
    reader *self = (reader *)op;
    long long number = PyLong_AsLongLong(arg);
    if (number == -1 && PyErr_Occurred()) {
        return NULL;
    }
    wish **at = &self->wishes;
    while (*at && (*at)->number != number) {
        at = &(*at)->next;
    }
    wish *w = *at;
    if (!w || !is_here(self)) {
        return PyErr_Format(PyExc_KeyError, "%lld is not being read", number);
    }
    if (!hf_readahead_is_done(self->thread, &w->of.job)) {
        Py_BEGIN_ALLOW_THREADS;
        hf_readahead_wait(self->thread, &w->of.job);
        Py_END_ALLOW_THREADS;
    }
    *at = w->next; /* one thread at a time: nothing has changed meanwhile */
    PyObject *got = NULL;
    if (w->table.obj) {
        got = failed_chunk(&w->of.rows);
    } else if (w->of.range.error) {
        errno = w->of.range.error;
        PyErr_SetFromErrno(PyExc_OSError);
    } else {
        got = PyLong_FromSize_t(w->of.range.got);
    }
    free_wish(w);
    return got;
}

static PyObject *reader_close(PyObject *op, PyObject *Py_UNUSED(none)) {
    end((reader *)op);
    Py_RETURN_NONE;
}

static PyMethodDef reader_methods[] = {
    {"begin", reader_begin, METH_VARARGS, "begin(fd, offset, memory, start, size) -> a number for take()"},
    {"begin_rows", reader_begin_rows, METH_VARARGS, "begin_rows(…) -> a number for take(); arguments as for read_rows"},
    {"take", reader_take, METH_O,
     "take(number) -> what read_rows returns; of a range, the bytes that were read: fewer only where the file ended"},
    {"close", reader_close, METH_NOARGS, "close(): what was not begun is not read; safe to call twice"},
    {NULL, NULL, 0, NULL},
};

static PyType_Slot reader_slots[] = {
    {Py_tp_new, reader_new},
    {Py_tp_dealloc, reader_dealloc},
    {Py_tp_methods, reader_methods},
    {Py_tp_doc, "Reads from files in threads of its own, which never need the interpreter. Serves one thread."},
    {0, NULL},
};

static PyType_Spec reader_spec = {
    .name = "holdfast._native._readahead.Reader",
    .basicsize = sizeof(reader),
    .flags = Py_TPFLAGS_DEFAULT,
    .slots = reader_slots,
};

static PyMethodDef functions[] = {
    {"read_rows", read_rows, METH_VARARGS,
     "read_rows(fd, layout, chunks, first, start, stop, out) -> the first chunk that could not be read, or -1"},
    {"load_codec", load_codec, METH_VARARGS, "load_codec(name, path) -> whether the library has it"},
    {NULL, NULL, 0, NULL},
};

static struct PyModuleDef definition = {PyModuleDef_HEAD_INIT, .m_name = "_readahead", .m_size = -1,
                                        .m_doc = "Reading before it is asked for.", .m_methods = functions};

PyMODINIT_FUNC PyInit__readahead(void) {
    PyObject *module = PyModule_Create(&definition);
    PyObject *type = PyType_FromSpec(&reader_spec);
    int good = module && type && PyModule_AddObjectRef(module, "Reader", type) == 0;
    Py_XDECREF(type);
    if (!good) {
        Py_CLEAR(module);
    }
    return module;
}
