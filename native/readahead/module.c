#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include <errno.h>
#include <string.h>
#include <unistd.h>

#include "readahead.h"

typedef struct wish {
    hf_job job;
    long long number;
    Py_buffer memory;
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
    if (!is_here(self)) {
        PyErr_SetString(PyExc_ValueError, "it was closed, or belongs to another process");
    } else if (start < 0 || size < 0 || start > memory.len - size) {
        PyErr_Format(PyExc_ValueError, "expected a place in %zd bytes, got %zd from %zd on", memory.len, size, start);
    } else if (!(w = PyMem_Calloc(1, sizeof *w))) {
        PyErr_NoMemory();
    }
    if (!w) {
        PyBuffer_Release(&memory);
        return NULL;
    }
    PyObject *number = PyLong_FromLongLong(++self->numbers);
    if (!number) {
        PyBuffer_Release(&memory);
        PyMem_Free(w);
        return NULL;
    }
    w->memory = memory;
    w->number = self->numbers;
    w->job = (hf_job){.fd = fd, .offset = offset, .to = (uint8_t *)memory.buf + start, .size = (size_t)size};
    w->next = self->wishes;
    self->wishes = w;
    hf_readahead_begin(self->thread, &w->job);
    return number;
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
    size_t got = w->job.got;
    int error = w->job.error;
    free_wish(w);
    if (error) {
        errno = error;
        return PyErr_SetFromErrno(PyExc_OSError);
    }
    return PyLong_FromSize_t(got);
}

static PyObject *reader_close(PyObject *op, PyObject *Py_UNUSED(none)) {
    end((reader *)op);
    Py_RETURN_NONE;
}

static PyMethodDef reader_methods[] = {
    {"begin", reader_begin, METH_VARARGS, "begin(fd, offset, memory, start, size) -> a number for take()"},
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

static struct PyModuleDef definition = {PyModuleDef_HEAD_INIT, .m_name = "_readahead", .m_size = -1,
                                        .m_doc = "Reading before it is asked for."};

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
