/* Resizes with a triangle filter that grows with the scale, as Pillow's BILINEAR: first down the columns, eight and more
 * side by side, then along the rows. Levels have 7 bits behind the point between the passes, where Pillow rounds, and 6
 * after them, so that converting YCbCr rounds once. */
#include "images.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>
#if defined(__x86_64__)
#include <emmintrin.h>
#endif

#define INLINE static inline __attribute__((always_inline))
#define WEIGHT_BITS 14
#define TAPS_TOGETHER 8
#define FEW_TAPS 4
#define ROW_PADDING 16

/* The samples that make each output sample: `taps` from `first` on, their weights at `weights`, `room` apart. */
typedef struct {
    int *first;
    int16_t *weights;
    int taps, room;
} Filter;

static int make_filter(int in_size, double begin, double end, int out_size, Filter *filter) {
    double scale = (end - begin) / out_size, support = scale < 1.0 ? 1.0 : scale;
    filter->taps = (int)(2.0 * support) + 1; /* samples that a filter of this width can touch */
    filter->room = (filter->taps + TAPS_TOGETHER - 1) / TAPS_TOGETHER * TAPS_TOGETHER;
    filter->room = filter->taps <= FEW_TAPS ? FEW_TAPS : filter->room;
    filter->first = malloc((size_t)out_size * sizeof *filter->first);
    filter->weights = calloc((size_t)out_size * (size_t)filter->room, sizeof *filter->weights);
    double *exact = malloc((size_t)filter->taps * sizeof *exact);
    if (!filter->first || !filter->weights || !exact) {
        free(exact);
        return HF_NO_MEMORY;
    }
    for (int i = 0; i < out_size; i++) {
        double centre = begin + (i + 0.5) * scale, sum = 0.0;
        double low = centre - support + 0.5, high = centre + support + 0.5;
        int first = low < 0.0 ? 0 : (int)low, stop = high > in_size ? in_size : (int)high;
        first = first < in_size ? first : in_size - 1;
        int n = stop > first ? stop - first : 1;
        n = n < filter->taps ? n : filter->taps;
        for (int k = 0; k < n; k++) {
            double distance = fabs((first + k - centre + 0.5) / support);
            sum += exact[k] = distance < 1.0 ? 1.0 - distance : 0.0;
        }
        /* The rounded weights add up to exactly one: each is the difference of rounded sums. */
        double so_far = 0.0;
        int rounded = 0;
        for (int k = 0; k < n; k++) {
            so_far += sum > 0.0 ? exact[k] / sum : 1.0 / n;
            int next = k == n - 1 ? 1 << WEIGHT_BITS : (int)(so_far * (1 << WEIGHT_BITS) + 0.5);
            filter->weights[(size_t)i * (size_t)filter->room + (size_t)k] = (int16_t)(next - rounded);
            rounded = next;
        }
        filter->first[i] = first;
    }
    free(exact);
    return HF_OK;
}

/* A weighted sum of rows, with 7 bits behind the point. Rows below the last have no weight, and are not read. */
INLINE void sum_rows(const uint8_t *rows, size_t stride, int n_rows, const int16_t *weights, size_t n, int16_t *out) {
    size_t x = 0;
#if defined(__x86_64__)
    const __m128i zero = _mm_setzero_si128(), half = _mm_set1_epi32(1 << (WEIGHT_BITS - 8));
    for (; x + 16 <= n; x += 16) {
        __m128i sums[4] = {half, half, half, half};
        for (int k = 0; k < n_rows; k += 2) {
            const uint8_t *at = rows + (size_t)k * stride + x;
            __m128i a = _mm_loadu_si128((const __m128i *)at);
            __m128i b = _mm_loadu_si128((const __m128i *)(k + 1 < n_rows ? at + stride : at)); /* or without weight */
            int32_t two;
            memcpy(&two, weights + k, sizeof two);
            __m128i pair = _mm_set1_epi32(two);
            __m128i low = _mm_unpacklo_epi8(a, b), high = _mm_unpackhi_epi8(a, b);
            sums[0] = _mm_add_epi32(sums[0], _mm_madd_epi16(_mm_unpacklo_epi8(low, zero), pair));
            sums[1] = _mm_add_epi32(sums[1], _mm_madd_epi16(_mm_unpackhi_epi8(low, zero), pair));
            sums[2] = _mm_add_epi32(sums[2], _mm_madd_epi16(_mm_unpacklo_epi8(high, zero), pair));
            sums[3] = _mm_add_epi32(sums[3], _mm_madd_epi16(_mm_unpackhi_epi8(high, zero), pair));
        }
        for (int i = 0; i < 4; i++) {
            sums[i] = _mm_srai_epi32(sums[i], WEIGHT_BITS - 7);
        }
        _mm_storeu_si128((__m128i *)(out + x), _mm_packs_epi32(sums[0], sums[1]));
        _mm_storeu_si128((__m128i *)(out + x + 8), _mm_packs_epi32(sums[2], sums[3]));
    }
#endif
    for (; x < n; x++) {
        int32_t sum = 1 << (WEIGHT_BITS - 8);
        for (int k = 0; k < n_rows; k++) {
            sum += weights[k] * rows[(size_t)k * stride + x];
        }
        out[x] = (int16_t)(sum >> (WEIGHT_BITS - 7));
    }
}

