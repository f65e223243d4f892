#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include <stdatomic.h>
#include <stdlib.h>
#include <unistd.h>

#include "pool.h"

/* ---- one read */

typedef struct {
    hf_job job;
    hf_rows rows;
    atomic_size_t failed; /* the first chunk that could not be read; the number of chunks: none */
    Py_buffer table;
} read_job;

static void run(hf_job *job, size_t piece, hf_scratch *scratch) {
    read_job *r = (read_job *)job;
    if (!hf_read_chunk(&r->rows, piece, scratch)) {
        size_t before = atomic_load(&r->failed);
        while (piece < before && !atomic_compare_exchange_weak(&r->failed, &before, piece)) {
        }
    }
}

/* Checks the arguments: with those that pass, `room` bytes hold the rows. Returns 0 with an exception set. */
static int prepare(read_job *r, const Py_buffer *layout, long long first, long long start, long long stop,
                   size_t room) {
    hf_rows *rows = &r->rows;
    rows->first = first, rows->start = start, rows->stop = stop, rows->chunks = r->table.buf;
    r->job = (hf_job){.run = run, .pieces = (size_t)r->table.len / sizeof(hf_chunk)};
    atomic_init(&r->failed, r->job.pieces);
    int good = !(layout->len % 8) && !((uintptr_t)layout->buf % 8) && !((uintptr_t)r->table.buf % 8) &&
               !(r->table.len % (Py_ssize_t)sizeof(hf_chunk)) &&
               hf_layout_of(&rows->layout, layout->buf, (size_t)layout->len / 8) &&
               hf_rows_fit(rows, r->job.pieces, room);
    if (!good) {
        PyErr_SetString(PyExc_ValueError, "expected a layout that can be read here, rows of it, and their chunks");
    }
    return good;
}

static PyObject *read_rows(PyObject *module, PyObject *args) {
    (void)module;
    Py_buffer layout, out;
    long long first, start, stop;
    read_job r = {0};
    if (!PyArg_ParseTuple(args, "iy*y*LLLw*", &r.rows.fd, &layout, &r.table, &first, &start, &stop, &out)) {
        return NULL;
    }
    PyObject *good = NULL;
    if (prepare(&r, &layout, first, start, stop, (size_t)out.len)) {
        r.rows.to = out.buf;
        Py_BEGIN_ALLOW_THREADS;
        hf_scratch scratch = {0};
        for (size_t i = 0; i < r.job.pieces && atomic_load(&r.failed) == r.job.pieces; i++) {
            run(&r.job, i, &scratch);
        }
        hf_scratch_free(&scratch);
        Py_END_ALLOW_THREADS;
        good = PyBool_FromLong(atomic_load(&r.failed) == r.job.pieces);
    }
    PyBuffer_Release(&layout);
    PyBuffer_Release(&r.table);
    PyBuffer_Release(&out);
    return good;
}

static PyObject *load_codec(PyObject *module, PyObject *args) {
    (void)module;
    const char *name, *path;
    if (!PyArg_ParseTuple(args, "ss", &name, &path)) {
        return NULL;
    }
    return PyBool_FromLong(hf_load_codec(name, path));
}

/* ---- memory that is used again: the kernel clears fresh memory, which takes longer than reading into it */

#define STEP ((size_t)1 << 16)

typedef struct spare {
    size_t size;
    struct spare *next;
} spare;

typedef struct reading {
    read_job read;
    long long number;
    PyObject *memory;
    struct reading *next;
} reading;

typedef struct {
    PyObject_HEAD hf_pool *threads; /* NULL: closed */
    pid_t owner;
    long long numbers;
    reading *readings; /* begun, and not taken yet */
    spare *spares;
} pool;

typedef struct {
    PyObject_HEAD pool *owner; /* NULL until it is taken: a pool must not refer to itself */
    void *data;
    size_t size, room;
} memory;

static PyTypeObject *memory_type;

/* Frees a spare piece for one of another size: there are no more bytes than were in use at once. */
static void *take_spare(pool *self, size_t room) {
    for (spare **at = &self->spares; *at; at = &(*at)->next) {
        if ((*at)->size == room) {
            spare *found = *at;
            *at = found->next;
            return found;
        }
    }
    if (self->spares) {
        spare *one = self->spares;
        self->spares = one->next;
        free(one);
    }
    return malloc(room);
}

