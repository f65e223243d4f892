/* Decodes baseline JPEGs for resizing.
 *
 * Two thirds of a JPEG decoder's time is Huffman decoding, one symbol after the other: each depends on the length of the
 * last. Here one table lookup gives a code, the bits behind it and the run of zeros, of two symbols if they fit, where
 * libjpeg takes three steps for each; bytes are unstuffed beforehand, so that refilling the bit buffer needs no branch.
 *
 * Every read of hostile data is bounded: the unstuffed data end with PADDING zeros, more than a block can take, and the
 * position is checked at every block. */
#include "images.h"

#include <math.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#if defined(__x86_64__)
#include <immintrin.h>
#endif

#define INLINE static inline __attribute__((always_inline))
#define LOOKUP_BITS 11
#define PADDING 1024 /* a block has 64 symbols of at most 31 bits: 248 bytes */
#define END_RUN 128  /* the run of an end-of-block code: beyond every valid one */
#define MAX_PIXELS ((1 << 30) / 4 / 3)
#define MAX_BLOCKS 10                /* of an MCU, says the standard */
#define BLOCK_SIZE 72                /* 64 coefficients, and room for those beyond */
#define KEPT_BYTES ((size_t)1 << 24) /* of buffers, by every thread */

typedef float Floats __attribute__((vector_size(16)));

typedef struct {
    uint8_t counts[17], symbols[256];
    int is_there;
} HuffmanSpec;

/* An entry of the lookup table, by the next LOOKUP_BITS bits: what one symbol is, or two if both fit.
 *
 *     bits 0-7 the length of all; 8-15 where the first coefficient goes, from the next one on; 16-23 where the second goes;
 *     24-31 how many coefficients these are; 32-47 the first; 48-63 the second
 *
 * 0: the bits have no symbol that fits. */
typedef uint64_t Entry;

typedef struct {
    Entry lookup[1 << LOOKUP_BITS];
    uint8_t first_length[1 << LOOKUP_BITS]; /* of the first symbol, where there are two */
    uint32_t limits[17];                    /* 16-bit codes below it have at most this length */
    int32_t offsets[17];
    HuffmanSpec spec;
    int is_dc;
} Huffman;

typedef struct {
    int id, h, v, table, dc, ac;
    int size;           /* of an output block: 8, 4, 2, 1 */
    int is_needed;      /* whether its samples are used */
    int first_x, end_x; /* blocks that are used */
    int first_y, end_y;
    uint8_t *samples; /* those blocks */
    size_t stride, skipped;
    uint32_t last_dc;
    float scales[64]; /* what coefficients are multiplied by, transposed */
} Component;

typedef struct {
    HfJpegInfo info;
    Component components[3];
    int max_h, max_v, n_blocks; /* n_blocks: of an MCU */
    uint16_t quantization[4][64];
    int has_quantization[4];
    HuffmanSpec specs[2][4];
    int restart_interval, has_jfif, adobe_transform;
    const uint8_t *scan, *end; /* entropy-coded data */
} Jpeg;

/* Natural (and here transposed) order of the zigzag, and 64 more for runs beyond the end of a corrupt block. */
static const uint8_t ZIGZAG[64] = {0,  1,  8,  16, 9,  2,  3,  10, 17, 24, 32, 25, 18, 11, 4,  5,
                                   12, 19, 26, 33, 40, 48, 41, 34, 27, 20, 13, 6,  7,  14, 21, 28,
                                   35, 42, 49, 56, 57, 50, 43, 36, 29, 22, 15, 23, 30, 37, 44, 51,
                                   58, 59, 52, 45, 38, 31, 39, 46, 53, 60, 61, 54, 47, 55, 62, 63};

/* ---- markers */

static int read_16(const uint8_t *at) { return at[0] << 8 | at[1]; }

static int parse_quantization(Jpeg *jpeg, const uint8_t *at, size_t size) {
    while (size) {
        int wide = at[0] >> 4, table = at[0] & 15;
        size_t needed = wide ? 129 : 65;
        if (wide > 1 || table > 3 || size < needed) {
            return HF_OTHER;
        }
        for (int k = 0; k < 64; k++) {
            jpeg->quantization[table][k] = wide ? (uint16_t)read_16(at + 1 + 2 * k) : at[1 + k];
        }
        jpeg->has_quantization[table] = 1;
        at += needed;
        size -= needed;
    }
    return HF_OK;
}

static int parse_huffman(Jpeg *jpeg, const uint8_t *at, size_t size) {
    while (size) {
        if (size < 17 || at[0] >> 4 > 1 || (at[0] & 15) > 3) {
            return HF_OTHER;
        }
        HuffmanSpec *spec = &jpeg->specs[at[0] >> 4][at[0] & 15];
        size_t n = 0;
        for (int length = 1; length <= 16; length++) {
            n += spec->counts[length] = at[length];
        }
        if (n > 256 || size < 17 + n) {
            return HF_OTHER;
        }
        memcpy(spec->symbols, at + 17, n);
        memset(spec->symbols + n, 0, 256 - n);
        spec->is_there = 1;
        at += 17 + n;
        size -= 17 + n;
    }
    return HF_OK;
}

