/* Decodes two records in turn: what the decoder remembers of the first must not change the result of the second. The
 * reference is a fresh decoder for each record. */
#include <stdlib.h>
#include <string.h>

#include "crc32c.h"
#include "decode.h"
#include "fuzz_schema.h"

enum { TURNS = 6 };

static int same(const hf_array *a, size_t from, size_t to, const hf_array *b) {
    return to - from == b->len && (b->len == 0 || memcmp(a->data + from, b->data, b->len) == 0);
}

/* The one row that a fresh decoder makes of a record; 0: none. */
static int judge(const uint8_t *data, size_t size, hf_column *columns) {
    size_t n;
    uint8_t *frame = fuzz_frame(data, size, &n);
    hf_decoder *d = fuzz_decoder();
    hf_decoder_feed(d, frame, frame, n, 1, 1, 0, 0);
    int64_t rows = hf_decoder_rows(d);
    if (!hf_decoder_take(d, columns)) {
        abort();
    }
    hf_decoder_free(d);
    free(frame);
    return (int)rows;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    hf_crc32c_init(HF_CRC_ALL);
    if (size < 1) {
        return 0;
    }
    size_t first = (size - 1) * data[0] / 255;
    const uint8_t *parts[2] = {data + 1, data + 1 + first};
    size_t sizes[2] = {first, size - 1 - first};
    hf_decoder *d = fuzz_decoder();
    size_t width = hf_decoder_width(d);
    hf_column *want = calloc(width, sizeof *want), *got = calloc(width, sizeof *got);
    for (int turn = 0; turn < TURNS; turn++) {
        int which = "001011"[turn] - '0';
        size_t n;
        uint8_t *frame = fuzz_frame(parts[which], sizes[which], &n);
        int rows = judge(parts[which], sizes[which], want);
        hf_decoder_feed(d, frame, frame, n, 1, 1, 0, 0);
        if (hf_decoder_rows(d) != rows) {
            abort();
        }
        if (!hf_decoder_take(d, got)) {
            abort();
        }
        for (size_t i = 0; i < width; i++) {
            if (!same(&got[i].values, 0, got[i].values.len, &want[i].values) ||
                !same(&got[i].ends, 0, got[i].ends.len, &want[i].ends) ||
                !same(&got[i].steps, 0, got[i].steps.len, &want[i].steps) ||
                !same(&got[i].rows, 0, got[i].rows.len, &want[i].rows)) {
                abort();
            }
            hf_column_free(&got[i]);
            hf_column_free(&want[i]);
        }
        hf_decoder_clear_faults(d);
        free(frame);
    }
    free(want);
    free(got);
    hf_decoder_free(d);
    return 0;
}
