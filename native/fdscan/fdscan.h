/* Looking at tens of thousands of descriptors: the loops of holdfast.proc that Python is too slow for.
 *
 * Every function here has a twin in Python that says the same, beside the place that calls it. */
#ifndef HF_FDSCAN_H
#define HF_FDSCAN_H

#define PY_SSIZE_T_CLEAN
#include <Python.h>

PyObject *hf_read_targets(PyObject *module, PyObject *args);
PyObject *hf_read_modes(PyObject *module, PyObject *args);
PyObject *hf_describe(PyObject *module, PyObject *args);
PyObject *hf_ask(PyObject *module, PyObject *fds);
PyObject *hf_ask_other(PyObject *module, PyObject *args);
PyObject *hf_pair_pipes(PyObject *module, PyObject *args);
PyObject *hf_parse_unix(PyObject *module, PyObject *args);

/* A new instance of a class that is a tuple with names; its items are still to be set. */
PyObject *hf_new_row(PyObject *type, Py_ssize_t items);

/* A list of small numbers as C's; malloc'd. NULL: a Python error. */
int *hf_numbers(PyObject *list, Py_ssize_t *n);

#endif