#if defined(__x86_64__)
INLINE __m128i sum_taps(const int16_t *row, const Filter *filter, int x, int room) {
    const int16_t *at = row + filter->first[x], *weights = filter->weights + (size_t)x * (size_t)room;
    __m128i sum = _mm_madd_epi16(_mm_loadu_si128((const __m128i *)at), _mm_loadu_si128((const __m128i *)weights));
    for (int k = TAPS_TOGETHER; k < room; k += TAPS_TOGETHER) {
        sum = _mm_add_epi32(sum, _mm_madd_epi16(_mm_loadu_si128((const __m128i *)(at + k)),
                                                _mm_loadu_si128((const __m128i *)(weights + k))));
    }
    return sum;
}

/* Two sums, each in two parts. */
INLINE __m128i sum_few_taps(const int16_t *row, const Filter *filter, int x) {
    __m128i first = _mm_loadl_epi64((const __m128i *)(row + filter->first[x]));
    __m128i second = _mm_loadl_epi64((const __m128i *)(row + filter->first[x + 1]));
    __m128i weights = _mm_loadu_si128((const __m128i *)(filter->weights + FEW_TAPS * (size_t)x));
    return _mm_madd_epi16(_mm_unpacklo_epi64(first, second), weights);
}

INLINE void store_sums(__m128i sum, int16_t *out) {
    sum = _mm_srai_epi32(_mm_add_epi32(sum, _mm_set1_epi32(1 << WEIGHT_BITS)), WEIGHT_BITS + 1);
    _mm_storel_epi64((__m128i *)out, _mm_packs_epi32(sum, sum));
}
#endif

/* Weighted sums along a row, with 6 bits behind the point. */
INLINE void sum_columns(const int16_t *row, const Filter *filter, int room, int n, int16_t *out) {
    int x = 0;
#if defined(__x86_64__)
    for (; room == FEW_TAPS && x + 4 <= n; x += 4) {
        __m128i a = sum_few_taps(row, filter, x), b = sum_few_taps(row, filter, x + 2);
        __m128i even = _mm_castps_si128(_mm_shuffle_ps(_mm_castsi128_ps(a), _mm_castsi128_ps(b), 0x88));
        __m128i odd = _mm_castps_si128(_mm_shuffle_ps(_mm_castsi128_ps(a), _mm_castsi128_ps(b), 0xDD));
        store_sums(_mm_add_epi32(even, odd), out + x);
    }
    for (; room != FEW_TAPS && x + 4 <= n; x += 4) {
        __m128i s0 = sum_taps(row, filter, x, room), s1 = sum_taps(row, filter, x + 1, room);
        __m128i s2 = sum_taps(row, filter, x + 2, room), s3 = sum_taps(row, filter, x + 3, room);
        __m128i a = _mm_add_epi32(_mm_unpacklo_epi32(s0, s1), _mm_unpackhi_epi32(s0, s1));
        __m128i b = _mm_add_epi32(_mm_unpacklo_epi32(s2, s3), _mm_unpackhi_epi32(s2, s3));
        store_sums(_mm_add_epi32(_mm_unpacklo_epi64(a, b), _mm_unpackhi_epi64(a, b)), out + x);
    }
#endif
    for (; x < n; x++) {
        const int16_t *at = row + filter->first[x], *weights = filter->weights + (size_t)x * (size_t)room;
        int32_t sum = 1 << WEIGHT_BITS;
        for (int k = 0; k < filter->taps; k++) {
            sum += weights[k] * at[k];
        }
        out[x] = (int16_t)(sum >> (WEIGHT_BITS + 1));
    }
}

