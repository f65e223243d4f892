/* Holds the method table. holdfast/_native/codec.py documents the functions. */
#include "crc32c.h"
#include "frame.h"
#include "py.h"

#include <string.h>

int hf_py_range(PyObject *buf, Py_ssize_t start, Py_ssize_t stop, Py_buffer *view) {
    if (PyObject_GetBuffer(buf, view, PyBUF_SIMPLE) < 0) {
        return 0;
    }
    if (start < 0 || stop < start || stop > view->len) {
        PyErr_Format(PyExc_ValueError, "expected a range within 0 and %zd, got %zd to %zd", view->len, start, stop);
        PyBuffer_Release(view);
        return 0;
    }
    return 1;
}

int hf_py_refill(PyObject *buf, Py_buffer *view, hf_refill *r) {
    if (!hf_py_range(buf, (Py_ssize_t)r->start, (Py_ssize_t)r->stop, view)) {
        return 0;
    }
    if (view->readonly) {
        PyErr_SetString(PyExc_BufferError, "expected a buffer that can be written to");
        PyBuffer_Release(view);
        return 0;
    }
    r->buf = view->buf;
    r->cap = (size_t)view->len;
    return 1;
}

PyObject *hf_py_walked(const hf_walk *walk, const hf_refill *r) {
    return Py_BuildValue("LniKnn", (long long)walk->count, (Py_ssize_t)walk->consumed, walk->status,
                         (unsigned long long)walk->needed, (Py_ssize_t)r->start, (Py_ssize_t)r->stop);
}

static PyObject *walk_tuple(const hf_walk *walk) {
    return Py_BuildValue("LniK", (long long)walk->count, (Py_ssize_t)walk->consumed, walk->status,
                         (unsigned long long)walk->needed);
}

static PyObject *py_crc32c(PyObject *module, PyObject *args) {
    (void)module;
    Py_buffer view;
    unsigned int crc = 0;
    if (!PyArg_ParseTuple(args, "y*|I", &view, &crc)) {
        return NULL;
    }
    if (view.len < 4096) { /* shorter than giving the GIL away takes */
        crc = hf_crc32c(crc, view.buf, (size_t)view.len);
    } else {
        Py_BEGIN_ALLOW_THREADS;
        crc = hf_crc32c(crc, view.buf, (size_t)view.len);
        Py_END_ALLOW_THREADS;
    }
    PyBuffer_Release(&view);
    return PyLong_FromUnsignedLong(crc);
}

static PyObject *py_crc_kind(PyObject *module, PyObject *unused) {
    (void)module;
    (void)unused;
    return PyUnicode_FromString(hf_crc32c_kind());
}

static PyObject *py_use_crc(PyObject *module, PyObject *arg) {
    (void)module;
    long allow = PyLong_AsLong(arg);
    if (allow == -1 && PyErr_Occurred()) {
        return NULL;
    }
    hf_crc32c_init((int)allow);
    Py_RETURN_NONE;
}

static PyObject *py_scan(PyObject *module, PyObject *args) {
    (void)module;
    PyObject *buf, *starts = Py_None;
    Py_ssize_t start, stop;
    int verify;
    long long base = 0;
    if (!PyArg_ParseTuple(args, "Onnp|OL", &buf, &start, &stop, &verify, &starts, &base)) {
        return NULL;
    }
    Py_buffer view, out = {0};
    if (!hf_py_range(buf, start, stop, &view)) {
        return NULL;
    }
    int64_t max = INT64_MAX;
    if (starts != Py_None) {
        if (PyObject_GetBuffer(starts, &out, PyBUF_WRITABLE) < 0) {
            PyBuffer_Release(&view);
            return NULL;
        }
        max = out.len / 8;
    }
    hf_walk walk;
    Py_BEGIN_ALLOW_THREADS;
    walk = hf_scan((const uint8_t *)view.buf + start, (size_t)(stop - start), verify, (int64_t *)out.buf, base, max);
    Py_END_ALLOW_THREADS;
    if (out.obj) {
        PyBuffer_Release(&out);
    }
    PyBuffer_Release(&view);
    return walk_tuple(&walk);
}

