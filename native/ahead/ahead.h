/* A thread that reads from files into memory, one job after the other, and never needs the interpreter. */
#pragma once

#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

typedef struct hf_job {
    int fd;
    off_t offset;
    uint8_t *to;
    size_t size;
    size_t got;
    int error; /* an errno, or 0 */
    int done;
    struct hf_job *next;
} hf_job;

typedef struct hf_ahead hf_ahead;

/* NULL with errno set: no memory, or no thread is to be had. */
hf_ahead *hf_ahead_start(void);

/* The job and its memory stay the caller's, and must stay until it was waited for or the thread has ended. */
void hf_ahead_begin(hf_ahead *a, hf_job *job);

int hf_ahead_is_done(hf_ahead *a, const hf_job *job);
void hf_ahead_wait(hf_ahead *a, const hf_job *job);

/* The job that is being read is finished; what was not begun is never read, and is not to be waited for. */
void hf_ahead_end(hf_ahead *a);
