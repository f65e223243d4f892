#include "decode.h"
#include "py.h"

typedef struct {
    PyObject_HEAD hf_decoder *decoder;
    int busy; /* the GIL is released while it works: a second thread must not get in */
} decoder_t;

static PyObject *decoder_new(PyTypeObject *type, PyObject *args, PyObject *kwargs) {
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
    hf_decoder *decoder = hf_decoder_new(fields, n);
    if (!decoder) {
        return PyErr_NoMemory();
    }
    allocfunc alloc = (allocfunc)PyType_GetSlot(type, Py_tp_alloc);
    decoder_t *self = (decoder_t *)alloc(type, 0);
    if (!self) {
        hf_decoder_free(decoder);
        return NULL;
    }
    self->decoder = decoder;
    return (PyObject *)self;
}

static void decoder_dealloc(PyObject *op) {
    PyTypeObject *type = Py_TYPE(op);
    hf_decoder_free(((decoder_t *)op)->decoder);
    freefunc release = (freefunc)PyType_GetSlot(type, Py_tp_free);
    release(op);
    Py_DECREF(type);
}

static int take_turn(decoder_t *self) {
    if (self->busy) {
        PyErr_SetString(PyExc_RuntimeError, "this Decoder is at work in another thread: give each thread its own");
        return 0;
    }
    self->busy = 1;
    return 1;
}

static PyObject *decoder_feed(PyObject *op, PyObject *args) {
    decoder_t *self = (decoder_t *)op;
    PyObject *buf;
    Py_ssize_t start, stop;
    int verify;
    long long max_rows, record, offset;
    if (!PyArg_ParseTuple(args, "OnnpLLL", &buf, &start, &stop, &verify, &max_rows, &record, &offset)) {
        return NULL;
    }
    Py_buffer view;
    if (!hf_py_range(buf, start, stop, &view)) {
        return NULL;
    }
    if (!take_turn(self)) {
        PyBuffer_Release(&view);
        return NULL;
    }
    hf_walk walk;
    Py_BEGIN_ALLOW_THREADS;
    walk = hf_decoder_feed(self->decoder, view.buf, (const uint8_t *)view.buf + start, (size_t)(stop - start), verify,
                           max_rows, record, offset);
    Py_END_ALLOW_THREADS;
    self->busy = 0;
    PyBuffer_Release(&view);
    if (walk.status == HF_NO_MEMORY) {
        return PyErr_NoMemory();
    }
    return Py_BuildValue("LniK", (long long)walk.count, (Py_ssize_t)walk.consumed, walk.status,
                         (unsigned long long)walk.needed);
}

static PyObject *decoder_feed_file(PyObject *op, PyObject *args) {
    decoder_t *self = (decoder_t *)op;
    PyObject *buf;
    Py_ssize_t start, stop, most_bytes;
    int fd, verify;
    long long offset, max_rows, record;
    if (!PyArg_ParseTuple(args, "iOnnLpLLn", &fd, &buf, &start, &stop, &offset, &verify, &max_rows, &record,
                          &most_bytes)) {
        return NULL;
    }
    Py_buffer view;
    hf_refill refill = {.fd = fd, .start = (size_t)start, .stop = (size_t)stop, .offset = offset};
    if (!hf_py_refill(buf, &view, &refill)) {
        return NULL;
    }
    if (!take_turn(self)) {
        PyBuffer_Release(&view);
        return NULL;
    }
    hf_walk walk;
    Py_BEGIN_ALLOW_THREADS;
    walk = hf_decoder_feed_file(self->decoder, &refill, verify, max_rows, record, (size_t)most_bytes);
    Py_END_ALLOW_THREADS;
    self->busy = 0;
    PyBuffer_Release(&view);
    return walk.status == HF_NO_MEMORY ? PyErr_NoMemory() : hf_py_walked(&walk, &refill);
}

static PyObject *decoder_rows(PyObject *op, PyObject *unused) {
    (void)unused;
    return PyLong_FromLongLong(hf_decoder_rows(((decoder_t *)op)->decoder));
}