static int parse_frame(Jpeg *jpeg, const uint8_t *at, size_t size) {
    if (jpeg->info.components || size < 6 || at[0] != 8) {
        return HF_OTHER;
    }
    int height = read_16(at + 1), width = read_16(at + 3), n = at[5];
    if (!height || !width || (int64_t)height * width > MAX_PIXELS || (n != 1 && n != 3) || size != 6 + 3 * (size_t)n) {
        return HF_OTHER;
    }
    jpeg->info = (HfJpegInfo){width, height, n};
    jpeg->max_h = jpeg->max_v = 1;
    for (int i = 0; i < n; i++) {
        const uint8_t *one = at + 6 + 3 * i;
        Component *component = &jpeg->components[i];
        *component = (Component){.id = one[0], .h = one[1] >> 4, .v = one[1] & 15, .table = one[2]};
        if (component->h < 1 || component->h > 4 || component->v < 1 || component->v > 4 || component->table > 3) {
            return HF_OTHER;
        }
        if (n == 1) { /* a scan of one component has one block after the other, whatever the factors say */
            component->h = component->v = 1;
        }
        jpeg->max_h = component->h > jpeg->max_h ? component->h : jpeg->max_h;
        jpeg->max_v = component->v > jpeg->max_v ? component->v : jpeg->max_v;
        jpeg->n_blocks += component->h * component->v;
    }
    for (int i = 0; i < n; i++) { /* libjpeg refuses fractions */
        if (jpeg->max_h % jpeg->components[i].h || jpeg->max_v % jpeg->components[i].v) {
            return HF_OTHER;
        }
    }
    return jpeg->n_blocks <= MAX_BLOCKS ? HF_OK : HF_OTHER;
}

static int parse_scan(Jpeg *jpeg, const uint8_t *at, size_t size) {
    int n = jpeg->info.components;
    if (!n || size != 4 + 2 * (size_t)n || at[0] != n || at[1 + 2 * n] != 0 || at[2 + 2 * n] != 63 || at[3 + 2 * n]) {
        return HF_OTHER;
    }
    for (int i = 0; i < n; i++) {
        Component *component = &jpeg->components[i];
        component->dc = at[2 + 2 * i] >> 4;
        component->ac = at[2 + 2 * i] & 15;
        if (at[1 + 2 * i] != component->id || component->dc > 3 || component->ac > 3 ||
            !jpeg->specs[0][component->dc].is_there || !jpeg->specs[1][component->ac].is_there ||
            !jpeg->has_quantization[component->table]) {
            return HF_OTHER;
        }
    }
    return HF_OK;
}

/* libjpeg's rules for files that do not say what their components are. */
static int is_rgb(const Jpeg *jpeg) {
    if (jpeg->info.components == 1 || jpeg->has_jfif) {
        return 0;
    }
    if (jpeg->adobe_transform >= 0) {
        return jpeg->adobe_transform == 0;
    }
    return jpeg->components[0].id == 'R' && jpeg->components[1].id == 'G' && jpeg->components[2].id == 'B';
}

static int parse_segment(Jpeg *jpeg, int marker, const uint8_t *at, size_t size) {
    switch (marker) {
    case 0xC0:
    case 0xC1:
        return parse_frame(jpeg, at, size);
    case 0xC4:
        return parse_huffman(jpeg, at, size);
    case 0xDB:
        return parse_quantization(jpeg, at, size);
    case 0xDD:
        jpeg->restart_interval = size == 2 ? read_16(at) : -1;
        return size == 2 ? HF_OK : HF_OTHER;
    case 0xE0:
        jpeg->has_jfif |= size >= 14 && !memcmp(at, "JFIF", 5);
        return HF_OK;
    case 0xEE:
        if (size >= 12 && !memcmp(at, "Adobe", 5)) {
            jpeg->adobe_transform = at[11];
        }
        return HF_OK;
    default:
        /* other application data and comments; or another kind of JPEG, or a reserved marker */
        return (marker >= 0xE0 && marker <= 0xEF) || marker == 0xFE ? HF_OK : HF_OTHER;
    }
}

static int parse(Jpeg *jpeg, const uint8_t *data, size_t size) {
    memset(jpeg, 0, sizeof *jpeg);
    jpeg->adobe_transform = -1;
    if (size < 4 || data[0] != 0xFF || data[1] != 0xD8) {
        return HF_OTHER;
    }
    const uint8_t *at = data + 2, *end = data + size;
    for (;;) {
        while (end - at >= 2 && at[0] == 0xFF && at[1] == 0xFF) {
            at++;
        }
        if (end - at < 4 || at[0] != 0xFF) {
            return HF_OTHER;
        }
        int marker = at[1];
        size_t length = (size_t)read_16(at + 2);
        if (length < 2 || (size_t)(end - at - 2) < length) {
            return HF_OTHER;
        }
        int result =
            marker == 0xDA ? parse_scan(jpeg, at + 4, length - 2) : parse_segment(jpeg, marker, at + 4, length - 2);
        if (result != HF_OK) {
            return result;
        }
        at += 2 + length;
        if (marker == 0xDA) {
            jpeg->scan = at;
            jpeg->end = end;
            return is_rgb(jpeg) ? HF_OTHER : HF_OK;
        }
    }
}

