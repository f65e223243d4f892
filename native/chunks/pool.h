/* Threads that work on jobs, one after the other, and never need the interpreter. */
#pragma once

#include "chunks.h"

#include <stddef.h>

/* What is read in pieces, which any thread reads, several at once. */
typedef struct hf_job {
    void (*run)(struct hf_job *job, size_t piece, hf_scratch *scratch);
    size_t pieces;
    size_t begun, done; /* pieces */
    struct hf_job *next;
} hf_job;

typedef struct hf_pool hf_pool;

/* NULL with errno set: no memory, or no thread is to be had. */
hf_pool *hf_pool_start(int threads);

/* The job and its memory stay the caller's, and must stay until it was waited for or the threads have ended. */
void hf_pool_begin(hf_pool *a, hf_job *job);

int hf_pool_is_done(hf_pool *a, const hf_job *job);

/* Reads pieces as well while it waits. For one thread at a time. */
void hf_pool_wait(hf_pool *a, hf_job *job);

/* Pieces that are being read are finished; what was not begun is never read, and is not to be waited for. */
void hf_pool_end(hf_pool *a);