static PyObject *py_scan_file(PyObject *module, PyObject *args) {
    (void)module;
    PyObject *buf, *starts;
    Py_ssize_t start, stop, most_bytes;
    int fd, verify;
    long long offset;
    if (!PyArg_ParseTuple(args, "iOnnLpOn", &fd, &buf, &start, &stop, &offset, &verify, &starts, &most_bytes)) {
        return NULL;
    }
    Py_buffer view, out = {0};
    hf_refill refill = {.fd = fd, .start = (size_t)start, .stop = (size_t)stop, .offset = offset};
    if (!hf_py_refill(buf, &view, &refill)) {
        return NULL;
    }
    int64_t max = INT64_MAX;
    if (starts != Py_None) {
        if (PyObject_GetBuffer(starts, &out, PyBUF_WRITABLE) < 0) {
            PyBuffer_Release(&view);
            return NULL;
        }
        max = out.len / 8;
    }
    hf_walk walk;
    Py_BEGIN_ALLOW_THREADS;
    walk = hf_scan_file(&refill, verify, (int64_t *)out.buf, max, (size_t)most_bytes);
    Py_END_ALLOW_THREADS;
    if (out.obj) {
        PyBuffer_Release(&out);
    }
    PyBuffer_Release(&view);
    return hf_py_walked(&walk, &refill);
}

static PyObject *py_records(PyObject *module, PyObject *args) {
    (void)module;
    PyObject *buf;
    Py_ssize_t start, stop;
    int verify;
    long long max;
    if (!PyArg_ParseTuple(args, "OnnpL", &buf, &start, &stop, &verify, &max)) {
        return NULL;
    }
    Py_buffer view;
    if (!hf_py_range(buf, start, stop, &view)) {
        return NULL;
    }
    const uint8_t *data = (const uint8_t *)view.buf + start;
    hf_walk walk;
    Py_BEGIN_ALLOW_THREADS;
    walk = hf_scan(data, (size_t)(stop - start), verify, NULL, 0, max);
    Py_END_ALLOW_THREADS;
    const uint8_t *end = data + walk.consumed;
    PyObject *list = PyList_New((Py_ssize_t)walk.count);
    for (int64_t i = 0; list && i < walk.count; i++) {
        uint64_t length = hf_load64(data);
        if (length > (uint64_t)(end - data) || (uint64_t)(end - data) - length < HF_OVERHEAD) {
            PyErr_SetString(PyExc_RuntimeError, "the buffer was changed while it was read: give each thread its own");
            Py_CLEAR(list);
            break;
        }
        PyObject *record = PyBytes_FromStringAndSize((const char *)data + HF_HEADER, (Py_ssize_t)length);
        if (!record) {
            Py_CLEAR(list);
            break;
        }
        PyList_SetItem(list, (Py_ssize_t)i, record);
        data += length + HF_OVERHEAD;
    }
    PyBuffer_Release(&view);
    return list ? Py_BuildValue("NniK", list, (Py_ssize_t)walk.consumed, walk.status, (unsigned long long)walk.needed)
                : NULL;
}

static PyObject *py_find_header(PyObject *module, PyObject *args) {
    (void)module;
    PyObject *buf;
    Py_ssize_t start, stop;
    if (!PyArg_ParseTuple(args, "Onn", &buf, &start, &stop)) {
        return NULL;
    }
    Py_buffer view;
    if (!hf_py_range(buf, start, stop, &view)) {
        return NULL;
    }
    size_t found;
    Py_BEGIN_ALLOW_THREADS;
    found = hf_find_header(view.buf, (size_t)stop, (size_t)start);
    Py_END_ALLOW_THREADS;
    PyBuffer_Release(&view);
    return PyLong_FromSsize_t(found == (size_t)stop ? -1 : (Py_ssize_t)found);
}

static PyObject *py_find_end(PyObject *module, PyObject *args) {
    (void)module;
    PyObject *buf;
    Py_ssize_t start, stop;
    unsigned int start_crc;
    if (!PyArg_ParseTuple(args, "OnnI", &buf, &start, &stop, &start_crc)) {
        return NULL;
    }
    Py_buffer view;
    if (!hf_py_range(buf, start, stop, &view)) {
        return NULL;
    }
    uint32_t crc = start_crc;
    size_t found, n = (size_t)(stop - start);
    Py_BEGIN_ALLOW_THREADS;
    found = hf_find_end((const uint8_t *)view.buf + start, n, &crc);
    Py_END_ALLOW_THREADS;
    PyBuffer_Release(&view);
    return Py_BuildValue("nI", found == n ? (Py_ssize_t)-1 : start + (Py_ssize_t)found, (unsigned int)crc);
}

// The size of a heap object's header, which is padded to eight bytes whatever the file's width of a length is.
#define HEAP_OBJECT 16

