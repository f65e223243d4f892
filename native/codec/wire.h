/* The protobuf wire format: bounded readers. Every function gets the end and never reads at or past it. */
#ifndef HF_WIRE_H
#define HF_WIRE_H

#include <stddef.h>
#include <stdint.h>

enum { HF_VARINT = 0, HF_FIXED64 = 1, HF_LEN = 2, HF_GROUP = 3, HF_END_GROUP = 4, HF_FIXED32 = 5 };

enum {
    HF_MAX_SMALL = 5,   /* bytes of a tag or a length: protobuf's own bound, though a value may have ten */
    HF_MAX_NESTED = 100 /* messages and groups within each other: protobuf's own bound */
};

/* One varint; NULL when it is cut short or longer than ten bytes. */
static inline const uint8_t *hf_read_varint(const uint8_t *p, const uint8_t *end, uint64_t *out) {
    if (p < end && *p < 128) {
        *out = *p;
        return p + 1;
    }
    uint64_t v = 0;
    for (int shift = 0; shift < 70 && p < end; shift += 7) {
        uint8_t b = *p++;
        v |= (uint64_t)(b & 127) << (shift < 64 ? shift : 63);
        if (b < 128) {
            *out = v;
            return p;
        }
    }
    return NULL;
}

/* A length-delimited value's bytes: sets *start and *stop; NULL when they are not all there. */
static inline const uint8_t *hf_read_len(const uint8_t *p, const uint8_t *end, const uint8_t **start,
                                         const uint8_t **stop) {
    uint64_t n;
    const uint8_t *q = hf_read_varint(p, end, &n);
    if (!q || q - p > HF_MAX_SMALL || n > (uint64_t)(end - q)) {
        return NULL;
    }
    p = q;
    *start = p;
    *stop = p + n;
    return *stop;
}

/* A field's tag. Protobuf's own bounds: 32 bits, field number not 0. */
static inline const uint8_t *hf_read_tag(const uint8_t *p, const uint8_t *end, uint32_t *tag) {
    uint64_t v;
    const uint8_t *q = hf_read_varint(p, end, &v);
    if (!q || q - p > HF_MAX_SMALL || v > UINT32_MAX || v >> 3 == 0) {
        return NULL;
    }
    *tag = (uint32_t)v;
    return q;
}

/* How many messages are around the fields of each part of a record. */
enum {
    HF_IN_RECORD = 0,
    HF_IN_MAP = 1,
    HF_IN_ENTRY = 2,
    HF_IN_FEATURE = 3,
    HF_IN_VALUES = 4,
    HF_STEP = 1, /* added inside a feature list's steps */
};

/* Skips a field that is not requested, at nesting level `depth`. */
const uint8_t *hf_skip_field(const uint8_t *p, const uint8_t *end, uint32_t tag, int depth);

/* Goes on to the next length-delimited field, over all others. 1: *number, *start and *stop are its; 0: there is none;
 * -1: malformed. */
static inline int hf_next_len(const uint8_t **p, const uint8_t *end, int depth, uint32_t *number, const uint8_t **start,
                              const uint8_t **stop) {
    while (*p < end) {
        uint32_t tag;
        const uint8_t *q = hf_read_tag(*p, end, &tag);
        if (!q) {
            return -1;
        }
        if ((tag & 7) == HF_LEN) {
            *p = hf_read_len(q, end, start, stop);
            *number = tag >> 3;
            return *p ? 1 : -1;
        }
        if (!(*p = hf_skip_field(q, end, tag, depth))) {
            return -1;
        }
    }
    return 0;
}

#endif
