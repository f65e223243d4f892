/* What the Python-facing files share. Everything below them knows nothing of Python. */
#ifndef HF_PY_H
#define HF_PY_H

#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include "columns.h"
#include "refill.h"

/* Takes the array's memory over and shows it as a writable buffer; an empty array too. NULL: a Python error. */
PyObject *hf_py_block(hf_array *a);

/* A schema, as a sequence of (key, kind, depth, count, default) tuples. Returns malloc'd fields, or NULL: a Python error. */
hf_field *hf_py_fields(PyObject *sequence, size_t *n);
void hf_py_fields_free(hf_field *fields, size_t n);

/* buf[start:stop] of a contiguous buffer, with bounds checked. 0: a Python error, nothing to release. */
int hf_py_range(PyObject *buf, Py_ssize_t start, Py_ssize_t stop, Py_buffer *view);

/* The buffer of a hf_refill whose other members are set, with bounds checked. 0: a Python error, nothing to release. */
int hf_py_refill(PyObject *buf, Py_buffer *view, hf_refill *r);

/* (frames, bytes, status, needed, start, stop) */
PyObject *hf_py_walked(const hf_walk *walk, const hf_refill *r);

PyObject *hf_py_copy_checked(PyObject *module, PyObject *args);
PyObject *hf_py_pieces(PyObject *module, PyObject *args);
PyObject *hf_py_decoder_type(void);
PyObject *hf_py_encoder_type(void);
PyObject *hf_py_gatherer_type(void);

#endif