int hf_jpeg_info(const uint8_t *data, size_t size, HfJpegInfo *info) {
    Jpeg jpeg;
    int result = parse(&jpeg, data, size);
    *info = jpeg.info;
    return result;
}

/* ---- entropy-coded data */

/* Bytes without the zeros that are stuffed behind 0xFF. */
typedef struct {
    uint8_t *bytes;
    size_t size;
    size_t *ends; /* of the pieces between restart markers */
    size_t n_ends;
} Unstuffed;

/* Has room for `n_pieces` ends. The data must end with an end-of-image marker: what is truncated is noticed wherever the crop is. */
static int unstuff(const Jpeg *jpeg, size_t n_pieces, Unstuffed *out) {
    const uint8_t *at = jpeg->scan, *end = jpeg->end;
    out->n_ends = 0;
    uint8_t *to = out->bytes;
    for (;;) {
        const uint8_t *marker = memchr(at, 0xFF, (size_t)(end - at));
        if (!marker) {
            return HF_OTHER;
        }
        memcpy(to, at, (size_t)(marker - at));
        to += marker - at;
        at = marker + 1;
        while (at < end && *at == 0xFF) {
            at++;
        }
        if (at == end) {
            return HF_OTHER;
        }
        int code = *at++;
        if (code == 0) {
            *to++ = 0xFF;
            continue;
        }
        if (out->n_ends == n_pieces) {
            return HF_OTHER;
        }
        out->ends[out->n_ends++] = (size_t)(to - out->bytes);
        if (code == 0xD9) {
            break;
        }
        if (code != 0xD0 + (int)((out->n_ends - 1) % 8)) {
            return HF_OTHER;
        }
    }
    if (out->n_ends != n_pieces) {
        return HF_OTHER;
    }
    out->size = (size_t)(to - out->bytes);
    memset(to, 0, PADDING);
    return HF_OK;
}

static int32_t extend(uint32_t bits, int size) {
    return size && bits < 1u << (size - 1) ? (int32_t)bits - (1 << size) + 1 : (int32_t)bits;
}

static Entry make_entry(int length, int symbol, uint32_t behind, int is_dc) {
    int size = symbol & 15, is_end = !is_dc && !size && symbol != 0xF0;
    uint32_t run = is_dc ? 0 : is_end ? END_RUN : (uint32_t)symbol >> 4;
    uint16_t value = (uint16_t)extend(behind, size);
    return (Entry)(length + size) | run << 8 | END_RUN << 16 | (Entry)(is_end ? END_RUN : run + 1) << 24 |
           (Entry)value << 32;
}

/* Lets an entry have the next symbol, too, if the bits hold it. */
static void join_entries(Huffman *table) {
    Entry single[1 << LOOKUP_BITS];
    memcpy(single, table->lookup, sizeof single);
    for (uint32_t bits = 0; bits < 1 << LOOKUP_BITS; bits++) {
        Entry one = single[bits];
        uint32_t length = one & 255, run = one >> 8 & 255;
        if (!one || run == END_RUN) {
            continue;
        }
        Entry next = single[bits << length & ((1 << LOOKUP_BITS) - 1)];
        if (!next || length + (next & 255) > LOOKUP_BITS) {
            continue;
        }
        uint32_t next_run = next >> 8 & 255, is_end = next_run == END_RUN;
        table->first_length[bits] = (uint8_t)length;
        table->lookup[bits] = (length + (next & 255)) | run << 8 | (is_end ? END_RUN : run + 1 + next_run) << 16 |
                              (Entry)(run + 1 + (next >> 24 & 255)) << 24 | (one & 0xFFFF00000000) | next >> 32 << 48;
    }
}

/* Builds the tables of codes that are valid as libjpeg has it. */
static int build_huffman(const HuffmanSpec *spec, int is_dc, Huffman *table) {
    if (table->spec.is_there && !memcmp(&table->spec, spec, sizeof *spec)) {
        return HF_OK; /* as in the last image */
    }
    memset(table->lookup, 0, sizeof table->lookup);
    table->spec = *spec;
    table->spec.is_there = 0; /* until it is complete */
    table->is_dc = is_dc;
    uint32_t code = 0;
    int n = 0;
    for (int length = 1; length <= 16; length++) {
        table->offsets[length] = n - (int32_t)code;
        for (int i = 0; i < spec->counts[length]; i++, n++, code++) {
            int symbol = spec->symbols[n], size = symbol & 15;
            if (code >= 1u << length || (is_dc && symbol > 11)) {
                return HF_OTHER;
            }
            if (length + size > LOOKUP_BITS) {
                continue;
            }
            Entry *at = table->lookup + ((size_t)code << (LOOKUP_BITS - length));
            for (uint32_t behind = 0; behind < 1u << size; behind++) {
                Entry entry = make_entry(length, symbol, behind, is_dc);
                for (uint32_t left = 1u << (LOOKUP_BITS - length - size); left--;) {
                    *at++ = entry;
                }
            }
        }
        table->limits[length] = code << (16 - length);
        code <<= 1;
    }
    if (!is_dc) {
        join_entries(table);
    }
    table->spec.is_there = 1;
    return HF_OK;
}

