#include "pairs.h"

#include <stdlib.h>
#include <string.h>

int hf_pairs_open(hf_pairs *p, size_t ends) {
    size_t slots = 16;
    while (slots < 2 * ends) {
        slots *= 2;
    }
    *p = (hf_pairs){.mask = slots - 1};
    p->pipes = malloc(sizeof *p->pipes * (ends + 1));
    p->holders = malloc(sizeof *p->holders * (ends + 1));
    p->slots = malloc(sizeof *p->slots * slots);
    if (!p->pipes || !p->holders || !p->slots || ends > INT32_MAX) {
        hf_pairs_close(p);
        return 0;
    }
    memset(p->slots, 0xff, sizeof *p->slots * slots);
    return 1;
}

void hf_pairs_close(hf_pairs *p) {
    free(p->pipes);
    free(p->holders);
    free(p->slots);
    *p = (hf_pairs){0};
}

uint32_t hf_pairs_add(hf_pairs *p, uint64_t inode) {
    /* The golden ratio in 64 bits: neighbouring inodes get far apart slots. */
    size_t at = (size_t)((inode * 0x9e3779b97f4a7c15u) >> 32) & p->mask;
    while (p->slots[at] >= 0 && p->pipes[p->slots[at]].inode != inode) {
        at = (at + 1) & p->mask;
    }
    if (p->slots[at] < 0) {
        p->slots[at] = (int32_t)p->n_pipes;
        p->pipes[p->n_pipes++] = (hf_pipe){.inode = inode, .first = -1, .last = -1};
    }
    p->pipes[p->slots[at]].times++;
    return (uint32_t)p->slots[at];
}

void hf_pairs_hold(hf_pairs *p, uint32_t pipe, uint32_t process, uint32_t ways) {
    hf_pipe *held = &p->pipes[pipe];
    if (held->last >= 0 && p->holders[held->last].process == process) {
        p->holders[held->last].ways |= ways;
        return;
    }
    int32_t fresh = (int32_t)p->n_holders++;
    p->holders[fresh] = (hf_holder){.process = process, .ways = ways, .next = -1};
    if (held->last >= 0) {
        p->holders[held->last].next = fresh;
    } else {
        held->first = fresh;
    }
    held->last = fresh;
}

int32_t hf_pairs_next(const hf_pairs *p, int32_t at, uint32_t ways) {
    while (at >= 0 && !(p->holders[at].ways & ways)) {
        at = p->holders[at].next;
    }
    return at;
}
