/* Rows picked out of many batches, column by column. A column is values, and above them any number of levels of ends:
 * an item is a run of items of the level below, and a row one item (or `count` of them) of the outermost. */
#ifndef HF_GATHER_H
#define HF_GATHER_H

#include "columns.h"

#define HF_GATHER_MOST ((uint64_t)1 << 62) /* so many of anything cannot be; sums of two do not overflow */

enum { HF_GATHER_OK, HF_GATHER_NO_MEMORY, HF_GATHER_BAD_ENDS };

/* What is the same in every batch. It has levels + 1 parts: the ends from the outermost level on, then the values. */
typedef struct {
    size_t levels;
    const uint64_t *counts; /* a level: how many of its items make one of the level above */
    size_t width;           /* bytes a value */
} hf_gather_column;

/* One of those arrays in one batch. */
typedef struct {
    const uint8_t *data; /* ends: int64, maybe not aligned */
    uint64_t items;      /* how many there are for the level above */
    int spans; /* a start and a stop for each item, not only its end: the outermost level alone may have that */
} hf_gather_part;

/* Sets the sizes of one batch's part: `level` is column->levels for the values. 0: the array is too small for that
 * many rows. */
int hf_gather_part_init(hf_gather_part *part, const hf_gather_column *column, size_t level, uint64_t rows,
                        const void *data, size_t len);

/* Fills `out`, as many empty arrays as all columns have parts, with rows[i] of the batch whose parts are from[i], for
 * all i below n. The rows must be there; ends are checked. `column` gets the one with bad ends. */
int hf_gather(const hf_gather_column *columns, size_t width, const hf_gather_part *const *from, const int64_t *rows,
              size_t n, hf_array *out, size_t *column);

#endif