typedef struct {
    uint64_t bits; /* the next bit is the highest */
    uint32_t n;    /* how many are valid */
    const uint8_t *at;
} BitReader;

INLINE uint64_t load_64(const uint8_t *at) {
    uint64_t value;
    memcpy(&value, at, 8);
#if __BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__
    value = __builtin_bswap64(value);
#endif
    return value;
}

/* Leaves at least 56 bits. Of `n`, the lowest 8 bits count: whole entries are subtracted from it. */
INLINE void refill(BitReader *reader) {
    uint32_t n = reader->n & 63;
    reader->bits |= load_64(reader->at) >> n;
    reader->at += (63 - n) >> 3;
    reader->n = n | 56;
}

INLINE void consume(BitReader *reader, Entry entry) {
    reader->bits <<= entry & 63;
    reader->n -= (uint32_t)entry;
}

/* Decodes a symbol with a long code, or many bits behind it. Returns 0 if there is no such code. */
static __attribute__((noinline)) Entry decode_long(const Huffman *table, uint64_t bits) {
    uint32_t code = (uint32_t)(bits >> 48);
    int length = 1;
    while (length <= 16 && code >= table->limits[length]) {
        length++;
    }
    if (length > 16) {
        return 0;
    }
    int symbol = table->spec.symbols[((int32_t)(code >> (16 - length)) + table->offsets[length]) & 255],
        size = symbol & 15;
    return make_entry(length, symbol, size ? (uint32_t)(bits << length >> (64 - size)) : 0, table->is_dc);
}

/* Stores the coefficients of an entry; what ends a block, and what is missing, is stored beyond it. */
#define DECODE_AC                                                                                                      \
    entry = ac->lookup[reader.bits >> (64 - LOOKUP_BITS)];                                                             \
    if (__builtin_expect(!entry, 0)) {                                                                                 \
        refill(&reader);                                                                                               \
        entry = decode_long(ac, reader.bits);                                                                          \
        block[order[k + (entry >> 8 & 255)]] = (int16_t)(entry >> 32);                                                 \
        next = k + (uint32_t)(entry >> 24 & 255);                                                                      \
        if (!entry || next >= 64) {                                                                                    \
            break;                                                                                                     \
        }                                                                                                              \
        consume(&reader, entry);                                                                                       \
        k = next;                                                                                                      \
        continue;                                                                                                      \
    }                                                                                                                  \
    block[order[k + (entry >> 8 & 255)]] = (int16_t)(entry >> 32);                                                     \
    block[order[k + (entry >> 16 & 255)]] = (int16_t)(entry >> 48);                                                    \
    next = k + (uint32_t)(entry >> 24 & 255);                                                                          \
    if (next >= 64) {                                                                                                  \
        break;                                                                                                         \
    }                                                                                                                  \
    consume(&reader, entry);                                                                                           \
    k = next;

/* Decodes a block of 64 coefficients, which are zero before. Returns how many there are, -1 for corrupt data. */
INLINE int decode_block(BitReader *state, const Huffman *dc, const Huffman *ac, uint32_t *last_dc, int16_t *block,
                        const uint8_t *order) {
    BitReader reader = *state;
    refill(&reader);
    Entry entry = dc->lookup[reader.bits >> (64 - LOOKUP_BITS)];
    if (!entry && !(entry = decode_long(dc, reader.bits))) {
        return -1;
    }
    consume(&reader, entry);
    *last_dc += (uint32_t)(int32_t)(int16_t)(entry >> 32);
    block[0] = (int16_t)*last_dc;
    uint32_t k = 1, next;
    for (;;) { /* four entries of the table take 44 of 56 bits */
        refill(&reader);
        DECODE_AC
        DECODE_AC
        DECODE_AC
        DECODE_AC
    }
    if (!entry) {
        return -1;
    }
    if (k + (uint32_t)(entry >> 8 & 255) == 63 && next != 64) { /* the second symbol is of the next block */
        entry = ac->first_length[reader.bits >> (64 - LOOKUP_BITS)];
        next = 64;
    }
    consume(&reader, entry);
    *state = reader;
    return next == 64 ? 64 : next > END_RUN ? (int)(next - END_RUN) : -1;
}

/* ---- the inverse DCT */

static const float AAN[8] = {1.0f, 1.387039845f, 1.306562965f, 1.175875602f,
                             1.0f, 0.785694958f, 0.541196100f, 0.275899379f};

static void prepare_scales(Component *component, const uint16_t *quantization) {
    for (int k = 0; k < 64; k++) {
        int row = ZIGZAG[k] >> 3, column = ZIGZAG[k] & 7;
        float scale = quantization[k];
        scale *= component->size == 8 ? AAN[row] * AAN[column] / 8.0f : 0.25f;
        component->scales[column * 8 + row] = scale;
    }
}

