#define _POSIX_C_SOURCE 200809L /* pread */
#define _FILE_OFFSET_BITS 64

#include "refill.h"

#include <string.h>
#include <unistd.h>

/* What is read at a time: small enough to be in the core's own cache still when it is decoded. */
#define PIECE ((size_t)1 << 17)

/* What is left is moved to the front if it is less than this, so that the same memory is read into over and over. */
#define SMALL (1u << 14)

/* Copying is ten times slower on some CPUs (AMD's Zen 3: `rep movsb`) when the target's offset in its page is up to some
 * dozens of bytes behind the source's. Half a page of distance is the fastest. */
#define PAGE 4096u

static void to_front(hf_refill *r) {
    size_t have = r->stop - r->start;
    size_t front = (size_t)(((uint64_t)r->offset + PAGE / 2 - (uint64_t)(uintptr_t)r->buf) % PAGE);
    if (!have || front < r->start) {
        memmove(r->buf + front, r->buf + r->start, have);
        r->start = front;
        r->stop = front + have;
    }
}

static int read_piece(hf_refill *r) {
    size_t room = r->cap - r->stop;
    ssize_t got =
        pread(r->fd, r->buf + r->stop, room < PIECE ? room : PIECE, r->offset + (int64_t)(r->stop - r->start));
    r->stop += got > 0 ? (size_t)got : 0;
    return got > 0;
}

int hf_refill_more(hf_refill *r, uint64_t needed) {
    while (r->stop - r->start < needed) {
        if (r->stop - r->start < SMALL || r->cap - r->start < needed) {
            to_front(r);
        }
        if (r->start > r->cap || r->cap - r->start < needed || !read_piece(r)) {
            return 0;
        }
    }
    return 1;
}

hf_walk hf_scan_file(hf_refill *r, int verify_data, int64_t *starts, int64_t max, size_t most_bytes) {
    hf_walk all = {0, 0, HF_OK, 0};
    for (;;) {
        hf_walk walk = hf_scan(r->buf + r->start, r->stop - r->start, verify_data, starts ? starts + all.count : NULL,
                               r->offset, max - all.count);
        all.count += walk.count;
        all.consumed += walk.consumed;
        all.status = walk.status;
        all.needed = walk.needed;
        hf_refill_use(r, walk.consumed);
        if (walk.status > HF_NEED_MORE || all.count == max || all.consumed >= most_bytes ||
            !hf_refill_more(r, walk.status == HF_OK ? 1 : walk.needed)) {
            return all;
        }
    }
}
