#define _POSIX_C_SOURCE 200809L /* pread */
#define _FILE_OFFSET_BITS 64

#include "refill.h"

#include <string.h>
#include <unistd.h>

#include "ahead.h"

/* What is left is moved to the front if it is less than this, so that the same memory is read into over and over. */
#define SMALL (1u << 14)

/* Copying is ten times slower on some CPUs (AMD's Zen 3: `rep movsb`) when the target's place in its page is up to some
 * dozens of bytes behind the source's. Half a page apart is the fastest. */
#define PAGE 4096u

/* Starting a thread takes as long as decoding some hundred small records. */
#define WORTH_A_THREAD (8 * HF_PIECE)

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
        pread(r->fd, r->buf + r->stop, room < HF_PIECE ? room : HF_PIECE, r->offset + (int64_t)(r->stop - r->start));
    r->stop += got > 0 ? (size_t)got : 0;
    return got > 0;
}

/* Lets a thread read what will be wanted, as far as the buffer has room. */
static void look_ahead(hf_refill *r) {
    if (r->cap < WORTH_A_THREAD || r->ahead_bytes < WORTH_A_THREAD) {
        return;
    }
    to_front(r);
    size_t room = r->cap - r->stop, want = room < r->ahead_bytes ? room : r->ahead_bytes;
    if (want < WORTH_A_THREAD || !read_piece(r)) { /* the first piece is here before the thread is */
        return;
    }
    want -= HF_PIECE;
    r->ahead = hf_ahead_start(r->fd, r->buf + r->stop, want, r->offset + (int64_t)(r->stop - r->start));
    r->ahead_bytes -= HF_PIECE;
}

void hf_refill_end(hf_refill *r) {
    if (r->ahead) {
        size_t got = hf_ahead_end(r->ahead);
        r->ahead = NULL;
        r->stop += got;
        r->ahead_bytes -= got < r->ahead_bytes ? got : r->ahead_bytes;
    }
}

int hf_refill_more(hf_refill *r, uint64_t needed) {
    while (r->stop - r->start < needed) {
        if (r->ahead) {
            size_t got = hf_ahead_wait(r->ahead);
            r->stop += got;
            r->ahead_bytes -= got < r->ahead_bytes ? got : r->ahead_bytes;
            if (!got) {
                hf_refill_end(r); /* the buffer is full, or the file at its end */
            }
            continue;
        }
        look_ahead(r);
        if (r->ahead) {
            continue;
        }
        if (r->stop - r->start < SMALL || r->cap - r->start < needed) {
            to_front(r);
        }
        if (r->start > r->cap || r->cap - r->start < needed || (r->stop - r->start < needed && !read_piece(r))) {
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
            hf_refill_end(r);
            return all;
        }
    }
}
