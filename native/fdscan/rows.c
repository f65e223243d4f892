/* Converts the target of a link to a row that describes the descriptor. */
#include "fdscan.h"

#include <stdint.h>
#include <string.h>

/* The kinds there may be thousands of, in the order in which Python gives them. */
enum { PIPE, SOCKET, FILE_, DELETED, SHM, MEMFD, DEVICE, OTHER, KINDS };
enum { ASK = -1 };

/* A number is no longer than this: it fits into 64 bits. */
#define MOST_DIGITS 19

static int starts(const char *text, Py_ssize_t n, const char *head) {
    size_t length = strlen(head);
    return (size_t)n >= length && memcmp(text, head, length) == 0;
}

static int kind_of_path(const char *text, Py_ssize_t n) {
    static const char gone[] = " (deleted)";
    const Py_ssize_t length = sizeof gone - 1;
    if (starts(text, n, "/dev/")) {
        return starts(text, n, "/dev/shm/") ? SHM : DEVICE;
    }
    if (starts(text, n, "/memfd:")) {
        return MEMFD;
    }
    if (starts(text, n, "/dmabuf:")) {
        return OTHER;
    }
    return n >= length && memcmp(text + n - length, gone, (size_t)length) == 0 ? DELETED : FILE_;
}

/* `8123]` -> 8123. 0: it is none that can be taken so. */
static int parse_inode(const char *text, Py_ssize_t n, uint64_t *inode) {
    if (n < 2 || n > MOST_DIGITS + 1 || text[n - 1] != ']') {
        return 0;
    }
    *inode = 0;
    for (Py_ssize_t i = 0; i < n - 1; i++) {
        if (text[i] < '0' || text[i] > '9') {
            return 0;
        }
        *inode = *inode * 10 + (uint64_t)(text[i] - '0');
    }
    return 1;
}

/* ASK: Python may know it. */
static int kind_of(const char *text, Py_ssize_t n, uint64_t *inode) {
    if (n && text[0] == '/') {
        return kind_of_path(text, n);
    }
    if (starts(text, n, "pipe:[") && parse_inode(text + 6, n - 6, inode)) {
        return PIPE;
    }
    if (starts(text, n, "socket:[") && parse_inode(text + 8, n - 8, inode)) {
        return SOCKET;
    }
    return ASK;
}

/* Kind and inode of a target, as new references; 0: a Python error. */
static int judge(PyObject *target, PyObject *kinds, PyObject *ask, PyObject **kind, PyObject **inode) {
    Py_ssize_t n;
    uint64_t number = 0;
    const char *text = PyUnicode_AsUTF8AndSize(target, &n);
    if (!text && !PyErr_ExceptionMatches(PyExc_UnicodeEncodeError)) {
        return 0;
    }
    PyErr_Clear(); /* a name that is no UTF-8 */
    int found = text ? kind_of(text, n, &number) : ASK;
    if (found == ASK) {
        PyObject *pair = PyObject_CallFunctionObjArgs(ask, target, NULL);
        int good = pair && PyTuple_Check(pair) && PyTuple_Size(pair) == 2;
        if (good) {
            *kind = Py_NewRef(PyTuple_GetItem(pair, 0));
            *inode = Py_NewRef(PyTuple_GetItem(pair, 1));
        } else if (pair) {
            PyErr_Format(PyExc_TypeError, "expected a kind and an inode, got %R", pair);
        }
        Py_XDECREF(pair);
        return good;
    }
    *kind = Py_NewRef(PyTuple_GetItem(kinds, found));
    *inode = found <= SOCKET ? PyLong_FromUnsignedLongLong(number) : Py_NewRef(Py_None);
    return *inode != NULL;
}

static PyObject *make_row(PyObject *type, PyObject *fd, PyObject *target, PyObject *kinds, PyObject *ask) {
    PyObject *kind = NULL, *inode = NULL;
    if (!judge(target, kinds, ask, &kind, &inode)) {
        Py_XDECREF(kind);
        return NULL;
    }
    PyObject *row = hf_new_row(type, 5);
    if (!row) {
        Py_DECREF(kind);
        Py_DECREF(inode);
        return NULL;
    }
    PyTuple_SetItem(row, 0, Py_NewRef(fd));
    PyTuple_SetItem(row, 1, kind);
    PyTuple_SetItem(row, 2, Py_NewRef(target));
    PyTuple_SetItem(row, 3, inode);
    PyTuple_SetItem(row, 4, Py_NewRef(Py_None));
    return row;
}

static PyObject *describe(PyObject *fds, PyObject *targets, PyObject *type, PyObject *kinds, PyObject *ask) {
    Py_ssize_t n = PyList_Size(fds);
    PyObject *found = PyList_New(0);
    for (Py_ssize_t i = 0; found && i < n; i++) {
        PyObject *target = PyList_GetItem(targets, i);
        if (target && PyUnicode_GetLength(target) == 0) {
            continue;
        }
        PyObject *row = target ? make_row(type, PyList_GetItem(fds, i), target, kinds, ask) : NULL;
        if (!row || PyList_Append(found, row) < 0) {
            Py_CLEAR(found);
        }
        Py_XDECREF(row);
    }
    return found;
}

PyObject *hf_describe(PyObject *module, PyObject *args) {
    (void)module;
    PyObject *given_fds, *given_targets, *type, *kinds, *ask;
    if (!PyArg_ParseTuple(args, "OOO!O!O", &given_fds, &given_targets, &PyType_Type, &type, &PyTuple_Type, &kinds,
                          &ask)) {
        return NULL;
    }
    if (!PyType_IsSubtype((PyTypeObject *)type, &PyTuple_Type) || PyTuple_Size(kinds) != KINDS) {
        PyErr_Format(PyExc_TypeError, "expected a class of tuples and %d kinds, got %R and %R", KINDS, type, kinds);
        return NULL;
    }
    /* Copies: what is called may change the lists. */
    PyObject *fds = PySequence_List(given_fds), *targets = PySequence_List(given_targets), *found = NULL;
    if (fds && targets) {
        if (PyList_Size(fds) == PyList_Size(targets)) {
            found = describe(fds, targets, type, kinds, ask);
        } else {
            PyErr_Format(PyExc_ValueError, "expected a target for each of %zd descriptors, got %zd", PyList_Size(fds),
                         PyList_Size(targets));
        }
    }
    Py_XDECREF(fds);
    Py_XDECREF(targets);
    return found;
}
