/* Prints which crc32c is in use, then the CRC of each line of hex digits on stdin. The argument `table` forces the
 * slow one. It needs no Python, so it runs for another CPU than the machine's. */
#include "crc32c.h"

#include <stdio.h>
#include <string.h>

static char line[1 << 17];
static uint8_t data[sizeof line / 2];

int main(int argc, char **argv) {
    hf_crc32c_init(argc > 1 && strcmp(argv[1], "table") == 0 ? HF_CRC_TABLE : HF_CRC_ALL);
    printf("%s\n", hf_crc32c_kind());
    while (fgets(line, sizeof line, stdin)) {
        size_t n = strcspn(line, "\n") / 2;
        for (size_t i = 0; i < n; i++) {
            unsigned byte;
            if (sscanf(line + 2 * i, "%2x", &byte) != 1) {
                return 1;
            }
            data[i] = (uint8_t)byte;
        }
        printf("%08x\n", (unsigned)hf_crc32c(0, data, n));
    }
    return 0;
}
