/* A buffer that is filled from a file as its frames are used up, so that one call can walk far more than it holds. */
#ifndef HF_REFILL_H
#define HF_REFILL_H

#include "frame.h"

typedef struct {
    int fd;
    uint8_t *buf;
    size_t cap;
    size_t start, stop; /* what is there and not used yet */
    int64_t offset;     /* of buf[start] in the file */
} hf_refill;

/* The first n bytes are done with. */
static inline void hf_refill_use(hf_refill *r, size_t n) {
    r->start += n;
    r->offset += (int64_t)n;
}

/* Reads on, until `needed` bytes are there. 0: they are not to be had in this buffer, for whatever reason, which the
 * caller finds out by asking the file itself. */
int hf_refill_more(hf_refill *r, uint64_t needed);

/* hf_scan over the file's frames: at most max frames, and no new read once most_bytes are walked. */
hf_walk hf_scan_file(hf_refill *r, int verify_data, int64_t *starts, int64_t max, size_t most_bytes);

#endif
