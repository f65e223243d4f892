#include "py_gather.h"

#include <string.h>

#define MOST_SLOTS (1 << 24)

void hf_source_let_go(hf_source *s) {
    if (!s || --s->refs) {
        return;
    }
    for (size_t i = 0; i < s->n; i++) {
        PyBuffer_Release(&s->views[i]);
    }
    PyMem_Free(s->views);
    PyMem_Free(s);
}

/* ---- made and freed */

/* Parses one (counts, width) into the column, and appends its counts to the others. 0: a Python error. */
static int add_layout(hf_gatherer *self, PyObject *layout) {
    PyObject *counts;
    Py_ssize_t width;
    if (!PyArg_ParseTuple(layout, "O!n", &PyTuple_Type, &counts, &width)) {
        return 0;
    }
    size_t levels = (size_t)PyTuple_Size(counts), before = self->parts - self->width;
    uint64_t *grown = PyMem_Realloc(self->counts, (before + levels + 1) * sizeof *grown);
    if (!grown) {
        PyErr_NoMemory();
        return 0;
    }
    self->counts = grown;
    int good = width >= 0;
    for (size_t i = 0; good && i < levels; i++) {
        Py_ssize_t count = PyLong_AsSsize_t(PyTuple_GetItem(counts, (Py_ssize_t)i));
        if (count == -1 && PyErr_Occurred()) {
            return 0;
        }
        good = count >= 1;
        grown[before + i] = (uint64_t)count;
    }
    if (!good) {
        PyErr_SetString(PyExc_ValueError, "expected counts from 1 up and a width from 0 up");
        return 0;
    }
    self->columns[self->width++] = (hf_gather_column){.levels = levels, .width = (size_t)width};
    self->parts += levels + 1;
    return 1;
}

static int add_layouts(hf_gatherer *self, PyObject *layouts) {
    Py_ssize_t n = PySequence_Size(layouts);
    if (n < 0) {
        return 0;
    }
    self->columns = PyMem_Calloc((size_t)n + 1, sizeof *self->columns);
    if (!self->columns) {
        PyErr_NoMemory();
        return 0;
    }
    for (Py_ssize_t i = 0; i < n; i++) {
        PyObject *layout = PySequence_GetItem(layouts, i);
        int good = layout && add_layout(self, layout);
        Py_XDECREF(layout);
        if (!good) {
            return 0;
        }
    }
    uint64_t *counts = self->counts; /* stays where it is from now on */
    for (size_t i = 0; i < self->width; i++) {
        self->columns[i].counts = counts;
        counts += self->columns[i].levels;
    }
    return 1;
}

static PyObject *gatherer_new(PyTypeObject *type, PyObject *args, PyObject *kwargs) {
    static char *names[] = {"layouts", NULL};
    PyObject *layouts;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "O", names, &layouts)) {
        return NULL;
    }
    allocfunc alloc = (allocfunc)PyType_GetSlot(type, Py_tp_alloc);
    PyObject *self = alloc(type, 0);
    if (self && !add_layouts((hf_gatherer *)self, layouts)) {
        Py_CLEAR(self);
    }
    return self;
}

static void gatherer_dealloc(PyObject *op) {
    hf_gatherer *self = (hf_gatherer *)op;
    PyTypeObject *type = Py_TYPE(op);
    for (size_t i = 0; i < self->n_slots; i++) {
        hf_source_let_go(self->slots[i]);
    }
    PyMem_Free(self->slots);
    PyMem_Free(self->columns);
    PyMem_Free(self->counts);
    freefunc release = (freefunc)PyType_GetSlot(type, Py_tp_free);
    release(op);
    Py_DECREF(type);
}

/* ---- batches come and go */

static int add_view(hf_gatherer *self, hf_source *s, size_t column, size_t level, PyObject *buffers) {
    PyObject *buffer = PySequence_GetItem(buffers, (Py_ssize_t)s->n);
    if (!buffer) {
        return 0;
    }
    Py_buffer *view = &s->views[s->n];
    int good = PyObject_GetBuffer(buffer, view, PyBUF_SIMPLE) == 0;
    Py_DECREF(buffer);
    if (!good) {
        return 0;
    }
    hf_gather_part *part = &s->parts[s->n++];
    s->bytes += view->len;
    if (!hf_gather_part_init(part, &self->columns[column], level, (uint64_t)s->rows, view->buf, (size_t)view->len)) {
        PyErr_Format(PyExc_ValueError, "column %zu: its arrays are not those of %lld rows", column, (long long)s->rows);
        return 0;
    }
    return 1;
}

