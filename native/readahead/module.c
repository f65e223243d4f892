#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include <errno.h>
#include <string.h>
#include <unistd.h>

#include "readahead.h"

typedef struct wish {
    hf_job job;
    long long number;
    Py_buffer memory, names, expected; /* the last two: of files */
    struct wish *next;
} wish;

typedef struct {
    PyObject_HEAD hf_readahead *thread; /* NULL: closed */
    pid_t owner;
    long long numbers;
    wish *wishes; /* begun, and not taken yet */
} reader;

/* A forked child has no such thread, and its lock may have been held when the child was made: nothing of it is touched. */
static int is_here(const reader *self) { return self->thread && self->owner == getpid(); }

static void free_wish(wish *w) {
    PyBuffer_Release(&w->memory);
    PyBuffer_Release(&w->names);
    PyBuffer_Release(&w->expected);
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
    } else if (thread) {
        hf_readahead_forked(thread);
    }
    while (self->wishes) {
        wish *w = self->wishes;
        self->wishes = w->next;
        free_wish(w);
    }
}

static PyObject *reader_new(PyTypeObject *type, PyObject *args, PyObject *kwargs) {
    static char *names[] = {NULL};
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "", names)) {
        return NULL;
    }
    allocfunc alloc = (allocfunc)PyType_GetSlot(type, Py_tp_alloc);
    reader *self = (reader *)alloc(type, 0);
    if (self) {
        self->owner = getpid();
        self->thread = hf_readahead_start();
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

/* Takes the wish over, also when it fails. */
static PyObject *begin(reader *self, wish *w, Py_ssize_t start, Py_ssize_t size) {
    PyObject *number = NULL;
    if (!is_here(self)) {
        PyErr_SetString(PyExc_ValueError, "it was closed, or belongs to another process");
    } else if (start < 0 || size < 0 || start > w->memory.len - size) {
        PyErr_Format(PyExc_ValueError, "expected a place in %zd bytes, got %zd from %zd on", w->memory.len, size,
                     start);
    } else {
        number = PyLong_FromLongLong(++self->numbers);
    }
    if (!number) {
        free_wish(w);
        return NULL;
    }
    w->number = self->numbers;
    w->job.to = (uint8_t *)w->memory.buf + start;
    w->job.size = (size_t)size;
    w->next = self->wishes;
    self->wishes = w;
    hf_readahead_begin(self->thread, &w->job);
    return number;
}

static PyObject *reader_begin(PyObject *op, PyObject *args) {
    long long offset;
    Py_ssize_t start, size;
    wish *w = PyMem_Calloc(1, sizeof *w);
    if (!w) {
        return PyErr_NoMemory();
    }
    if (!PyArg_ParseTuple(args, "iLw*nn", &w->job.fd, &offset, &w->memory, &start, &size)) {
        PyMem_Free(w);
        return NULL;
    }
    w->job.offset = offset;
    return begin((reader *)op, w, start, size);
}

/* Returns a wish for files, and the sum of their sizes. */
static wish *wish_of_files(PyObject *args, Py_ssize_t *start, Py_ssize_t *size) {
    wish *w = PyMem_Calloc(1, sizeof *w);
    if (!w) {
        PyErr_NoMemory();
        return NULL;
    }
    if (!PyArg_ParseTuple(args, "y*y*w*n", &w->names, &w->expected, &w->memory, start)) {
        PyMem_Free(w);
        return NULL;
    }
    const char *names = w->names.buf;
    size_t ends = 0;
    for (Py_ssize_t i = 0; i < w->names.len; i++) {
        ends += !names[i];
    }
    w->job.names = names;
    w->job.expected = w->expected.buf;
    w->job.files = (size_t)w->expected.len / sizeof(hf_file);
    *size = 0;
    for (size_t i = 0; i < w->job.files && *size >= 0; i++) {
        int64_t one = w->job.expected[i].size;
        *size = one < 0 || one > PY_SSIZE_T_MAX - *size ? -1 : *size + (Py_ssize_t)one;
    }
    if (*size < 0 || ends != w->job.files || (w->names.len && names[w->names.len - 1])) {
        PyErr_SetString(PyExc_ValueError, "expected a size, an mtime and a name that a 0 ends for every file");
        free_wish(w);
        return NULL;
    }
    return w;
}

static PyObject *reader_begin_files(PyObject *op, PyObject *args) {
    Py_ssize_t start, size;
    wish *w = wish_of_files(args, &start, &size);
    return w ? begin((reader *)op, w, start, size) : NULL;
}

static PyObject *result_of(wish *w) {
    size_t got = w->job.got;
    int error = w->job.error;
    free_wish(w);
    if (error) {
        errno = error;
        return PyErr_SetFromErrno(PyExc_OSError);
    }
    return PyLong_FromSize_t(got);
}

static PyObject *read_files(PyObject *Py_UNUSED(module), PyObject *args) {
    Py_ssize_t start, size;
    wish *w = wish_of_files(args, &start, &size);
    if (!w) {
        return NULL;
    }
    if (start < 0 || start > w->memory.len - size) {
        free_wish(w);
        return PyErr_Format(PyExc_ValueError, "expected a place for %zd bytes, got one from %zd on", size, start);
    }
    _Atomic int open_fd = -1;
    w->job.to = (uint8_t *)w->memory.buf + start;
    w->job.size = (size_t)size;
    Py_BEGIN_ALLOW_THREADS;
    hf_read_job(&w->job, &open_fd);
    Py_END_ALLOW_THREADS;
    return result_of(w);
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
    if (!hf_readahead_is_done(self->thread, &w->job)) {
        Py_BEGIN_ALLOW_THREADS;
        hf_readahead_wait(self->thread, &w->job);
        Py_END_ALLOW_THREADS;
    }
    *at = w->next; /* one thread at a time: nothing has changed meanwhile */
    return result_of(w);
}

static PyObject *reader_close(PyObject *op, PyObject *Py_UNUSED(none)) {
    end((reader *)op);
    Py_RETURN_NONE;
}

static PyMethodDef reader_methods[] = {
    {"begin", reader_begin, METH_VARARGS, "begin(fd, offset, memory, start, size) -> a number for take()"},
    {"begin_files", reader_begin_files, METH_VARARGS,
     "begin_files(names, expected, memory, start): the same with whole files, as read_files() reads them"},
    {"take", reader_take, METH_O, "take(number) -> bytes that were read: fewer only where the file ended"},
    {"close", reader_close, METH_NOARGS, "close(): what was not begun is not read; safe to call twice"},
    {NULL, NULL, 0, NULL},
};

static PyType_Slot reader_slots[] = {
    {Py_tp_new, reader_new},
    {Py_tp_dealloc, reader_dealloc},
    {Py_tp_methods, reader_methods},
    {Py_tp_doc, "Reads from files in a thread of its own, which never needs the interpreter. Serves one thread."},
    {0, NULL},
};

static PyType_Spec reader_spec = {
    .name = "holdfast._native._readahead.Reader",
    .basicsize = sizeof(reader),
    .flags = Py_TPFLAGS_DEFAULT,
    .slots = reader_slots,
};

static PyMethodDef functions[] = {
    {"read_files", read_files, METH_VARARGS,
     "read_files(names, expected, memory, start) -> bytes that were read. Reads whole files one after another: their\n"
     "names, each ended by a 0, and their sizes and mtimes in ns as int64. Ends before one that is not as expected."},
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
