#include "py.h"

#include <stdlib.h>
#include <string.h>

void hf_py_fields_free(hf_field *fields, size_t n) {
    for (size_t i = 0; i < n; i++) {
        hf_field_free(&fields[i]);
    }
    free(fields);
}

static int set_bytes_default(hf_field *f, PyObject *values) {
    hf_array joined = {NULL, 0, 0};
    f->fill_ends = malloc(sizeof(int64_t) * f->count);
    if (!f->fill_ends) {
        PyErr_NoMemory();
        return 0;
    }
    for (uint64_t k = 0; k < f->count; k++) {
        char *data;
        Py_ssize_t n;
        PyObject *item = PySequence_GetItem(values, (Py_ssize_t)k);
        if (!item || PyBytes_AsStringAndSize(item, &data, &n) < 0) {
            Py_XDECREF(item);
            hf_array_free(&joined);
            return 0;
        }
        if (!hf_array_room(&joined, (size_t)n)) {
            Py_DECREF(item);
            hf_array_free(&joined);
            PyErr_NoMemory();
            return 0;
        }
        if (n) {
            memcpy(joined.data + joined.len, data, (size_t)n);
        }
        joined.len += (size_t)n;
        f->fill_ends[k] = (int64_t)joined.len;
        Py_DECREF(item);
    }
    f->fill = joined.data;
    return 1;
}

static int set_default(hf_field *f, PyObject *value) {
    if (value == Py_None) {
        return 1;
    }
    f->has_default = 1;
    if (f->kind == HF_BYTES) {
        Py_ssize_t n = PySequence_Size(value);
        if (n < 0) {
            return 0;
        }
        if ((uint64_t)n != f->count) {
            PyErr_Format(PyExc_ValueError, "default: expected %llu bytes objects, got %zd",
                         (unsigned long long)f->count, n);
            return 0;
        }
        return set_bytes_default(f, value);
    }
    char *data;
    Py_ssize_t n;
    if (PyBytes_AsStringAndSize(value, &data, &n) < 0) {
        return 0;
    }
    if ((uint64_t)n != f->count * hf_value_size(f->kind)) {
        PyErr_Format(PyExc_ValueError, "default: expected %llu values, got %zd bytes", (unsigned long long)f->count, n);
        return 0;
    }
    f->fill = malloc((size_t)n);
    if (!f->fill) {
        PyErr_NoMemory();
        return 0;
    }
    memcpy(f->fill, data, (size_t)n);
    return 1;
}

static int set_field(hf_field *f, PyObject *tuple) {
    const char *key;
    Py_ssize_t key_len;
    unsigned long long count;
    PyObject *value;
    if (!PyArg_ParseTuple(tuple, "y#iiKO", &key, &key_len, &f->kind, &f->depth, &count, &value)) {
        return 0;
    }
    if (f->kind == HF_BORROWED_BYTES) {
        f->kind = HF_BYTES;
        f->borrowed = 1;
    }
    if (f->borrowed && (f->depth != HF_FIXED || count != 1 || value != Py_None)) {
        PyErr_SetString(PyExc_ValueError, "only one string a row, without a default, can be borrowed");
        return 0;
    }
    if (f->kind < HF_BYTES || f->kind > HF_INT64 || f->depth < HF_FIXED || f->depth > HF_NESTED || count < 1 ||
        count > ((uint64_t)1 << 40)) {
        PyErr_Format(PyExc_ValueError, "field out of range: kind %d, depth %d, count %llu", f->kind, f->depth, count);
        return 0;
    }
    f->count = count;
    f->key = malloc((size_t)key_len + 1);
    if (!f->key) {
        PyErr_NoMemory();
        return 0;
    }
    memcpy(f->key, key, (size_t)key_len);
    f->key_len = (size_t)key_len;
    return set_default(f, value);
}

hf_field *hf_py_fields(PyObject *sequence, size_t *n) {
    Py_ssize_t size = PySequence_Size(sequence);
    if (size < 0) {
        return NULL;
    }
    hf_field *fields = calloc((size_t)size + 1, sizeof *fields);
    if (!fields) {
        PyErr_NoMemory();
        return NULL;
    }
    *n = (size_t)size;
    for (Py_ssize_t i = 0; i < size; i++) {
        PyObject *item = PySequence_GetItem(sequence, i);
        if (!item || !PyTuple_Check(item)) {
            if (item) {
                PyErr_SetString(PyExc_TypeError, "a field is a tuple (key, kind, depth, count, default)");
                Py_DECREF(item);
            }
            hf_py_fields_free(fields, *n);
            return NULL;
        }
        int good = set_field(&fields[i], item);
        Py_DECREF(item);
        if (!good) {
            hf_py_fields_free(fields, *n);
            return NULL;
        }
    }
    return fields;
}
