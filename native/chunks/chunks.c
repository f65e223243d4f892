#define _GNU_SOURCE
#define _FILE_OFFSET_BITS 64
#include "chunks.h"

#include "filters.h"

#include <dlfcn.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define SPARE_BYTES 64        /* a filter may have added a checksum before another compressed it */
#define LONG_CHUNK (64 << 20) /* the library reads larger chunks */

/* ---- decoders: other packages have them, and compile them better than a copy here would be */

typedef int (*zlib_uncompress)(uint8_t *to, unsigned long *to_bytes, const uint8_t *from, unsigned long bytes);

static struct {
    zlib_uncompress uncompress;
    void *(*deflate_new)(void);
    int (*deflate_decompress)(void *d, const void *from, size_t bytes, void *to, size_t room, size_t *got);
    void (*deflate_free)(void *d);
    int (*lz4)(const char *from, char *to, int bytes, int room);
    void *(*zstd_new)(void);
    size_t (*zstd_decompress)(void *d, void *to, size_t room, const void *from, size_t bytes);
    size_t (*zstd_free)(void *d);
} codecs;

/* Finds all symbols or none. ISO C has no cast from an object to a function. */
static int find(const char *path, const char *const *names, void *const *places, size_t n) {
    void *library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    void *found[3];
    for (size_t i = 0; i < n; i++) {
        found[i] = library ? dlsym(library, names[i]) : NULL;
        if (!found[i]) {
            if (library) {
                dlclose(library);
            }
            return 0;
        }
    }
    for (size_t i = 0; i < n; i++) {
        memcpy(places[i], &found[i], sizeof found[i]);
    }
    return 1;
}

int hf_load_codec(const char *name, const char *path) {
    if (!strcmp(name, "zlib")) {
        return find(path, (const char *[]){"uncompress"}, (void *[]){&codecs.uncompress}, 1);
    }
    if (!strcmp(name, "zlib-ng")) {
        return find(path, (const char *[]){"zng_uncompress"}, (void *[]){&codecs.uncompress}, 1);
    }
    if (!strcmp(name, "lz4")) {
        return find(path, (const char *[]){"LZ4_decompress_safe"}, (void *[]){&codecs.lz4}, 1);
    }
    if (!strcmp(name, "libdeflate")) {
        return find(path,
                    (const char *[]){"libdeflate_alloc_decompressor", "libdeflate_free_decompressor",
                                     "libdeflate_zlib_decompress"},
                    (void *[]){&codecs.deflate_new, &codecs.deflate_free, &codecs.deflate_decompress}, 3);
    }
    if (!strcmp(name, "zstd")) {
        return find(path, (const char *[]){"ZSTD_createDCtx", "ZSTD_freeDCtx", "ZSTD_decompressDCtx"},
                    (void *[]){&codecs.zstd_new, &codecs.zstd_free, &codecs.zstd_decompress}, 3);
    }
    return 0;
}

static int has_codec(int64_t code) {
    switch (code) {
    case HF_GZIP:
        return codecs.uncompress || codecs.deflate_decompress;
    case HF_LZ4:
        return !!codecs.lz4;
    case HF_ZSTD:
        return !!codecs.zstd_decompress;
    }
    return code == HF_SHUFFLE || code == HF_FLETCHER32;
}

void hf_scratch_free(hf_scratch *s) {
    for (int i = 0; i < 3; i++) {
        free(s->memory[i]);
    }
    if (s->zstd) {
        codecs.zstd_free(s->zstd);
    }
    if (s->deflate) {
        codecs.deflate_free(s->deflate);
    }
    *s = (hf_scratch){0};
}

static uint8_t *memory(hf_scratch *s, int which, size_t bytes) {
    if (s->size[which] < bytes) {
        free(s->memory[which]);
        s->memory[which] = malloc(bytes);
        s->size[which] = s->memory[which] ? bytes : 0;
    }
    return s->memory[which];
}

