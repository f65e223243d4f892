/* tf.train.Example and SequenceExample records -> columns. */
#ifndef HF_DECODE_H
#define HF_DECODE_H

#include "columns.h"
#include "frame.h"
#include "refill.h"

/* Why one record gave no row. Its neighbours are not touched by it. Numbers shared with codec.py. */
enum {
    HF_MALFORMED = 16,   /* not a protobuf message of the right form */
    HF_MISSING = 17,     /* a feature without a default is not there */
    HF_WRONG_KIND = 18,  /* got: the kind that is there */
    HF_WRONG_COUNT = 19, /* got: how many values are there */
    HF_IS_LIST = 20,     /* expected one feature, got a feature list */
    HF_NOT_LIST = 21,    /* expected a nested feature list, got one feature */
};

typedef struct {
    int64_t record;
    int64_t offset; /* of its frame, counted like hf_decoder.offset */
    int code;
    int field; /* -1: the whole record */
    int64_t got;
} hf_fault;

typedef struct hf_decoder hf_decoder;

/* Takes the fields over, also when it fails (NULL: no memory). */
hf_decoder *hf_decoder_new(hf_field *fields, size_t n);
void hf_decoder_free(hf_decoder *d);

size_t hf_decoder_width(const hf_decoder *d);
const hf_field *hf_decoder_field(const hf_decoder *d, size_t i);
int64_t hf_decoder_rows(const hf_decoder *d);

/* Decodes frames of buf[0..n) and appends their rows, until there are max_rows rows or the bytes end. Frames are
 * checked like hf_scan's. `record` and `offset` are those of the first frame, for the faults. `base`: what the positions of borrowed
 * bytes count from; the caller keeps that buffer as it is while it uses the columns. */
hf_walk hf_decoder_feed(hf_decoder *d, const uint8_t *base, const uint8_t *buf, size_t n, int verify_data,
                        int64_t max_rows, int64_t record, int64_t offset);

/* The same with frames that come from a file as they are needed; no new read once most_bytes are walked. No positions of
 * borrowed bytes: the buffer is used again. */
hf_walk hf_decoder_feed_file(hf_decoder *d, hf_refill *r, int verify_data, int64_t max_rows, int64_t record,
                             size_t most_bytes);

/* The faults since the last hf_decoder_clear_faults. */
size_t hf_decoder_faults(const hf_decoder *d, const hf_fault **faults);
void hf_decoder_clear_faults(hf_decoder *d);

/* Hands the columns over to the caller (as many as fields) and starts an empty batch. 0: no memory, nothing done. */
int hf_decoder_take(hf_decoder *d, hf_column *columns);

#endif
