#include "crc32c.h"

#include "crc32c_x86.h"

#if defined(HF_X86)
#elif defined(__aarch64__) && defined(__GNUC__) && defined(__linux__)
#define HF_ARM 1
#include <arm_acle.h>
#include <sys/auxv.h>
#elif defined(__aarch64__) && defined(__APPLE__)
#define HF_ARM 1 /* every Apple arm64 core has the instructions */
#include <arm_acle.h>
#endif

#define POLY 0x82f63b78u

/* Slicing by eight: table[k][b] is the CRC of byte b followed by k zero bytes. */
static uint32_t table[8][256];

uint32_t hf_crc_fold[3 * HF_LANE + 1];

static uint32_t crc_table(uint32_t crc, const uint8_t *p, size_t n) {
    crc = ~crc;
    for (; n >= 8; p += 8, n -= 8) {
        uint32_t lo = crc ^ hf_load32(p), hi = hf_load32(p + 4);
        crc = table[7][lo & 255] ^ table[6][lo >> 8 & 255] ^ table[5][lo >> 16 & 255] ^ table[4][lo >> 24] ^
              table[3][hi & 255] ^ table[2][hi >> 8 & 255] ^ table[1][hi >> 16 & 255] ^ table[0][hi >> 24];
    }
    while (n--) {
        crc = table[0][(crc ^ *p++) & 255] ^ crc >> 8;
    }
    return ~crc;
}

static void make_tables(void) {
    for (uint32_t b = 0; b < 256; b++) {
        uint32_t c = b;
        for (int k = 0; k < 8; k++) {
            c = c & 1 ? c >> 1 ^ POLY : c >> 1;
        }
        table[0][b] = c;
    }
    for (int k = 1; k < 8; k++) {
        for (uint32_t b = 0; b < 256; b++) {
            table[k][b] = table[0][table[k - 1][b] & 255] ^ table[k - 1][b] >> 8;
        }
    }
    uint32_t c = 1; /* x^31, bit-reflected: k = 1 */
    for (int k = 1; k <= 3 * HF_LANE; k++) {
        hf_crc_fold[k] = c;
        for (int i = 0; i < 8; i++) {
            c = table[0][c & 255] ^ c >> 8;
        }
    }
}

#if defined(HF_ARM)
#if defined(__clang__)
#define HF_TARGET_CRC __attribute__((target("crc")))
#else
#define HF_TARGET_CRC __attribute__((target("+crc")))
#endif

/* a * b * x^33 mod P without a carry-less multiplier: slow, so lanes are joined only when they are long. */
static uint32_t move_on(uint32_t a, uint32_t b) {
    uint64_t product = 0;
    for (int i = 0; i < 32; i++) {
        product ^= (a >> i & 1) ? (uint64_t)b << i : 0;
    }
    uint8_t bytes[8];
    hf_store64(bytes, product);
    uint32_t crc = 0;
    for (int i = 0; i < 8; i++) {
        crc = table[0][(crc ^ bytes[i]) & 255] ^ crc >> 8;
    }
    return crc;
}

HF_TARGET_CRC static uint32_t crc_hardware(uint32_t crc, const uint8_t *p, size_t n) {
    uint32_t a = ~crc;
    while (n >= 24 * HF_LANE) {
        uint32_t b = 0, c = 0;
        const uint8_t *q = p + 8 * HF_LANE, *r = q + 8 * HF_LANE, *stop = q;
        for (; p < stop; p += 8, q += 8, r += 8) {
            a = __crc32cd(a, hf_load64(p));
            b = __crc32cd(b, hf_load64(q));
            c = __crc32cd(c, hf_load64(r));
        }
        a = c ^ move_on(a, hf_crc_fold[2 * HF_LANE]) ^ move_on(b, hf_crc_fold[HF_LANE]);
        p = r;
        n -= 24 * HF_LANE;
    }
    for (; n >= 8; p += 8, n -= 8) {
        a = __crc32cd(a, hf_load64(p));
    }
    while (n--) {
        a = __crc32cb(a, *p++);
    }
    return ~a;
}
#endif

#if defined(HF_X86)
HF_TARGET_X86 static uint32_t crc_hardware(uint32_t crc, const uint8_t *p, size_t n) { return hf_crc_x86(crc, p, n); }
HF_TARGET_WIDE static uint32_t crc_wide(uint32_t crc, const uint8_t *p, size_t n) { return hf_crc_wide(crc, p, n); }
#endif