static hf_source *new_source(hf_gatherer *self, Py_ssize_t rows, PyObject *buffers) {
    hf_source *s = PyMem_Calloc(1, sizeof *s + (self->parts + 1) * sizeof *s->parts);
    Py_buffer *views = PyMem_Calloc(self->parts + 1, sizeof *views);
    if (!s || !views) {
        PyMem_Free(s);
        PyMem_Free(views);
        PyErr_NoMemory();
        return NULL;
    }
    s->refs = 1;
    s->rows = rows;
    s->views = views;
    for (size_t column = 0; column < self->width; column++) {
        for (size_t level = 0; level <= self->columns[column].levels; level++) {
            if (!add_view(self, s, column, level, buffers)) {
                hf_source_let_go(s);
                return NULL;
            }
        }
    }
    return s;
}

static int make_slot(hf_gatherer *self, size_t slot) {
    if (slot < self->n_slots) {
        return 1;
    }
    size_t n = slot + 1 + slot / 2;
    hf_source **grown = PyMem_Realloc(self->slots, n * sizeof *grown);
    if (!grown) {
        PyErr_NoMemory();
        return 0;
    }
    memset(grown + self->n_slots, 0, (n - self->n_slots) * sizeof *grown);
    self->slots = grown;
    self->n_slots = n;
    return 1;
}

/* What was in the slot goes last: its end may run any code. */
static void swap_source(hf_gatherer *self, size_t slot, hf_source *s) {
    hf_source *old = self->slots[slot];
    self->slots[slot] = s;
    self->rows += (s ? s->rows : 0) - (old ? old->rows : 0);
    self->bytes += (s ? s->bytes : 0) - (old ? old->bytes : 0);
    hf_source_let_go(old);
}

static PyObject *gatherer_put(PyObject *op, PyObject *args) {
    hf_gatherer *self = (hf_gatherer *)op;
    Py_ssize_t slot, rows;
    PyObject *buffers;
    if (!PyArg_ParseTuple(args, "nnO", &slot, &rows, &buffers)) {
        return NULL;
    }
    if (slot < 0 || slot >= MOST_SLOTS || rows < 0) {
        return PyErr_Format(PyExc_ValueError, "expected a slot below %d and rows from 0 up, got %zd and %zd",
                            MOST_SLOTS, slot, rows);
    }
    Py_ssize_t n = PySequence_Size(buffers);
    if (n >= 0 && (size_t)n != self->parts) {
        PyErr_SetString(PyExc_ValueError, "expected a buffer for every array of every column");
    }
    if (n < 0 || (size_t)n != self->parts) {
        return NULL;
    }
    hf_source *s = new_source(self, rows, buffers);
    if (!s) {
        return NULL;
    }
    if (!make_slot(self, (size_t)slot)) {
        hf_source_let_go(s);
        return NULL;
    }
    swap_source(self, (size_t)slot, s);
    Py_RETURN_NONE;
}

static PyObject *gatherer_drop(PyObject *op, PyObject *arg) {
    hf_gatherer *self = (hf_gatherer *)op;
    Py_ssize_t slot = PyLong_AsSsize_t(arg);
    if (slot == -1 && PyErr_Occurred()) {
        return NULL;
    }
    if (slot >= 0 && (size_t)slot < self->n_slots) {
        swap_source(self, (size_t)slot, NULL);
    }
    Py_RETURN_NONE;
}

static PyMethodDef gatherer_methods[] = {
    {"put", gatherer_put, METH_VARARGS, "put(slot, rows, buffers): shares a batch's arrays"},
    {"drop", gatherer_drop, METH_O, "drop(slot): lets go of them"},
    {"take", hf_py_gatherer_take, METH_VARARGS,
     "take(which, rows) -> [buffer]: row rows[i] of slot which[i], for all i"},
    {NULL, NULL, 0, NULL},
};

static PyType_Slot gatherer_slots[] = {
    {Py_tp_new, gatherer_new},
    {Py_tp_dealloc, gatherer_dealloc},
    {Py_tp_methods, gatherer_methods},
    {Py_tp_doc, "Gatherer(layouts): rows picked out of many batches."},
    {0, NULL},
};

static PyType_Spec gatherer_spec = {
    .name = "holdfast._native._codec.Gatherer",
    .basicsize = sizeof(hf_gatherer),
    .flags = Py_TPFLAGS_DEFAULT,
    .slots = gatherer_slots,
};

PyObject *hf_py_gatherer_type(void) { return PyType_FromSpec(&gatherer_spec); }
