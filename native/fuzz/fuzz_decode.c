/* Decodes any bytes as a record's data, with a schema that has every kind of column. The decoder must not crash, read out
 * of bounds, or leave a column that does not fit its rows; and the fast path by shapes must give what the walk gives. */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "crc32c.h"
#include "decode.h"
#include "encode.h"
#include "fuzz_schema.h"

static uint8_t *framed(const uint8_t *data, size_t size, int copies, size_t *n) {
    size_t one;
    uint8_t *frame = fuzz_frame(data, size, &one), *buf = malloc(one * (size_t)copies);
    for (int k = 0; k < copies; k++) {
        memcpy(buf + one * (size_t)k, frame, one);
    }
    free(frame);
    *n = one * (size_t)copies;
    return buf;
}

static hf_view view_of(const hf_column *c, const hf_field *f) {
    return (hf_view){.values = c->values.data,
                     .n_values = c->values.len / hf_value_size(f->kind),
                     .ends = (const int64_t *)c->ends.data,
                     .n_ends = c->ends.len / 8,
                     .steps = (const int64_t *)c->steps.data,
                     .n_steps = c->steps.len / 8,
                     .rows = (const int64_t *)c->rows.data,
                     .n_rows = c->rows.len / 8};
}

static int same(const hf_array *a, const hf_array *b, size_t from_a) {
    return a->len - from_a == b->len && (b->len == 0 || memcmp(a->data + from_a, b->data, b->len) == 0);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    hf_crc32c_init(HF_CRC_ALL);
    size_t n;
    enum { COPIES = 3 };
    uint8_t *buf = framed(data, size, COPIES, &n);
    hf_decoder *d = fuzz_decoder();
    size_t width = hf_decoder_width(d);
    hf_walk walk = hf_decoder_feed(d, buf, buf, n, 1, COPIES, 0, 0);
    const hf_fault *faults;
    size_t n_faults = hf_decoder_faults(d, &faults);
    int64_t rows = hf_decoder_rows(d);
    /* The same record three times is three rows or three faults: the second and third may have come by a shape. */
    if (walk.status != HF_OK || rows + (int64_t)n_faults != COPIES || (rows != 0 && rows != COPIES)) {
        abort();
    }
    hf_column *columns = calloc(width, sizeof *columns);
    hf_view *views = calloc(width, sizeof *views);
    hf_field *fields = calloc(width, sizeof *fields);
    if (!hf_decoder_take(d, columns)) {
        abort();
    }
    for (size_t i = 0; i < width; i++) {
        fields[i] = *hf_decoder_field(d, i);
        views[i] = view_of(&columns[i], &fields[i]);
        if (hf_view_check(&fields[i], &views[i], rows, 1)) {
            abort();
        }
    }
    /* What was decoded encodes, and decodes to the same again. */
    hf_array out = {NULL, 0, 0};
    if (rows && hf_encode(fields, views, width, 0, rows, 1, SIZE_MAX, &out) != rows) {
        abort();
    }
    if (rows) {
        hf_column *again = calloc(width, sizeof *again);
        hf_decoder_clear_faults(d);
        hf_decoder_feed(d, out.data, out.data, out.len, 1, COPIES, 0, 0);
        if (hf_decoder_rows(d) != rows) {
            abort();
        }
        if (!hf_decoder_take(d, again)) {
            abort();
        }
        for (size_t i = 0; i < width; i++) {
            if (!same(&columns[i].values, &again[i].values, 0) || !same(&columns[i].ends, &again[i].ends, 0) ||
                !same(&columns[i].steps, &again[i].steps, 0) || !same(&columns[i].rows, &again[i].rows, 0)) {
                abort();
            }
            hf_column_free(&again[i]);
        }
        free(again);
    }
    hf_array_free(&out);
    for (size_t i = 0; i < width; i++) {
        hf_column_free(&columns[i]);
    }
    free(columns);
    free(views);
    free(fields);
    hf_decoder_free(d);
    free(buf);
    return 0;
}
