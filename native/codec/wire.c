#include "wire.h"

const uint8_t *hf_skip_field(const uint8_t *p, const uint8_t *end, uint32_t tag, int depth) {
    uint32_t open[HF_MAX_NESTED];
    int groups = 0;
    for (;;) {
        uint64_t v;
        const uint8_t *start, *stop;
        switch (tag & 7) {
        case HF_VARINT:
            p = hf_read_varint(p, end, &v);
            break;
        case HF_FIXED64:
            p = end - p >= 8 ? p + 8 : NULL;
            break;
        case HF_LEN:
            p = hf_read_len(p, end, &start, &stop);
            break;
        case HF_GROUP:
            if (depth + groups == HF_MAX_NESTED) {
                return NULL;
            }
            open[groups++] = tag >> 3;
            break;
        case HF_END_GROUP:
            if (groups == 0 || open[--groups] != tag >> 3) {
                return NULL;
            }
            break;
        case HF_FIXED32:
            p = end - p >= 4 ? p + 4 : NULL;
            break;
        default:
            return NULL;
        }
        if (!p || groups == 0) {
            return p;
        }
        p = hf_read_tag(p, end, &tag);
        if (!p) {
            return NULL;
        }
    }
}
