#include "encode.h"

#include <string.h>

#include "frame.h"
#include "wire.h"

/* ---- checking ---------------------------------------------------------------------------------------------------------- */

static int rising(const int64_t *a, uint64_t n) {
    for (uint64_t i = 0; i < n; i++) {
        if (a[i] < (i ? a[i - 1] : 0)) {
            return 0;
        }
    }
    return 1;
}

const char *hf_view_check(const hf_field *f, const hf_view *v, int64_t rows, int sequence) {
    if (f->depth == HF_NESTED && !sequence) {
        return "lists of lists need a SequenceExample";
    }
    uint64_t items = (uint64_t)rows;
    if (f->depth != HF_FIXED) {
        if (v->n_rows != items + 1 || !rising(v->rows, v->n_rows)) {
            return "row splits must be rising and one more than there are rows";
        }
        items = (uint64_t)v->rows[rows];
    }
    if (f->depth == HF_NESTED) {
        if (v->n_steps <= items || !rising(v->steps, v->n_steps)) {
            return "step splits must be rising and one more than there are steps";
        }
        items = (uint64_t)v->steps[items];
    }
    if (items > UINT64_MAX / f->count) {
        return "splits point behind the values";
    }
    uint64_t values = items * f->count;
    if (f->kind != HF_BYTES) {
        return values > v->n_values ? "there are fewer values than rows ask for" : NULL;
    }
    if (v->n_ends <= values || !rising(v->ends, v->n_ends) || (uint64_t)v->ends[values] > v->n_values) {
        return "offsets must be rising, one more than there are values, and within the bytes";
    }
    return NULL;
}

/* ---- writing, from the last byte to the first: every length is known when it is written ---------------------------------- */

static inline size_t varint_size(uint64_t v) {
    size_t n = 1;
    while (v >= 128) {
        v >>= 7;
        n++;
    }
    return n;
}

static inline uint8_t *put_varint(uint8_t *w, uint64_t v) {
    if (v < 128) {
        *--w = (uint8_t)v;
        return w;
    }
    uint8_t *start = w - varint_size(v);
    for (w = start; v >= 128; v >>= 7) {
        *w++ = (uint8_t)v | 128;
    }
    *w = (uint8_t)v;
    return start;
}

/* The tag and length of a field whose content is [w, end). */
static inline uint8_t *put_head(uint8_t *w, const uint8_t *end, int number) {
    w = put_varint(w, (uint64_t)(end - w));
    *--w = (uint8_t)(number << 3 | HF_LEN);
    return w;
}

static uint8_t *put_copy(uint8_t *w, const uint8_t *data, size_t n) {
    w -= n;
    if (n) {
        memcpy(w, data, n);
    }
    return w;
}

/* A Feature with values [a, b). */
static uint8_t *put_feature(uint8_t *w, const hf_field *f, const hf_view *v, uint64_t a, uint64_t b) {
    uint8_t *list_end = w;
    if (f->kind == HF_BYTES) {
        for (uint64_t i = b; i > a; i--) {
            uint8_t *end = w;
            w = put_copy(w, v->values + v->ends[i - 1], (size_t)(v->ends[i] - v->ends[i - 1]));
            w = put_head(w, end, 1);
        }
    } else if (b > a) {
        if (f->kind == HF_FLOAT32) {
            w = put_copy(w, v->values + 4 * a, 4 * (size_t)(b - a));
        } else {
            for (uint64_t i = b; i > a; i--) {
                uint64_t value;
                memcpy(&value, v->values + 8 * (i - 1), 8);
                w = put_varint(w, value);
            }
        }
        w = put_head(w, list_end, 1);
    }
    return put_head(w, list_end, f->kind);
}

/* The values of row r of a column: [*a, *b) of its items' values, or of its steps. */
static void row_range(const hf_field *f, const hf_view *v, int64_t r, uint64_t *a, uint64_t *b) {
    *a = f->depth == HF_FIXED ? (uint64_t)r : (uint64_t)v->rows[r];
    *b = f->depth == HF_FIXED ? (uint64_t)r + 1 : (uint64_t)v->rows[r + 1];
}

static uint8_t *put_value(uint8_t *w, const hf_field *f, const hf_view *v, int64_t r, int as_list) {
    uint64_t a, b;
    row_range(f, v, r, &a, &b);
    if (!as_list) {
        return put_feature(w, f, v, a * f->count, b * f->count);
    }
    for (uint64_t i = b; i > a; i--) {
        uint8_t *end = w;
        uint64_t from = f->depth == HF_NESTED ? (uint64_t)v->steps[i - 1] : i - 1;
        uint64_t to = f->depth == HF_NESTED ? (uint64_t)v->steps[i] : i;
        w = put_feature(w, f, v, from * f->count, to * f->count);
        w = put_head(w, end, 1);
    }
    return w;
}

static uint8_t *put_map(uint8_t *w, const hf_field *fields, const hf_view *views, size_t width, int64_t r, int sequence,
                        int lists) {
    for (size_t i = width; i > 0; i--) {
        const hf_field *f = &fields[i - 1];
        int as_list = sequence && f->depth != HF_FIXED;
        if (as_list != lists) {
            continue;
        }
        uint8_t *entry_end = w;
        w = put_value(w, f, &views[i - 1], r, as_list);
        w = put_head(w, entry_end, 2);
        uint8_t *key_end = w;
        w = put_copy(w, f->key, f->key_len);
        w = put_head(w, key_end, 1);
        w = put_head(w, entry_end, 1);
    }
    return w;
}

/* No row needs more bytes than this. 11 a value: a tag or a full varint with its length; 64 a step and an entry: heads. */
static size_t row_bound(const hf_field *fields, const hf_view *views, size_t width, int64_t r) {
    size_t bound = 64;
    for (size_t i = 0; i < width; i++) {
        const hf_field *f = &fields[i];
        const hf_view *v = &views[i];
        uint64_t a, b;
        row_range(f, v, r, &a, &b);
        bound += 64 + f->key_len + (f->depth == HF_FIXED ? 0 : 64 * (size_t)(b - a));
        if (f->depth == HF_NESTED) {
            a = (uint64_t)v->steps[a];
            b = (uint64_t)v->steps[b];
        }
        a *= f->count;
        b *= f->count;
        bound += 11 * (size_t)(b - a);
        if (f->kind == HF_BYTES) {
            bound += (size_t)(v->ends[b] - v->ends[a]);
        }
    }
    return bound;
}

int64_t hf_encode(const hf_field *fields, const hf_view *views, size_t width, int64_t first, int64_t last, int sequence,
                  size_t stop_bytes, hf_array *out) {
    for (int64_t r = first; r < last; r++) {
        if (out->len >= stop_bytes) {
            return r;
        }
        size_t bound = row_bound(fields, views, width, r);
        if (!hf_array_room(out, bound + HF_OVERHEAD)) {
            return -1;
        }
        uint8_t *frame = out->data + out->len, *end = frame + HF_HEADER + bound, *w = end;
        if (sequence) {
            uint8_t *map_end = w;
            w = put_map(w, fields, views, width, r, sequence, 1);
            w = put_head(w, map_end, 2);
        }
        uint8_t *map_end = w;
        w = put_map(w, fields, views, width, r, sequence, 0);
        w = put_head(w, map_end, 1);
        size_t length = (size_t)(end - w);
        memmove(frame + HF_HEADER, w, length);
        hf_frame_seal(frame, length);
        out->len += length + HF_OVERHEAD;
    }
    return last;
}
