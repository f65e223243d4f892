#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include "images.h"

#define MAX_SIDE 65535

/* Checks what the caller gave, so that nothing below can read or write elsewhere. */
static int check_output(HfOutput *out, const Py_buffer *pixels, const Py_buffer *levels) {
    if (out->width < 1 || out->width > MAX_SIDE || out->height < 1 || out->height > MAX_SIDE ||
        (out->channels != 1 && out->channels != 3)) {
        PyErr_Format(PyExc_ValueError, "expected 1 or 3 channels of 1 to %d rows and columns, got %d of %d and %d",
                     MAX_SIDE, out->channels, out->height, out->width);
        return -1;
    }
    Py_ssize_t values = (Py_ssize_t)out->width * out->height * out->channels, item = levels->buf ? 4 : 1;
    if (pixels->len != values * item || (levels->buf && levels->len != 256 * 4 * (Py_ssize_t)out->channels) ||
        (uintptr_t)pixels->buf % (uintptr_t)item || (uintptr_t)levels->buf % 4) {
        PyErr_Format(PyExc_ValueError, "expected an aligned output of %zd bytes, got %zd bytes", values * item,
                     pixels->len);
        return -1;
    }
    out->pixels = pixels->buf;
    out->levels = levels->buf;
    return 0;
}

static PyObject *jpeg_size(PyObject *Py_UNUSED(module), PyObject *arg) {
    Py_buffer data;
    if (PyObject_GetBuffer(arg, &data, PyBUF_SIMPLE)) {
        return NULL;
    }
    HfJpegInfo info;
    int result = hf_jpeg_info(data.buf, (size_t)data.len, &info);
    PyBuffer_Release(&data);
    if (result != HF_OK) {
        Py_RETURN_NONE;
    }
    return Py_BuildValue("(ii)", info.height, info.width);
}

static PyObject *as_bool(int result) {
    return result == HF_NO_MEMORY ? PyErr_NoMemory() : PyBool_FromLong(result == HF_OK);
}

static PyObject *decode_jpeg(PyObject *Py_UNUSED(module), PyObject *args) {
    Py_buffer data, pixels, levels;
    HfBox box;
    HfOutput out;
    if (!PyArg_ParseTuple(args, "y*(iiii)w*z*(iii)p", &data, &box.left, &box.top, &box.right, &box.bottom, &pixels,
                          &levels, &out.height, &out.width, &out.channels, &out.planar)) {
        return NULL;
    }
    PyObject *answer = NULL;
    if (!check_output(&out, &pixels, &levels)) {
        int result;
        Py_BEGIN_ALLOW_THREADS;
        result = hf_jpeg_decode(data.buf, (size_t)data.len, &box, &out);
        Py_END_ALLOW_THREADS;
        answer = as_bool(result);
    }
    PyBuffer_Release(&data);
    PyBuffer_Release(&pixels);
    PyBuffer_Release(&levels);
    return answer;
}

static PyObject *resize(PyObject *Py_UNUSED(module), PyObject *args) {
    Py_buffer data, pixels, levels;
    HfPlane plane;
    HfOutput out;
    if (!PyArg_ParseTuple(args, "y*(iii)(dddd)w*z*(iii)p", &data, &plane.height, &plane.width, &plane.channels,
                          &plane.left, &plane.top, &plane.right, &plane.bottom, &pixels, &levels, &out.height,
                          &out.width, &out.channels, &out.planar)) {
        return NULL;
    }
    PyObject *answer = NULL;
    int fits = plane.height > 0 && plane.width > 0 && (plane.channels == 1 || plane.channels == 3) &&
               (int64_t)plane.height * plane.width <= INT32_MAX / 3 &&
               data.len == (Py_ssize_t)plane.height * plane.width * plane.channels && plane.channels <= out.channels;
    int is_inside = 0 <= plane.left && plane.left < plane.right && plane.right <= plane.width && 0 <= plane.top &&
                    plane.top < plane.bottom && plane.bottom <= plane.height;
    if (!fits || !is_inside) {
        PyErr_Format(PyExc_ValueError, "expected pixels with a box inside, got %zd bytes for %d x %d x %d", data.len,
                     plane.height, plane.width, plane.channels);
    } else if (!check_output(&out, &pixels, &levels)) {
        int result;
        Py_BEGIN_ALLOW_THREADS;
        /* The filter sees what the box touches: as if that had been cut out first. */
        int left = (int)plane.left, top = (int)plane.top;
        int right = (int)plane.right + (plane.right > (int)plane.right);
        int bottom = (int)plane.bottom + (plane.bottom > (int)plane.bottom);
        plane.stride = (size_t)plane.width * (size_t)plane.channels;
        plane.samples = (const uint8_t *)data.buf + (size_t)top * plane.stride + (size_t)left * (size_t)plane.channels;
        plane.width = right - left;
        plane.height = bottom - top;
        plane.left -= left;
        plane.right -= left;
        plane.top -= top;
        plane.bottom -= top;
        result = hf_resize(&plane, 1, 0, &out);
        Py_END_ALLOW_THREADS;
        answer = as_bool(result);
    }
    PyBuffer_Release(&data);
    PyBuffer_Release(&pixels);
    PyBuffer_Release(&levels);
    return answer;
}

static PyMethodDef methods[] = {
    {"jpeg_size", jpeg_size, METH_O, "jpeg_size(data): (height, width) of a JPEG that decode_jpeg may decode, or None"},
    {"decode_jpeg", decode_jpeg, METH_VARARGS,
     "decode_jpeg(data, (left, top, right, bottom), out, levels, (height, width, channels), planar): decodes and "
     "resizes a "
     "part of a JPEG; False for one that it cannot, or corrupt data; other threads run meanwhile"},
    {"resize", resize, METH_VARARGS,
     "resize(pixels, (height, width, channels), box, out, levels, (height, width, channels), planar): resizes pixels; "
     "other "
     "threads run meanwhile"},
    {NULL, NULL, 0, NULL},
};

static struct PyModuleDef definition = {PyModuleDef_HEAD_INIT, .m_name = "_images", .m_size = -1, .m_methods = methods,
                                        .m_doc = "Decodes and resizes images."};

PyMODINIT_FUNC PyInit__images(void) { return PyModule_Create(&definition); }
