#include <stdlib.h>

#include "decode_internal.h"

/* Most files are written by one program from one kind of sample: the bytes around the values (tags, lengths, keys) are
 * the same in record after record. A shape is one such frame of bytes. A record of the same length that has all of them
 * has the same structure, so its values are where they were, and nothing has to be walked. All checks and copies are then
 * independent of each other, which the CPU likes. */

enum { MAX_CHECKS = 96, MAX_ACTIONS = 48, MIN_HEAD = 8 };

/* What to do with one entry's values, or for a column without an entry. */
enum { SKIP_INTS, FLOATS, ONE_INT, INTS, BYTES, BORROWED, DEFAULT, EMPTY };

typedef struct {
    uint32_t field;
    uint32_t op;
    uint32_t at, len; /* the values' bytes in the record */
} action_t;

struct hf_shape {
    uint64_t length;
    size_t n_checks, n_copies, n_actions;
    struct {
        uint64_t word;
        uint32_t at;
    } checks[MAX_CHECKS];
    action_t copies[MAX_ACTIONS]; /* the commonest of all, apart: floats of fixed shape */
    action_t actions[MAX_ACTIONS];
};

void hf_shapes_free(hf_decoder *d) {
    for (int k = 0; k < HF_SHAPES; k++) {
        free(d->shapes[k]);
    }
}

static inline uint64_t word_at(const uint8_t *p) {
    uint64_t v;
    memcpy(&v, p, 8);
    return v;
}

/* ---- using -------------------------------------------------------------------------------------------------------------- */

static int read_ints(hf_decoder *d, const hf_field *f, hf_column *c, const uint8_t *p, const uint8_t *end) {
    hf_array *values = &c->values;
    size_t before = values->len;
    if (!hf_room(d, values, 8 * (size_t)(end - p))) {
        return 0;
    }
    while (p < end) {
        uint64_t v;
        if (!(p = hf_read_varint(p, end, &v))) {
            return 0;
        }
        memcpy(values->data + values->len, &v, 8);
        values->len += 8;
    }
    /* As many bytes can hold another number of varints. */
    uint64_t n = (values->len - before) / 8;
    return f->depth == HF_FIXED ? n == f->count : n % f->count == 0;
}

static inline int act(hf_decoder *d, const action_t *a, const uint8_t *p) {
    const hf_field *f = &d->fields[a->field];
    hf_column *c = &d->columns[a->field];
    const uint8_t *body = p + a->at;
    uint64_t v = 0;
    switch (a->op) {
    case SKIP_INTS:
        return hf_check_varints(body, body + a->len);
    case FLOATS:
        if (!hf_push_bytes(d, &c->values, body, a->len)) {
            return 0;
        }
        break;
    case ONE_INT:
        return hf_read_varint(body, body + a->len, &v) == body + a->len && hf_push_int(d, &c->values, (int64_t)v);
    case INTS:
        if (!read_ints(d, f, c, body, body + a->len)) {
            return 0;
        }
        break;
    case BYTES:
        if (!hf_push_bytes(d, &c->values, body, a->len) || !hf_push_int(d, &c->ends, (int64_t)c->values.len)) {
            return 0;
        }
        break;
    case BORROWED:
        return hf_push_lent(d, &c->values, body, a->len);
    case DEFAULT:
        return hf_put_default(d, a->field);
    default: /* EMPTY: only the row's end is stored, below */
        break;
    }
    if (f->depth == HF_FIXED) {
        return 1;
    }
    if (f->depth == HF_NESTED) { /* only ever EMPTY */
        return hf_push_int(d, &c->rows, hf_last_int(&c->rows));
    }
    size_t n = f->kind == HF_BYTES ? c->ends.len / 8 - 1 : c->values.len / hf_value_size(f->kind);
    return hf_push_int(d, &c->rows, (int64_t)(n / f->count));
}

static inline int same_frame(const hf_shape *shape, const uint8_t *p) {
    for (size_t i = 0; i < shape->n_checks; i++) { /* leaving early keeps compilers from gathering it into vectors */
        if (word_at(p + shape->checks[i].at) != shape->checks[i].word) {
            return 0;
        }
    }
    return 1;
}

int hf_shape_read(hf_decoder *d, const uint8_t *p, uint64_t length) {
    for (int k = 0; k < HF_SHAPES && d->shapes[k]; k++) {
        const hf_shape *shape = d->shapes[k];
        if (shape->length != length) {
            continue;
        }
        if (!same_frame(shape, p)) {
            continue;
        }
        for (size_t i = 0; i < shape->n_copies; i++) {
            const action_t *a = &shape->copies[i];
            if (!hf_push_bytes(d, &d->columns[a->field].values, p + a->at, a->len)) {
                hf_drop_row(d);
                return 0;
            }
        }
        for (size_t i = 0; i < shape->n_actions; i++) {
            if (!act(d, &shape->actions[i], p)) {
                hf_drop_row(d); /* the walk will find out what is wrong */
                return 0;
            }
        }
        d->misses = 0;
        return 1;
    }
    return 0;
}

/* ---- learning ----------------------------------------------------------------------------------------------------------- */