static PyObject *decoder_faults(PyObject *op, PyObject *unused) {
    (void)unused;
    decoder_t *self = (decoder_t *)op;
    if (!take_turn(self)) {
        return NULL;
    }
    const hf_fault *faults;
    size_t n = hf_decoder_faults(self->decoder, &faults);
    PyObject *list = PyList_New(0);
    for (size_t i = 0; list && i < n; i++) {
        const hf_fault *f = &faults[i];
        PyObject *tuple =
            Py_BuildValue("LLiiL", (long long)f->record, (long long)f->offset, f->code, f->field, (long long)f->got);
        if (!tuple || PyList_Append(list, tuple) < 0) {
            Py_CLEAR(list);
        }
        Py_XDECREF(tuple);
    }
    if (list) {
        hf_decoder_clear_faults(self->decoder);
    }
    self->busy = 0;
    return list;
}

/* A column's arrays that its field has; None for the others. */
static PyObject *column_tuple(const hf_field *f, hf_column *c) {
    int has[4] = {1, f->kind == HF_BYTES && !f->borrowed, f->depth == HF_NESTED, f->depth != HF_FIXED};
    hf_array *arrays[4] = {&c->values, &c->ends, &c->steps, &c->rows};
    PyObject *tuple = PyTuple_New(4);
    for (int k = 0; tuple && k < 4; k++) {
        PyObject *item = Py_None;
        if (!has[k]) {
            Py_INCREF(item);
        } else if (!(item = hf_py_block(arrays[k]))) {
            Py_CLEAR(tuple);
            break;
        }
        PyTuple_SetItem(tuple, k, item);
    }
    return tuple;
}

static PyObject *decoder_take(PyObject *op, PyObject *unused) {
    (void)unused;
    decoder_t *self = (decoder_t *)op;
    if (!take_turn(self)) {
        return NULL;
    }
    size_t width = hf_decoder_width(self->decoder);
    hf_column *columns = PyMem_Calloc(width + 1, sizeof *columns);
    PyObject *list = columns ? PyList_New(0) : PyErr_NoMemory();
    if (list) {
        if (!hf_decoder_take(self->decoder, columns)) {
            Py_CLEAR(list);
            PyErr_NoMemory();
        }
        for (size_t i = 0; list && i < width; i++) {
            PyObject *tuple = column_tuple(hf_decoder_field(self->decoder, i), &columns[i]);
            if (!tuple || PyList_Append(list, tuple) < 0) {
                Py_CLEAR(list);
            }
            Py_XDECREF(tuple);
        }
    }
    for (size_t i = 0; columns && i < width; i++) {
        hf_column_free(&columns[i]);
    }
    PyMem_Free(columns);
    self->busy = 0;
    return list;
}

static PyMethodDef decoder_methods[] = {
    {"feed", decoder_feed, METH_VARARGS,
     "feed(buf, start, stop, verify_data, max_rows, record, offset) -> (frames, bytes, status, needed)"},
    {"feed_file", decoder_feed_file, METH_VARARGS,
     "feed_file(fd, buf, start, stop, offset, verify_data, max_rows, record, most_bytes) -> (frames, bytes, status, "
     "needed, start, stop)"},
    {"rows", decoder_rows, METH_NOARGS, "rows() -> how many rows are ready"},
    {"faults", decoder_faults, METH_NOARGS, "faults() -> [(record, offset, code, field, got)]; forgets them"},
    {"take", decoder_take, METH_NOARGS, "take() -> [(values, ends, steps, rows)] a field; starts an empty batch"},
    {NULL, NULL, 0, NULL},
};

static PyType_Slot decoder_slots[] = {
    {Py_tp_new, decoder_new},
    {Py_tp_dealloc, decoder_dealloc},
    {Py_tp_methods, decoder_methods},
    {Py_tp_doc, "Decoder(fields): framed Example and SequenceExample records -> columns."},
    {0, NULL},
};

static PyType_Spec decoder_spec = {
    .name = "holdfast._native._codec.Decoder",
    .basicsize = sizeof(decoder_t),
    .flags = Py_TPFLAGS_DEFAULT,
    .slots = decoder_slots,
};

PyObject *hf_py_decoder_type(void) { return PyType_FromSpec(&decoder_spec); }
