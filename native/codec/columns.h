/* What a schema asks for and what a batch holds: shared by decoding and encoding. */
#ifndef HF_COLUMNS_H
#define HF_COLUMNS_H

#include <stddef.h>
#include <stdint.h>

/* The numbers are those of tf.train.Feature's oneof. */
enum { HF_NONE = 0, HF_BYTES = 1, HF_FLOAT32 = 2, HF_INT64 = 3 };
enum { HF_BORROWED_BYTES = 4 }; /* kind of a field whose bytes stay in the input buffer: see hf_field.borrowed */

/* How often a column's item may occur in a row. */
enum {
    HF_FIXED = 0,  /* one item */
    HF_RAGGED = 1, /* a list of items; in a SequenceExample: a feature list with one item a step */
    HF_NESTED = 2, /* a feature list with a list of items a step */
};

/* A growing array. Zeroed is empty. */
typedef struct {
    uint8_t *data;
    size_t len, cap; /* bytes */
} hf_array;

int hf_array_room(hf_array *a, size_t extra); /* 0 when there is no memory for it */
void hf_array_free(hf_array *a);

typedef struct {
    uint8_t *key;
    size_t key_len;
    int kind;
    int depth;       /* HF_FIXED, HF_RAGGED, HF_NESTED */
    int borrowed;    /* one string per row, not copied: `values` gets its start and stop in the buffer, as two int64 */
    uint64_t count;  /* values an item: the product of its shape */
    int has_default; /* else a row without it is a fault; ragged columns are empty then */
    uint8_t *fill;   /* the default: `count` values; bytes: all of them joined … */
    int64_t *fill_ends; /* … and where each ends */
} hf_field;

static inline size_t hf_value_size(int kind) { return kind == HF_BYTES ? 1 : kind == HF_FLOAT32 ? 4 : 8; }

void hf_field_free(hf_field *f);

/* One column of a batch. Which arrays are used follows from the field:
 *   values   the numbers, or all bytes joined
 *   ends     bytes only: int64, a leading 0, then where each value ends in `values`
 *   steps    nested only: int64, a leading 0, then how many items there are up to the end of each step
 *   rows     ragged and nested: int64, a leading 0, then how many items (steps) there are up to the end of each row */
typedef struct {
    hf_array values, ends, steps, rows;
} hf_column;

void hf_column_free(hf_column *c);

#endif
