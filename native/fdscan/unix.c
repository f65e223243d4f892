/* Parses the kernel's netlink messages about Unix sockets, as far as they have the usual layout. */
#include "fdscan.h"

#include <stdint.h>
#include <string.h>

enum { DIAG_BY_FAMILY = 20, PEER = 2, SHUTDOWN = 6 };

/* One message: a row, its peer, how it was shut down; the kernel pads it so. */
typedef struct {
    uint32_t length;
    uint16_t kind, flags;
    uint32_t sequence, port;
    uint8_t family, type, state, pad;
    uint32_t inode;
    uint8_t cookie[8];
    uint16_t first_length, first;
    uint32_t peer;
    uint16_t second_length, second;
    uint8_t shutdown, end[3];
} message;

static int is_common(const message *m) {
    return m->length == sizeof *m && m->kind == DIAG_BY_FAMILY && m->first == PEER && m->second == SHUTDOWN;
}

static int set_number(PyObject *row, Py_ssize_t at, unsigned long number) {
    PyObject *item = PyLong_FromUnsignedLong(number);
    return item && PyTuple_SetItem(row, at, item) == 0;
}

static PyObject *make_row(PyObject *type, const message *m, PyObject *nameless) {
    PyObject *row = hf_new_row(type, 6);
    if (row && (!set_number(row, 0, m->inode) || !set_number(row, 1, m->type) || !set_number(row, 2, m->state) ||
                !set_number(row, 3, m->peer) || !set_number(row, 4, m->shutdown) ||
                PyTuple_SetItem(row, 5, Py_NewRef(nameless)) < 0)) {
        Py_CLEAR(row);
    }
    return row;
}

static Py_ssize_t parse(const char *data, Py_ssize_t size, Py_ssize_t at, PyObject *type, PyObject *rows,
                        PyObject *nameless) {
    message m;
    for (; size - at >= (Py_ssize_t)sizeof m; at += (Py_ssize_t)sizeof m) {
        memcpy(&m, data + at, sizeof m);
        if (!is_common(&m)) {
            break;
        }
        PyObject *row = make_row(type, &m, nameless);
        int bad = !row || PyList_Append(rows, row) < 0;
        Py_XDECREF(row);
        if (bad) {
            return -1;
        }
    }
    return at;
}

PyObject *hf_parse_unix(PyObject *module, PyObject *args) {
    (void)module;
    const char *data;
    Py_ssize_t size, at;
    PyObject *type, *rows;
    if (!PyArg_ParseTuple(args, "y#nO!O!", &data, &size, &at, &PyType_Type, &type, &PyList_Type, &rows)) {
        return NULL;
    }
    if (at < 0 || !PyType_IsSubtype((PyTypeObject *)type, &PyTuple_Type)) {
        return PyErr_Format(PyExc_ValueError, "expected a place and a class of tuples, got %zd and %R", at, type);
    }
    PyObject *nameless = PyUnicode_InternFromString("");
    Py_ssize_t end = nameless ? parse(data, size, at, type, rows, nameless) : -1;
    Py_XDECREF(nameless);
    return end < 0 ? NULL : PyLong_FromSsize_t(end);
}
