#include "unfilter.h"

#include <stdlib.h>
#include <string.h>
#ifdef __SSE2__
#include <emmintrin.h>
#endif

static inline uint8_t paeth(int left, int above, int corner) {
    int to_left = abs(above - corner), to_above = abs(left - corner), to_corner = abs(left + above - 2 * corner);
    int near = to_above < to_left ? above : left;
    int distance = to_above < to_left ? to_above : to_left;
    return (uint8_t)(to_corner < distance ? corner : near);
}

/* Of a compile-time `size`, so that the bytes of one pixel are separate chains for the processor, kept in registers. */
static inline void sub_row(const uint8_t *in, uint8_t *out, size_t n, size_t size) {
    uint8_t left[4] = {0};
    for (size_t i = 0; i < n; i += size) {
        for (size_t c = 0; c < size; c++) {
            out[i + c] = left[c] = (uint8_t)(in[i + c] + left[c]);
        }
    }
}

static inline void average_row(const uint8_t *in, const uint8_t *above, uint8_t *out, size_t n, size_t size) {
    uint8_t left[4] = {0};
    for (size_t i = 0; i < n; i += size) {
        for (size_t c = 0; c < size; c++) {
            out[i + c] = left[c] = (uint8_t)(in[i + c] + ((left[c] + above[i + c]) >> 1));
        }
    }
}

static inline void paeth_row(const uint8_t *in, const uint8_t *above, uint8_t *out, size_t n, size_t size) {
    uint8_t left[4] = {0}, corner[4] = {0};
    for (size_t i = 0; i < n; i += size) {
        for (size_t c = 0; c < size; c++) {
            uint8_t up = above[i + c];
            out[i + c] = left[c] = (uint8_t)(in[i + c] + paeth(left[c], up, corner[c]));
            corner[c] = up;
        }
    }
}

#ifdef __SSE2__
/* Each pixel waits for the one before it: what counts is how long one takes, and the bytes of a pixel side by side take as
 * long as one byte. Pixels are loaded and stored as four bytes also where they have three, but for the last of a row. */
static inline __m128i load_pixel(const uint8_t *at, size_t size) {
    int bytes = 0;
    memcpy(&bytes, at, size);
    return _mm_cvtsi32_si128(bytes);
}

static inline void store_pixel(uint8_t *at, __m128i pixel, size_t size) {
    int bytes = _mm_cvtsi128_si32(pixel);
    memcpy(at, &bytes, size);
}

static inline __m128i magnitude(__m128i x) { return _mm_max_epi16(x, _mm_sub_epi16(_mm_setzero_si128(), x)); }

static inline __m128i choose(__m128i mask, __m128i yes, __m128i no) {
    return _mm_or_si128(_mm_and_si128(mask, yes), _mm_andnot_si128(mask, no));
}

typedef struct {
    __m128i left, corner;
} Near;

static inline void wide_paeth(const uint8_t *in, const uint8_t *above, uint8_t *out, Near *near, size_t size) {
    const __m128i zero = _mm_setzero_si128();
    __m128i left = near->left, corner = near->corner;
    __m128i up = _mm_unpacklo_epi8(load_pixel(above, size), zero);
    __m128i to_left = _mm_sub_epi16(up, corner), to_up = _mm_sub_epi16(left, corner);
    __m128i to_corner = magnitude(_mm_add_epi16(to_left, to_up));
    to_left = magnitude(to_left);
    to_up = magnitude(to_up);
    __m128i least = _mm_min_epi16(to_corner, _mm_min_epi16(to_left, to_up));
    __m128i next = choose(_mm_cmpeq_epi16(least, to_left), left, choose(_mm_cmpeq_epi16(least, to_up), up, corner));
    __m128i pixel = _mm_add_epi8(load_pixel(in, size), _mm_packus_epi16(next, zero));
    store_pixel(out, pixel, size);
    near->left = _mm_unpacklo_epi8(pixel, zero);
    near->corner = up;
}

static inline void wide_paeth_row(const uint8_t *in, const uint8_t *above, uint8_t *out, size_t n, size_t size) {
    Near near = {_mm_setzero_si128(), _mm_setzero_si128()};
    size_t i = 0;
    for (; i + 4 <= n; i += size) {
        wide_paeth(in + i, above + i, out + i, &near, 4);
    }
    if (i < n) {
        wide_paeth(in + i, above + i, out + i, &near, size);
    }
}
#else
#define wide_paeth_row paeth_row
#endif

static void up_row(const uint8_t *restrict in, const uint8_t *restrict above, uint8_t *restrict out, size_t n) {
    for (size_t i = 0; i < n; i++) {
        out[i] = (uint8_t)(in[i] + above[i]);
    }
}

#define BY_SIZE(call, ...)                                                                                             \
    switch (size) {                                                                                                    \
    case 1:                                                                                                            \
        call(__VA_ARGS__, 1);                                                                                          \
        break;                                                                                                         \
    case 2:                                                                                                            \
        call(__VA_ARGS__, 2);                                                                                          \
        break;                                                                                                         \
    case 3:                                                                                                            \
        call(__VA_ARGS__, 3);                                                                                          \
        break;                                                                                                         \
    default:                                                                                                           \
        call(__VA_ARGS__, 4);                                                                                          \
    }

int hf_unfilter(const uint8_t *rows, size_t n, size_t row_bytes, size_t size, uint8_t *out) {
    uint8_t *zeros = calloc(row_bytes + 1, 1); /* above the first row */
    if (!zeros) {
        return -2;
    }
    const uint8_t *above = zeros;
    int result = 0;
    for (size_t row = 0; row < n && result == 0; row++) {
        const uint8_t *in = rows + 1;
        switch (rows[0]) {
        case 0:
            memcpy(out, in, row_bytes);
            break;
        case 1:
            BY_SIZE(sub_row, in, out, row_bytes)
            break;
        case 2:
            up_row(in, above, out, row_bytes);
            break;
        case 3:
            BY_SIZE(average_row, in, above, out, row_bytes)
            break;
        case 4:
            if (size == 3) {
                wide_paeth_row(in, above, out, row_bytes, 3);
            } else {
                BY_SIZE(paeth_row, in, above, out, row_bytes)
            }
            break;
        default:
            result = -1;
        }
        above = out;
        out += row_bytes;
        rows += 1 + row_bytes;
    }
    free(zeros);
    return result;
}