/* Arai, Agui and Nakajima's, of the columns side by side in vectors of the type `T`. */
#define IDCT_COLUMNS(T, x)                                                                                             \
    {                                                                                                                  \
        T a = x[0] + x[4], b = x[0] - x[4], c = x[2] + x[6], d = (x[2] - x[6]) * 1.414213562f - c;                     \
        T e0 = a + c, e3 = a - c, e1 = b + d, e2 = b - d;                                                              \
        T z13 = x[5] + x[3], z10 = x[5] - x[3], z11 = x[1] + x[7], z12 = x[1] - x[7];                                  \
        T o7 = z11 + z13, t11 = (z11 - z13) * 1.414213562f, z5 = (z10 + z12) * 1.847759065f;                           \
        T t10 = z5 - z12 * 1.082392200f, t12 = z5 - z10 * 2.613125930f;                                                \
        T o6 = t12 - o7, o5 = t11 - o6, o4 = t10 - o5;                                                                 \
        x[0] = e0 + o7;                                                                                                \
        x[7] = e0 - o7;                                                                                                \
        x[1] = e1 + o6;                                                                                                \
        x[6] = e1 - o6;                                                                                                \
        x[2] = e2 + o5;                                                                                                \
        x[5] = e2 - o5;                                                                                                \
        x[3] = e3 + o4;                                                                                                \
        x[4] = e3 - o4;                                                                                                \
    }

INLINE uint8_t clamp_level(float value) {
    value += 128.5f;
    return (uint8_t)(value < 0.0f ? 0.0f : value > 255.0f ? 255.0f : value);
}

#if defined(__x86_64__)
INLINE void transpose(Floats x[4]) { _MM_TRANSPOSE4_PS(x[0], x[1], x[2], x[3]); }

INLINE void scale_row(const int16_t *block, const float *scales, Floats *left, Floats *right) {
    __m128i row = _mm_loadu_si128((const __m128i *)block);
    *left = _mm_cvtepi32_ps(_mm_srai_epi32(_mm_unpacklo_epi16(row, row), 16)) * _mm_loadu_ps(scales);
    *right = _mm_cvtepi32_ps(_mm_srai_epi32(_mm_unpackhi_epi16(row, row), 16)) * _mm_loadu_ps(scales + 4);
}

INLINE void store_row(Floats left, Floats right, uint8_t *out) {
    __m128i row = _mm_packs_epi32(_mm_cvtps_epi32(left), _mm_cvtps_epi32(right));
    row = _mm_adds_epi16(row, _mm_set1_epi16(128));
    _mm_storel_epi64((__m128i *)out, _mm_packus_epi16(row, row));
}
#else
INLINE void transpose(Floats x[4]) {
    for (int i = 0; i < 4; i++) {
        for (int j = i + 1; j < 4; j++) {
            float other = x[i][j];
            x[i][j] = x[j][i];
            x[j][i] = other;
        }
    }
}

INLINE void scale_row(const int16_t *block, const float *scales, Floats *left, Floats *right) {
    for (int i = 0; i < 4; i++) {
        (*left)[i] = (float)block[i] * scales[i];
        (*right)[i] = (float)block[4 + i] * scales[4 + i];
    }
}

INLINE void store_row(Floats left, Floats right, uint8_t *out) {
    for (int i = 0; i < 4; i++) {
        out[i] = clamp_level(rintf(left[i]));
        out[4 + i] = clamp_level(rintf(right[i]));
    }
}
#endif

static void idct_8(const int16_t *block, const float *scales, uint8_t *out, size_t stride) {
    Floats left[8], right[8];
#pragma GCC unroll 8
    for (int i = 0; i < 8; i++) {
        scale_row(block + 8 * i, scales + 8 * i, &left[i], &right[i]);
    }
    IDCT_COLUMNS(Floats, left)
    IDCT_COLUMNS(Floats, right)
    transpose(left);
    transpose(left + 4);
    transpose(right);
    transpose(right + 4);
#pragma GCC unroll 4
    for (int i = 0; i < 4; i++) {
        Floats other = left[4 + i];
        left[4 + i] = right[i];
        right[i] = other;
    }
    IDCT_COLUMNS(Floats, left)
    IDCT_COLUMNS(Floats, right)
#pragma GCC unroll 8
    for (int i = 0; i < 8; i++) {
        store_row(left[i], right[i], out + stride * (size_t)i);
    }
}

#if defined(__x86_64__)
__attribute__((target("avx2"))) static void idct_8_avx2(const int16_t *block, const float *scales, uint8_t *out,
                                                        size_t stride) {
    __m256 x[8], t[8];
#pragma GCC unroll 8
    for (int i = 0; i < 8; i++) {
        __m256i row = _mm256_cvtepi16_epi32(_mm_loadu_si128((const __m128i *)(block + 8 * i)));
        x[i] = _mm256_cvtepi32_ps(row) * _mm256_loadu_ps(scales + 8 * i);
    }
    IDCT_COLUMNS(__m256, x)
#pragma GCC unroll 4
    for (int i = 0; i < 4; i++) {
        t[2 * i] = _mm256_unpacklo_ps(x[2 * i], x[2 * i + 1]);
        t[2 * i + 1] = _mm256_unpackhi_ps(x[2 * i], x[2 * i + 1]);
    }
#pragma GCC unroll 2
    for (int i = 0; i < 8; i += 4) {
        x[i] = _mm256_shuffle_ps(t[i], t[i + 2], 0x44);
        x[i + 1] = _mm256_shuffle_ps(t[i], t[i + 2], 0xEE);
        x[i + 2] = _mm256_shuffle_ps(t[i + 1], t[i + 3], 0x44);
        x[i + 3] = _mm256_shuffle_ps(t[i + 1], t[i + 3], 0xEE);
    }
#pragma GCC unroll 4
    for (int i = 0; i < 4; i++) {
        t[i] = _mm256_permute2f128_ps(x[i], x[i + 4], 0x20);
        t[i + 4] = _mm256_permute2f128_ps(x[i], x[i + 4], 0x31);
    }
    IDCT_COLUMNS(__m256, t)
    const __m256i middle = _mm256_set1_epi16(128), order = _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7);
