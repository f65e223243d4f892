/* Scans any bytes as a file: walking frames and searching for headers and ends must stay inside the buffer, and what they
 * find must be valid. */
#include <stdlib.h>
#include <string.h>

#include "crc32c.h"
#include "frame.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    hf_crc32c_init(size % 2 ? HF_CRC_ALL : HF_CRC_TABLE);
    uint8_t *buf = malloc(size + 1); /* of the exact size, so that one byte too far is seen */
    uint8_t *exact = realloc(buf, size ? size : 1);
    memcpy(exact, data, size);
    int64_t starts[64];
    hf_walk walk = hf_scan(exact, size, 1, starts, 0, 64);
    if (walk.consumed > size || (walk.status == HF_OK && walk.count < 64 && walk.consumed != size)) {
        abort();
    }
    for (int64_t i = 0; i < walk.count; i++) {
        uint64_t length;
        if (hf_frame_check(exact + starts[i], size - (size_t)starts[i], 1, &length) != HF_OK) {
            abort();
        }
    }
    for (size_t at = 0; at < size; at++) {
        size_t found = hf_find_header(exact, size, at);
        uint64_t length;
        if (found < size && hf_frame_check(exact + found, size - found, 0, &length) == HF_BAD_LENGTH_CRC) {
            abort();
        }
        at = found;
    }
    uint32_t crc = 0;
    size_t end = hf_find_end(exact, size, &crc);
    if (end < size && (end + HF_FOOTER > size || hf_mask(hf_crc32c(0, exact, end)) != hf_load32(exact + end))) {
        abort();
    }
    free(exact);
    return 0;
}
