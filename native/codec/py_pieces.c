#include "py.h"

/* An instance of a class with slots, its __init__ left out: that would take longer than everything else here. */
static PyObject *make_instance(PyObject *type, PyObject *slot, PyObject *item, PyObject *others) {
    allocfunc alloc = (allocfunc)PyType_GetSlot((PyTypeObject *)type, Py_tp_alloc);
    PyObject *made = alloc((PyTypeObject *)type, 0);
    int good = made && PyObject_SetAttr(made, slot, item) == 0;
    for (Py_ssize_t i = 0; good && i < PyTuple_Size(others); i++) {
        PyObject *pair = PyTuple_GetItem(others, i);
        good = PyObject_SetAttr(made, PyTuple_GetItem(pair, 0), PyTuple_GetItem(pair, 1)) == 0;
    }
    if (!good) {
        Py_CLEAR(made);
    }
    return made;
}

/* Item i of a column: of a sequence itself, or in an instance of a class. */
static PyObject *piece_of(PyObject *column, Py_ssize_t i) {
    PyObject *items, *type, *slot, *others;
    if (!PyTuple_Check(column)) {
        return PySequence_GetItem(column, i);
    }
    if (!PyArg_ParseTuple(column, "OO!UO!", &items, &PyType_Type, &type, &slot, &PyTuple_Type, &others)) {
        return NULL;
    }
    PyObject *item = PySequence_GetItem(items, i);
    PyObject *made = item ? make_instance(type, slot, item, others) : NULL;
    Py_XDECREF(item);
    return made;
}

static PyObject *dict_of(PyObject *names, PyObject *columns, Py_ssize_t i) {
    PyObject *dict = PyDict_New();
    for (Py_ssize_t k = 0; dict && k < PyTuple_Size(columns); k++) {
        PyObject *piece = piece_of(PyTuple_GetItem(columns, k), i);
        if (!piece || PyDict_SetItem(dict, PyTuple_GetItem(names, k), piece) < 0) {
            Py_CLEAR(dict);
        }
        Py_XDECREF(piece);
    }
    return dict;
}

PyObject *hf_py_pieces(PyObject *module, PyObject *args) {
    (void)module;
    PyObject *names, *columns;
    Py_ssize_t n;
    if (!PyArg_ParseTuple(args, "O!O!n", &PyTuple_Type, &names, &PyTuple_Type, &columns, &n)) {
        return NULL;
    }
    if (PyTuple_Size(names) != PyTuple_Size(columns) || n < 0) {
        PyErr_SetString(PyExc_ValueError, "expected a name for every column, and a number of pieces from 0 up");
        return NULL;
    }
    PyObject *list = PyList_New(n);
    for (Py_ssize_t i = 0; list && i < n; i++) {
        PyObject *dict = dict_of(names, columns, i);
        if (!dict) {
            Py_CLEAR(list);
            break;
        }
        PyList_SetItem(list, i, dict);
    }
    return list;
}