#pragma GCC unroll 2
    for (int i = 0; i < 8; i += 4, out += 4 * stride) { /* four rows: their halves are in different lanes */
        __m256i a = _mm256_packs_epi32(_mm256_cvtps_epi32(t[i]), _mm256_cvtps_epi32(t[i + 1]));
        __m256i b = _mm256_packs_epi32(_mm256_cvtps_epi32(t[i + 2]), _mm256_cvtps_epi32(t[i + 3]));
        __m256i rows = _mm256_packus_epi16(_mm256_adds_epi16(a, middle), _mm256_adds_epi16(b, middle));
        rows = _mm256_permutevar8x32_epi32(rows, order);
        __m128i first = _mm256_castsi256_si128(rows), second = _mm256_extracti128_si256(rows, 1);
        _mm_storel_epi64((__m128i *)out, first);
        _mm_storel_epi64((__m128i *)(out + stride), _mm_unpackhi_epi64(first, first));
        _mm_storel_epi64((__m128i *)(out + 2 * stride), second);
        _mm_storel_epi64((__m128i *)(out + 3 * stride), _mm_unpackhi_epi64(second, second));
    }
}
#endif

/* The inverse DCT of the lowest 4 x 4 frequencies: the block at half its size. */
static void idct_4(const int16_t *block, const float *scales, uint8_t *out, size_t stride) {
    static const Floats BASIS[4] = {{0.707106781f, 0.707106781f, 0.707106781f, 0.707106781f},
                                    {0.923879533f, 0.382683432f, -0.382683432f, -0.923879533f},
                                    {0.707106781f, -0.707106781f, -0.707106781f, 0.707106781f},
                                    {0.382683432f, -0.923879533f, 0.923879533f, -0.382683432f}};
    Floats columns[4], rows[4] = {{0.0f}, {0.0f}, {0.0f}, {0.0f}};
    for (int u = 0; u < 4; u++) {
        columns[u] = (float)block[8 * u] * scales[8 * u] * BASIS[0];
        for (int v = 1; v < 4; v++) {
            columns[u] += (float)block[8 * u + v] * scales[8 * u + v] * BASIS[v];
        }
    }
    for (int y = 0; y < 4; y++) {
        for (int u = 0; u < 4; u++) {
            rows[y] += columns[u][y] * BASIS[u];
        }
        for (int x = 0; x < 4; x++) {
            out[stride * (size_t)y + (size_t)x] = clamp_level(rows[y][x]);
        }
    }
}

static void idct_2(const int16_t *block, const float *scales, uint8_t *out, size_t stride) {
    float mean = (float)block[0] * scales[0] * 0.5f, down = (float)block[1] * scales[1] * 0.5f;
    float across = (float)block[8] * scales[8] * 0.5f, both = (float)block[9] * scales[9] * 0.5f;
    out[0] = clamp_level(mean + down + across + both);
    out[1] = clamp_level(mean + down - across - both);
    out[stride] = clamp_level(mean - down + across - both);
    out[stride + 1] = clamp_level(mean - down - across + both);
}

/* ---- the scan */

/* Each thread keeps one: fresh memory costs more than decoding into it. */
typedef struct {
    Jpeg jpeg;
    Unstuffed data;
    Huffman tables[2][4];
    uint8_t order[64 + END_RUN]; /* of coefficients, transposed; 64 beyond the block */
    int end_y;                   /* rows of MCUs that are decoded */
    uint8_t *room;
    size_t room_size;
} Decoder;

typedef void (*Idct)(const int16_t *, const float *, uint8_t *, size_t);

INLINE void make_samples(const Component *component, const int16_t *block, int n, int x, int y, Idct idct) {
    size_t size = (size_t)component->size;
    uint8_t *out = component->samples + (size_t)(y - component->first_y) * size * component->stride +
                   (size_t)(x - component->first_x) * size;
    if (n == 1 || size == 1) {
        uint8_t level = clamp_level((float)block[0] * component->scales[0] * (size == 8 ? 1.0f : 0.5f));
        for (size_t i = 0; i < size; i++) {
            memset(out + i * component->stride, level, size);
        }
    } else if (size == 8) {
        idct(block, component->scales, out, component->stride);
    } else {
        (size == 4 ? idct_4 : idct_2)(block, component->scales, out, component->stride);
    }
}

