#define _GNU_SOURCE
#include "pool.h"

#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdlib.h>

#define MAX_THREADS 16

struct hf_pool {
    pthread_t thread[MAX_THREADS];
    int threads;
    pthread_mutex_t lock;
    pthread_cond_t fresh, finished;
    hf_job *first, *last; /* with pieces that are not begun yet */
    hf_scratch scratch;   /* of the thread that waits */
    int ending;
};

static void remove_job(hf_pool *a, hf_job *job) {
    hf_job *before = NULL;
    for (hf_job *one = a->first; one != job; one = one->next) {
        before = one;
    }
    *(before ? &before->next : &a->first) = job->next;
    if (a->last == job) {
        a->last = before;
    }
}

/* Reads the next piece of a job, with the lock released meanwhile. */
static void run_piece(hf_pool *a, hf_job *job, hf_scratch *scratch) {
    size_t piece = job->begun++;
    if (job->begun == job->pieces) {
        remove_job(a, job);
    }
    pthread_mutex_unlock(&a->lock);
    job->run(job, piece, scratch);
    pthread_mutex_lock(&a->lock);
    if (++job->done == job->pieces) {
        pthread_cond_broadcast(&a->finished);
    }
}

static void *serve(void *arg) {
    hf_pool *a = arg;
    hf_scratch scratch = {0};
    pthread_mutex_lock(&a->lock);
    while (!a->ending) {
        if (a->first) {
            run_piece(a, a->first, &scratch);
        } else {
            pthread_cond_wait(&a->fresh, &a->lock);
        }
    }
    pthread_mutex_unlock(&a->lock);
    hf_scratch_free(&scratch);
    return NULL;
}

static int start_thread(hf_pool *a) {
    /* Signals are the interpreter's: a thread that does not know of it must not get them. */
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    int error = pthread_create(&a->thread[a->threads], NULL, serve, a);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    if (!error) {
        pthread_setname_np(a->thread[a->threads++], "hold-ahead");
    }
    return error;
}

hf_pool *hf_pool_start(int threads) {
    hf_pool *a = calloc(1, sizeof *a);
    if (!a) {
        errno = ENOMEM;
        return NULL;
    }
    pthread_mutex_init(&a->lock, NULL);
    pthread_cond_init(&a->fresh, NULL);
    pthread_cond_init(&a->finished, NULL);
    int error = 0;
    while (!error && a->threads < threads && a->threads < MAX_THREADS) {
        error = start_thread(a);
    }
    if (!a->threads) {
        free(a);
        errno = error;
        return NULL;
    }
    return a;
}

void hf_pool_begin(hf_pool *a, hf_job *job) {
    job->next = NULL;
    pthread_mutex_lock(&a->lock);
    if (a->first) {
        a->last->next = job;
    } else {
        a->first = job;
    }
    a->last = job;
    if (job->pieces > 1) {
        pthread_cond_broadcast(&a->fresh);
    } else {
        pthread_cond_signal(&a->fresh);
    }
    pthread_mutex_unlock(&a->lock);
}

int hf_pool_is_done(hf_pool *a, const hf_job *job) {
    pthread_mutex_lock(&a->lock);
    int done = job->done == job->pieces;
    pthread_mutex_unlock(&a->lock);
    return done;
}

void hf_pool_wait(hf_pool *a, hf_job *job) {
    pthread_mutex_lock(&a->lock);
    while (job->done < job->pieces) {
        if (job->begun < job->pieces) {
            run_piece(a, job, &a->scratch);
        } else if (a->first) { /* another thread reads the last piece: what comes next is done meanwhile */
            run_piece(a, a->first, &a->scratch);
        } else {
            pthread_cond_wait(&a->finished, &a->lock);
        }
    }
    pthread_mutex_unlock(&a->lock);
}

void hf_pool_end(hf_pool *a) {
    pthread_mutex_lock(&a->lock);
    a->ending = 1;
    pthread_cond_broadcast(&a->fresh);
    pthread_mutex_unlock(&a->lock);
    for (int i = 0; i < a->threads; i++) {
        pthread_join(a->thread[i], NULL);
    }
    pthread_cond_destroy(&a->finished);
    pthread_cond_destroy(&a->fresh);
    pthread_mutex_destroy(&a->lock);
    hf_scratch_free(&a->scratch);
    free(a);
}
