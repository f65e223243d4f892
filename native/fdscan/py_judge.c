/* Finds the state of each pipe end's peer: the second half of a pairing. */
#include "py_pairs.h"

#include <stdlib.h>

enum { SELF, ALIVE, DEAD, UNKNOWN };

/* The other way than an end's own; an end that both reads and writes is its own far end. */
static uint32_t far_ways(const hf_end *e) {
    return e->way == HF_BOTH ? HF_BOTH : e->way == HF_READS ? HF_WRITES : e->way == HF_WRITES ? HF_READS : 0;
}

static void find_far(hf_pairing *w, hf_process *one) {
    for (size_t i = one->from; i < one->to; i++) {
        hf_end *e = &w->ends[i];
        e->far = hf_pairs_next(&w->pairs, w->pairs.pipes[e->pipe].first, far_ways(e));
    }
}

static int is_alone(const hf_pairing *w, const hf_end *e, PyObject *more) {
    (void)w;
    (void)more;
    return e->far < 0;
}

static int is_untold(const hf_pairing *w, const hf_end *e, PyObject *answers) {
    (void)w;
    if (e->way != HF_UNASKED || e->far >= 0) {
        return 0;
    }
    return PyDict_GetItemWithError(answers, e->fd) ? 0 : PyErr_Occurred() ? -1 : 1;
}

static int compare(const void *a, const void *b) {
    long one = *(const long *)a, other = *(const long *)b;
    return (one > other) - (one < other);
}

/* The other processes with the far end, sorted. */
static PyObject *peers_of(const hf_pairing *w, uint32_t self, const hf_end *e) {
    size_t n = 0, room = 0;
    int32_t at = e->far;
    uint32_t ways = far_ways(e);
    for (int32_t i = at; i >= 0; i = hf_pairs_next(&w->pairs, w->pairs.holders[i].next, ways)) {
        room += w->pairs.holders[i].process != self;
    }
    if (!room) {
        return Py_NewRef(w->nobody);
    }
    long few[16], *pids = room <= 16 ? few : PyMem_Malloc(sizeof *pids * room);
    PyObject *peers = pids ? PyTuple_New((Py_ssize_t)room) : PyErr_NoMemory();
    for (int32_t i = at; peers && i >= 0; i = hf_pairs_next(&w->pairs, w->pairs.holders[i].next, ways)) {
        if (w->pairs.holders[i].process != self) {
            pids[n++] = w->processes[w->pairs.holders[i].process].number;
        }
    }
    if (peers) {
        qsort(pids, n, sizeof *pids, compare);
    }
    for (size_t i = 0; peers && i < n; i++) {
        PyObject *pid = PyLong_FromLong(pids[i]);
        if (!pid || PyTuple_SetItem(peers, (Py_ssize_t)i, pid) < 0) {
            Py_CLEAR(peers);
        }
    }
    if (pids != few) {
        PyMem_Free(pids);
    }
    return peers;
}

/* Takes `peers` over. */
static PyObject *make_end(const hf_pairing *w, const hf_process *one, const hf_end *e, PyObject *way, int fate,
                          PyObject *peers) {
    PyObject *row = peers ? hf_new_row(w->type, 6) : NULL;
    if (!row) {
        Py_XDECREF(peers);
        return NULL;
    }
    PyTuple_SetItem(row, 0, Py_NewRef(one->pid));
    PyTuple_SetItem(row, 1, Py_NewRef(e->fd));
    PyTuple_SetItem(row, 2, Py_NewRef(e->inode));
    PyTuple_SetItem(row, 3, Py_NewRef(way));
    PyTuple_SetItem(row, 4, Py_NewRef(PyTuple_GetItem(w->fates, fate)));
    PyTuple_SetItem(row, 5, peers);
    return row;
}

static PyObject *judge_answer(const hf_pairing *w, const hf_process *one, const hf_end *e, PyObject *answer) {
    PyObject *text;
    int dead;
    if (!PyTuple_Check(answer)) {
        return PyErr_Format(PyExc_TypeError, "expected an Answer, got %R", answer);
    }
    if (!PyArg_ParseTuple(answer, "Up", &text, &dead)) {
        return NULL;
    }
    int own = hf_parse_way(text) == HF_BOTH; /* that one is its own far end */
    return make_end(w, one, e, text, dead ? DEAD : own ? SELF : ALIVE, Py_NewRef(w->nobody));
}

static PyObject *judge_end(const hf_pairing *w, const hf_process *one, const hf_end *e, PyObject *answers) {
    PyObject *answer = PyDict_GetItemWithError(answers, e->fd);
    if (answer || PyErr_Occurred()) {
        return answer ? judge_answer(w, one, e, answer) : NULL;
    }
    uint32_t way = e->way & HF_BOTH;
    if (e->far < 0) {
        return make_end(w, one, e, w->ways[way], way == HF_BOTH ? SELF : UNKNOWN, Py_NewRef(w->nobody));
    }
    PyObject *peers = peers_of(w, (uint32_t)(one - w->processes), e);
    return make_end(w, one, e, w->ways[way], peers == w->nobody ? SELF : ALIVE, peers);
}

static PyObject *judge(hf_pairing *w, hf_process *one) {
    find_far(w, one);
    PyObject *alone = hf_choose(w, one, is_alone, NULL), *answers = NULL, *rows = NULL;
    if (alone) {
        answers = w->poll != Py_None && PyList_Size(alone) ? hf_call(w->poll, one, alone) : PyDict_New();
        Py_DECREF(alone);
    }
    if (answers && hf_learn(w, one, hf_choose(w, one, is_untold, answers))) {
        rows = PyList_New((Py_ssize_t)(one->to - one->from));
    }
    for (size_t i = one->from; rows && i < one->to; i++) {
        PyObject *row = judge_end(w, one, &w->ends[i], answers);
        if (!row || PyList_SetItem(rows, (Py_ssize_t)(i - one->from), row) < 0) {
            Py_CLEAR(rows);
        }
    }
    Py_XDECREF(answers);
    return rows;
}

PyObject *hf_judge_all(hf_pairing *w) {
    PyObject *found = PyDict_New();
    for (size_t i = 0; found && i < w->n_processes; i++) {
        PyObject *rows = judge(w, &w->processes[i]);
        if (!rows || PyDict_SetItem(found, w->processes[i].pid, rows) < 0) {
            Py_CLEAR(found);
        }
        Py_XDECREF(rows);
    }
    return found;
}