/* Decodes all blocks of an MCU first: reading coefficients right after they were stored one by one would wait for that. */
INLINE int decode_mcu(Decoder *decoder, BitReader *reader, int16_t *blocks, int mcu_x, int mcu_y, Idct idct) {
    const uint8_t *last = decoder->data.bytes + decoder->data.size + 16;
    int counts[MAX_BLOCKS], n_blocks = 0;
    memset(blocks, 0, (size_t)decoder->jpeg.n_blocks * BLOCK_SIZE * sizeof *blocks);
    for (int i = 0; i < decoder->jpeg.info.components; i++) {
        Component *component = &decoder->jpeg.components[i];
        const Huffman *dc = &decoder->tables[0][component->dc], *ac = &decoder->tables[1][component->ac];
        for (int left = component->h * component->v; left--; n_blocks++) {
            counts[n_blocks] =
                decode_block(reader, dc, ac, &component->last_dc, blocks + n_blocks * BLOCK_SIZE, decoder->order);
            if (counts[n_blocks] < 0 || reader->at > last) {
                return HF_OTHER;
            }
        }
    }
    n_blocks = 0;
    for (int i = 0; i < decoder->jpeg.info.components; i++) {
        const Component *component = &decoder->jpeg.components[i];
        for (int v = 0; v < component->v; v++) {
            for (int h = 0; h < component->h; h++, n_blocks++) {
                int x = mcu_x * component->h + h, y = mcu_y * component->v + v;
                if (component->is_needed && x >= component->first_x && x < component->end_x &&
                    y >= component->first_y && y < component->end_y) {
                    make_samples(component, blocks + n_blocks * BLOCK_SIZE, counts[n_blocks], x, y, idct);
                }
            }
        }
    }
    return HF_OK;
}

/* How far the reader is, in whole bytes that were begun. */
static size_t consumed(const BitReader *reader, const uint8_t *begin) {
    return (size_t)(reader->at - begin) - (reader->n & 63) / 8;
}

INLINE int decode_scan(Decoder *decoder, Idct idct) {
    Jpeg *jpeg = &decoder->jpeg;
    int n_x = (jpeg->info.width + 8 * jpeg->max_h - 1) / (8 * jpeg->max_h), until_restart = jpeg->restart_interval;
    int16_t blocks[MAX_BLOCKS * BLOCK_SIZE];
    size_t piece = 0;
    BitReader reader = {0, 0, decoder->data.bytes};
    for (int y = 0; y < decoder->end_y; y++) {
        for (int x = 0; x < n_x; x++) {
            if (jpeg->restart_interval && !until_restart--) {
                if (consumed(&reader, decoder->data.bytes) > decoder->data.ends[piece]) {
                    return HF_OTHER;
                }
                reader = (BitReader){0, 0, decoder->data.bytes + decoder->data.ends[piece++]};
                until_restart = jpeg->restart_interval - 1;
                for (int i = 0; i < jpeg->info.components; i++) {
                    jpeg->components[i].last_dc = 0;
                }
            }
            if (decode_mcu(decoder, &reader, blocks, x, y, idct) != HF_OK) {
                return HF_OTHER;
            }
        }
    }
    return consumed(&reader, decoder->data.bytes) > decoder->data.ends[piece] ? HF_OTHER : HF_OK;
}

static int decode_scan_plain(Decoder *decoder) { return decode_scan(decoder, idct_8); }

#if defined(__x86_64__)
__attribute__((target("avx2,bmi2"))) static int decode_scan_avx2(Decoder *decoder) {
    return decode_scan(decoder, idct_8_avx2);
}
#endif

static int run_scan(Decoder *decoder) {
#if defined(__x86_64__)
    if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("bmi2")) {
        return decode_scan_avx2(decoder);
    }
#endif
    return decode_scan_plain(decoder);
}

/* ---- a part of an image */

/* Chooses the scale of a component and the blocks that are needed. */
static void plan_component(const Jpeg *jpeg, Component *component, const HfBox *box, const HfOutput *out,
                           HfPlane *plane) {
    double per_x = (double)component->h / jpeg->max_h, per_y = (double)component->v / jpeg->max_v;
    int size = 8;
    while (size > 1 && (box->right - box->left) * per_x * (size / 2) / 8 >= out->width &&
           (box->bottom - box->top) * per_y * (size / 2) / 8 >= out->height) {
        size /= 2;
    }
    per_x *= size / 8.0;
    per_y *= size / 8.0;
    component->size = size;
    prepare_scales(component, jpeg->quantization[component->table]);
    /* Samples of the whole image; blocks may have more, which nothing shows. */
    int width = (int)(jpeg->info.width * per_x + 0.999999), height = (int)(jpeg->info.height * per_y + 0.999999);
    int left = (int)(box->left * per_x), top = (int)(box->top * per_y);
    int right = (int)(box->right * per_x + 0.999999), bottom = (int)(box->bottom * per_y + 0.999999);
    right = right > width ? width : right;
    bottom = bottom > height ? height : bottom;
    component->first_x = left / size;
    component->first_y = top / size;
    component->end_x = (right + size - 1) / size;
    component->end_y = (bottom + size - 1) / size;
    component->stride = (size_t)(component->end_x - component->first_x) * (size_t)size;
    /* The plane is what the box covers of the samples. */
    int skip_x = left - component->first_x * size, skip_y = top - component->first_y * size;
    component->skipped = (size_t)skip_y * component->stride + (size_t)skip_x;
    *plane = (HfPlane){.stride = component->stride,
                       .channels = 1,
                       .width = right - left,
                       .height = bottom - top,
                       .left = box->left * per_x - left,
                       .top = box->top * per_y - top,
                       .right = box->right * per_x - left,
                       .bottom = box->bottom * per_y - top};
}

