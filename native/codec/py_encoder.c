#include "encode.h"
#include "py.h"

#include <string.h>

typedef struct {
    PyObject_HEAD hf_field *fields;
    size_t width;
} encoder_t;

static PyObject *encoder_new(PyTypeObject *type, PyObject *args, PyObject *kwargs) {
    static char *names[] = {"fields", NULL};
    PyObject *sequence;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "O", names, &sequence)) {
        return NULL;
    }
    size_t n;
    hf_field *fields = hf_py_fields(sequence, &n);
    if (!fields) {
        return NULL;
    }
    for (size_t i = 0; i < n; i++) {
        fields[i].borrowed = 0; /* nothing is borrowed when writing */
    }
    allocfunc alloc = (allocfunc)PyType_GetSlot(type, Py_tp_alloc);
    encoder_t *self = (encoder_t *)alloc(type, 0);
    if (!self) {
        hf_py_fields_free(fields, n);
        return NULL;
    }
    self->fields = fields;
    self->width = n;
    return (PyObject *)self;
}

static void encoder_dealloc(PyObject *op) {
    encoder_t *self = (encoder_t *)op;
    PyTypeObject *type = Py_TYPE(op);
    hf_py_fields_free(self->fields, self->width);
    freefunc release = (freefunc)PyType_GetSlot(type, Py_tp_free);
    release(op);
    Py_DECREF(type);
}

enum { ARRAYS = 4 }; /* values, ends, steps, rows */

/* One column's tuple of buffers. Which must be there follows from the field. */
static int open_column(const hf_field *f, PyObject *tuple, Py_buffer *buffers, hf_view *view) {
    int needed[ARRAYS] = {1, f->kind == HF_BYTES, f->depth == HF_NESTED, f->depth != HF_FIXED};
    if (!PyTuple_Check(tuple) || PyTuple_Size(tuple) != ARRAYS) {
        PyErr_SetString(PyExc_TypeError, "a column is a tuple (values, ends, steps, rows)");
        return 0;
    }
    for (int k = 0; k < ARRAYS; k++) {
        if (!needed[k]) {
            continue;
        }
        if (PyObject_GetBuffer(PyTuple_GetItem(tuple, k), &buffers[k], PyBUF_C_CONTIGUOUS) < 0) {
            return 0;
        }
        size_t size = k ? 8 : hf_value_size(f->kind);
        if ((size_t)buffers[k].len % size || (buffers[k].len && (uintptr_t)buffers[k].buf % size)) {
            PyErr_SetString(PyExc_ValueError, "expected a column's buffer to hold complete, aligned values");
            return 0;
        }
    }
    *view = (hf_view){
        .values = buffers[0].buf,
        .n_values = (uint64_t)buffers[0].len / hf_value_size(f->kind),
        .ends = buffers[1].buf,
        .n_ends = (uint64_t)buffers[1].len / 8,
        .steps = buffers[2].buf,
        .n_steps = (uint64_t)buffers[2].len / 8,
        .rows = buffers[3].buf,
        .n_rows = (uint64_t)buffers[3].len / 8,
    };
    return 1;
}

static PyObject *encode_views(encoder_t *self, const hf_view *views, long long first, long long last, int sequence,
                              Py_ssize_t stop_bytes) {
    hf_array out = {NULL, 0, 0};
    int64_t next;
    Py_BEGIN_ALLOW_THREADS;
    next = hf_encode(self->fields, views, self->width, first, last, sequence, (size_t)stop_bytes, &out);
    Py_END_ALLOW_THREADS;
    if (next < 0) {
        hf_array_free(&out);
        return PyErr_NoMemory();
    }
    PyObject *block = hf_py_block(&out);
    return block ? Py_BuildValue("NL", block, (long long)next) : NULL;
}

static PyObject *encoder_encode(PyObject *op, PyObject *args) {
    encoder_t *self = (encoder_t *)op;
    PyObject *columns, *result = NULL;
    long long rows, first;
    int sequence;
    Py_ssize_t stop_bytes;
    if (!PyArg_ParseTuple(args, "OLLpn", &columns, &rows, &first, &sequence, &stop_bytes)) {
        return NULL;
    }
    if (rows < 0 || first < 0 || first > rows || stop_bytes < 1) {
        PyErr_SetString(PyExc_ValueError, "rows, first and stop_bytes must be within bounds");
        return NULL;
    }
    Py_ssize_t n = PySequence_Size(columns);
    if (n < 0) {
        return NULL;
    }
    if ((size_t)n != self->width) {
        PyErr_Format(PyExc_ValueError, "expected %zu columns, got %zd", self->width, n);
        return NULL;
    }
    size_t slots = ARRAYS * self->width + 1;
    Py_buffer *buffers = PyMem_Calloc(slots, sizeof *buffers);
    hf_view *views = PyMem_Calloc(self->width + 1, sizeof *views);
    if (!buffers || !views) {
        PyMem_Free(buffers);
        PyMem_Free(views);
        return PyErr_NoMemory();
    }
    size_t i = 0;
    for (; i < self->width; i++) {
        PyObject *tuple = PySequence_GetItem(columns, (Py_ssize_t)i);
        int good = tuple && open_column(&self->fields[i], tuple, &buffers[ARRAYS * i], &views[i]);
        Py_XDECREF(tuple);
        if (!good) {
            break;
        }
        const char *wrong = hf_view_check(&self->fields[i], &views[i], rows, sequence);
        if (wrong) {
            PyErr_Format(PyExc_ValueError, "column %zu: %s", i, wrong);
            break;
        }
    }
    if (i == self->width) {
        result = encode_views(self, views, first, rows, sequence, stop_bytes);
    }
    for (size_t k = 0; k < slots; k++) {
        if (buffers[k].obj) {
            PyBuffer_Release(&buffers[k]);
        }
    }
    PyMem_Free(buffers);
    PyMem_Free(views);
    return result;
}

static PyMethodDef encoder_methods[] = {
    {"encode", encoder_encode, METH_VARARGS,
     "encode(columns, rows, first, sequence, stop_bytes) -> (framed records, first row not in them)"},
    {NULL, NULL, 0, NULL},
};

static PyType_Slot encoder_slots[] = {
    {Py_tp_new, encoder_new},
    {Py_tp_dealloc, encoder_dealloc},
    {Py_tp_methods, encoder_methods},
    {Py_tp_doc, "Encoder(fields): columns -> framed Example or SequenceExample records."},
    {0, NULL},
};

static PyType_Spec encoder_spec = {
    .name = "holdfast._native._codec.Encoder",
    .basicsize = sizeof(encoder_t),
    .flags = Py_TPFLAGS_DEFAULT,
    .slots = encoder_slots,
};

PyObject *hf_py_encoder_type(void) { return PyType_FromSpec(&encoder_spec); }
