/* The inside of a decoder, shared by the files that implement it.
 *   decode.c        batches, rows, faults
 *   decode_walk.c   the walk over one record's protobuf wire: every legal form of it
 *   decode_shape.c  the fast path for records of the same layout as an earlier one
 */
#ifndef HF_DECODE_INTERNAL_H
#define HF_DECODE_INTERNAL_H

#include <string.h>

#include "decode.h"
#include "wire.h"

/* What the current record has in one field so far. Checked after the whole record, because the last value wins. */
typedef struct {
    int64_t row;  /* the row this is about; another row's is stale */
    uint64_t n;   /* values */
    uint8_t kind; /* HF_NONE: an empty Feature, the same as none at all */
    uint8_t is_list;
    uint8_t fault; /* of a step of a feature list */
    int64_t got;   /* … and what was there */
    int64_t items; /* steps, of a feature list */
} hf_seen;

enum { HF_GUESSES = 64, HF_SHAPES = 4 };

typedef struct hf_shape hf_shape;

struct hf_decoder {
    hf_field *fields;
    hf_column *columns;
    hf_column *last; /* the arrays' lengths in the batch before: what this one will need, nearly always */
    hf_seen *seen;
    size_t width;
    int64_t rows;
    int out_of_memory;
    const uint8_t *base;      /* of the positions of borrowed bytes */
    size_t guess[HF_GUESSES]; /* which field the last record had here: nearly all records keep one order */
    hf_shape *shapes[HF_SHAPES];
    uint32_t misses; /* records in a row that had no known shape */
    hf_fault *faults;
    size_t n_faults, cap_faults;
};

/* One record's data into the row at d->rows; it does not count that row. HF_OK, or why there is none (then the columns
 * must be rewound). */
int hf_walk_record(hf_decoder *d, const uint8_t *p, const uint8_t *end, int *field, int64_t *got);

/* The same for a record of the layout of an earlier one; 0, and nothing is changed, if it is not. */
int hf_shape_read(hf_decoder *d, const uint8_t *p, uint64_t length);
/* Remembers the layout of a record that was decoded. */
void hf_shape_learn(hf_decoder *d, const uint8_t *p, uint64_t length);
void hf_shapes_free(hf_decoder *d);

/* Removes what the current row has written to one column, or to all, by resetting the arrays' lengths. */
void hf_rewind_row(hf_decoder *d, size_t i);
void hf_drop_row(hf_decoder *d);

/* The default goes where the row's values would have gone. */
int hf_put_default(hf_decoder *d, size_t i);

size_t hf_find_field(hf_decoder *d, const uint8_t *key, size_t len, size_t ordinal);

int hf_check_varints(const uint8_t *p, const uint8_t *end);

static inline int64_t hf_last_int(const hf_array *a) {
    int64_t v;
    memcpy(&v, a->data + a->len - 8, 8);
    return v;
}

/* Room for n more bytes; fast when it is there. */
static inline int hf_room(hf_decoder *d, hf_array *a, size_t n) {
    if (a->cap - a->len >= n || hf_array_room(a, n)) {
        return 1;
    }
    d->out_of_memory = 1;
    return 0;
}

static inline int hf_push_int(hf_decoder *d, hf_array *a, int64_t v) {
    if (!hf_room(d, a, 8)) {
        return 0;
    }
    memcpy(a->data + a->len, &v, 8);
    a->len += 8;
    return 1;
}

static inline int hf_push_lent(hf_decoder *d, hf_array *a, const uint8_t *p, size_t n) {
    return hf_push_int(d, a, p - d->base) && hf_push_int(d, a, p + n - d->base);
}

static inline int hf_push_bytes(hf_decoder *d, hf_array *a, const uint8_t *p, size_t n) {
    if (!hf_room(d, a, n)) {
        return 0;
    }
    uint8_t *to = a->data + a->len;
    if (n <= 16) { /* for the commonest sizes a call costs more than the copy: two overlapping moves instead */
        if (n >= 8) {
            uint64_t first, last;
            memcpy(&first, p, 8);
            memcpy(&last, p + n - 8, 8);
            memcpy(to, &first, 8);
            memcpy(to + n - 8, &last, 8);
        } else if (n >= 4) {
            uint32_t first, last;
            memcpy(&first, p, 4);
            memcpy(&last, p + n - 4, 4);
            memcpy(to, &first, 4);
            memcpy(to + n - 4, &last, 4);
        } else {
            for (size_t i = 0; i < n; i++) {
                to[i] = p[i];
            }
        }
    } else {
        memcpy(to, p, n);
    }
    a->len += n;
    return 1;
}

#endif
