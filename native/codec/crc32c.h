/* CRC-32C (Castagnoli), the checksum of TFRecord and of every manifest. */
#ifndef HF_CRC32C_H
#define HF_CRC32C_H

#include <stddef.h>
#include <stdint.h>

/* Chooses the implementation for this CPU. Idempotent; must run once before anything else here. `allow` is a bit set of
 * HF_CRC_*: tests force the slower ones. */
enum { HF_CRC_TABLE = 1, HF_CRC_HARDWARE = 2, HF_CRC_WIDE = 4, HF_CRC_ALL = 7 };
void hf_crc32c_init(int allow);

/* Whether the instructions of crc32c_x86.h were chosen; and those in 256-bit registers, too. */
extern int hf_crc_is_x86, hf_crc_has_wide;

/* "sse4.2", "armv8" or "table". */
const char *hf_crc32c_kind(void);

/* The CRC of what came before (0 at the start) extended by n bytes. */
uint32_t hf_crc32c(uint32_t crc, const uint8_t *data, size_t n);

/* fold[k] = x^(64k - 33) mod P: a carry-less product of a CRC with it, run through one crc32 instruction, is that CRC
 * moved on by 8k zero bytes. It lets three independent CRC chains of any length up to HF_LANE words be joined. */
enum { HF_LANE = 256 };
extern uint32_t hf_crc_fold[3 * HF_LANE + 1];

/* TFRecord stores CRCs masked, so that a CRC over data that holds CRCs stays a good one. */
static inline uint32_t hf_mask(uint32_t crc) { return ((crc >> 15) | (crc << 17)) + 0xa282ead8u; }

static inline uint32_t hf_load32(const uint8_t *p) {
    return (uint32_t)p[0] | (uint32_t)p[1] << 8 | (uint32_t)p[2] << 16 | (uint32_t)p[3] << 24;
}

static inline uint64_t hf_load64(const uint8_t *p) { return (uint64_t)hf_load32(p) | (uint64_t)hf_load32(p + 4) << 32; }

static inline void hf_store32(uint8_t *p, uint32_t v) {
    p[0] = (uint8_t)v;
    p[1] = (uint8_t)(v >> 8);
    p[2] = (uint8_t)(v >> 16);
    p[3] = (uint8_t)(v >> 24);
}

static inline void hf_store64(uint8_t *p, uint64_t v) {
    hf_store32(p, (uint32_t)v);
    hf_store32(p + 4, (uint32_t)(v >> 32));
}

#endif