/* Compares the bytes [from, to) in full words that lie within them: the record may end right after them. */
static int add_checks(hf_shape *shape, const uint8_t *p, size_t from, size_t to) {
    if (to - from < MIN_HEAD) {
        return 0;
    }
    for (size_t at = from;; at += 8) {
        if (at + 8 > to) {
            at = to - 8;
        }
        if (shape->n_checks == MAX_CHECKS) {
            return 0;
        }
        shape->checks[shape->n_checks].at = (uint32_t)at;
        shape->checks[shape->n_checks++].word = word_at(p + at);
        if (at + 8 == to) {
            return 1;
        }
    }
}

static int add_action(hf_decoder *d, hf_shape *shape, size_t field, uint32_t op, size_t at, size_t len) {
    action_t action = {(uint32_t)(field < d->width ? field : 0), op, (uint32_t)at, (uint32_t)len};
    if (shape->n_actions == MAX_ACTIONS || shape->n_copies == MAX_ACTIONS) {
        return 0;
    }
    if (op == FLOATS && d->fields[field].depth == HF_FIXED) {
        shape->copies[shape->n_copies++] = action;
    } else {
        shape->actions[shape->n_actions++] = action;
    }
    return 1;
}

/* A length-delimited field `number` that fills [p, end) to its last byte: its content's start, or NULL. */
static const uint8_t *filling(const uint8_t *p, const uint8_t *end, int number) {
    uint32_t tag;
    const uint8_t *start, *stop;
    if (p >= end || !(p = hf_read_tag(p, end, &tag)) || tag != (uint32_t)(number << 3 | HF_LEN)) {
        return NULL;
    }
    return hf_read_len(p, end, &start, &stop) == end ? start : NULL;
}

static uint32_t choose_op(const hf_field *f, int kind, size_t len) {
    switch (kind) {
    case HF_FLOAT32:
        return FLOATS;
    case HF_INT64:
        return f->depth == HF_FIXED && f->count == 1 && len <= 10 ? ONE_INT : INTS;
    default:
        return f->borrowed ? BORROWED : BYTES;
    }
}

/* One entry [p, end): 1: key, 2: Feature -> one list -> one run of values, each filling the one before to its end. */
static int learn_entry(hf_decoder *d, hf_shape *shape, const uint8_t *record, const uint8_t *head, const uint8_t *p,
                       const uint8_t *end, uint8_t *used) {
    uint32_t tag;
    const uint8_t *key, *key_end, *body;
    if (p >= end || !(p = hf_read_tag(p, end, &tag)) || tag != (1 << 3 | HF_LEN) ||
        !(p = hf_read_len(p, end, &key, &key_end)) || !(p = filling(p, end, 2)) || p >= end) {
        return 0;
    }
    int kind = *p >> 3;
    if (kind < HF_BYTES || kind > HF_INT64 || !(p = filling(p, end, kind)) || !(body = filling(p, end, 1))) {
        return 0;
    }
    size_t len = (size_t)(end - body), i = hf_find_field(d, key, (size_t)(key_end - key), 0);
    if (!add_checks(shape, record, (size_t)(head - record), (size_t)(body - record))) {
        return 0;
    }
    if (i == d->width) {
        return kind != HF_INT64 || add_action(d, shape, i, SKIP_INTS, (size_t)(body - record), len);
    }
    const hf_field *f = &d->fields[i];
    if (used[i] || f->kind != kind || f->depth == HF_NESTED ||
        (kind == HF_BYTES && f->depth == HF_FIXED && f->count != 1)) {
        return 0;
    }
    used[i] = 1;
    return add_action(d, shape, i, choose_op(f, kind, len), (size_t)(body - record), len);
}

static int learn_record(hf_decoder *d, hf_shape *shape, const uint8_t *p, const uint8_t *end, uint8_t *used) {
    const uint8_t *record = p, *head = p, *start, *stop;
    if (!(p = filling(p, end, 1))) {
        return 0;
    }
    while (p < end) {
        uint32_t tag;
        if (!(p = hf_read_tag(p, end, &tag)) || tag != (1 << 3 | HF_LEN) || !(p = hf_read_len(p, end, &start, &stop)) ||
            !learn_entry(d, shape, record, head, start, stop, used)) {
            return 0;
        }
        head = p;
    }
    if (!shape->n_checks) { /* nothing to know a record by */
        return 0;
    }
    for (size_t i = 0; i < d->width; i++) {
        if (!used[i] && !add_action(d, shape, i, d->fields[i].depth == HF_FIXED ? DEFAULT : EMPTY, 0, 0)) {
            return 0;
        }
    }
    return 1;
}

void hf_shape_learn(hf_decoder *d, const uint8_t *p, uint64_t length) {
    /* Sizes that change all the time are not worth remembering each time. */
    if (d->misses++ > 16 && d->misses % 64) {
        return;
    }
    hf_shape *shape = length <= UINT32_MAX / 2 ? calloc(1, sizeof *shape) : NULL;
    uint8_t *used = calloc(d->width + 1, 1);
    if (shape && used && learn_record(d, shape, p, p + length, used)) {
        shape->length = length;
        free(d->shapes[HF_SHAPES - 1]);
        memmove(&d->shapes[1], &d->shapes[0], sizeof *d->shapes * (HF_SHAPES - 1));
        d->shapes[0] = shape;
        shape = NULL;
    }
    free(shape);
    free(used);
}
