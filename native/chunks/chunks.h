/* Reads rows of a chunked dataset of HDF5: the bytes of each chunk from the file, through its filters, into place. */
#pragma once

#include <stddef.h>
#include <stdint.h>

#define HF_MAX_DIMS 32
#define HF_MAX_FILTERS 32

enum { HF_GZIP = 1, HF_SHUFFLE = 2, HF_FLETCHER32 = 3, HF_LZ4 = 32004, HF_ZSTD = 32015 };

typedef struct {
    int dims, filters;
    int64_t shape[HF_MAX_DIMS], chunk[HF_MAX_DIMS];
    int64_t grid[HF_MAX_DIMS]; /* how many chunks there are along each axis */
    size_t item_bytes, row_bytes, chunk_bytes;
    struct {
        int64_t code, parameter; /* the parameter of shuffle: the size of an item */
    } filter[HF_MAX_FILTERS];
} hf_layout;

/* A chunk in the file. Bit i of the mask: filter i was not applied to it. */
typedef struct {
    int64_t offset, stored, mask;
} hf_chunk;

typedef struct {
    hf_layout layout;
    int fd;
    int64_t first;       /* the number of chunks[0] in row order */
    int64_t start, stop; /* rows */
    const hf_chunk *chunks;
    uint8_t *to; /* (stop - start) rows of the dataset's shape */
} hf_rows;

/* Memory and decoders of one thread, kept from chunk to chunk. All zeros at first. */
typedef struct {
    uint8_t *memory[3];
    size_t size[3];
    void *zstd, *deflate;
} hf_scratch;

void hf_scratch_free(hf_scratch *s);

/* Finds a decoder in a shared library: "libdeflate", "zlib", "zlib-ng", "lz4" or "zstd". Returns whether it is there. */
int hf_load_codec(const char *name, const char *path);

/* Reads a layout: item size, number of axes, shape, chunk shape, then a code and a parameter for each filter. Returns 0
 * if it is not one, or has filters that cannot be decoded here. */
int hf_layout_of(hf_layout *l, const int64_t *values, size_t n);

/* Whether these are rows and chunks of the layout, and `room` bytes hold the rows. */
int hf_rows_fit(const hf_rows *r, size_t chunks, size_t room);

/* Reads one chunk's part of the rows. Returns 0 if the file or the chunk is corrupt. */
int hf_read_chunk(const hf_rows *r, size_t number, hf_scratch *s);
