#include "fdscan.h"

#include <limits.h>

PyObject *hf_new_row(PyObject *type, Py_ssize_t items) {
    /* What tuple.__new__ does for a class derived from it, without a tuple to copy from. */
    PyObject *row = PyType_GenericAlloc((PyTypeObject *)type, items);
    if (row) {
        /* It will hold numbers, text and names, none of which can lead back to it: nothing for the garbage collector, which
         * would walk through all of them when it is next let run. */
        PyObject_GC_UnTrack(row);
    }
    return row;
}

int *hf_numbers(PyObject *list, Py_ssize_t *n) {
    if (!PyList_Check(list)) {
        PyErr_Format(PyExc_TypeError, "expected a list of descriptors, got %R", list);
        return NULL;
    }
    *n = PyList_Size(list);
    int *numbers = PyMem_Malloc(sizeof(int) * (size_t)(*n + 1));
    if (!numbers) {
        PyErr_NoMemory();
        return NULL;
    }
    for (Py_ssize_t i = 0; i < *n; i++) {
        long number = PyLong_AsLong(PyList_GetItem(list, i));
        if (number < 0 || number > INT_MAX) {
            if (!PyErr_Occurred()) {
                PyErr_Format(PyExc_ValueError, "expected a descriptor's number, got %ld", number);
            }
            PyMem_Free(numbers);
            return NULL;
        }
        numbers[i] = (int)number;
    }
    return numbers;
}

static PyMethodDef methods[] = {
    {"read_targets", hf_read_targets, METH_VARARGS,
     "read_targets(prefix, names, place) -> [target of the link prefix + name, below the open folder `place` (-1: "
     "none), "
     "or '']"},
    {"read_modes", hf_read_modes, METH_VARARGS, "read_modes(prefix, names, place) -> [mode of the link itself, or 0]"},
    {"describe", hf_describe, METH_VARARGS,
     "describe(fds, targets, Descriptor, kinds, kind_of) -> [a Descriptor for each that has a target]; `kinds` are "
     "those of a pipe, a socket, a file, a deleted file, shared memory, a memfd, a device and others"},
    {"ask", hf_ask, METH_O,
     "ask(fds) -> bytes, one for each: 0 is no pipe, else 1 reads, 2 writes, 3 both; 4 more: nobody is at the far end"},
    {"ask_other", hf_ask_other, METH_VARARGS,
     "ask_other(pidfd, fds, at_once) -> the same of another process's, borrowed so many at a time"},
    {"pair_pipes", hf_pair_pipes, METH_VARARGS,
     "pair_pipes(tables, access, poll, pipe kind, PipeEnd, fates) -> {pid: [PipeEnd]}"},
    {"parse_unix", hf_parse_unix, METH_VARARGS,
     "parse_unix(data, at, UnixRow, rows) -> where to go on: adds a row for each message that is like nearly all"},
    {NULL, NULL, 0, NULL},
};

static struct PyModuleDef definition = {PyModuleDef_HEAD_INIT, .m_name = "_fdscan", .m_size = -1, .m_methods = methods,
                                        .m_doc = "Descriptors by the tens of thousands."};

PyMODINIT_FUNC PyInit__fdscan(void) { return PyModule_Create(&definition); }