int hf_crc_has_wide = 0;

#if defined(HF_X86)
/* Blocks of a fixed size, in two halves that keep different parts of the core busy at the same time: the first is folded,
 * 128 bytes a step, by carry-less multiplication in 256-bit registers; the second runs through the crc32 instruction in
 * three lanes. `state` is the raw one. */
HF_TARGET_WIDE uint64_t hf_crc_x86_wide(uint64_t state, const uint8_t *p, size_t blocks) {
    const __m256i step = _mm256_setr_epi64x(hf_crc_fold[17], hf_crc_fold[16], hf_crc_fold[17], hf_crc_fold[16]);
    while (blocks--) {
        __m256i x[4];
        uint64_t lanes[3] = {0, 0, 0};
        const uint8_t *q = p + HF_WIDE_FOLDED;
        for (int j = 0; j < 4; j++) {
            x[j] = _mm256_loadu_si256((const __m256i *)(p + 32 * j));
        }
        x[0] = _mm256_xor_si256(x[0], _mm256_setr_epi64x((int64_t)state, 0, 0, 0));
        for (int i = 0; i < HF_WIDE_STEPS; i++, q += 40) {
            if (i) {
                p += 128;
                for (int j = 0; j < 4; j++) {
                    __m256i moved = _mm256_xor_si256(_mm256_clmulepi64_epi128(x[j], step, 0x00),
                                                     _mm256_clmulepi64_epi128(x[j], step, 0x11));
                    x[j] = _mm256_xor_si256(moved, _mm256_loadu_si256((const __m256i *)(p + 32 * j)));
                }
            }
            for (int j = 0; j < 5; j++) {
                lanes[0] = _mm_crc32_u64(lanes[0], hf_word(q + 8 * j));
                lanes[1] = _mm_crc32_u64(lanes[1], hf_word(q + HF_WIDE_LANE + 8 * j));
                lanes[2] = _mm_crc32_u64(lanes[2], hf_word(q + 2 * HF_WIDE_LANE + 8 * j));
            }
        }
        /* What is left of the first half are 128 bytes with the same CRC. */
        uint8_t rest[128];
        for (int j = 0; j < 4; j++) {
            _mm256_storeu_si256((__m256i *)(rest + 32 * j), x[j]);
        }
        state = 0;
        for (int j = 0; j < 16; j++) {
            state = _mm_crc32_u64(state, hf_word(rest + 8 * j));
        }
        enum { WORDS = HF_WIDE_LANE / 8 };
        state = lanes[2] ^ hf_crc_moved(state, 3 * WORDS) ^ hf_crc_moved(lanes[0], 2 * WORDS) ^
                hf_crc_moved(lanes[1], WORDS);
        p += 128 + HF_WIDE_BLOCK - HF_WIDE_FOLDED;
    }
    return state;
}
#endif

static uint32_t (*chosen)(uint32_t, const uint8_t *, size_t) = crc_table;
static const char *kind = "table";
int hf_crc_is_x86 = 0;

void hf_crc32c_init(int allow) {
    if (table[0][1] == 0) {
        make_tables();
    }
    chosen = crc_table;
    kind = "table";
    hf_crc_is_x86 = hf_crc_has_wide = 0;
#if defined(HF_X86)
    if ((allow & HF_CRC_HARDWARE) && __builtin_cpu_supports("sse4.2") && __builtin_cpu_supports("pclmul")) {
        chosen = crc_hardware;
        kind = "sse4.2";
        hf_crc_is_x86 = 1;
        hf_crc_has_wide =
            (allow & HF_CRC_WIDE) && __builtin_cpu_supports("avx2") && __builtin_cpu_supports("vpclmulqdq");
        chosen = hf_crc_has_wide ? crc_wide : crc_hardware;
    }
#elif defined(HF_ARM)
#if defined(__linux__)
    const unsigned long hwcap_crc32 = 1ul << 7;
    if ((allow & HF_CRC_HARDWARE) && (getauxval(AT_HWCAP) & hwcap_crc32)) {
#else
    if (allow & HF_CRC_HARDWARE) {
#endif
        chosen = crc_hardware;
        kind = "armv8";
    }
#else
    (void)allow;
#endif
}

const char *hf_crc32c_kind(void) { return kind; }

uint32_t hf_crc32c(uint32_t crc, const uint8_t *data, size_t n) { return chosen(crc, data, n); }
