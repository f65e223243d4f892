#pragma once

#include <stddef.h>
#include <stdint.h>

/* A PNG's rows, each behind the byte that says how it was filtered, as pixels. Returns 0; -1 for a filter that does not
 * exist, -2 without memory. `rows` holds n * (1 + row_bytes), `out` n * row_bytes; row_bytes is a multiple of pixel_bytes. */
int hf_unfilter(const uint8_t *rows, size_t n, size_t row_bytes, size_t pixel_bytes, uint8_t *out);
