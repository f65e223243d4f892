/* Decodes any bytes as a JPEG, a part that the first bytes choose: it must stay inside the data and the output. */
#include <stdlib.h>
#include <string.h>

#include "images.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    if (size < 8) {
        return 0;
    }
    static float levels[3 * 256];
    uint8_t *exact = malloc(size - 8 + 1); /* of the exact size, so that one byte too far is seen */
    exact = realloc(exact, size > 8 ? size - 8 : 1);
    memcpy(exact, data + 8, size - 8);
    HfJpegInfo info;
    if (hf_jpeg_info(exact, size - 8, &info) == HF_OK && (int64_t)info.width * info.height < 1 << 20) {
        HfOutput out = {.width = 1 + data[0] % 64, .height = 1 + data[1] % 64, .channels = data[2] & 1 ? 3 : 1};
        out.planar = data[2] >> 1 & 1;
        out.levels = data[2] & 4 ? levels : NULL;
        out.pixels = malloc((size_t)out.width * (size_t)out.height * (size_t)out.channels * (out.levels ? 4 : 1));
        HfBox box = {info.width * data[3] / 256, info.height * data[4] / 256, info.width, info.height};
        box.right -= (box.right - box.left) * data[5] / 256;
        box.bottom -= (box.bottom - box.top) * data[6] / 256;
        hf_jpeg_decode(exact, size - 8, &box, &out);
        free(out.pixels);
    }
    free(exact);
    return 0;
}
