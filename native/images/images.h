#pragma once

#include <stddef.h>
#include <stdint.h>

/* Results of the functions below. HF_OTHER: valid or not, it is no image that this decoder reads. */
enum { HF_OK = 0, HF_OTHER = 1, HF_NO_MEMORY = 2 };

/* A part of an image in pixels. */
typedef struct {
    int32_t left, top, right, bottom;
} HfBox;

/* `width` x `height` samples of one channel, or of three side by side; those from (left, top) to (right, bottom) are
 * resized, and the filter sees no others. */
typedef struct {
    const uint8_t *samples;
    size_t stride; /* bytes from row to row */
    int channels, width, height;
    double left, top, right, bottom;
} HfPlane;

/* Where the pixels go: `channels` of uint8, or of float32 if `levels` has the 256 values of each channel. */
typedef struct {
    void *pixels;
    const float *levels;
    int width, height, channels;
    int planar; /* channel by channel (CHW) */
} HfOutput;

typedef struct {
    int width, height, components;
} HfJpegInfo;

/* Reads the header of a baseline JPEG: grey or YCbCr in one scan, 8 bits. */
int hf_jpeg_info(const uint8_t *data, size_t size, HfJpegInfo *info);

/* Decodes a part of a baseline JPEG, each component at the smallest scale (1, 1/2, 1/4, 1/8) that has at least the
 * pixels of the output, resizes the components and converts them to RGB. All other JPEGs, and corrupt ones, are
 * HF_OTHER; so is one that is truncated below the part. */
int hf_jpeg_decode(const uint8_t *data, size_t size, const HfBox *box, const HfOutput *out);

/* Resizes planes with an antialiased bilinear filter, as Pillow does, and writes them. Converts YCbCr if `is_ycc`; one
 * channel fills all. */
int hf_resize(const HfPlane *planes, int n_planes, int is_ycc, const HfOutput *out);