/* Shares out the buffers. */
static int make_room(Decoder *decoder, size_t n_pieces) {
    Jpeg *jpeg = &decoder->jpeg;
    size_t ends = n_pieces * sizeof *decoder->data.ends, bytes = (size_t)(jpeg->end - jpeg->scan) + PADDING, samples[3];
    size_t all = ends + bytes;
    for (int i = 0; i < jpeg->info.components; i++) {
        const Component *one = &jpeg->components[i];
        samples[i] = one->is_needed ? one->stride * (size_t)(one->end_y - one->first_y) * (size_t)one->size : 0;
        all += samples[i];
    }
    if (all > decoder->room_size) {
        free(decoder->room);
        decoder->room = malloc(all);
        decoder->room_size = decoder->room ? all : 0;
        if (!decoder->room) {
            return HF_NO_MEMORY;
        }
    }
    decoder->data.ends = (size_t *)(void *)decoder->room;
    decoder->data.bytes = decoder->room + ends;
    uint8_t *at = decoder->data.bytes + bytes;
    for (int i = 0; i < jpeg->info.components; i++) {
        jpeg->components[i].samples = at;
        at += samples[i];
    }
    return HF_OK;
}

static int prepare(Decoder *decoder, const HfBox *box, const HfOutput *out, HfPlane *planes) {
    Jpeg *jpeg = &decoder->jpeg;
    for (int i = 0; i < jpeg->info.components; i++) {
        Component *component = &jpeg->components[i];
        component->is_needed = i < out->channels;
        if (component->is_needed) {
            plan_component(jpeg, component, box, out, &planes[i]);
        }
        if (build_huffman(&jpeg->specs[0][component->dc], 1, &decoder->tables[0][component->dc]) ||
            build_huffman(&jpeg->specs[1][component->ac], 0, &decoder->tables[1][component->ac])) {
            return HF_OTHER;
        }
    }
    memset(decoder->order, 64, sizeof decoder->order);
    for (int k = 0; k < 64; k++) {
        decoder->order[k] = (uint8_t)((ZIGZAG[k] & 7) << 3 | ZIGZAG[k] >> 3);
    }
    int mcu_height = 8 * jpeg->max_v;
    size_t n_y = (size_t)((jpeg->info.height + mcu_height - 1) / mcu_height);
    size_t n_x = (size_t)((jpeg->info.width + 8 * jpeg->max_h - 1) / (8 * jpeg->max_h));
    decoder->end_y = (box->bottom + mcu_height - 1) / mcu_height;
    size_t interval = (size_t)jpeg->restart_interval;
    size_t n_pieces = interval ? (n_x * n_y + interval - 1) / interval : 1;
    if (n_pieces > (size_t)(jpeg->end - jpeg->scan) + 1) { /* each takes a marker */
        return HF_OTHER;
    }
    int result = make_room(decoder, n_pieces);
    for (int i = 0; i < out->channels && i < jpeg->info.components && result == HF_OK; i++) {
        planes[i].samples = jpeg->components[i].samples + jpeg->components[i].skipped;
    }
    return result == HF_OK ? unstuff(jpeg, n_pieces, &decoder->data) : result;
}

static pthread_key_t decoder_key;
static pthread_once_t decoder_once = PTHREAD_ONCE_INIT;
static int has_key;

static void free_decoder(void *given) {
    Decoder *decoder = given;
    free(decoder->room);
    free(decoder);
}

static void make_key(void) { has_key = !pthread_key_create(&decoder_key, free_decoder); }

/* The thread's decoder, freed when it ends. */
static Decoder *own_decoder(void) {
    pthread_once(&decoder_once, make_key);
    Decoder *decoder = has_key ? pthread_getspecific(decoder_key) : NULL;
    if (!decoder && has_key) {
        decoder = calloc(1, sizeof *decoder);
        if (decoder && pthread_setspecific(decoder_key, decoder)) {
            free(decoder);
            decoder = NULL;
        }
    }
    return decoder;
}

int hf_jpeg_decode(const uint8_t *data, size_t size, const HfBox *box, const HfOutput *out) {
    Decoder *decoder = own_decoder();
    if (!decoder) {
        return HF_NO_MEMORY;
    }
    HfPlane planes[3];
    Jpeg *jpeg = &decoder->jpeg;
    int result = parse(jpeg, data, size);
    if (result == HF_OK && (box->left < 0 || box->top < 0 || box->right > jpeg->info.width ||
                            box->bottom > jpeg->info.height || box->left >= box->right || box->top >= box->bottom)) {
        result = HF_OTHER;
    }
    if (result == HF_OK) {
        result = prepare(decoder, box, out, planes);
    }
    if (result == HF_OK) {
        result = run_scan(decoder);
    }
    if (result == HF_OK) {
        int n = out->channels < jpeg->info.components ? out->channels : jpeg->info.components;
        result = hf_resize(planes, n, n == 3, out);
    }
    if (decoder->room_size > KEPT_BYTES) {
        free(decoder->room);
        decoder->room = NULL;
        decoder->room_size = 0;
    }
    return result;
}