static PyObject *new_memory(pool *self, size_t size) {
    size_t room = (size / STEP + 1) * STEP;
    allocfunc alloc = (allocfunc)PyType_GetSlot(memory_type, Py_tp_alloc);
    memory *m = (memory *)alloc(memory_type, 0);
    if (m) {
        m->size = size, m->room = room;
        m->data = take_spare(self, room);
        if (!m->data) {
            Py_CLEAR(m);
            PyErr_NoMemory();
        }
    }
    return (PyObject *)m;
}

static void memory_dealloc(PyObject *op) {
    memory *m = (memory *)op;
    PyTypeObject *type = Py_TYPE(op);
    if (m->data && m->owner && m->owner->threads) {
        spare *s = m->data;
        *s = (spare){m->room, m->owner->spares};
        m->owner->spares = s;
    } else {
        free(m->data);
    }
    Py_XDECREF((PyObject *)m->owner);
    freefunc release = (freefunc)PyType_GetSlot(type, Py_tp_free);
    release(op);
    Py_DECREF(type);
}

static int memory_buffer(PyObject *op, Py_buffer *view, int flags) {
    memory *m = (memory *)op;
    return PyBuffer_FillInfo(view, op, m->data, (Py_ssize_t)m->size, 0, flags);
}

/* ---- threads */

/* A forked child has no such threads, and their lock may have been held when it was made: nothing of them is touched. */
static int is_here(const pool *self) { return self->threads && self->owner == getpid(); }

static void free_reading(reading *r) {
    PyBuffer_Release(&r->read.table);
    Py_XDECREF(r->memory);
    PyMem_Free(r);
}

static void trim(pool *self) {
    while (self->spares) {
        spare *s = self->spares;
        self->spares = s->next;
        free(s);
    }
}

static void end(pool *self) {
    hf_pool *threads = self->threads;
    int here = is_here(self);
    self->threads = NULL;
    if (here) {
        Py_BEGIN_ALLOW_THREADS;
        hf_pool_end(threads);
        Py_END_ALLOW_THREADS;
    }
    while (self->readings) {
        reading *r = self->readings;
        self->readings = r->next;
        free_reading(r);
    }
    trim(self);
}

static PyObject *pool_new(PyTypeObject *type, PyObject *args, PyObject *kwargs) {
    static char *names[] = {"threads", NULL};
    int threads = 1;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "|i", names, &threads)) {
        return NULL;
    }
    allocfunc alloc = (allocfunc)PyType_GetSlot(type, Py_tp_alloc);
    pool *self = (pool *)alloc(type, 0);
    if (self) {
        self->owner = getpid();
        self->threads = hf_pool_start(threads < 1 ? 1 : threads);
        if (!self->threads) {
            Py_DECREF(self);
            return PyErr_SetFromErrno(PyExc_OSError);
        }
    }
    return (PyObject *)self;
}

static void pool_dealloc(PyObject *op) {
    PyTypeObject *type = Py_TYPE(op);
    end((pool *)op);
    freefunc release = (freefunc)PyType_GetSlot(type, Py_tp_free);
    release(op);
    Py_DECREF(type);
}

static PyObject *pool_begin(PyObject *op, PyObject *args) {
    pool *self = (pool *)op;
    Py_buffer layout;
    long long first, start, stop;
    if (!is_here(self)) {
        PyErr_SetString(PyExc_ValueError, "it was closed, or belongs to another process");
        return NULL;
    }
    reading *r = PyMem_Calloc(1, sizeof *r);
    if (!r) {
        return PyErr_NoMemory();
    }
    if (!PyArg_ParseTuple(args, "iy*y*LLL", &r->read.rows.fd, &layout, &r->read.table, &first, &start, &stop)) {
        PyMem_Free(r);
        return NULL;
    }
    PyObject *number = NULL;
    if (prepare(&r->read, &layout, first, start, stop, SIZE_MAX)) {
        r->memory = new_memory(self, (size_t)(stop - start) * r->read.rows.layout.row_bytes);
        number = r->memory ? PyLong_FromLongLong(++self->numbers) : NULL;
    }
    PyBuffer_Release(&layout);
    if (!number) {
        free_reading(r);
        return NULL;
    }
    r->read.rows.to = ((memory *)r->memory)->data;
    r->number = self->numbers;
    r->next = self->readings;
    self->readings = r;
    hf_pool_begin(self->threads, &r->read.job);
    return number;
}

