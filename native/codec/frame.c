#include "frame.h"

#include "crc32c.h"
#include "crc32c_x86.h"

/* The walk is compiled around the inlined instructions of each kind of CPU, and around whatever hf_crc32c has chosen. */
#define HF_DEFINE_WALK(suffix, target, crc)                                                                            \
    target static inline int check_##suffix(const uint8_t *p, size_t avail, int verify_data, uint64_t *length) {       \
        *length = 0;                                                                                                   \
        if (avail < HF_HEADER) {                                                                                       \
            return HF_NEED_MORE;                                                                                       \
        }                                                                                                              \
        if (hf_mask(crc(0, p, 8)) != hf_load32(p + 8)) {                                                               \
            return HF_BAD_LENGTH_CRC;                                                                                  \
        }                                                                                                              \
        *length = hf_load64(p);                                                                                        \
        if (*length > avail - HF_HEADER || avail - HF_HEADER - (size_t)*length < HF_FOOTER) {                          \
            return HF_NEED_MORE;                                                                                       \
        }                                                                                                              \
        size_t n = (size_t)*length;                                                                                    \
        if (verify_data && hf_mask(crc(0, p + HF_HEADER, n)) != hf_load32(p + HF_HEADER + n)) {                        \
            return HF_BAD_DATA_CRC;                                                                                    \
        }                                                                                                              \
        return HF_OK;                                                                                                  \
    }                                                                                                                  \
                                                                                                                       \
    target static hf_walk scan_##suffix(const uint8_t *buf, size_t n, int verify_data, int64_t *starts, int64_t base,  \
                                        int64_t max) {                                                                 \
        hf_walk walk = {0, 0, HF_OK, 0};                                                                               \
        while (walk.count < max && walk.consumed < n) {                                                                \
            uint64_t length;                                                                                           \
            int status = check_##suffix(buf + walk.consumed, n - walk.consumed, verify_data, &length);                 \
            if (status != HF_OK) {                                                                                     \
                walk.status = status;                                                                                  \
                walk.needed = length > UINT64_MAX - HF_OVERHEAD ? UINT64_MAX : length + HF_OVERHEAD;                   \
                break;                                                                                                 \
            }                                                                                                          \
            if (starts) {                                                                                              \
                starts[walk.count] = base + (int64_t)walk.consumed;                                                    \
            }                                                                                                          \
            walk.count++;                                                                                              \
            walk.consumed += (size_t)length + HF_OVERHEAD;                                                             \
        }                                                                                                              \
        return walk;                                                                                                   \
    }

HF_DEFINE_WALK(any, , hf_crc32c)

#if defined(HF_X86)
HF_TARGET_X86 static inline uint32_t header_or_data_crc(uint32_t crc, const uint8_t *p, size_t n) {
    return n == 8 ? ~(uint32_t)_mm_crc32_u64((uint32_t)~crc, hf_word(p)) : hf_crc_x86(crc, p, n);
}

HF_DEFINE_WALK(x86, HF_TARGET_X86, header_or_data_crc)

HF_TARGET_WIDE static inline uint32_t header_or_data_wide(uint32_t crc, const uint8_t *p, size_t n) {
    return n == 8 ? ~(uint32_t)_mm_crc32_u64((uint32_t)~crc, hf_word(p)) : hf_crc_wide(crc, p, n);
}

HF_DEFINE_WALK(wide, HF_TARGET_WIDE, header_or_data_wide)

int hf_frame_check(const uint8_t *p, size_t avail, int verify_data, uint64_t *length) {
    return hf_crc_has_wide ? check_wide(p, avail, verify_data, length)
           : hf_crc_is_x86 ? check_x86(p, avail, verify_data, length)
                           : check_any(p, avail, verify_data, length);
}

hf_walk hf_scan(const uint8_t *buf, size_t n, int verify_data, int64_t *starts, int64_t base, int64_t max) {
    return hf_crc_has_wide ? scan_wide(buf, n, verify_data, starts, base, max)
           : hf_crc_is_x86 ? scan_x86(buf, n, verify_data, starts, base, max)
                           : scan_any(buf, n, verify_data, starts, base, max);
}
#else
int hf_frame_check(const uint8_t *p, size_t avail, int verify_data, uint64_t *length) {
    return check_any(p, avail, verify_data, length);
}

hf_walk hf_scan(const uint8_t *buf, size_t n, int verify_data, int64_t *starts, int64_t base, int64_t max) {
    return scan_any(buf, n, verify_data, starts, base, max);
}
#endif

size_t hf_find_header(const uint8_t *buf, size_t n, size_t from) {
    for (size_t i = from; n >= HF_HEADER && i <= n - HF_HEADER; i++) {
        if (hf_mask(hf_crc32c(0, buf + i, 8)) == hf_load32(buf + i + 8)) {
            return i;
        }
    }
    return n;
}

size_t hf_find_end(const uint8_t *buf, size_t n, uint32_t *crc) {
    uint32_t c = *crc;
    for (size_t i = 0; i + HF_FOOTER <= n; i++) {
        if (hf_mask(c) == hf_load32(buf + i)) {
            *crc = c;
            return i;
        }
        c = hf_crc32c(c, buf + i, 1);
    }
    *crc = c;
    return n;
}

void hf_frame_seal(uint8_t *frame, uint64_t length) {
    hf_store64(frame, length);
    hf_store32(frame + 8, hf_mask(hf_crc32c(0, frame, 8)));
    hf_store32(frame + HF_HEADER + length, hf_mask(hf_crc32c(0, frame + HF_HEADER, (size_t)length)));
}
