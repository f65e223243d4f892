/* TFRecord frames: u64 length, masked crc32c of those 8 bytes, data, masked crc32c of the data; little endian. */
#ifndef HF_FRAME_H
#define HF_FRAME_H

#include <stddef.h>
#include <stdint.h>

enum { HF_HEADER = 12, HF_FOOTER = 4, HF_OVERHEAD = 16 };

/* Why a walk over frames stopped. The numbers are part of the Python side's contract (codec.py). */
enum {
    HF_OK = 0,             /* everything asked for was done */
    HF_NEED_MORE = 1,      /* the next frame is longer than the bytes that are here */
    HF_BAD_LENGTH_CRC = 2, /* the 8 length bytes do not match their CRC */
    HF_BAD_DATA_CRC = 3,
    HF_NO_MEMORY = 4,
};

/* One frame at p, with `avail` bytes there. HF_OK: *length is its data's. HF_NEED_MORE: *length is that of the data if
 * the header is here, else 0. Lengths near 2^64 are HF_NEED_MORE like any other too long: nothing is computed from them. */
int hf_frame_check(const uint8_t *p, size_t avail, int verify_data, uint64_t *length);

typedef struct {
    int64_t count;   /* complete frames scanned */
    size_t consumed; /* bytes they take */
    int status;
    uint64_t needed; /* HF_NEED_MORE with a good header: bytes of the next frame, saturated */
} hf_walk;

/* Walks frames in buf[0..n); starts[i] = base + offset of frame i, when starts is given. At most max frames. */
hf_walk hf_scan(const uint8_t *buf, size_t n, int verify_data, int64_t *starts, int64_t base, int64_t max);

/* First offset at or after `from` whose 12 bytes are a header with a good CRC; n when there is none. */
size_t hf_find_header(const uint8_t *buf, size_t n, size_t from);

/* Runs *crc over buf byte by byte until the four bytes that follow are its masked value, i.e. until a record's data could
 * end here. Returns that offset, or n when there is none; then *crc covers all but the last three bytes. */
size_t hf_find_end(const uint8_t *buf, size_t n, uint32_t *crc);

/* Writes header and footer around data that is already at frame + HF_HEADER. */
void hf_frame_seal(uint8_t *frame, uint64_t length);

#endif
