/* Undoes HDF5's own filters. */
#pragma once

#include <stddef.h>
#include <stdint.h>

/* Puts the bytes of items together again that lie apart: all first bytes, all second bytes, and so on. */
void hf_unshuffle(const uint8_t *from, uint8_t *to, size_t bytes, size_t item_bytes);

/* Whether the checksum, which is the last four bytes, is right. */
int hf_fletcher32_fits(const uint8_t *data, size_t bytes);