INLINE uint8_t clamp(int32_t level) { return (uint8_t)(level < 0 ? 0 : level > 255 ? 255 : level); }

#if defined(__x86_64__)
INLINE __m128i dot(__m128i a, __m128i b, int weight_a, int weight_b) {
    return _mm_madd_epi16(_mm_unpacklo_epi16(a, b),
                          _mm_set1_epi32((int)((uint16_t)weight_a | (uint32_t)weight_b << 16)));
}

/* Four levels: the sum with 20 bits behind the point, rounded. */
INLINE void store_levels(__m128i sum, uint8_t *out) {
    __m128i levels = _mm_srai_epi32(_mm_add_epi32(sum, _mm_set1_epi32(1 << 19)), 20);
    levels = _mm_packs_epi32(levels, levels);
    int32_t bytes = _mm_cvtsi128_si32(_mm_packus_epi16(levels, levels));
    memcpy(out, &bytes, 4);
}
#endif

/* Converts a row by JFIF's formulas. The rows have room for three values more. */
INLINE void convert_ycc(int16_t *const rows[3], int n, uint8_t *const levels[3]) {
    for (int x = 0; x < n; x += 4) {
#if defined(__x86_64__)
        const __m128i middle = _mm_set1_epi16(8192), zero = _mm_setzero_si128();
        __m128i y = _mm_loadl_epi64((const __m128i *)(rows[0] + x));
        __m128i blue = _mm_sub_epi16(_mm_loadl_epi64((const __m128i *)(rows[1] + x)), middle);
        __m128i red = _mm_sub_epi16(_mm_loadl_epi64((const __m128i *)(rows[2] + x)), middle);
        store_levels(dot(y, red, 16384, 22970), levels[0] + x);
        store_levels(_mm_add_epi32(dot(y, blue, 16384, -5638), dot(red, zero, -11700, 0)), levels[1] + x);
        store_levels(dot(y, blue, 16384, 29032), levels[2] + x);
#else
        for (int i = x; i < x + 4; i++) {
            int32_t base = rows[0][i] * 16384 + (1 << 19), blue = rows[1][i] - 8192, red = rows[2][i] - 8192;
            levels[0][i] = clamp((base + 22970 * red) >> 20);
            levels[1][i] = clamp((base - 5638 * blue - 11700 * red) >> 20);
            levels[2][i] = clamp((base + 29032 * blue) >> 20);
        }
#endif
    }
}

INLINE void write_row(uint8_t *const levels[3], const HfOutput *out, int y) {
    size_t n = (size_t)out->width, at = (size_t)y * n, area = n * (size_t)out->height;
    if (out->channels == 3 && !out->planar) {
        const float *table = out->levels;
        float *floats = (float *)out->pixels + 3 * at;
        uint8_t *bytes = (uint8_t *)out->pixels + 3 * at;
        const uint8_t *r = levels[0], *g = levels[1], *b = levels[2];
        for (size_t x = 0; table && x < n; x++, floats += 3) {
            floats[0] = table[r[x]];
            floats[1] = table[256 + g[x]];
            floats[2] = table[512 + b[x]];
        }
        for (size_t x = 0; !table && x < n; x++, bytes += 3) {
            bytes[0] = r[x];
            bytes[1] = g[x];
            bytes[2] = b[x];
        }
        return;
    }
    for (int c = 0; c < out->channels; c++, at += area) {
        if (!out->levels) {
            memcpy((uint8_t *)out->pixels + at, levels[c], n);
            continue;
        }
        const float *table = out->levels + 256 * c;
        float *floats = (float *)out->pixels + at;
        for (size_t x = 0; x < n; x++) {
            floats[x] = table[levels[c][x]];
        }
    }
}

typedef struct {
    const HfPlane *planes;
    int n_planes, is_ycc;
    const HfOutput *out;
    Filter vertical[3], horizontal[3];
    int16_t *row;        /* after the vertical pass */
    int16_t *split;      /* one channel of it */
    int16_t *resized[3]; /* rows of the output */
    uint8_t *levels[3];
} Resizer;

