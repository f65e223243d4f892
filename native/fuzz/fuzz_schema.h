/* A decoder with every kind of column, and records in frames, for the fuzz targets. */
#ifndef FUZZ_SCHEMA_H
#define FUZZ_SCHEMA_H

#include <stdlib.h>
#include <string.h>

#include "decode.h"

static hf_field field(const char *key, int kind, int depth, uint64_t count, int with_default) {
    hf_field f = {.kind = kind, .depth = depth, .count = count, .has_default = with_default, .key_len = strlen(key)};
    f.key = malloc(f.key_len + 1);
    memcpy(f.key, key, f.key_len);
    if (with_default) {
        f.fill = calloc(count, 8);
        f.fill_ends = calloc(count, sizeof(int64_t));
        for (uint64_t k = 0; k < count && kind == HF_BYTES; k++) {
            f.fill_ends[k] = (int64_t)k + 1;
        }
    }
    return f;
}

static hf_decoder *fuzz_decoder(void) {
    static const struct {
        const char *key;
        int kind, depth;
        uint64_t count;
        int with_default;
    } columns[] = {{"a", HF_INT64, HF_FIXED, 1, 1},  {"b", HF_FLOAT32, HF_FIXED, 2, 1},
                   {"c", HF_BYTES, HF_FIXED, 1, 1},  {"d", HF_BYTES, HF_FIXED, 2, 1},
                   {"e", HF_INT64, HF_RAGGED, 1, 0}, {"f", HF_FLOAT32, HF_RAGGED, 2, 0},
                   {"g", HF_BYTES, HF_RAGGED, 1, 0}, {"h", HF_INT64, HF_NESTED, 1, 0},
                   {"i", HF_BYTES, HF_NESTED, 1, 0}, {"j", HF_FLOAT32, HF_NESTED, 2, 0}};
    size_t n = sizeof columns / sizeof *columns;
    hf_field *fields = calloc(n, sizeof *fields);
    for (size_t i = 0; i < n; i++) {
        fields[i] = field(columns[i].key, columns[i].kind, columns[i].depth, columns[i].count, columns[i].with_default);
    }
    return hf_decoder_new(fields, n);
}

static inline uint8_t *fuzz_frame(const uint8_t *data, size_t size, size_t *n) {
    *n = size + HF_OVERHEAD;
    uint8_t *frame = malloc(*n);
    memcpy(frame + HF_HEADER, data, size);
    hf_frame_seal(frame, size);
    return frame;
}

#endif
