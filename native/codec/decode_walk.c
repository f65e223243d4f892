#include "decode_internal.h"

/* ---- one list of values ------------------------------------------------------------------------------------------- */

/* Values of a fixed column beyond its count are counted, not stored: the row is a fault anyway. */
static inline int wanted(const hf_field *f, const hf_seen *s) { return f->depth != HF_FIXED || s->n < f->count; }

static int add_floats(hf_decoder *d, size_t i, const uint8_t *p, size_t n) {
    hf_array *values = &d->columns[i].values;
    const hf_field *f = &d->fields[i];
    hf_seen *s = &d->seen[i];
    size_t keep = n;
    if (f->depth == HF_FIXED && keep > f->count - (s->n < f->count ? s->n : f->count)) {
        keep = f->count - (s->n < f->count ? s->n : f->count);
    }
    if (values->cap - values->len < 4 * keep && !hf_array_room(values, 4 * keep)) {
        d->out_of_memory = 1;
        return 0;
    }
    if (keep) {
        memcpy(values->data + values->len, p, 4 * keep);
    }
    values->len += 4 * keep;
    s->n += n;
    return 1;
}

static int read_floats(hf_decoder *d, size_t i, const uint8_t *p, const uint8_t *end, int depth) {
    while (p < end) {
        uint32_t tag;
        const uint8_t *start, *stop;
        if (!(p = hf_read_tag(p, end, &tag))) {
            return 0;
        }
        if (tag == (1 << 3 | HF_LEN)) {
            p = hf_read_len(p, end, &start, &stop);
            if (!p || (stop - start) % 4 || !add_floats(d, i, start, (size_t)(stop - start) / 4)) {
                return 0;
            }
        } else if (tag == (1 << 3 | HF_FIXED32)) {
            if (end - p < 4 || !add_floats(d, i, p, 1)) {
                return 0;
            }
            p += 4;
        } else if (!(p = hf_skip_field(p, end, tag, depth))) {
            return 0;
        }
    }
    return 1;
}

/* Room for every varint that can be in these bytes is made once, so that the loop only writes. */
static const uint8_t *add_varints(hf_decoder *d, size_t i, const uint8_t *p, const uint8_t *end, int only_one) {
    hf_array *values = &d->columns[i].values;
    const hf_field *f = &d->fields[i];
    hf_seen *s = &d->seen[i];
    size_t most = only_one ? 1 : (size_t)(end - p);
    if (f->depth == HF_FIXED && most > f->count) {
        most = f->count;
    }
    if (values->cap - values->len < 8 * most && !hf_array_room(values, 8 * most)) {
        d->out_of_memory = 1;
        return NULL;
    }
    while (p < end) {
        uint64_t v;
        p = hf_read_varint(p, end, &v);
        if (!p) {
            return NULL;
        }
        if (wanted(f, s)) {
            memcpy(values->data + values->len, &v, 8);
            values->len += 8;
        }
        s->n++;
        if (only_one) {
            break;
        }
    }
    return p;
}

static int read_ints(hf_decoder *d, size_t i, const uint8_t *p, const uint8_t *end, int depth) {
    while (p < end) {
        uint32_t tag;
        const uint8_t *start, *stop;
        if (!(p = hf_read_tag(p, end, &tag))) {
            return 0;
        }
        if (tag == (1 << 3 | HF_LEN)) {
            p = hf_read_len(p, end, &start, &stop);
            if (!p || !add_varints(d, i, start, stop, 0)) {
                return 0;
            }
        } else if (tag == (1 << 3 | HF_VARINT)) {
            if (p == end || !(p = add_varints(d, i, p, end, 1))) {
                return 0;
            }
        } else if (!(p = hf_skip_field(p, end, tag, depth))) {
            return 0;
        }
    }
    return 1;
}

static int add_bytes(hf_decoder *d, size_t i, const uint8_t *p, size_t n) {
    hf_array *values = &d->columns[i].values;
    if (d->fields[i].borrowed) {
        if (d->seen[i].n++ == 0) {
            return hf_push_lent(d, values, p, n);
        }
        return 1;
    }
    if (wanted(&d->fields[i], &d->seen[i])) {
        if (values->cap - values->len < n && !hf_array_room(values, n)) {
            d->out_of_memory = 1;
            return 0;
        }
        if (n) {
            memcpy(values->data + values->len, p, n);
        }
        values->len += n;
        if (!hf_push_int(d, &d->columns[i].ends, (int64_t)values->len)) {
            return 0;
        }
    }
    d->seen[i].n++;
    return 1;
}

