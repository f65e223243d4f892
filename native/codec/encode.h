/* Columns -> framed tf.train.Example or SequenceExample records. */
#ifndef HF_ENCODE_H
#define HF_ENCODE_H

#include "columns.h"

/* A column as the caller holds it: pointers into buffers that are not ours, in hf_column's layout. Counts are of
 * elements (values: bytes of a bytes column, else numbers). */
typedef struct {
    const uint8_t *values;
    uint64_t n_values;
    const int64_t *ends, *steps, *rows;
    uint64_t n_ends, n_steps, n_rows;
} hf_view;

/* NULL when every index in the column lies within its arrays, it has `rows` rows, and the kind of record can hold it; else
 * what is wrong. */
const char *hf_view_check(const hf_field *f, const hf_view *v, int64_t rows, int sequence);

/* Appends rows [first, last) to out until that holds stop_bytes or more. Returns the first row not written, or -1: no
 * memory. With `sequence`, ragged columns become feature lists, else lists of values. The views must have been checked. */
int64_t hf_encode(const hf_field *fields, const hf_view *views, size_t width, int64_t first, int64_t last, int sequence,
                  size_t stop_bytes, hf_array *out);

#endif
