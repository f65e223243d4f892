/* Finds the peer of each pipe end. The pure Python version is in holdfast.procfs.peers. */
#include "py_pairs.h"

enum { FATES = 4 };

uint32_t hf_parse_way(PyObject *text) {
    Py_ssize_t n;
    uint32_t way = 0;
    const char *letters = PyUnicode_AsUTF8AndSize(text, &n);
    for (Py_ssize_t i = 0; letters && i < n; i++) {
        way |= letters[i] == 'r' ? HF_READS : letters[i] == 'w' ? HF_WRITES : 0;
    }
    return way;
}

PyObject *hf_choose(const hf_pairing *w, const hf_process *one, hf_wanted wanted, PyObject *more) {
    PyObject *fds = PyList_New(0);
    for (size_t i = one->from; fds && i < one->to; i++) {
        int add = wanted(w, &w->ends[i], more);
        if (add < 0 || (add && PyList_Append(fds, w->ends[i].fd) < 0)) {
            Py_CLEAR(fds);
        }
    }
    return fds;
}

PyObject *hf_call(PyObject *asked, const hf_process *one, PyObject *fds) {
    PyObject *answer = PyObject_CallFunctionObjArgs(asked, one->pid, fds, NULL);
    if (!answer || PyDict_CheckExact(answer)) {
        return answer;
    }
    PyObject *dict = PyDict_New();
    if (dict && PyDict_Update(dict, answer) < 0) {
        Py_CLEAR(dict);
    }
    Py_DECREF(answer);
    return dict;
}

int hf_learn(hf_pairing *w, const hf_process *one, PyObject *fds) {
    PyObject *known = fds ? hf_call(w->access, one, fds) : NULL;
    Py_XDECREF(fds);
    for (size_t i = one->from; known && i < one->to && PyDict_Size(known); i++) {
        hf_end *e = &w->ends[i];
        PyObject *text = e->way == HF_UNASKED ? PyDict_GetItemWithError(known, e->fd) : NULL;
        if (text) {
            e->way = hf_parse_way(text);
        }
        if (PyErr_Occurred()) {
            Py_CLEAR(known);
        }
    }
    Py_XDECREF(known);
    return known != NULL;
}

static int set_pipes(hf_pairing *w, hf_process *one) {
    Py_ssize_t n = PyList_Size(one->table);
    for (Py_ssize_t i = 0; i < n; i++) {
        PyObject *row = PyList_GetItem(one->table, i);
        if (!row || !PyTuple_Check(row) || PyTuple_Size(row) != 5) {
            PyErr_Format(PyExc_TypeError, "expected a Descriptor, got %R", row ? row : Py_None);
            return 0;
        }
        if (PyTuple_GetItem(row, 1) != w->kind) {
            continue;
        }
        PyObject *inode = PyTuple_GetItem(row, 3);
        inode = inode == Py_None ? w->zero : inode;
        uint64_t number = PyLong_AsUnsignedLongLong(inode);
        if (PyErr_Occurred()) {
            return 0;
        }
        w->ends[one->to++] = (hf_end){
            .fd = PyTuple_GetItem(row, 0), .inode = inode, .pipe = hf_pairs_add(&w->pairs, number), .way = HF_UNASKED};
    }
    return 1;
}

static int may_have_partner(const hf_pairing *w, const hf_end *e, PyObject *more) {
    (void)more;
    return w->pairs.pipes[e->pipe].times > 1;
}

/* Every pipe end of the processes, and the access of those that may have a partner. */
static int gather(hf_pairing *w) {
    size_t at = 0;
    for (size_t i = 0; i < w->n_processes; i++) {
        hf_process *one = &w->processes[i];
        one->from = one->to = at;
        if (!set_pipes(w, one)) {
            return 0;
        }
        at = one->to;
    }
    for (size_t i = 0; i < w->n_processes; i++) {
        hf_process *one = &w->processes[i];
        if (!hf_learn(w, one, hf_choose(w, one, may_have_partner, NULL))) {
            return 0;
        }
        for (size_t k = one->from; k < one->to; k++) {
            if (w->ends[k].way & HF_BOTH) {
                hf_pairs_hold(&w->pairs, w->ends[k].pipe, (uint32_t)i, w->ends[k].way);
            }
        }
    }
    return 1;
}

/* The processes with tables of their own: what is called in between may change those given. */
static int take_tables(hf_pairing *w, PyObject *tables, size_t *rows) {
    PyObject *items = PyMapping_Items(tables);
    Py_ssize_t n = items ? PyList_Size(items) : -1;
    w->processes = n < 0 ? NULL : PyMem_Calloc((size_t)n + 1, sizeof *w->processes);
    if (n >= 0 && !w->processes) {
        PyErr_NoMemory();
    }
    for (Py_ssize_t i = 0; w->processes && i < n && !PyErr_Occurred(); i++) {
        hf_process *one = &w->processes[w->n_processes++];
        PyObject *item = PyList_GetItem(items, i);
        one->pid = Py_NewRef(PyTuple_GetItem(item, 0));
        one->number = PyLong_AsLong(one->pid);
        one->table = PySequence_List(PyTuple_GetItem(item, 1));
        *rows += one->table ? (size_t)PyList_Size(one->table) : 0;
    }
    Py_XDECREF(items);
    return !PyErr_Occurred();
}

static PyObject *pair(hf_pairing *w, PyObject *tables) {
    size_t rows = 0;
    if (!take_tables(w, tables, &rows)) {
        return NULL;
    }
    w->ends = PyMem_Malloc(sizeof *w->ends * (rows + 1));
    if (!w->ends || !hf_pairs_open(&w->pairs, rows)) {
        return PyErr_NoMemory();
    }
    return gather(w) ? hf_judge_all(w) : NULL;
}

static void let_go(hf_pairing *w) {
    for (size_t i = 0; i < w->n_processes; i++) {
        Py_XDECREF(w->processes[i].pid);
        Py_XDECREF(w->processes[i].table);
    }
    for (size_t i = 0; i < 4; i++) {
        Py_XDECREF(w->ways[i]);
    }
    Py_XDECREF(w->nobody);
    Py_XDECREF(w->zero);
    PyMem_Free(w->processes);
    PyMem_Free(w->ends);
    hf_pairs_close(&w->pairs);
}

PyObject *hf_pair_pipes(PyObject *module, PyObject *args) {
    (void)module;
    static const char *const ways[] = {"", "r", "w", "rw"};
    hf_pairing w = {0};
    PyObject *tables, *found = NULL;
    if (!PyArg_ParseTuple(args, "OOOOO!O!", &tables, &w.access, &w.poll, &w.kind, &PyType_Type, &w.type, &PyTuple_Type,
                          &w.fates)) {
        return NULL;
    }
    if (!PyType_IsSubtype((PyTypeObject *)w.type, &PyTuple_Type) || PyTuple_Size(w.fates) != FATES) {
        return PyErr_Format(PyExc_TypeError, "expected a class of tuples and %d fates, got %R and %R", FATES, w.type,
                            w.fates);
    }
    w.nobody = PyTuple_New(0);
    w.zero = PyLong_FromLong(0);
    int good = w.nobody && w.zero;
    for (int i = 0; i < 4; i++) {
        w.ways[i] = PyUnicode_InternFromString(ways[i]);
        good = good && w.ways[i];
    }
    if (good) {
        found = pair(&w, tables);
    }
    let_go(&w);
    return found;
}
