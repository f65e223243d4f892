/* A thread that reads from files into memory, one job after the other, and never needs the interpreter. */
#pragma once

#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

/* A file that is read as a whole, if it is still as it was. */
typedef struct {
    int64_t size;
    int64_t mtime_ns;
} hf_file;

typedef struct hf_job {
    int fd;
    off_t offset;
    const char *names; /* of `files` files instead of one descriptor, each ended by a 0, to be read one after another */
    const hf_file *expected;
    size_t files;
    uint8_t *to;
    size_t size;
    size_t got;
    int error; /* an errno, or 0 */
    int done;
    struct hf_job *next;
} hf_job;

typedef struct hf_readahead hf_readahead;

/* NULL with errno set: no memory, or no thread is to be had. */
hf_readahead *hf_readahead_start(void);

/* Reads it here and now. A file that is not as expected ends it, with fewer bytes than `size` and no error. */
void hf_read_job(hf_job *job, _Atomic int *open_fd);

/* The job and its memory stay the caller's, and must stay until it was waited for or the thread has ended. */
void hf_readahead_begin(hf_readahead *a, hf_job *job);

int hf_readahead_is_done(hf_readahead *a, const hf_job *job);
void hf_readahead_wait(hf_readahead *a, const hf_job *job);

/* The job that is being read is finished; what was not begun is never read, and is not to be waited for. */
void hf_readahead_end(hf_readahead *a);

/* In a forked child, which has no such thread: closes the file that it was reading when the child was made. */
void hf_readahead_forked(hf_readahead *a);