/* ---- filters */

typedef struct {
    const uint8_t *data;
    size_t bytes;
} piece;

static int inflate_piece(piece *p, uint8_t *to, size_t room, hf_scratch *s) {
    if (codecs.deflate_decompress) {
        if (!s->deflate) {
            s->deflate = codecs.deflate_new();
        }
        size_t got = 0;
        if (!s->deflate || codecs.deflate_decompress(s->deflate, p->data, p->bytes, to, room, &got)) {
            return 0;
        }
        *p = (piece){to, got};
        return 1;
    }
    unsigned long got = room;
    if (codecs.uncompress(to, &got, p->data, p->bytes)) {
        return 0;
    }
    *p = (piece){to, got};
    return 1;
}

static int unzstd(piece *p, uint8_t *to, size_t room, hf_scratch *s) {
    if (!s->zstd) {
        s->zstd = codecs.zstd_new();
    }
    size_t got = s->zstd ? codecs.zstd_decompress(s->zstd, to, room, p->data, p->bytes) : room + 1;
    if (got > room) { /* errors are numbers just below the largest */
        return 0;
    }
    *p = (piece){to, got};
    return 1;
}

static uint64_t big_endian(const uint8_t *from, int bytes) {
    uint64_t value = 0;
    for (int i = 0; i < bytes; i++) {
        value = value << 8 | from[i];
    }
    return value;
}

/* The size of all and of a block, then blocks, each after its size; one that has the size of a block is not compressed. */
static int unlz4(piece *p, uint8_t *to, size_t room) {
    if (p->bytes < 12) {
        return 0;
    }
    uint64_t total = big_endian(p->data, 8), block = big_endian(p->data + 8, 4);
    if (total > room || total > INT32_MAX || !block) {
        return 0;
    }
    const uint8_t *from = p->data + 12, *end = p->data + p->bytes;
    for (uint64_t at = 0; at < total; at += block) {
        block = block < total - at ? block : total - at;
        if (end - from < 4) {
            return 0;
        }
        uint64_t bytes = big_endian(from, 4);
        from += 4;
        if (bytes > (uint64_t)(end - from)) {
            return 0;
        }
        if (bytes == block) {
            memcpy(to + at, from, block);
        } else if (codecs.lz4((const char *)from, (char *)to + at, (int)bytes, (int)block) != (int)block) {
            return 0;
        }
        from += bytes;
    }
    *p = (piece){to, total};
    return 1;
}

/* Undoes filter i. `to` has room for the chunk, and for what other filters may have added to it unless it is the last. */
static int undo(const hf_layout *l, int i, piece *p, uint8_t *to, size_t room, hf_scratch *s) {
    switch (l->filter[i].code) {
    case HF_GZIP:
        return inflate_piece(p, to, room, s);
    case HF_LZ4:
        return unlz4(p, to, room);
    case HF_ZSTD:
        return unzstd(p, to, room, s);
    case HF_SHUFFLE:
        if (p->bytes > room) {
            return 0;
        }
        hf_unshuffle(p->data, to, p->bytes, (size_t)l->filter[i].parameter);
        p->data = to;
        return 1;
    }
    if (!hf_fletcher32_fits(p->data, p->bytes)) {
        return 0;
    }
    p->bytes -= 4;
    return 1;
}

static int read_all(int fd, uint8_t *to, size_t bytes, int64_t at) {
    while (bytes) {
        ssize_t got = pread(fd, to, bytes, (off_t)at);
        if (got < 0 && errno == EINTR) {
            continue;
        }
        if (got <= 0) {
            return 0;
        }
        to += got, at += got, bytes -= (size_t)got;
    }
    return 1;
}

