#include "gather.h"

#include <stdlib.h>
#include <string.h>

#define AHEAD 16 /* rows: what is far from the cache is on its way by the time it is needed */
#define LINE 64
#define FETCHED 512

typedef struct {
    uint64_t start, stop;
} run;

static inline uint64_t load_end(const uint8_t *data, uint64_t i) {
    uint64_t end;
    memcpy(&end, data + i * 8, 8);
    return end;
}

/* Prefetches every cache line of a short item, and the first ones of a long one: the CPU prefetches the rest itself. */
static inline void fetch(const uint8_t *data, size_t size) {
    size_t most = size < FETCHED ? size : FETCHED;
    __builtin_prefetch(data);
    for (size_t at = LINE; at < most; at += LINE) {
        __builtin_prefetch(data + at);
    }
    if (most > LINE / 2) { /* it may well reach into the next line */
        __builtin_prefetch(data + most - 1);
    }
}

int hf_gather_part_init(hf_gather_part *part, const hf_gather_column *column, size_t level, uint64_t rows,
                        const void *data, size_t len) {
    *part = (hf_gather_part){.data = data};
    if (level == column->levels) {
        part->items = column->width ? len / column->width : HF_GATHER_MOST;
        return level > 0 || part->items >= rows;
    }
    uint64_t count = column->counts[level], ends = len / 8;
    if (len % 8 || (!ends && rows) || rows >= HF_GATHER_MOST / count) {
        return 0;
    }
    part->items = ends ? (ends - 1) / count : 0;
    if (level > 0 || (ends && ends - 1 == rows * count)) {
        return 1;
    }
    part->spans = 1;
    part->items = rows;
    return count == 1 && ends == 2 * rows;
}

static int make_room(hf_array *a, uint64_t items, uint64_t size) {
    if ((size && items >= HF_GATHER_MOST / size) || !hf_array_room(a, items * size)) {
        return 0;
    }
    a->len = items * size;
    return 1;
}

/* Numbers of a fixed shape. The size is a constant where this is called with one, and the copy then an instruction. */
static inline void copy_rows(uint8_t *out, size_t part, const hf_gather_part *const *from, const int64_t *rows,
                             size_t n, size_t width) {
    for (size_t i = 0; i < n; i++) {
        if (i + AHEAD < n) {
            fetch(from[i + AHEAD][part].data + (size_t)rows[i + AHEAD] * width, width);
        }
        memcpy(out + i * width, from[i][part].data + (size_t)rows[i] * width, width);
    }
}

static int gather_fixed(size_t width, size_t part, const hf_gather_part *const *from, const int64_t *rows, size_t n,
                        hf_array *array) {
    if (!make_room(array, n, width)) {
        return HF_GATHER_NO_MEMORY;
    }
    uint8_t *out = array->data;
    switch (width) {
    case 0:
        break;
    case 1:
        copy_rows(out, part, from, rows, n, 1);
        break;
    case 4:
        copy_rows(out, part, from, rows, n, 4);
        break;
    case 8:
        copy_rows(out, part, from, rows, n, 8);
        break;
    default:
        copy_rows(out, part, from, rows, n, width);
    }
    return HF_GATHER_OK;
}

static int sum_runs(const run *runs, size_t n, uint64_t *total) {
    *total = 0;
    for (size_t i = 0; i < n; i++) {
        *total += runs[i].stop - runs[i].start;
        if (*total >= HF_GATHER_MOST) {
            return 0;
        }
    }
    return 1;
}

/* Writes where each item of these runs ends in the result, and turns the runs into those of the level below. */
static int descend(uint64_t count, size_t part, const hf_gather_part *const *from, run *runs, size_t n,
                   hf_array *array) {
    uint64_t total, end = 0;
    if (!sum_runs(runs, n, &total) || total >= HF_GATHER_MOST / count || !make_room(array, total * count + 1, 8)) {
        return HF_GATHER_NO_MEMORY;
    }
    uint8_t *out = array->data;
    memcpy(out, &end, 8);
    for (size_t i = 0; i < n; i++) {
        const hf_gather_part *ends = &from[i][part];
        uint64_t first = runs[i].start * count, last = runs[i].stop * count;
        if (i + AHEAD < n) {
            const hf_gather_part *later = &from[i + AHEAD][part];
            fetch(later->data + runs[i + AHEAD].start * count * (later->spans ? 16 : 8), 16);
        }
        if (first == last) {
            runs[i] = (run){0, 0};
            continue;
        }
        if (ends->spans) {
            first *= 2;
            last = first + 1; /* a run is one row here */
        }
        run below = {load_end(ends->data, first), 0};
        uint64_t before = below.start;
        for (uint64_t item = first + 1; item <= last; item++) {
            below.stop = load_end(ends->data, item);
            end += below.stop - before;
            before = below.stop;
            out += 8;
            memcpy(out, &end, 8);
        }
        if (below.start > below.stop || below.stop > from[i][part + 1].items) {
            return HF_GATHER_BAD_ENDS;
        }
        runs[i] = below;
    }
    return HF_GATHER_OK;
}

static int copy_runs(size_t width, size_t part, const hf_gather_part *const *from, const run *runs, size_t n,
                     hf_array *array) {
    uint64_t total;
    if (!sum_runs(runs, n, &total) || !make_room(array, total, width)) {
        return HF_GATHER_NO_MEMORY;
    }
    uint8_t *out = array->data;
    for (size_t i = 0; i < n; i++) {
        size_t size = (size_t)(runs[i].stop - runs[i].start) * width;
        if (i + AHEAD < n) {
            const run *later = &runs[i + AHEAD];
            fetch(from[i + AHEAD][part].data + later->start * width, (size_t)(later->stop - later->start) * width);
        }
        if (size) {
            memcpy(out, from[i][part].data + runs[i].start * width, size);
            out += size;
        }
    }
    return HF_GATHER_OK;
}

static int gather_levels(const hf_gather_column *column, size_t part, const hf_gather_part *const *from,
                         const int64_t *rows, size_t n, run *runs, hf_array *out) {
    for (size_t i = 0; i < n; i++) {
        runs[i] = (run){(uint64_t)rows[i], (uint64_t)rows[i] + 1};
    }
    int status = HF_GATHER_OK;
    for (size_t level = 0; status == HF_GATHER_OK && level < column->levels; level++, part++) {
        status = descend(column->counts[level], part, from, runs, n, out++);
    }
    return status == HF_GATHER_OK ? copy_runs(column->width, part, from, runs, n, out) : status;
}

int hf_gather(const hf_gather_column *columns, size_t width, const hf_gather_part *const *from, const int64_t *rows,
              size_t n, hf_array *out, size_t *column) {
    run *runs = malloc((n + 1) * sizeof *runs);
    int status = runs ? HF_GATHER_OK : HF_GATHER_NO_MEMORY;
    size_t part = 0;
    for (size_t i = 0; status == HF_GATHER_OK && i < width; i++) {
        *column = i;
        if (columns[i].levels) {
            status = gather_levels(&columns[i], part, from, rows, n, runs, out + part);
        } else {
            status = gather_fixed(columns[i].width, part, from, rows, n, out + part);
        }
        part += columns[i].levels + 1;
    }
    free(runs);
    return status;
}
