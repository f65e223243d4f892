/* Which processes hold which ends of which pipes. Knows nothing of Python. */
#ifndef HF_PAIRS_H
#define HF_PAIRS_H

#include <stddef.h>
#include <stdint.h>

enum { HF_READS = 1, HF_WRITES = 2, HF_BOTH = 3 };

/* A process that has ends of one pipe. A process's ends are added together, so each is in a pipe's list once. */
typedef struct {
    uint32_t process, ways;
    int32_t next; /* -1: the last */
} hf_holder;

typedef struct {
    uint64_t inode;
    uint32_t times; /* how many ends were seen */
    int32_t first, last;
} hf_pipe;

typedef struct {
    hf_pipe *pipes;
    hf_holder *holders;
    int32_t *slots; /* by hash: a place in `pipes`, or -1 */
    size_t n_pipes, n_holders, mask;
} hf_pairs;

/* Room for so many ends. 0: no memory. */
int hf_pairs_open(hf_pairs *p, size_t ends);
void hf_pairs_close(hf_pairs *p);

/* An end of the pipe with this inode; returns the pipe's place. */
uint32_t hf_pairs_add(hf_pairs *p, uint64_t inode);

/* A process can read or write it (HF_READS, HF_WRITES). */
void hf_pairs_hold(hf_pairs *p, uint32_t pipe, uint32_t process, uint32_t ways);

/* The next holder in the pipe's list that has one of these ways, from `at` on; -1: none. */
int32_t hf_pairs_next(const hf_pairs *p, int32_t at, uint32_t ways);

#endif
