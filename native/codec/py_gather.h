/* A Gatherer: batches' arrays in slots (py_gather.c), and rows taken of them (py_gather_take.c). */
#ifndef HF_PY_GATHER_H
#define HF_PY_GATHER_H

#include "gather.h"
#include "py.h"

/* A batch's arrays. Freed when it has left its slot and no thread takes rows of it. */
typedef struct {
    size_t refs, n;
    int64_t rows, bytes;
    Py_buffer *views;
    hf_gather_part parts[];
} hf_source;

typedef struct {
    PyObject_HEAD size_t width; /* columns */
    size_t parts;               /* of all columns */
    hf_gather_column *columns;
    uint64_t *counts; /* of all columns */
    hf_source **slots;
    size_t n_slots;
    int64_t rows, bytes; /* in all slots */
} hf_gatherer;

void hf_source_let_go(hf_source *s);
PyObject *hf_py_gatherer_take(PyObject *self, PyObject *args);

#endif
