#define _GNU_SOURCE
#include "readahead.h"

#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <unistd.h>

struct hf_readahead {
    pthread_t thread;
    pthread_mutex_t lock;
    pthread_cond_t fresh, finished;
    hf_job *first, *last; /* not begun yet */
    int ending;
};

static void read_job(hf_job *job) {
    while (job->got < job->size) {
        ssize_t n = pread(job->fd, job->to + job->got, job->size - job->got, job->offset + (off_t)job->got);
        if (n < 0 && errno == EINTR) {
            continue;
        }
        if (n < 0) {
            job->error = errno;
        }
        if (n <= 0) {
            return; /* the file ends here */
        }
        job->got += (size_t)n;
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
        read_job(job);
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
