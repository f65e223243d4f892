#define _GNU_SOURCE
#include "readahead.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

struct hf_readahead {
    pthread_t thread;
    pthread_mutex_t lock;
    pthread_cond_t fresh, finished;
    hf_job *first, *last; /* not begun yet */
    int ending;
    _Atomic int open_fd; /* of the file that is being read; -1: none */
};

/* Reads `size` bytes behind those that the job has. Returns how many there were. */
static size_t read_some(hf_job *job, int fd, off_t offset, size_t size) {
    size_t got = 0;
    while (got < size) {
        ssize_t n = pread(fd, job->to + job->got, size - got, offset + (off_t)got);
        if (n < 0 && errno == EINTR) {
            continue;
        }
        if (n < 0) {
            job->error = errno;
        }
        if (n <= 0) {
            break; /* the file ends here */
        }
        got += (size_t)n;
        job->got += (size_t)n;
    }
    return got;
}

static int is_as_expected(int fd, const hf_file *file) {
    struct stat now;
    return fstat(fd, &now) == 0 && S_ISREG(now.st_mode) && now.st_size == file->size &&
           now.st_mtim.tv_sec * 1000000000LL + now.st_mtim.tv_nsec == file->mtime_ns;
}

void hf_read_job(hf_job *job, _Atomic int *open_fd) {
    if (!job->names) {
        read_some(job, job->fd, job->offset, job->size);
        return;
    }
    const char *name = job->names;
    for (size_t i = 0; i < job->files && !job->error; i++, name += strlen(name) + 1) {
        size_t size = (size_t)job->expected[i].size;
        int fd = open(name, O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY);
        if (fd < 0) {
            job->error = errno;
            return;
        }
        *open_fd = fd;
        int good = is_as_expected(fd, &job->expected[i]) && size <= job->size - job->got &&
                   read_some(job, fd, 0, size) == size;
        *open_fd = -1;
        close(fd);
        if (!good) {
            return;
        }
    }
}

static void *serve(void *arg) {
    hf_readahead *a = arg;
    pthread_mutex_lock(&a->lock);
    for (;;) {
        while (!a->first && !a->ending) {
            pthread_cond_wait(&a->fresh, &a->lock);
        }
        if (a->ending) {
            break;
        }
        hf_job *job = a->first;
        a->first = job->next;
        pthread_mutex_unlock(&a->lock);
        hf_read_job(job, &a->open_fd);
        pthread_mutex_lock(&a->lock);
        job->done = 1;
        pthread_cond_broadcast(&a->finished);
    }
    pthread_mutex_unlock(&a->lock);
    return NULL;
}

static int start_thread(hf_readahead *a) {
    /* Signals are the interpreter's: a thread that does not know of it must not get them. */
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    int error = pthread_create(&a->thread, NULL, serve, a);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    if (!error) {
        pthread_setname_np(a->thread, "hold-ahead");
    }
    return error;
}

hf_readahead *hf_readahead_start(void) {
    hf_readahead *a = calloc(1, sizeof *a);
    if (!a) {
        errno = ENOMEM;
        return NULL;
    }
    a->open_fd = -1;
    pthread_mutex_init(&a->lock, NULL);
    pthread_cond_init(&a->fresh, NULL);
    pthread_cond_init(&a->finished, NULL);
    int error = start_thread(a);
    if (error) {
        free(a);
        errno = error;
        return NULL;
    }
    return a;
}

void hf_readahead_begin(hf_readahead *a, hf_job *job) {
    job->next = NULL;
    pthread_mutex_lock(&a->lock);
    if (a->first) {
        a->last->next = job;
    } else {
        a->first = job;
        pthread_cond_signal(&a->fresh);
    }
    a->last = job;
    pthread_mutex_unlock(&a->lock);
}

int hf_readahead_is_done(hf_readahead *a, const hf_job *job) {
    pthread_mutex_lock(&a->lock);
    int done = job->done;
    pthread_mutex_unlock(&a->lock);
    return done;
}

void hf_readahead_wait(hf_readahead *a, const hf_job *job) {
    pthread_mutex_lock(&a->lock);
    while (!job->done) {
        pthread_cond_wait(&a->finished, &a->lock);
    }
    pthread_mutex_unlock(&a->lock);
}

void hf_readahead_end(hf_readahead *a) {
    pthread_mutex_lock(&a->lock);
    a->ending = 1;
    pthread_cond_signal(&a->fresh);
    pthread_mutex_unlock(&a->lock);
    pthread_join(a->thread, NULL);
    pthread_cond_destroy(&a->finished);
    pthread_cond_destroy(&a->fresh);
    pthread_mutex_destroy(&a->lock);
    free(a);
}

void hf_readahead_forked(hf_readahead *a) {
    int fd = a->open_fd;
    a->open_fd = -1;
    if (fd >= 0) {
        close(fd);
    }
}
