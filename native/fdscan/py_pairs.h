/* A pairing of pipe ends under way, shared by the two files that do it. */
#ifndef HF_PY_PAIRS_H
#define HF_PY_PAIRS_H

#include "fdscan.h"
#include "pairs.h"

/* A way that nobody has asked for, or nobody could tell; HF_READS and HF_WRITES beside it. */
enum { HF_UNASKED = 4 };

typedef struct {
    PyObject *fd, *inode; /* of a row, which keeps them */
    uint32_t pipe, way;
    int32_t far; /* where in the pipe's list of holders the far ends begin; -1: none is known */
} hf_end;

typedef struct {
    PyObject *pid, *table; /* kept */
    long number;
    size_t from, to; /* its ends */
} hf_process;

typedef struct {
    PyObject *access, *poll, *kind, *type, *fates;
    PyObject *ways[4]; /* "", "r", "w", "rw" */
    PyObject *nobody, *zero;
    hf_process *processes;
    size_t n_processes;
    hf_end *ends;
    hf_pairs pairs;
} hf_pairing;

/* Says whether an end is wanted; -1: a Python error. */
typedef int (*hf_wanted)(const hf_pairing *w, const hf_end *e, PyObject *more);

/* The numbers of those ends of the process that are wanted. */
PyObject *hf_choose(const hf_pairing *w, const hf_process *one, hf_wanted wanted, PyObject *more);

/* What is asked for is called with a pid and numbers, and answers with a mapping, here made a dict. */
PyObject *hf_call(PyObject *asked, const hf_process *one, PyObject *fds);

/* Asks for the access of some ends; takes the list over. 0: a Python error. */
int hf_learn(hf_pairing *w, const hf_process *one, PyObject *fds);

/* "r", "w", "rw" -> HF_READS, HF_WRITES, HF_BOTH */
uint32_t hf_parse_way(PyObject *text);

/* {pid: [PipeEnd]} of all processes, when the access of those ends that may have a partner is known. */
PyObject *hf_judge_all(hf_pairing *w);

#endif
