/* Reads the targets and the modes of many links of a folder, with the GIL released. */
#define _GNU_SOURCE

#include "fdscan.h"

#include <fcntl.h>
#include <limits.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define AT_ONCE 64
#define TEXT (1 << 16)

/* A few links. Their targets lie one after the other in `text`. */
typedef struct {
    char path[PATH_MAX];
    size_t prefix;
    int place;
    const char *names[AT_ONCE];
    size_t lengths[AT_ONCE];
    Py_ssize_t n;
    ssize_t sizes[AT_ONCE];
    unsigned int modes[AT_ONCE];
    char text[TEXT];
} batch;

typedef Py_ssize_t (*reader)(batch *b);

static const char *path_of(batch *b, Py_ssize_t i) {
    if (b->prefix + b->lengths[i] >= sizeof b->path) {
        return "";
    }
    memcpy(b->path + b->prefix, b->names[i], b->lengths[i]);
    b->path[b->prefix + b->lengths[i]] = 0;
    return b->path;
}

/* How many it has read: as many as there was room for. */
static Py_ssize_t read_targets(batch *b) {
    size_t used = 0;
    Py_ssize_t i = 0;
    for (; i < b->n && sizeof b->text - used >= PATH_MAX; i++) {
        ssize_t got = readlinkat(b->place, path_of(b, i), b->text + used, PATH_MAX);
        b->sizes[i] = got < 0 ? 0 : got;
        used += (size_t)b->sizes[i];
    }
    return i;
}

static Py_ssize_t read_modes(batch *b) {
    for (Py_ssize_t i = 0; i < b->n; i++) {
        struct stat st;
        b->modes[i] = fstatat(b->place, path_of(b, i), &st, AT_SYMLINK_NOFOLLOW) ? 0 : st.st_mode;
    }
    return b->n;
}

static int add_targets(batch *b, PyObject *found, Py_ssize_t from, Py_ssize_t n) {
    const char *text = b->text;
    for (Py_ssize_t i = 0; i < n; i++) {
        PyObject *target = PyUnicode_DecodeFSDefaultAndSize(text, b->sizes[i]);
        if (!target || PyList_SetItem(found, from + i, target) < 0) {
            return 0;
        }
        text += b->sizes[i];
    }
    return 1;
}

static int add_modes(batch *b, PyObject *found, Py_ssize_t from, Py_ssize_t n) {
    for (Py_ssize_t i = 0; i < n; i++) {
        PyObject *mode = PyLong_FromUnsignedLong(b->modes[i]);
        if (!mode || PyList_SetItem(found, from + i, mode) < 0) {
            return 0;
        }
    }
    return 1;
}

/* The next names; they live as long as the list does. */
static int take_names(batch *b, PyObject *names, Py_ssize_t from, Py_ssize_t stop) {
    b->n = stop - from < AT_ONCE ? stop - from : AT_ONCE;
    for (Py_ssize_t i = 0; i < b->n; i++) {
        PyObject *name = PyList_GetItem(names, from + i);
        Py_ssize_t length;
        b->names[i] = name ? PyUnicode_AsUTF8AndSize(name, &length) : NULL;
        if (!b->names[i]) {
            return 0;
        }
        b->lengths[i] = (size_t)length;
    }
    return 1;
}

static PyObject *read_all(batch *b, PyObject *names, reader read,
                          int (*add)(batch *, PyObject *, Py_ssize_t, Py_ssize_t)) {
    Py_ssize_t stop = PyList_Size(names);
    PyObject *found = PyList_New(stop);
    for (Py_ssize_t at = 0; found && at < stop;) {
        Py_ssize_t n = 0;
        if (take_names(b, names, at, stop)) {
            Py_BEGIN_ALLOW_THREADS;
            n = read(b);
            Py_END_ALLOW_THREADS;
        }
        if (!n || !add(b, found, at, n)) {
            Py_CLEAR(found);
        }
        at += n;
    }
    return found;
}

static PyObject *read_links(PyObject *args, reader read, int (*add)(batch *, PyObject *, Py_ssize_t, Py_ssize_t)) {
    const char *prefix;
    Py_ssize_t length;
    PyObject *given;
    int place;
    if (!PyArg_ParseTuple(args, "s#Oi", &prefix, &length, &given, &place)) {
        return NULL;
    }
    if (length >= PATH_MAX) {
        return PyErr_Format(PyExc_ValueError, "expected a path of less than %d bytes, got one of %zd", PATH_MAX,
                            length);
    }
    /* A list of its own: nobody else can change it while other threads run. */
    PyObject *names = PySequence_List(given);
    batch *b = names ? PyMem_Malloc(sizeof *b) : NULL;
    if (!b) {
        Py_XDECREF(names);
        return names ? PyErr_NoMemory() : NULL;
    }
    memcpy(b->path, prefix, (size_t)length);
    b->prefix = (size_t)length;
    b->place = place < 0 ? AT_FDCWD : place;
    PyObject *found = read_all(b, names, read, add);
    PyMem_Free(b);
    Py_DECREF(names);
    return found;
}

PyObject *hf_read_targets(PyObject *module, PyObject *args) {
    (void)module;
    return read_links(args, read_targets, add_targets);
}

PyObject *hf_read_modes(PyObject *module, PyObject *args) {
    (void)module;
    return read_links(args, read_modes, add_modes);
}