INLINE void resize_row(Resizer *resizer, int y) {
    const HfOutput *out = resizer->out;
    int n_channels = 0;
    for (int i = 0; i < resizer->n_planes; i++) {
        const HfPlane *plane = &resizer->planes[i];
        const Filter *filter = &resizer->vertical[i];
        int first = filter->first[y], n = plane->height - first;
        sum_rows(plane->samples + (size_t)first * plane->stride, plane->stride, n < filter->taps ? n : filter->taps,
                 filter->weights + (size_t)y * (size_t)filter->room, (size_t)plane->width * (size_t)plane->channels,
                 resizer->row);
        for (int c = 0; c < plane->channels; c++) {
            const int16_t *row = resizer->row;
            if (plane->channels > 1) {
                for (int x = 0; x < plane->width; x++) {
                    resizer->split[x] = resizer->row[3 * x + c];
                }
                row = resizer->split;
            }
            const Filter *columns = &resizer->horizontal[i];
            if (columns->room == FEW_TAPS) {
                sum_columns(row, columns, FEW_TAPS, out->width, resizer->resized[n_channels++]);
            } else if (columns->room == TAPS_TOGETHER) {
                sum_columns(row, columns, TAPS_TOGETHER, out->width, resizer->resized[n_channels++]);
            } else {
                sum_columns(row, columns, columns->room, out->width, resizer->resized[n_channels++]);
            }
        }
    }
    if (resizer->is_ycc) {
        convert_ycc(resizer->resized, out->width, resizer->levels);
    } else {
        for (int c = 0; c < n_channels; c++) {
            for (int x = 0; x < out->width; x++) {
                resizer->levels[c][x] = clamp((resizer->resized[c][x] + 32) >> 6);
            }
        }
    }
    uint8_t *const one[3] = {resizer->levels[0], resizer->levels[0], resizer->levels[0]};
    write_row(n_channels == 1 ? one : resizer->levels, out, y);
}

INLINE void resize_rows(Resizer *resizer) {
    for (int y = 0; y < resizer->out->height; y++) {
        resize_row(resizer, y);
    }
}

static void resize_rows_plain(Resizer *resizer) { resize_rows(resizer); }

#if defined(__x86_64__)
__attribute__((target("avx2"))) static void resize_rows_avx2(Resizer *resizer) { resize_rows(resizer); }
#endif

static int prepare(Resizer *resizer) {
    size_t widest = 0, out_width = (size_t)resizer->out->width;
    for (int i = 0; i < resizer->n_planes; i++) {
        const HfPlane *plane = &resizer->planes[i];
        if (make_filter(plane->height, plane->top, plane->bottom, resizer->out->height, &resizer->vertical[i]) ||
            make_filter(plane->width, plane->left, plane->right, resizer->out->width, &resizer->horizontal[i])) {
            return HF_NO_MEMORY;
        }
        /* Samples behind the last one are read, but weigh nothing. */
        size_t width =
            (size_t)plane->width * (size_t)plane->channels + (size_t)resizer->horizontal[i].room + ROW_PADDING;
        widest = width > widest ? width : widest;
    }
    resizer->row = calloc(widest, sizeof *resizer->row);
    resizer->split = calloc(widest, sizeof *resizer->split);
    resizer->resized[0] = calloc(3 * (out_width + ROW_PADDING), sizeof *resizer->row);
    resizer->levels[0] = malloc(3 * (out_width + ROW_PADDING));
    if (!resizer->row || !resizer->split || !resizer->resized[0] || !resizer->levels[0]) {
        return HF_NO_MEMORY;
    }
    for (int c = 1; c < 3; c++) {
        resizer->resized[c] = resizer->resized[c - 1] + out_width + ROW_PADDING;
        resizer->levels[c] = resizer->levels[c - 1] + out_width + ROW_PADDING;
    }
    return HF_OK;
}

int hf_resize(const HfPlane *planes, int n_planes, int is_ycc, const HfOutput *out) {
    Resizer resizer = {.planes = planes, .n_planes = n_planes, .is_ycc = is_ycc, .out = out};
    int result = prepare(&resizer);
    if (result == HF_OK) {
#if defined(__x86_64__)
        (__builtin_cpu_supports("avx2") ? resize_rows_avx2 : resize_rows_plain)(&resizer);
#else
        resize_rows_plain(&resizer);
#endif
    }
    for (int i = 0; i < n_planes; i++) {
        free(resizer.vertical[i].first);
        free(resizer.vertical[i].weights);
        free(resizer.horizontal[i].first);
        free(resizer.horizontal[i].weights);
    }
    free(resizer.row);
    free(resizer.split);
    free(resizer.resized[0]);
    free(resizer.levels[0]);
    return result;
}
