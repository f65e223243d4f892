#define _GNU_SOURCE /* pread, sched_getaffinity */
#define _FILE_OFFSET_BITS 64

#include "ahead.h"

#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <unistd.h>

#if defined(__x86_64__)
#include <immintrin.h>
#define RELAX() _mm_pause()
#else
#define RELAX() ((void)0)
#endif

/* The next piece is nearly always on its way: looking again is cheaper than being woken. After this many looks the disk
 * must be slow, and the CPU is better given away. */
enum { LOOKS = 4000, STACK_BYTES = 1 << 17 };

struct hf_ahead {
    int fd;
    uint8_t *to;
    size_t want;
    int64_t offset;
    size_t told; /* bytes that hf_ahead_wait has reported */
    _Atomic size_t got;
    _Atomic int over, stop, sleeping;
    pthread_t thread;
    pthread_mutex_t mutex;
    pthread_cond_t news;
};

static void tell(hf_ahead *a) {
    if (atomic_load(&a->sleeping)) {
        pthread_mutex_lock(&a->mutex);
        pthread_cond_signal(&a->news);
        pthread_mutex_unlock(&a->mutex);
    }
}

static void *read_on(void *arg) {
    hf_ahead *a = arg;
    size_t got = 0;
    while (got < a->want && !atomic_load_explicit(&a->stop, memory_order_relaxed)) {
        size_t left = a->want - got;
        ssize_t n = pread(a->fd, a->to + got, left < HF_PIECE ? left : HF_PIECE, a->offset + (int64_t)got);
        if (n <= 0) { /* the end, or an error that whoever reads next will see as well */
            break;
        }
        got += (size_t)n;
        atomic_store(&a->got, got);
        tell(a);
    }
    atomic_store(&a->over, 1);
    tell(a);
    return NULL;
}

static int has_second_cpu(void) {
#if defined(__linux__)
    cpu_set_t set;
    return sched_getaffinity(0, sizeof set, &set) == 0 && CPU_COUNT(&set) > 1;
#else
    return 1;
#endif
}

/* No signal is for this thread: a handler of the program's would run on its small stack. */
static int start_thread(hf_ahead *a) {
    pthread_attr_t attr;
    if (pthread_attr_init(&attr)) {
        return 0;
    }
    sigset_t all, before;
    sigfillset(&all);
    pthread_attr_setstacksize(&attr, STACK_BYTES);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    int failed = pthread_create(&a->thread, &attr, read_on, a);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    pthread_attr_destroy(&attr);
    return !failed;
}

static void release(hf_ahead *a) {
    pthread_cond_destroy(&a->news);
    pthread_mutex_destroy(&a->mutex);
    free(a);
}

hf_ahead *hf_ahead_start(int fd, uint8_t *to, size_t want, int64_t offset) {
    hf_ahead *a = has_second_cpu() ? calloc(1, sizeof *a) : NULL;
    if (!a) {
        return NULL;
    }
    a->fd = fd;
    a->to = to;
    a->want = want;
    a->offset = offset;
    pthread_mutex_init(&a->mutex, NULL);
    pthread_cond_init(&a->news, NULL);
    if (!start_thread(a)) {
        release(a);
        return NULL;
    }
    return a;
}

static int has_news(hf_ahead *a) { return atomic_load(&a->got) > a->told || atomic_load(&a->over); }

size_t hf_ahead_wait(hf_ahead *a) {
    for (int i = 0; i < LOOKS && !has_news(a); i++) {
        RELAX();
    }
    if (!has_news(a)) {
        atomic_store(&a->sleeping, 1);
        pthread_mutex_lock(&a->mutex);
        while (!has_news(a)) {
            pthread_cond_wait(&a->news, &a->mutex);
        }
        pthread_mutex_unlock(&a->mutex);
        atomic_store(&a->sleeping, 0);
    }
    size_t got = atomic_load(&a->got), more = got - a->told;
    a->told = got;
    return more;
}

size_t hf_ahead_end(hf_ahead *a) {
    atomic_store(&a->stop, 1);
    pthread_join(a->thread, NULL);
    size_t more = atomic_load(&a->got) - a->told;
    release(a);
    return more;
}
