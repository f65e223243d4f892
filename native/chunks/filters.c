#include "filters.h"

#include <string.h>

#ifdef __SSE2__
#include <emmintrin.h>

/* 16 items at a time, of 2, 4, 8 or 16 bytes. Each round interleaves the first half of the vectors with the second. */
static inline __attribute__((always_inline)) size_t unshuffle_16(const uint8_t *from, uint8_t *to, size_t items,
                                                                 const size_t item_bytes) {
    size_t i = 0;
    for (; i + 16 <= items; i += 16) {
        __m128i v[16], w[16];
        for (size_t k = 0; k < item_bytes; k++) {
            v[k] = _mm_loadu_si128((const __m128i *)(const void *)(from + k * items + i));
        }
        for (size_t round = 1; round < item_bytes; round *= 2) {
            for (size_t k = 0; k < item_bytes / 2; k++) {
                w[2 * k] = _mm_unpacklo_epi8(v[k], v[k + item_bytes / 2]);
                w[2 * k + 1] = _mm_unpackhi_epi8(v[k], v[k + item_bytes / 2]);
            }
            memcpy(v, w, item_bytes * sizeof *v);
        }
        for (size_t k = 0; k < item_bytes; k++) {
            _mm_storeu_si128((__m128i *)(void *)(to + i * item_bytes + 16 * k), v[k]);
        }
    }
    return i;
}
#endif

static size_t unshuffle_most(const uint8_t *from, uint8_t *to, size_t items, size_t item_bytes) {
#ifdef __SSE2__
    switch (item_bytes) {
    case 2:
        return unshuffle_16(from, to, items, 2);
    case 4:
        return unshuffle_16(from, to, items, 4);
    case 8:
        return unshuffle_16(from, to, items, 8);
    case 16:
        return unshuffle_16(from, to, items, 16);
    }
#else
    (void)from, (void)to, (void)items, (void)item_bytes;
#endif
    return 0;
}

void hf_unshuffle(const uint8_t *from, uint8_t *to, size_t bytes, size_t item_bytes) {
    size_t items = bytes / item_bytes;
    for (size_t i = unshuffle_most(from, to, items, item_bytes); i < items; i++) {
        for (size_t k = 0; k < item_bytes; k++) {
            to[i * item_bytes + k] = from[k * items + i];
        }
    }
    size_t whole = items * item_bytes;
    memcpy(to + whole, from + whole, bytes - whole);
}

static uint32_t folded(uint32_t sum) { return (sum & 0xffff) + (sum >> 16); }

static uint32_t fletcher32(const uint8_t *data, size_t bytes) {
    uint32_t one = 0, two = 0;
    for (size_t pairs = bytes / 2; pairs;) {
        size_t n = pairs > 360 ? 360 : pairs; /* the sums do not overflow so long */
        pairs -= n;
        for (; n; n--, data += 2) {
            one += (uint32_t)data[0] << 8 | data[1];
            two += one;
        }
        one = folded(one), two = folded(two);
    }
    if (bytes % 2) {
        one += (uint32_t)data[0] << 8;
        two += one;
        one = folded(one), two = folded(two);
    }
    return folded(two) << 16 | folded(one);
}

int hf_fletcher32_fits(const uint8_t *data, size_t bytes) {
    if (bytes < 4) {
        return 0;
    }
    const uint8_t *end = data + bytes - 4;
    uint32_t stored = (uint32_t)end[0] | (uint32_t)end[1] << 8 | (uint32_t)end[2] << 16 | (uint32_t)end[3] << 24;
    uint32_t sum = fletcher32(data, bytes - 4);
    /* HDF5 1.6.2 stored it with the bytes of each half swapped. */
    return stored == sum || stored == ((sum & 0x00ff00ff) << 8 | (sum >> 8 & 0x00ff00ff));
}
