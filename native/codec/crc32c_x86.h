/* crc32c with SSE4.2 and PCLMUL, inline so that the walk over frames can be compiled around it. */
#ifndef HF_CRC32C_X86_H
#define HF_CRC32C_X86_H

#if defined(__x86_64__) && (defined(__clang__) || (defined(__GNUC__) && __GNUC__ >= 8))
#define HF_X86 1
#define HF_TARGET_X86 __attribute__((target("sse4.2,pclmul")))
#define HF_TARGET_WIDE __attribute__((target("sse4.2,pclmul,avx2,vpclmulqdq")))

#include <immintrin.h>
#include <string.h>

#include "crc32c.h"

static inline uint64_t hf_word(const uint8_t *p) {
    uint64_t v;
    memcpy(&v, p, 8);
    return v;
}

/* Long runs: see hf_crc_x86_wide. A block is 51 steps of 128 folded bytes and 3 x 40 bytes in lanes. */
enum {
    HF_WIDE_STEPS = 51,
    HF_WIDE_FOLDED = 128 * HF_WIDE_STEPS,
    HF_WIDE_LANE = 40 * HF_WIDE_STEPS,
    HF_WIDE_BLOCK = HF_WIDE_FOLDED + 3 * HF_WIDE_LANE,
};
extern int hf_crc_has_wide;
uint64_t hf_crc_x86_wide(uint64_t state, const uint8_t *p, size_t blocks);

/* A CRC behind as many zero words. */
HF_TARGET_X86 static inline uint64_t hf_crc_moved(uint64_t crc, size_t words) {
    __m128i moved =
        _mm_clmulepi64_si128(_mm_cvtsi64_si128((int64_t)crc), _mm_cvtsi64_si128((int64_t)hf_crc_fold[words]), 0);
    return _mm_crc32_u64(0, (uint64_t)_mm_cvtsi128_si64(moved));
}

/* Fewer than eight bytes, or the rest of a long run. `a` is the raw state, not inverted. */
HF_TARGET_X86 static inline uint64_t hf_crc_x86_tail(uint64_t a, const uint8_t *p, size_t n) {
    for (; n >= 8; p += 8, n -= 8) {
        a = _mm_crc32_u64(a, hf_word(p));
    }
    while (n--) {
        a = _mm_crc32_u8((uint32_t)a, *p++);
    }
    return a;
}

/* Three lanes of k words each, starting at p. One chain is bound by the instruction's latency (3 cycles for 8 bytes);
 * three together run at its throughput. `first` is mixed into the first word. */
HF_TARGET_X86 static inline uint64_t hf_crc_x86_lanes(uint64_t a, const uint8_t *p, size_t k, uint64_t first) {
    const uint8_t *q = p + 8 * k, *r = q + 8 * k, *stop = q;
    uint64_t b = 0, c = 0;
    a = _mm_crc32_u64(a, hf_word(p) ^ first);
    b = _mm_crc32_u64(b, hf_word(q));
    c = _mm_crc32_u64(c, hf_word(r));
    for (p += 8, q += 8, r += 8; p < stop; p += 8, q += 8, r += 8) {
        a = _mm_crc32_u64(a, hf_word(p));
        b = _mm_crc32_u64(b, hf_word(q));
        c = _mm_crc32_u64(c, hf_word(r));
    }
    __m128i moved = _mm_xor_si128(
        _mm_clmulepi64_si128(_mm_cvtsi64_si128((int64_t)a), _mm_cvtsi64_si128((int64_t)hf_crc_fold[2 * k]), 0),
        _mm_clmulepi64_si128(_mm_cvtsi64_si128((int64_t)b), _mm_cvtsi64_si128((int64_t)hf_crc_fold[k]), 0));
    return c ^ _mm_crc32_u64(0, (uint64_t)_mm_cvtsi128_si64(moved));
}

HF_TARGET_X86 static inline uint32_t hf_crc_x86(uint32_t crc, const uint8_t *p, size_t n) {
    uint64_t init = (uint32_t)~crc, a = init, first = 0;
    if (n < 64) {
        return ~(uint32_t)hf_crc_x86_tail(a, p, n);
    }
    if (n >= HF_WIDE_BLOCK && hf_crc_has_wide) {
        size_t blocks = n / HF_WIDE_BLOCK;
        a = hf_crc_x86_wide(a, p, blocks);
        p += blocks * HF_WIDE_BLOCK;
        n -= blocks * HF_WIDE_BLOCK;
        init = (uint32_t)a;
        if (n < 64) {
            return ~(uint32_t)hf_crc_x86_tail(a, p, n);
        }
    }
    /* Zero bytes in front of data change nothing while the state is 0. So the state is mixed into the data instead, and
     * the odd bytes go first, as a word with zeros in front: behind them there are only whole words, and no tail. */
    size_t odd = n & 7;
    a = odd ? _mm_crc32_u64(0, (hf_word(p) ^ init) << (64 - 8 * odd)) : 0;
    first = init >> (8 * odd);
    p += odd;
    n -= odd;
    while (n >= 24 * HF_LANE) {
        a = hf_crc_x86_lanes(a, p, HF_LANE, first);
        first = 0;
        p += 24 * HF_LANE;
        n -= 24 * HF_LANE;
    }
    if (n >= 24) {
        size_t k = n / 24;
        a = hf_crc_x86_lanes(a, p, k, first);
        first = 0;
        p += 24 * k;
        n -= 24 * k;
    }
    for (; n; p += 8, n -= 8) { /* two words at the most */
        a = _mm_crc32_u64(a, hf_word(p) ^ first);
        first = 0;
    }
    return ~(uint32_t)a;
}

#endif
#endif
