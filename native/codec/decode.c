#include "decode_internal.h"

#include <stdlib.h>

hf_decoder *hf_decoder_new(hf_field *fields, size_t n) {
    hf_decoder *d = calloc(1, sizeof *d);
    if (d) {
        d->columns = calloc(n + 1, sizeof *d->columns);
        d->last = calloc(n + 1, sizeof *d->last);
        d->seen = calloc(n + 1, sizeof *d->seen);
    }
    if (!d || !d->columns || !d->last || !d->seen) {
        for (size_t i = 0; i < n; i++) {
            hf_field_free(&fields[i]);
        }
        free(fields);
        if (d) {
            free(d->columns);
            free(d->last);
            free(d->seen);
            free(d);
        }
        return NULL;
    }
    d->fields = fields;
    d->width = n;
    for (size_t i = 0; i < n; i++) {
        d->seen[i].row = -1;
    }
    return d;
}

void hf_decoder_free(hf_decoder *d) {
    for (size_t i = 0; i < d->width; i++) {
        hf_field_free(&d->fields[i]);
        hf_column_free(&d->columns[i]);
    }
    free(d->fields);
    free(d->columns);
    free(d->last);
    free(d->seen);
    free(d->faults);
    hf_shapes_free(d);
    free(d);
}

size_t hf_decoder_width(const hf_decoder *d) { return d->width; }
const hf_field *hf_decoder_field(const hf_decoder *d, size_t i) { return &d->fields[i]; }
int64_t hf_decoder_rows(const hf_decoder *d) { return d->rows; }

void hf_rewind_row(hf_decoder *d, size_t i) {
    const hf_field *f = &d->fields[i];
    hf_column *c = &d->columns[i];
    int64_t items = d->rows;
    if (f->depth != HF_FIXED) {
        memcpy(&items, c->rows.data + 8 * d->rows, 8);
    }
    if (f->depth == HF_NESTED) {
        c->steps.len = 8 * ((size_t)items + 1);
        items = hf_last_int(&c->steps);
    }
    size_t values = (size_t)items * f->count;
    if (f->borrowed) {
        c->values.len = 16 * values;
    } else if (f->kind == HF_BYTES) {
        c->ends.len = 8 * (values + 1);
        c->values.len = (size_t)hf_last_int(&c->ends);
    } else {
        c->values.len = values * hf_value_size(f->kind);
    }
}

void hf_drop_row(hf_decoder *d) {
    for (size_t i = 0; i < d->width; i++) {
        if (d->fields[i].depth != HF_FIXED) {
            d->columns[i].rows.len = 8 * ((size_t)d->rows + 1);
        }
        hf_rewind_row(d, i);
        d->seen[i].row = -1;
    }
}

static int note_fault(hf_decoder *d, hf_fault fault) {
    if (d->n_faults == d->cap_faults) {
        size_t cap = d->cap_faults ? 2 * d->cap_faults : 16;
        hf_fault *faults = realloc(d->faults, cap * sizeof *faults);
        if (!faults) {
            return 0;
        }
        d->faults = faults;
        d->cap_faults = cap;
    }
    d->faults[d->n_faults++] = fault;
    return 1;
}

/* ---- a batch ------------------------------------------------------------------------------------------------------------ */

/* An array of the size the last batch's had, with a leading 0 where it holds splits. */
static int start_array(hf_array *a, const hf_array *last, int splits) {
    if (a->data) {
        return 1;
    }
    if (!hf_array_room(a, last->len + 8)) {
        return 0;
    }
    if (splits) {
        memset(a->data, 0, 8);
        a->len = 8;
    }
    return 1;
}

static int start_arrays(hf_decoder *d) {
    for (size_t i = 0; i < d->width; i++) {
        const hf_field *f = &d->fields[i];
        hf_column *c = &d->columns[i], *last = &d->last[i];
        if (!start_array(&c->values, &last->values, 0) ||
            (f->kind == HF_BYTES && !f->borrowed && !start_array(&c->ends, &last->ends, 1)) ||
            (f->depth == HF_NESTED && !start_array(&c->steps, &last->steps, 1)) ||
            (f->depth != HF_FIXED && !start_array(&c->rows, &last->rows, 1))) {
            return 0;
        }
    }
    return 1;
}

hf_walk hf_decoder_feed(hf_decoder *d, const uint8_t *base, const uint8_t *buf, size_t n, int verify_data,
                        int64_t max_rows, int64_t record, int64_t offset) {
    hf_walk walk = {0, 0, HF_OK, 0};
    d->out_of_memory = 0;
    d->base = base;
    if (!start_arrays(d)) {
        walk.status = HF_NO_MEMORY;
        return walk;
    }
    while (d->rows < max_rows && walk.consumed < n) {
        const uint8_t *p = buf + walk.consumed;
        uint64_t length;
        int field;
        int64_t got;
        walk.status = hf_frame_check(p, n - walk.consumed, verify_data, &length);
        if (walk.status != HF_OK) {
            walk.needed = length > UINT64_MAX - HF_OVERHEAD ? UINT64_MAX : length + HF_OVERHEAD;
            return walk;
        }
        if (!hf_shape_read(d, p + HF_HEADER, length)) {
            int code = hf_walk_record(d, p + HF_HEADER, p + HF_HEADER + length, &field, &got);
            if (code != HF_OK) {
                hf_drop_row(d);
                hf_fault fault = {record + walk.count, offset + (int64_t)walk.consumed, code, field, got};
                if (code == HF_NO_MEMORY || !note_fault(d, fault)) {
                    walk.status = HF_NO_MEMORY;
                    return walk;
                }
            } else {
                hf_shape_learn(d, p + HF_HEADER, length);
                d->rows++;
            }
        } else {
            d->rows++;
        }
        walk.count++;
        walk.consumed += (size_t)length + HF_OVERHEAD;
    }
    return walk;
}

hf_walk hf_decoder_feed_file(hf_decoder *d, hf_refill *r, int verify_data, int64_t max_rows, int64_t record,
                             size_t most_bytes) {
    hf_walk all = {0, 0, HF_OK, 0};
    for (;;) {
        hf_walk walk = hf_decoder_feed(d, r->buf, r->buf + r->start, r->stop - r->start, verify_data, max_rows,
                                       record + all.count, r->offset);
        all.count += walk.count;
        all.consumed += walk.consumed;
        all.status = walk.status;
        all.needed = walk.needed;
        hf_refill_use(r, walk.consumed);
        if (walk.status > HF_NEED_MORE || d->rows >= max_rows || all.consumed >= most_bytes ||
            !hf_refill_more(r, walk.status == HF_OK ? 1 : walk.needed)) {
            return all;
        }
    }
}

size_t hf_decoder_faults(const hf_decoder *d, const hf_fault **faults) {
    *faults = d->faults;
    return d->n_faults;
}

void hf_decoder_clear_faults(hf_decoder *d) { d->n_faults = 0; }

int hf_decoder_take(hf_decoder *d, hf_column *columns) {
    if (!start_arrays(d)) { /* there may have been no feed since the last take */
        return 0;
    }
    memcpy(columns, d->columns, d->width * sizeof *columns);
    memcpy(d->last, d->columns, d->width * sizeof *columns); /* lengths only: the pointers are the caller's now */
    memset(d->columns, 0, d->width * sizeof *columns);
    for (size_t i = 0; i < d->width; i++) {
        d->seen[i].row = -1;
    }
    d->rows = 0;
    return 1;
}