static PyObject *py_walk_heap(PyObject *module, PyObject *args) {
    (void)module;
    PyObject *buf;
    Py_ssize_t start, stop;
    int width;
    if (!PyArg_ParseTuple(args, "Onni", &buf, &start, &stop, &width)) {
        return NULL;
    }
    if (width != 2 && width != 4 && width != 8) {
        return PyErr_Format(PyExc_ValueError, "expected a length of 2, 4 or 8 bytes, got %d", width);
    }
    Py_buffer view;
    if (!hf_py_range(buf, start, stop, &view)) {
        return NULL;
    }
    const uint8_t *data = view.buf;
    uint64_t at = (uint64_t)start, end = (uint64_t)stop;
    int stuck = 0;
    while (at < end && end - at >= HEAP_OBJECT && !stuck) {
        uint64_t size = 0;
        for (int i = width; i-- > 0;) {
            size = size << 8 | data[at + 8 + (uint64_t)i];
        }
        int is_free = !(data[at] | data[at + 1]);
        stuck = size > INT64_MAX / 2 || (is_free && !size);
        at += stuck ? 0 : is_free ? size : HEAP_OBJECT + ((size + 7) & ~(uint64_t)7);
    }
    PyBuffer_Release(&view);
    return Py_BuildValue("LO", (long long)at, stuck ? Py_True : Py_False);
}

static PyObject *py_frame(PyObject *module, PyObject *arg) {
    (void)module;
    Py_buffer view;
    if (PyObject_GetBuffer(arg, &view, PyBUF_SIMPLE) < 0) {
        return NULL;
    }
    PyObject *frame = PyBytes_FromStringAndSize(NULL, view.len + HF_OVERHEAD);
    if (frame) {
        uint8_t *p = (uint8_t *)PyBytes_AsString(frame);
        memcpy(p + HF_HEADER, view.buf, (size_t)view.len);
        hf_frame_seal(p, (uint64_t)view.len);
    }
    PyBuffer_Release(&view);
    return frame;
}

static PyMethodDef methods[] = {
    {"crc32c", py_crc32c, METH_VARARGS, "crc32c(data, value=0) -> int"},
    {"crc_kind", py_crc_kind, METH_NOARGS, "crc_kind() -> 'sse4.2', 'armv8' or 'table'"},
    {"use_crc", py_use_crc, METH_O,
     "use_crc(allowed): 1 table only, 3 plain instructions, 7 the best there is; for tests"},
    {"scan", py_scan, METH_VARARGS,
     "scan(buf, start, stop, verify_data, starts=None, base=0) -> (frames, bytes, status, needed)"},
    {"scan_file", py_scan_file, METH_VARARGS,
     "scan_file(fd, buf, start, stop, offset, verify_data, starts, most_bytes) -> (frames, bytes, status, needed, "
     "start, "
     "stop)"},
    {"records", py_records, METH_VARARGS,
     "records(buf, start, stop, verify_data, max) -> (list, bytes, status, needed)"},
    {"find_header", py_find_header, METH_VARARGS, "find_header(buf, start, stop) -> offset or -1"},
    {"find_end", py_find_end, METH_VARARGS, "find_end(buf, start, stop, crc) -> (offset or -1, crc)"},
    {"walk_heap", py_walk_heap, METH_VARARGS, "walk_heap(buf, start, stop, width) -> (offset, stuck)"},
    {"frame", py_frame, METH_O, "frame(data) -> bytes"},
    {"copy_checked", hf_py_copy_checked, METH_VARARGS,
     "copy_checked(from_fd, offset, to_fd, place, sizes, expected, here, again) -> crcs or None"},
    {"pieces", hf_py_pieces, METH_VARARGS, "pieces(names, columns, n) -> [{name: piece}]"},
    {NULL, NULL, 0, NULL},
};

static struct PyModuleDef definition = {PyModuleDef_HEAD_INIT, .m_name = "_codec", .m_size = -1, .m_methods = methods,
                                        .m_doc = "TFRecord framing, crc32c and Example columns in C."};

static int add_type(PyObject *module, const char *name, PyObject *type) {
    int good = type && PyModule_AddObjectRef(module, name, type) == 0;
    Py_XDECREF(type);
    return good;
}

PyMODINIT_FUNC PyInit__codec(void) {
    hf_crc32c_init(HF_CRC_ALL);
    PyObject *module = PyModule_Create(&definition);
    if (!module || !add_type(module, "Decoder", hf_py_decoder_type()) ||
        !add_type(module, "Encoder", hf_py_encoder_type()) || !add_type(module, "Gatherer", hf_py_gatherer_type())) {
        Py_XDECREF(module);
        return NULL;
    }
    return module;
}