static PyObject *pool_take(PyObject *op, PyObject *arg) {
    pool *self = (pool *)op;
    long long number = PyLong_AsLongLong(arg);
    if (number == -1 && PyErr_Occurred()) {
        return NULL;
    }
    reading **at = &self->readings;
    while (*at && (*at)->number != number) {
        at = &(*at)->next;
    }
    reading *r = *at;
    if (!r || !is_here(self)) {
        return PyErr_Format(PyExc_KeyError, "%lld is not being read", number);
    }
    if (!hf_pool_is_done(self->threads, &r->read.job)) {
        Py_BEGIN_ALLOW_THREADS;
        hf_pool_wait(self->threads, &r->read.job);
        Py_END_ALLOW_THREADS;
    }
    *at = r->next; /* one thread at a time: nothing has changed meanwhile */
    int good = atomic_load(&r->read.failed) == r->read.job.pieces;
    PyObject *taken = Py_NewRef(good ? r->memory : Py_None);
    ((memory *)r->memory)->owner = (pool *)Py_NewRef(op);
    free_reading(r);
    return taken;
}

static PyObject *pool_trim(PyObject *op, PyObject *Py_UNUSED(none)) {
    trim((pool *)op);
    Py_RETURN_NONE;
}

static PyObject *pool_close(PyObject *op, PyObject *Py_UNUSED(none)) {
    end((pool *)op);
    Py_RETURN_NONE;
}

/* ---- the module */

static PyMethodDef pool_methods[] = {
    {"begin", pool_begin, METH_VARARGS, "begin(fd, layout, chunks, first, start, stop) -> a number for take()"},
    {"take", pool_take, METH_O, "take(number) -> memory with the rows; None if a chunk could not be read"},
    {"trim", pool_trim, METH_NOARGS, "trim(): frees memory that is to be used again"},
    {"close", pool_close, METH_NOARGS, "close(): what was not begun is not read; safe to call twice"},
    {NULL, NULL, 0, NULL},
};

static PyType_Slot pool_slots[] = {
    {Py_tp_new, pool_new},
    {Py_tp_dealloc, pool_dealloc},
    {Py_tp_methods, pool_methods},
    {Py_tp_doc, "Reads chunks in threads of its own, which never need the interpreter. Serves one thread."},
    {0, NULL},
};

static PyType_Spec pool_spec = {
    .name = "holdfast._native._chunks.Pool",
    .basicsize = sizeof(pool),
    .flags = Py_TPFLAGS_DEFAULT,
    .slots = pool_slots,
};

static PyType_Slot memory_slots[] = {
    {Py_tp_dealloc, memory_dealloc},
    {Py_bf_getbuffer, memory_buffer},
    {Py_tp_doc, "Memory of a pool, which uses it again."},
    {0, NULL},
};

static PyType_Spec memory_spec = {
    .name = "holdfast._native._chunks.Memory",
    .basicsize = sizeof(memory),
    .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_DISALLOW_INSTANTIATION,
    .slots = memory_slots,
};

static PyMethodDef functions[] = {
    {"read_rows", read_rows, METH_VARARGS,
     "read_rows(fd, layout, chunks, first, start, stop, out) -> whether all chunks could be read"},
    {"load_codec", load_codec, METH_VARARGS, "load_codec(name, path) -> whether the library has it"},
    {NULL, NULL, 0, NULL},
};

static struct PyModuleDef definition = {PyModuleDef_HEAD_INIT, .m_name = "_chunks", .m_size = -1,
                                        .m_doc = "Reading chunks of HDF5 without its library.", .m_methods = functions};

PyMODINIT_FUNC PyInit__chunks(void) {
    PyObject *module = PyModule_Create(&definition);
    PyObject *type = PyType_FromSpec(&pool_spec);
    memory_type = (PyTypeObject *)PyType_FromSpec(&memory_spec);
    int good = module && type && memory_type && PyModule_AddObjectRef(module, "Pool", type) == 0;
    Py_XDECREF(type);
    if (!good) {
        Py_CLEAR(module);
    }
    return module;
}