static int read_bytes(hf_decoder *d, size_t i, const uint8_t *p, const uint8_t *end, int depth) {
    uint32_t number;
    const uint8_t *start, *stop;
    int more;
    while ((more = hf_next_len(&p, end, depth, &number, &start, &stop)) > 0) {
        if (number == 1 && !add_bytes(d, i, start, (size_t)(stop - start))) {
            return 0;
        }
    }
    return more == 0;
}

/* ---- one Feature ---------------------------------------------------------------------------------------------------- */

int hf_check_varints(const uint8_t *p, const uint8_t *end) {
    uint64_t v;
    while (p < end) {
        if (!(p = hf_read_varint(p, end, &v))) {
            return 0;
        }
    }
    return 1;
}

/* An unused list must be valid, too, or a corrupt record would pass because its bad part was not requested:
 * protobuf itself would refuse it. */
static int check_list(int kind, const uint8_t *p, const uint8_t *end, int depth) {
    uint32_t number;
    const uint8_t *start, *stop;
    int more;
    while ((more = hf_next_len(&p, end, depth, &number, &start, &stop)) > 0) {
        if (number == 1 &&
            ((kind == HF_FLOAT32 && (stop - start) % 4) || (kind == HF_INT64 && !hf_check_varints(start, stop)))) {
            return 0;
        }
    }
    return more == 0;
}

/* Appends the values of a Feature to those that the column has for this item. Another member of the oneof replaces what
 * came before it: `restart` rewinds to where this item began. */
static int read_feature(hf_decoder *d, size_t i, const uint8_t *p, const uint8_t *end,
                        void (*restart)(hf_decoder *, size_t)) {
    hf_seen *s = &d->seen[i];
    int depth = HF_IN_FEATURE + s->is_list, more;
    uint32_t kind;
    const uint8_t *start, *stop;
    while ((more = hf_next_len(&p, end, depth, &kind, &start, &stop)) > 0) {
        if (kind > HF_INT64) {
            continue;
        }
        if (s->kind != kind && s->kind != HF_NONE) {
            restart(d, i);
            s->n = 0;
        }
        s->kind = (uint8_t)kind;
        int good;
        if ((int)kind != d->fields[i].kind) {
            good = check_list((int)kind, start, stop, depth + 1);
        } else if (kind == HF_FLOAT32) {
            good = read_floats(d, i, start, stop, depth + 1);
        } else if (kind == HF_INT64) {
            good = read_ints(d, i, start, stop, depth + 1);
        } else {
            good = read_bytes(d, i, start, stop, depth + 1);
        }
        if (!good) {
            return 0;
        }
    }
    return more == 0;
}

static int check_feature(const uint8_t *p, const uint8_t *end, int depth) {
    uint32_t kind;
    const uint8_t *start, *stop;
    int more;
    while ((more = hf_next_len(&p, end, depth, &kind, &start, &stop)) > 0) {
        if (kind <= HF_INT64 && !check_list((int)kind, start, stop, depth + 1)) {
            return 0;
        }
    }
    return more == 0;
}

/* ---- one feature list (SequenceExample) ------------------------------------------------------------------------------ */

static void rewind_step(hf_decoder *d, size_t i) {
    const hf_field *f = &d->fields[i];
    hf_column *c = &d->columns[i];
    const hf_seen *s = &d->seen[i];
    int64_t items;
    if (f->depth == HF_NESTED) {
        items = hf_last_int(&c->steps);
    } else {
        items = hf_last_int(&c->rows) + s->items;
    }
    size_t values = (size_t)items * f->count;
    if (f->kind == HF_BYTES) {
        c->ends.len = 8 * (values + 1);
        c->values.len = (size_t)hf_last_int(&c->ends);
    } else {
        c->values.len = values * hf_value_size(f->kind);
    }
}

