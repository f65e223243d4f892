#include "py_gather.h"

#include <string.h>

/* Work that takes longer than giving the GIL away and waiting for it may. */
#define LONG_ITEMS 8192
#define LONG_BYTES (1 << 18)

/* What one take works with. The rows are copied: what has been checked must not change while the GIL is away. */
typedef struct {
    size_t n;
    hf_source **held;
    const hf_gather_part **from;
    int64_t *rows;
    hf_array *out;
} taking;

static int begin(hf_gatherer *self, taking *t, size_t n) {
    *t = (taking){.n = n};
    t->held = PyMem_Malloc((n + 1) * (sizeof *t->held + sizeof *t->from + sizeof *t->rows));
    t->out = PyMem_Calloc(self->parts + 1, sizeof *t->out);
    if (!t->held || !t->out) {
        PyMem_Free(t->held);
        PyMem_Free(t->out);
        PyErr_NoMemory();
        return 0;
    }
    t->from = (const hf_gather_part **)(t->held + n);
    t->rows = (int64_t *)(t->from + n);
    return 1;
}

static void finish(hf_gatherer *self, taking *t) {
    for (size_t i = 0; i < self->parts; i++) {
        hf_array_free(&t->out[i]);
    }
    PyMem_Free(t->out);
    PyMem_Free(t->held);
}

/* Finds every row, or sets an error that names a missing one. */
static int find_rows(hf_gatherer *self, taking *t, const uint8_t *which, const uint8_t *rows) {
    for (size_t i = 0; i < t->n; i++) {
        int64_t slot, row;
        memcpy(&slot, which + i * 8, 8);
        memcpy(&row, rows + i * 8, 8);
        hf_source *s = slot >= 0 && (uint64_t)slot < self->n_slots ? self->slots[slot] : NULL;
        if (!s) {
            PyErr_Format(PyExc_IndexError, "slot %lld holds nothing", (long long)slot);
            return 0;
        }
        if (row < 0 || row >= s->rows) {
            PyErr_Format(PyExc_IndexError, "expected a row below %lld of slot %lld, got %lld", (long long)s->rows,
                         (long long)slot, (long long)row);
            return 0;
        }
        t->held[i] = s;
        t->from[i] = s->parts;
        t->rows[i] = row;
    }
    return 1;
}

static int takes_long(const hf_gatherer *self, size_t n) {
    return n * self->parts > LONG_ITEMS || (double)self->bytes / (double)(self->rows + 1) * (double)n > LONG_BYTES;
}

static int gather(hf_gatherer *self, taking *t, size_t *column) {
    if (!takes_long(self, t->n)) {
        return hf_gather(self->columns, self->width, t->from, t->rows, t->n, t->out, column);
    }
    int status;
    for (size_t i = 0; i < t->n; i++) {
        t->held[i]->refs++;
    }
    Py_BEGIN_ALLOW_THREADS;
    status = hf_gather(self->columns, self->width, t->from, t->rows, t->n, t->out, column);
    Py_END_ALLOW_THREADS;
    for (size_t i = 0; i < t->n; i++) {
        hf_source_let_go(t->held[i]);
    }
    return status;
}

static PyObject *blocks_of(hf_gatherer *self, taking *t) {
    PyObject *list = PyList_New((Py_ssize_t)self->parts);
    for (size_t i = 0; list && i < self->parts; i++) {
        PyObject *block = hf_py_block(&t->out[i]);
        if (!block) {
            Py_CLEAR(list);
            break;
        }
        PyList_SetItem(list, (Py_ssize_t)i, block);
    }
    return list;
}

static PyObject *take_rows(hf_gatherer *self, const Py_buffer *which, const Py_buffer *rows) {
    if (which->len != rows->len || rows->len % 8) {
        return PyErr_Format(PyExc_ValueError, "expected a slot for every row, got %zd slots and %zd rows",
                            which->len / 8, rows->len / 8);
    }
    taking t;
    if (!begin(self, &t, (size_t)rows->len / 8)) {
        return NULL;
    }
    PyObject *taken = NULL;
    size_t column = 0;
    if (find_rows(self, &t, which->buf, rows->buf)) {
        int status = gather(self, &t, &column);
        if (status == HF_GATHER_OK) {
            taken = blocks_of(self, &t);
        } else if (status == HF_GATHER_NO_MEMORY) {
            PyErr_NoMemory();
        } else {
            PyErr_Format(PyExc_ValueError, "column %zu: an end points outside its values", column);
        }
    }
    finish(self, &t);
    return taken;
}

PyObject *hf_py_gatherer_take(PyObject *op, PyObject *args) {
    Py_buffer which, rows;
    if (!PyArg_ParseTuple(args, "y*y*", &which, &rows)) {
        return NULL;
    }
    PyObject *taken = take_rows((hf_gatherer *)op, &which, &rows);
    PyBuffer_Release(&which);
    PyBuffer_Release(&rows);
    return taken;
}
