#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include "unfilter.h"

static PyObject *check(const Py_buffer *rows, const Py_buffer *out, Py_ssize_t row_bytes, Py_ssize_t pixel_bytes) {
    if (pixel_bytes < 1 || pixel_bytes > 4 || row_bytes < 1 || row_bytes % pixel_bytes) {
        return PyErr_Format(PyExc_ValueError,
                            "expected pixels of 1 to 4 bytes and rows of whole pixels, got %zd and %zd", pixel_bytes,
                            row_bytes);
    }
    if (out->len % row_bytes || rows->len != out->len / row_bytes * (row_bytes + 1)) {
        return PyErr_Format(PyExc_ValueError,
                            "expected rows of 1 + %zd bytes and a place as large, got %zd and %zd bytes", row_bytes,
                            rows->len, out->len);
    }
    Py_RETURN_NONE;
}

static PyObject *unfilter(PyObject *Py_UNUSED(module), PyObject *args) {
    Py_buffer rows, out;
    Py_ssize_t row_bytes, pixel_bytes;
    if (!PyArg_ParseTuple(args, "y*w*nn", &rows, &out, &row_bytes, &pixel_bytes)) {
        return NULL;
    }
    PyObject *result = check(&rows, &out, row_bytes, pixel_bytes);
    if (result) {
        int status;
        Py_BEGIN_ALLOW_THREADS;
        status = hf_unfilter(rows.buf, (size_t)(out.len / row_bytes), (size_t)row_bytes, (size_t)pixel_bytes, out.buf);
        Py_END_ALLOW_THREADS;
        if (status) {
            Py_DECREF(result);
            result = status == -1 ? PyErr_Format(PyExc_ValueError, "a row is filtered in a way that does not exist")
                                  : PyErr_NoMemory();
        }
    }
    PyBuffer_Release(&rows);
    PyBuffer_Release(&out);
    return result;
}

static PyMethodDef methods[] = {
    {"unfilter", unfilter, METH_VARARGS,
     "unfilter(rows, out, row_bytes, pixel_bytes): a PNG's rows, unpacked, as pixels; other threads run meanwhile"},
    {NULL, NULL, 0, NULL},
};

static struct PyModuleDef definition = {PyModuleDef_HEAD_INIT, .m_name = "_png", .m_size = -1, .m_methods = methods,
                                        .m_doc = "What pictures are stored as, into pixels."};

PyMODINIT_FUNC PyInit__png(void) { return PyModule_Create(&definition); }