/* One step. A faulty one leaves no values, so that the next step's start where rewind_step expects them. */
static int read_step(hf_decoder *d, size_t i, const uint8_t *p, const uint8_t *end) {
    const hf_field *f = &d->fields[i];
    hf_column *c = &d->columns[i];
    hf_seen *s = &d->seen[i];
    s->kind = HF_NONE;
    s->n = 0;
    if (!read_feature(d, i, p, end, rewind_step)) {
        return 0;
    }
    if (s->fault) {
        rewind_step(d, i);
        return 1;
    }
    if (s->kind != HF_NONE && s->kind != f->kind) {
        s->fault = HF_WRONG_KIND;
        s->got = s->kind;
    } else if (f->depth == HF_RAGGED ? s->n != f->count : s->n % f->count != 0) {
        s->fault = HF_WRONG_COUNT;
        s->got = (int64_t)s->n;
    }
    if (s->fault) {
        rewind_step(d, i);
        return 1;
    }
    s->items++;
    return f->depth != HF_NESTED || hf_push_int(d, &c->steps, hf_last_int(&c->steps) + (int64_t)(s->n / f->count));
}

static int read_feature_list(hf_decoder *d, size_t i, const uint8_t *p, const uint8_t *end) {
    uint32_t number;
    const uint8_t *start, *stop;
    int more;
    while ((more = hf_next_len(&p, end, HF_IN_FEATURE, &number, &start, &stop)) > 0) {
        if (number == 1 && !read_step(d, i, start, stop)) {
            return 0;
        }
    }
    return more == 0;
}

static int check_feature_list(const uint8_t *p, const uint8_t *end) {
    uint32_t number;
    const uint8_t *start, *stop;
    int more;
    while ((more = hf_next_len(&p, end, HF_IN_FEATURE, &number, &start, &stop)) > 0) {
        if (number == 1 && !check_feature(start, stop, HF_IN_FEATURE + HF_STEP)) {
            return 0;
        }
    }
    return more == 0;
}

/* ---- the map of features --------------------------------------------------------------------------------------------- */

size_t hf_find_field(hf_decoder *d, const uint8_t *key, size_t len, size_t ordinal) {
    size_t *guess = &d->guess[ordinal % HF_GUESSES];
    size_t i = *guess;
    if (i < d->width && d->fields[i].key_len == len && memcmp(d->fields[i].key, key, len) == 0) {
        return i;
    }
    for (i = 0; i < d->width; i++) {
        if (d->fields[i].key_len == len && memcmp(d->fields[i].key, key, len) == 0) {
            *guess = i;
            return i;
        }
    }
    return d->width;
}

/* Returns where an entry's value goes: nowhere, if it is not requested. */
static int read_value(hf_decoder *d, size_t i, int in_lists, const uint8_t *p, const uint8_t *end) {
    if (i == d->width) {
        return in_lists ? check_feature_list(p, end) : check_feature(p, end, HF_IN_FEATURE);
    }
    if (in_lists != d->seen[i].is_list) { /* a feature list hides a context feature of the same name */
        return check_feature(p, end, HF_IN_FEATURE);
    }
    if (!in_lists) {
        return read_feature(d, i, p, end, hf_rewind_row);
    }
    return d->fields[i].depth == HF_FIXED ? check_feature_list(p, end) : read_feature_list(d, i, p, end);
}

static void begin_entry(hf_decoder *d, size_t i, int in_lists) {
    hf_seen *s = &d->seen[i];
    if (s->row == d->rows) {
        if (s->is_list && !in_lists) {
            return;
        }
        hf_rewind_row(d, i);
    }
    *s = (hf_seen){.row = d->rows, .is_list = in_lists};
}

/* One entry of map<string, Feature> or map<string, FeatureList>: key = 1, value = 2, in any order and number. So the key
 * is searched first, then the values are read. */
static int read_entry(hf_decoder *d, int in_lists, const uint8_t *entry, const uint8_t *end, size_t ordinal) {
    uint32_t number;
    const uint8_t *p = entry, *start, *stop, *key = entry;
    size_t key_len = 0;
    int more;
    while ((more = hf_next_len(&p, end, HF_IN_ENTRY, &number, &start, &stop)) > 0) {
        if (number == 1) {
            key = start;
            key_len = (size_t)(stop - start);
        }
    }
    if (more < 0) {
        return 0;
    }
    size_t i = hf_find_field(d, key, key_len, ordinal);
    if (i < d->width) {
        begin_entry(d, i, in_lists);
    }
    for (p = entry; hf_next_len(&p, end, HF_IN_ENTRY, &number, &start, &stop) > 0;) {
        if (number == 2 && !read_value(d, i, in_lists, start, stop)) {
            return 0;
        }
    }
    return 1;
}