/* Reads a chunk and undoes its filters; into `to` if that is given. Returns NULL if it cannot. */
static const uint8_t *decoded(const hf_rows *r, const hf_chunk *c, uint8_t *to, hf_scratch *s) {
    const hf_layout *l = &r->layout;
    int active[HF_MAX_FILTERS], n = 0;
    for (int i = l->filters - 1; i >= 0; i--) {
        if (!(c->mask >> i & 1)) {
            active[n++] = i;
        }
    }
    size_t room = l->chunk_bytes + SPARE_BYTES;
    if (c->stored < 0 || (uint64_t)c->stored > 2 * (uint64_t)room + 4096 ||
        (!n && (size_t)c->stored != l->chunk_bytes)) {
        return NULL;
    }
    piece p = {n || !to ? memory(s, 0, (size_t)c->stored + 1) : to, (size_t)c->stored};
    if (!p.data || !read_all(r->fd, (uint8_t *)(uintptr_t)p.data, p.bytes, c->offset)) {
        return NULL;
    }
    for (int i = 0; i < n; i++) {
        int last = to && i == n - 1;
        uint8_t *into = last ? to : memory(s, 1 + i % 2, room);
        if (!into || !undo(l, active[i], &p, into, last ? l->chunk_bytes : room, s)) {
            return NULL;
        }
    }
    if (p.bytes != l->chunk_bytes) {
        return NULL;
    }
    if (to && p.data != to) {
        memcpy(to, p.data, p.bytes); /* the last filter was a checksum */
    }
    return p.data;
}

/* ---- places */

/* What of a chunk is asked for: from `low` to below `high` on each axis, in values of the dataset. */
typedef struct {
    int64_t origin[HF_MAX_DIMS], low[HF_MAX_DIMS], high[HF_MAX_DIMS];
} box;

static void find_box(const hf_rows *r, int64_t number, box *b) {
    const hf_layout *l = &r->layout;
    for (int d = l->dims - 1; d >= 0; d--) {
        b->origin[d] = number % l->grid[d] * l->chunk[d];
        number /= l->grid[d];
        int64_t end = b->origin[d] + l->chunk[d], low = d ? 0 : r->start, high = d ? l->shape[d] : r->stop;
        b->low[d] = b->origin[d] > low ? b->origin[d] : low;
        b->high[d] = end < high ? end : high;
    }
}

/* Copies the box out of a decoded chunk, in runs that are whole in both. */
static void copy_box(const hf_rows *r, const box *b, const uint8_t *chunk) {
    const hf_layout *l = &r->layout;
    size_t run = l->item_bytes;
    int inner = l->dims - 1; /* the axis that runs go along */
    while (inner > 0 && l->chunk[inner] == l->shape[inner]) {
        run *= (size_t)l->shape[inner--];
    }
    size_t from_step[HF_MAX_DIMS], to_step[HF_MAX_DIMS];
    size_t from = 0, to = 0;
    from_step[inner] = to_step[inner] = run;
    for (int d = inner; d >= 0; d--) {
        if (d < inner) {
            from_step[d] = from_step[d + 1] * (size_t)l->chunk[d + 1];
            to_step[d] = to_step[d + 1] * (size_t)l->shape[d + 1];
        }
        from += from_step[d] * (size_t)(b->low[d] - b->origin[d]);
        to += to_step[d] * (size_t)(b->low[d] - (d ? 0 : r->start));
    }
    run *= (size_t)(b->high[inner] - b->low[inner]);
    int64_t at[HF_MAX_DIMS];
    memcpy(at, b->low, sizeof at);
    for (;;) {
        memcpy(r->to + to, chunk + from, run);
        int d = inner - 1;
        for (; d >= 0; d--) {
            from += from_step[d], to += to_step[d];
            if (++at[d] < b->high[d]) {
                break;
            }
            int64_t n = b->high[d] - b->low[d];
            from -= from_step[d] * (size_t)n, to -= to_step[d] * (size_t)n;
            at[d] = b->low[d];
        }
        if (d < 0) {
            return;
        }
    }
}

