#include "py.h"

#include <stdlib.h>

typedef struct {
    PyObject_HEAD hf_array array;
} block_t;

static PyTypeObject *block_type;

static void block_dealloc(PyObject *self) {
    PyTypeObject *type = Py_TYPE(self);
    hf_array_free(&((block_t *)self)->array);
    freefunc release = (freefunc)PyType_GetSlot(type, Py_tp_free);
    release(self);
    Py_DECREF(type);
}

static int block_getbuffer(PyObject *self, Py_buffer *view, int flags) {
    static uint8_t nothing[1];
    hf_array *a = &((block_t *)self)->array;
    return PyBuffer_FillInfo(view, self, a->data ? a->data : nothing, (Py_ssize_t)a->len, 0, flags);
}

static Py_ssize_t block_length(PyObject *self) { return (Py_ssize_t)((block_t *)self)->array.len; }

static PyType_Slot block_slots[] = {
    {Py_tp_dealloc, block_dealloc},
    {Py_bf_getbuffer, block_getbuffer},
    {Py_sq_length, block_length},
    {Py_tp_doc, "Memory filled by the codec, shown as a writable buffer of bytes."},
    {0, NULL},
};

static PyType_Spec block_spec = {
    .name = "holdfast._native._codec.Block",
    .basicsize = sizeof(block_t),
    .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_DISALLOW_INSTANTIATION,
    .slots = block_slots,
};

PyObject *hf_py_block(hf_array *a) {
    if (!block_type && !(block_type = (PyTypeObject *)PyType_FromSpec(&block_spec))) {
        return NULL;
    }
    block_t *self = PyObject_New(block_t, block_type);
    if (!self) {
        return NULL;
    }
    if (a->cap - a->len > a->cap / 4 && a->len) { /* a batch that is kept should not keep much more than itself */
        uint8_t *smaller = realloc(a->data, a->len);
        if (smaller) {
            a->data = smaller;
            a->cap = a->len;
        }
    }
    self->array = *a;
    *a = (hf_array){NULL, 0, 0};
    return (PyObject *)self;
}
