/* A thread that reads one stretch of a file into memory while another works on the part that is there already. */
#ifndef HF_AHEAD_H
#define HF_AHEAD_H

#include <stddef.h>
#include <stdint.h>

/* What is read at a time: small enough to be in the cache still when it is decoded. */
#define HF_PIECE ((size_t)1 << 17)

typedef struct hf_ahead hf_ahead;

/* Begins to read `want` bytes from `offset` on to `to`. NULL: there is no second CPU for it, or no thread to be had. */
hf_ahead *hf_ahead_start(int fd, uint8_t *to, size_t want, int64_t offset);

/* Waits for more. How many bytes came since the last call; 0: no more will come. */
size_t hf_ahead_wait(hf_ahead *a);

/* Ends it, and frees it. How many bytes came since the last call of hf_ahead_wait. */
size_t hf_ahead_end(hf_ahead *a);

#endif