/* Whether a chunk has whole rows. */
static int spans_rows(const hf_layout *l) {
    for (int d = 1; d < l->dims; d++) {
        if (l->chunk[d] != l->shape[d]) {
            return 0;
        }
    }
    return 1;
}

int hf_read_chunk(const hf_rows *r, size_t number, hf_scratch *s) {
    const hf_layout *l = &r->layout;
    const hf_chunk *c = &r->chunks[number];
    box b;
    find_box(r, r->first + (int64_t)number, &b);
    uint8_t *to = NULL;
    if (spans_rows(l)) {
        size_t skipped = (size_t)(b.low[0] - b.origin[0]) * l->row_bytes,
               bytes = (size_t)(b.high[0] - b.low[0]) * l->row_bytes;
        to = r->to + (size_t)(b.low[0] - r->start) * l->row_bytes;
        if (!l->filters) { /* the last piece of a dataset without chunks may be shorter */
            return c->stored >= 0 && skipped + bytes <= (uint64_t)c->stored &&
                   read_all(r->fd, to, bytes, c->offset + (int64_t)skipped);
        }
        if (bytes < l->chunk_bytes) {
            to = NULL;
        }
    }
    const uint8_t *chunk = decoded(r, c, to, s);
    if (chunk && !to) {
        copy_box(r, &b, chunk);
    }
    return !!chunk;
}

/* ---- checks: with a layout that is checked, nothing is read or written outside of what is given */

/* a * b, or 0 if that is not below 2^62. */
static int64_t product(int64_t a, int64_t b) { return a > 0 && b > 0 && a <= (INT64_MAX >> 1) / b ? a * b : 0; }

int hf_layout_of(hf_layout *l, const int64_t *values, size_t n) {
    *l = (hf_layout){0};
    if (n < 2 || values[1] < 1 || values[1] > HF_MAX_DIMS || n < 2 + 2 * (size_t)values[1]) {
        return 0;
    }
    l->dims = (int)values[1];
    size_t rest = n - 2 - 2 * (size_t)l->dims;
    if (rest % 2 || rest / 2 > HF_MAX_FILTERS) {
        return 0;
    }
    int64_t row = values[0], chunk = values[0];
    for (int d = 0; d < l->dims; d++) {
        l->shape[d] = values[2 + d];
        l->chunk[d] = values[2 + l->dims + d];
        chunk = product(chunk, l->chunk[d]);
        row = d ? product(row, l->shape[d]) : row;
        if (!chunk || !row || !product(l->shape[d], 1)) {
            return 0;
        }
        l->grid[d] = (l->shape[d] - 1) / l->chunk[d] + 1;
    }
    if (!product(row, l->shape[0]) || chunk > LONG_CHUNK) {
        return 0;
    }
    l->item_bytes = (size_t)values[0], l->row_bytes = (size_t)row, l->chunk_bytes = (size_t)chunk;
    l->filters = (int)(rest / 2);
    for (int i = 0; i < l->filters; i++) {
        l->filter[i].code = values[2 + 2 * l->dims + 2 * i];
        l->filter[i].parameter = values[3 + 2 * l->dims + 2 * i];
        if (!has_codec(l->filter[i].code) || (l->filter[i].code == HF_SHUFFLE && l->filter[i].parameter < 1)) {
            return 0;
        }
    }
    return 1;
}

int hf_rows_fit(const hf_rows *r, size_t chunks, size_t room) {
    const hf_layout *l = &r->layout;
    if (r->start < 0 || r->start >= r->stop || r->stop > l->shape[0] ||
        (size_t)(r->stop - r->start) > room / l->row_bytes) {
        return 0;
    }
    int64_t each = 1; /* chunks beside each other */
    for (int d = 1; d < l->dims; d++) {
        each *= l->grid[d];
    }
    int64_t first = r->start / l->chunk[0], last = (r->stop - 1) / l->chunk[0];
    return r->first == first * each && chunks == (size_t)((last - first + 1) * each);
}
