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
uint64_t hf_crc_x86_wide(uint64_t state, const uint8_t *p, size_t blocks);

/* A CRC advanced by as many zero words. */
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

/* Full words. */
HF_TARGET_X86 static inline uint32_t hf_crc_x86_words(uint64_t a, const uint8_t *p, size_t n, uint64_t first) {
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

/* Zero bytes in front of data change nothing while the state is 0. So the state is mixed into the data instead, and the odd
 * bytes go first, as a word with leading zeros: after them there are only full words, and no tail. */
HF_TARGET_X86 static inline uint64_t hf_crc_x86_odd(uint64_t init, const uint8_t *p, size_t odd) {
    return odd ? _mm_crc32_u64(0, (hf_word(p) ^ init) << (64 - 8 * odd)) : 0;
}

HF_TARGET_X86 static inline uint32_t hf_crc_x86(uint32_t crc, const uint8_t *p, size_t n) {
    uint64_t init = (uint32_t)~crc;
    if (n < 64) {
        return ~(uint32_t)hf_crc_x86_tail(init, p, n);
    }
    size_t odd = n & 7;
    uint64_t a = hf_crc_x86_odd(init, p, odd);
    return hf_crc_x86_words(a, p + odd, n - odd, init >> (8 * odd));
}

/* ---- with wide carry-less multiplication ---- */

/* Each half of a register moved on by as many words. */
HF_TARGET_WIDE static inline __m256i hf_crc_wide_moved(__m256i x, size_t words) {
    __m256i by =
        _mm256_setr_epi64x(hf_crc_fold[words + 1], hf_crc_fold[words], hf_crc_fold[words + 1], hf_crc_fold[words]);
    return _mm256_xor_si256(_mm256_clmulepi64_epi128(x, by, 0x00), _mm256_clmulepi64_epi128(x, by, 0x11));
}

/* One small block: 192 bytes are folded in vector registers while 3 x 40 bytes run through the crc32 instruction, which
 * takes a word a cycle and no more. `state` may have more than its 32 bits: it is mixed into the first word. */
enum { HF_SMALL_FOLDED = 192, HF_SMALL_LANE = 40, HF_SMALL_BLOCK = HF_SMALL_FOLDED + 3 * HF_SMALL_LANE };

HF_TARGET_WIDE static inline uint64_t hf_crc_wide_block(uint64_t state, const uint8_t *p) {
    const uint8_t *q = p + HF_SMALL_FOLDED;
    uint64_t a = 0, b = 0, c = 0;
    for (int j = 0; j < HF_SMALL_LANE; j += 8) {
        a = _mm_crc32_u64(a, hf_word(q + j));
        b = _mm_crc32_u64(b, hf_word(q + HF_SMALL_LANE + j));
        c = _mm_crc32_u64(c, hf_word(q + 2 * HF_SMALL_LANE + j));
    }
    __m256i sum = _mm256_loadu_si256((const __m256i *)(p + 160));
    __m256i head =
        _mm256_xor_si256(_mm256_loadu_si256((const __m256i *)p), _mm256_setr_epi64x((int64_t)state, 0, 0, 0));
    sum = _mm256_xor_si256(sum, hf_crc_wide_moved(head, 20));
    for (size_t j = 1; j < 5; j++) {
        sum = _mm256_xor_si256(sum, hf_crc_wide_moved(_mm256_loadu_si256((const __m256i *)(p + 32 * j)), 20 - 4 * j));
    }
    __m128i low = _mm256_castsi256_si128(sum);
    __m128i by = _mm_set_epi64x(hf_crc_fold[2], hf_crc_fold[3]);
    __m128i left =
        _mm_xor_si128(_mm_xor_si128(_mm_clmulepi64_si128(low, by, 0x00), _mm_clmulepi64_si128(low, by, 0x11)),
                      _mm256_extracti128_si256(sum, 1));
    uint64_t folded = _mm_crc32_u64(0, (uint64_t)_mm_cvtsi128_si64(left));
    folded = _mm_crc32_u64(folded, (uint64_t)_mm_extract_epi64(left, 1));
    enum { WORDS = HF_SMALL_LANE / 8 };
    __m128i moved =
        _mm_clmulepi64_si128(_mm_cvtsi64_si128((int64_t)folded), _mm_cvtsi64_si128(hf_crc_fold[3 * WORDS]), 0);
    moved = _mm_xor_si128(
        moved, _mm_clmulepi64_si128(_mm_cvtsi64_si128((int64_t)a), _mm_cvtsi64_si128(hf_crc_fold[2 * WORDS]), 0));
    moved = _mm_xor_si128(
        moved, _mm_clmulepi64_si128(_mm_cvtsi64_si128((int64_t)b), _mm_cvtsi64_si128(hf_crc_fold[WORDS]), 0));
    return c ^ _mm_crc32_u64(0, (uint64_t)_mm_cvtsi128_si64(moved));
}

HF_TARGET_WIDE static inline uint32_t hf_crc_wide(uint32_t crc, const uint8_t *p, size_t n) {
    uint64_t init = (uint32_t)~crc;
    if (n >= HF_WIDE_BLOCK) {
        size_t blocks = n / HF_WIDE_BLOCK;
        init = (uint32_t)hf_crc_x86_wide(init, p, blocks);
        p += blocks * HF_WIDE_BLOCK;
        n -= blocks * HF_WIDE_BLOCK;
    }
    if (n < HF_SMALL_BLOCK + 8) {
        return hf_crc_x86(~(uint32_t)init, p, n);
    }
    size_t odd = n & 7;
    uint64_t a = hf_crc_x86_odd(init, p, odd) ^ init >> (8 * odd);
    for (p += odd, n -= odd; n >= HF_SMALL_BLOCK; p += HF_SMALL_BLOCK, n -= HF_SMALL_BLOCK) {
        a = hf_crc_wide_block(a, p);
    }
    return hf_crc_x86_words(a, p, n, 0);
}

#endif
#endif