static int read_map(hf_decoder *d, int in_lists, const uint8_t *p, const uint8_t *end, size_t *ordinal) {
    uint32_t number;
    const uint8_t *start, *stop;
    int more;
    while ((more = hf_next_len(&p, end, HF_IN_MAP, &number, &start, &stop)) > 0) {
        if (number == 1 && !read_entry(d, in_lists, start, stop, (*ordinal)++)) {
            return 0;
        }
    }
    return more == 0;
}

/* ---- one record ------------------------------------------------------------------------------------------------------- */

int hf_put_default(hf_decoder *d, size_t i) {
    const hf_field *f = &d->fields[i];
    hf_column *c = &d->columns[i];
    size_t n = f->kind == HF_BYTES ? (size_t)(f->count ? f->fill_ends[f->count - 1] : 0)
                                   : (size_t)f->count * hf_value_size(f->kind);
    size_t before = c->values.len;
    if (!hf_array_room(&c->values, n)) {
        d->out_of_memory = 1;
        return 0;
    }
    if (n) {
        memcpy(c->values.data + before, f->fill, n);
    }
    c->values.len += n;
    for (uint64_t k = 0; f->kind == HF_BYTES && k < f->count; k++) {
        if (!hf_push_int(d, &c->ends, (int64_t)before + f->fill_ends[k])) {
            return 0;
        }
    }
    return 1;
}

/* HF_OK, or why this field spoils the row. Ends the row in this column. */
static int end_row(hf_decoder *d, size_t i, int64_t *got) {
    const hf_field *f = &d->fields[i];
    hf_column *c = &d->columns[i];
    const hf_seen *s = &d->seen[i];
    *got = 0;
    int there = s->row == d->rows && (s->is_list || s->kind != HF_NONE);
    if (!there) {
        if (f->depth == HF_FIXED) {
            return !f->has_default ? HF_MISSING : hf_put_default(d, i) ? HF_OK : HF_NO_MEMORY;
        }
        return hf_push_int(d, &c->rows, hf_last_int(&c->rows)) ? HF_OK : HF_NO_MEMORY;
    }
    if (s->is_list) {
        if (f->depth == HF_FIXED) {
            return HF_IS_LIST;
        }
        *got = s->got;
        if (s->fault) {
            return s->fault;
        }
        return hf_push_int(d, &c->rows, hf_last_int(&c->rows) + s->items) ? HF_OK : HF_NO_MEMORY;
    }
    if (s->kind != f->kind) {
        *got = s->kind;
        return HF_WRONG_KIND;
    }
    *got = (int64_t)s->n;
    if (f->depth == HF_FIXED) {
        return s->n == f->count ? HF_OK : HF_WRONG_COUNT;
    }
    if (f->depth == HF_NESTED) {
        return HF_NOT_LIST;
    }
    if (s->n % f->count) {
        return HF_WRONG_COUNT;
    }
    return hf_push_int(d, &c->rows, hf_last_int(&c->rows) + (int64_t)(s->n / f->count)) ? HF_OK : HF_NO_MEMORY;
}

int hf_walk_record(hf_decoder *d, const uint8_t *p, const uint8_t *end, int *field, int64_t *got) {
    size_t ordinal = 0;
    uint32_t number;
    const uint8_t *start, *stop;
    int more;
    *field = -1;
    *got = 0;
    while ((more = hf_next_len(&p, end, HF_IN_RECORD, &number, &start, &stop)) > 0) {
        /* features or context = 1, feature_lists = 2 */
        if (number <= 2 && !read_map(d, number == 2, start, stop, &ordinal)) {
            return d->out_of_memory ? HF_NO_MEMORY : HF_MALFORMED;
        }
    }
    if (more < 0) {
        return HF_MALFORMED;
    }
    for (size_t i = 0; i < d->width; i++) {
        int code = end_row(d, i, got);
        if (code != HF_OK) {
            *field = (int)i;
            return code;
        }
    }
    return HF_OK;
}
