// The descriptor table, the event ring, the stack index, and the log file that mirrors them.
//
// The authoritative table and the stack index are private memory: fork copies them, so a child begins with an exact
// snapshot, whatever the parent does next. The log file is shared memory: it outlives the process.
#include "fdtrace.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/statfs.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#ifndef MADV_POPULATE_WRITE
#define MADV_POPULATE_WRITE 23
#endif

// A part of the log doubles, then grows by this many bytes: a call for more costs as much as several pages, and most
// processes are short.
#define CHUNK 32768u
#define MAX_NESTED 4
#define FULL_RECORD_BYTES (HF_RECORD_BYTES / 8 * 7) // the rest is for stacks of one frame

__thread struct hf_thread hf_me __attribute__((tls_model("initial-exec")));
int hf_on;
unsigned hf_options;

static struct {
    char directory[512];
    unsigned arm_above;
    uint32_t pid, max_fds;
    uint64_t file_bytes, start_ns;
    struct hf_entry *table;  // private
    uint64_t *stack_slots;   // private: high half of the hash << 32 | id of the record
    uint32_t *counter_slots; // private: number of the counter + 1, valid from counter_base on
    uint64_t *code_slots;    // private: as stack_slots
    uint32_t stacks, codes;  // slots in use
    uint32_t counter_base, counter_end, record_base, record_end;
    uint32_t fds_end;
    uint32_t inside; // threads in a hook, counted only where recording may stop before the process ends
    char *map;       // the log file
    struct hf_header *header;
    struct hf_entry *entries;
    struct hf_event *ring;
    struct hf_counter *counters;
    char *records;
    uint32_t ring_ready, counters_ready, records_ready; // bytes that are backed by memory
    uint64_t entries_ready[HF_MAX_FDS / 128 / 64];      // a bit a page of entries
    char log_path[600];
} hf;

// A page that reads as zeros in a child, however it was made (fork, _Fork, clone): tells a child from its parent.
static struct {
    uint32_t pid;
} *hf_mine;

static uint64_t now_ns(clockid_t clock) {
    struct timespec t;
    clock_gettime(clock, &t);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

uint32_t hf_thread_id(void) {
    if (!hf_me.tid) {
        hf_me.tid = (uint32_t)HF_CALL1(SYS_gettid, 0);
    }
    return hf_me.tid;
}

// Threads may come here in any order: a number of the log only ever grows.
static void raise_to(uint32_t *number, uint32_t value) {
    uint32_t old = __atomic_load_n(number, __ATOMIC_RELAXED);
    while (old < value && !__atomic_compare_exchange_n(number, &old, value, 1, __ATOMIC_RELAXED, __ATOMIC_RELAXED)) {
    }
}

// -- Growing the log -------------------------------------------------------------------------------------------------

static void stop_for(int error) {
    if (hf.header && !hf.header->stopped) {
        hf.header->stopped = (uint32_t)error;
    }
    hf_on = 0;
}

// The program may need the same file system: its last eighth, at most 16 MB, is left to it.
static int is_room(uint64_t bytes) {
    struct statfs disk;
    if (HF_CALL2(SYS_statfs, hf.log_path, &disk)) {
        return 1; // the folder was removed, or is out of reach: its log goes on
    }
    uint64_t block = (uint64_t)disk.f_bsize, left = disk.f_blocks * block / 8;
    return bytes + (left < 16u << 20 ? left : 16u << 20) <= disk.f_bavail * block || !disk.f_blocks;
}

// Backs a range of the file with memory. A full tmpfs would otherwise be a SIGBUS in the program.
static int back(char *from, size_t bytes) {
    char *page = (char *)((uintptr_t)from & ~(uintptr_t)4095);
    size_t length = ((size_t)(from - page) + bytes + 4095) & ~(size_t)4095;
    if (!is_room(length)) {
        stop_for(ENOSPC);
        return 0;
    }
    long error = HF_CALL3(SYS_madvise, page, length, MADV_POPULATE_WRITE);
    if (!error) {
        return 1;
    }
    if (error == -EINVAL) { // before Linux 5.14
        long fd = HF_CALL4(SYS_openat, AT_FDCWD, hf.log_path, O_RDWR | O_CLOEXEC, 0);
        error = fd;
        if (fd >= 0) {
            error = HF_CALL4(SYS_fallocate, fd, 0, page - hf.map, length);
            HF_CALL1(SYS_close, fd);
        }
        if (!error) {
            return 1;
        }
    }
    stop_for(error == -EFAULT ? ENOSPC : (int)-error); // EFAULT: populating would have raised SIGBUS
    return 0;
}

static int back_until(char *base, uint32_t *ready, uint32_t end, uint32_t limit) {
    uint32_t have = __atomic_load_n(ready, __ATOMIC_RELAXED);
    if (__builtin_expect(end <= have, 1)) {
        return 1;
    }
    uint32_t until = (end + 4095) / 4096 * 4096, grown = have + (have < CHUNK ? have : CHUNK);
    if (until < grown) {
        until = grown;
    }
    if (until > limit) {
        until = limit;
    }
    if (!back(base + have, until - have)) {
        return 0;
    }
    __atomic_store_n(ready, until, __ATOMIC_RELAXED);
    return 1;
}

static int back_entry(uint32_t fd) {
    uint32_t page = fd / 128;
    uint64_t bit = 1ull << (page % 64);
    if (__atomic_load_n(&hf.entries_ready[page / 64], __ATOMIC_RELAXED) & bit) {
        return 1;
    }
    if (!back((char *)&hf.entries[page * 128], 4096)) {
        return 0;
    }
    __atomic_fetch_or(&hf.entries_ready[page / 64], bit, __ATOMIC_RELAXED);
    return 1;
}

// -- Stacks ----------------------------------------------------------------------------------------------------------

static uint32_t new_record(uint32_t bytes, uint32_t limit, char **at) {
    uint32_t units = (bytes + 7) / 8;
    uint32_t id = __atomic_load_n(&hf.record_end, __ATOMIC_RELAXED);
    do {
        if ((id - hf.record_base + units) * 8 > limit) {
            return 0;
        }
    } while (!__atomic_compare_exchange_n(&hf.record_end, &id, id + units, 0, __ATOMIC_RELAXED, __ATOMIC_RELAXED));
    if (!back_until(hf.records, &hf.records_ready, (id - hf.record_base + units) * 8, HF_RECORD_BYTES)) {
        return 0;
    }
    raise_to(&hf.header->record_end, id + units);
    *at = hf.records + (size_t)(id - hf.record_base) * 8;
    return id;
}

static uint64_t mix(uint64_t hash, uint64_t value) {
    hash = (hash ^ value) * 0x9fb21c651e98df25ull;
    return hash ^ (hash >> 29);
}

static uint32_t probe(const uint64_t *slots, uint32_t count, uint64_t hash) {
    uint32_t at = (uint32_t)hash & (count - 1);
    for (;;) {
        uint64_t slot = __atomic_load_n(&slots[at], __ATOMIC_ACQUIRE);
        if (!slot || slot >> 32 == hash >> 32) {
            return at;
        }
        at = (at + 1) & (count - 1);
    }
}

// Returns the slot of a hash, or the empty one where it belongs; the caller looks which. What finds the small part of
// the index 3/4 full belongs into the large one.
static uint32_t find_slot(const uint64_t *slots, uint32_t small, uint32_t all, const uint32_t *used, uint64_t hash) {
    uint32_t at = probe(slots, small, hash);
    if (!slots[at] && __atomic_load_n(used, __ATOMIC_RELAXED) >= small / 4 * 3) {
        at = small + probe(slots + small, all - small, hash);
    }
    return at;
}

// The record is written before the slot names it, so no reader sees half of one and nobody waits.
static int take_slot(uint64_t *slots, uint32_t *used, uint32_t at, uint64_t hash, uint32_t id) {
    uint64_t empty = 0;
    if (!__atomic_compare_exchange_n(&slots[at], &empty, (hash >> 32) << 32 | id, 0, __ATOMIC_RELEASE,
                                     __ATOMIC_RELAXED)) {
        return 0;
    }
    __atomic_fetch_add(used, 1, __ATOMIC_RELAXED);
    return 1;
}

// The last quarter of the room is for short stacks. Code that exec makes may take half of it: then what comes from files
// still finds some.
static uint32_t code_record(const char *code, uint64_t identity, int is_full) {
    for (;;) {
        uint32_t at = find_slot(hf.code_slots, HF_CODE_SLOTS_SMALL, HF_CODE_SLOTS, &hf.codes, identity);
        uint64_t slot = hf.code_slots[at];
        if (slot) {
            return (uint32_t)slot;
        }
        int is_generated = hf_is_generated(code);
        uint32_t eighths = is_generated ? 4 : is_full ? 6 : 8;
        if (__atomic_load_n(&hf.codes, __ATOMIC_RELAXED) >= HF_CODE_SLOTS / 8 * eighths - 64) {
            return 0;
        }
        char *to;
        uint32_t id = new_record(hf_measure_code(code), HF_RECORD_BYTES / 8 * eighths, &to);
        if (!id) {
            return 0;
        }
        hf_write_code(code, (struct hf_code_record *)to);
        if (take_slot(hf.code_slots, &hf.codes, at, identity, id)) {
            return id;
        }
    }
}

// Shortens a stack for which there is no room to the innermost frame and the innermost one of the program's own code.
// The code of both has to be in the log: code that exec made a moment ago may not be, the line that ran it is.
static void shorten(struct hf_frames *frames) {
    uint64_t hash = 1;
    unsigned kept = 0;
    for (unsigned i = 0; i < frames->count && kept < 2; i++) {
        int is_own = !hf_is_library(frames->code[i]);
        if ((kept && !is_own) || !code_record(frames->code[i], hf_code_identity(frames->code[i]), 0)) {
            continue;
        }
        frames->code[kept] = frames->code[i], frames->instr[kept] = frames->instr[i];
        hash = mix(hash, hf_code_identity(frames->code[kept]) + frames->instr[kept] + 1);
        kept++;
        if (is_own) {
            break;
        }
    }
    frames->count = (uint16_t)kept;
    frames->cut = 1;
    frames->native = 0;
    frames->hash = hash;
    __atomic_fetch_add(&hf.header->short_stacks, 1, __ATOMIC_RELAXED);
}

// Returns slot + 1 in the stack index, 0 if there is no room left.
static uint32_t stack_slot(void *caller) {
    struct hf_frames frames;
    hf_capture(&frames, caller);
    int had_frames = frames.count > 0;
    for (int is_full = 1;; is_full = 0) {
        if (!is_full) {
            shorten(&frames);
            if (had_frames && !frames.count) {
                break;
            }
        }
        if (!(frames.hash >> 32)) {
            frames.hash |= 1ull << 32;
        }
        for (;;) {
            uint32_t at = find_slot(hf.stack_slots, HF_STACK_SLOTS_SMALL, HF_STACK_SLOTS, &hf.stacks, frames.hash);
            if (hf.stack_slots[at]) {
                return at + 1;
            }
            if (__atomic_load_n(&hf.stacks, __ATOMIC_RELAXED) >=
                (is_full ? HF_STACK_SLOTS * 3 / 4 : HF_STACK_SLOTS - 64)) {
                break;
            }
            uint32_t codes[HF_MAX_FRAMES], missing = 0;
            for (unsigned i = 0; i < frames.count; i++) {
                missing |= !(codes[i] = code_record(frames.code[i], hf_code_identity(frames.code[i]), is_full));
            }
            if (is_full && missing) {
                break;
            }
            char *to;
            uint32_t bytes = (uint32_t)sizeof(struct hf_stack_record) + frames.count * 8u + frames.native * 8u;
            uint32_t id = new_record(bytes, is_full ? FULL_RECORD_BYTES : HF_RECORD_BYTES, &to);
            if (!id) {
                break;
            }
            struct hf_stack_record *record = (struct hf_stack_record *)to;
            *record = (struct hf_stack_record){bytes, HF_STACK, frames.count, frames.native, frames.cut, 0};
            uint32_t *pairs = (uint32_t *)(record + 1);
            for (unsigned i = 0; i < frames.count; i++) {
                pairs[2 * i] = codes[i], pairs[2 * i + 1] = frames.instr[i];
            }
            memcpy(pairs + 2 * frames.count, frames.address, frames.native * sizeof(void *));
            if (take_slot(hf.stack_slots, &hf.stacks, at, frames.hash, id)) {
                return at + 1;
            }
        }
        if (!is_full) {
            break;
        }
    }
    __atomic_fetch_add(&hf.header->lost_stacks, 1, __ATOMIC_RELAXED);
    return 0;
}

static uint32_t stack_id(uint32_t slot) { return slot ? (uint32_t)hf.stack_slots[slot - 1] : 0; }

static struct hf_counter *counter_of(uint32_t slot, unsigned kind) {
    uint32_t *place = &hf.counter_slots[slot]; // 0 is the counter of what has no stack
    for (;;) {
        uint32_t number = __atomic_load_n(place, __ATOMIC_ACQUIRE);
        if (number > hf.counter_base) {
            return &hf.counters[number - 1 - hf.counter_base];
        }
        uint32_t fresh = __atomic_fetch_add(&hf.counter_end, 1, __ATOMIC_RELAXED);
        uint32_t at = fresh - hf.counter_base;
        if (at >= HF_STACK_SLOTS) {
            return NULL;
        }
        if (!back_until((char *)hf.counters, &hf.counters_ready, (at + 1) * 32, HF_STACK_SLOTS * 32)) {
            return NULL;
        }
        hf.counters[at].stack = stack_id(slot);
        hf.counters[at].kind = (uint16_t)kind;
        raise_to(&hf.header->counter_end, fresh + 1);
        if (__atomic_compare_exchange_n(place, &number, fresh + 1, 0, __ATOMIC_RELEASE, __ATOMIC_RELAXED)) {
            return &hf.counters[at];
        }
    }
}

// -- Events ----------------------------------------------------------------------------------------------------------

static void put_event(uint64_t t, unsigned action, unsigned kind, int fd, uint32_t stack, uint32_t gen, int aux,
                      int error) {
    uint64_t head = __atomic_fetch_add(&hf.header->ring_head, 1, __ATOMIC_RELAXED);
    uint32_t at = (uint32_t)head & (HF_RING_EVENTS - 1);
    if (!back_until((char *)hf.ring, &hf.ring_ready, (at + 1) * 32, HF_RING_EVENTS * 32)) {
        return;
    }
    struct hf_event *event = &hf.ring[at];
    __atomic_store_n(&event->t_ns, 0, __ATOMIC_RELAXED);
    __atomic_thread_fence(__ATOMIC_RELEASE);
    event->tid = hf_thread_id();
    event->fd = fd;
    event->stack = stack;
    event->action = (uint16_t)(action | kind << 8);
    event->error = (uint16_t)error;
    event->aux = aux;
    event->gen = gen;
    __atomic_store_n(&event->t_ns, t, __ATOMIC_RELEASE);
}

static void count_live(int by) {
    int32_t live = __atomic_add_fetch(&hf.header->live, by, __ATOMIC_RELAXED);
    if (live > 0) {
        raise_to(&hf.header->peak, (uint32_t)live);
    }
}

static int is_armed(void) { return hf.header->live >= (int32_t)hf.arm_above; }

static void see_finalizing(uint64_t t) {
    if (!hf.header->finalizing_ns && hf_python_finalizing()) {
        hf.header->finalizing_ns = t - 1; // the event at t belongs to the shutdown
    }
}

// Makes the entry of a number live, in the table and in the log.
static void enter_birth(int fd, unsigned kind, int aux, uint32_t slot, uint64_t t, unsigned flags) {
    struct hf_entry *entry = &hf.table[fd];
    entry->t_ns = t;
    entry->stack = slot;
    entry->gen++;
    entry->tid = hf_thread_id();
    entry->kind = (uint16_t)kind;
    entry->flags = (uint16_t)(HF_LIVE | flags);
    entry->aux = aux;
    if (!back_entry((uint32_t)fd)) {
        return;
    }
    struct hf_entry copy = *entry;
    copy.stack = stack_id(slot);
    hf.entries[fd] = copy;
    if ((uint32_t)fd >= hf.fds_end) {
        raise_to(&hf.fds_end, (uint32_t)fd + 1);
        raise_to(&hf.header->fds_end, (uint32_t)fd + 1);
    }
    count_live(1);
}

// Ends the lifetime of a live number. Of two threads that close it at once, one does.
static int enter_close(int fd, uint32_t by, uint64_t t, unsigned action) {
    struct hf_entry *entry = &hf.table[fd];
    if (!(__atomic_fetch_and(&entry->flags, (uint16_t)~HF_LIVE, __ATOMIC_RELAXED) & HF_LIVE)) {
        return 0;
    }
    struct hf_counter *counter = counter_of(entry->stack, entry->kind);
    if (counter) {
        if (entry->flags & (HF_INHERITED | HF_BEFORE)) {
            __atomic_fetch_add(&counter->inherited_closed, 1, __ATOMIC_RELAXED);
        } else {
            __atomic_fetch_add(&counter->closed, 1, __ATOMIC_RELAXED);
            __atomic_fetch_sub(&counter->live, 1, __ATOMIC_RELAXED);
            if (entry->tid != hf_thread_id()) {
                __atomic_fetch_add(&counter->foreign_closed, 1, __ATOMIC_RELAXED);
            }
        }
    }
    entry->closed_by = by;
    if (back_entry((uint32_t)fd)) {
        hf.entries[fd].flags = entry->flags;
        hf.entries[fd].closed_by = by;
    }
    count_live(-1);
    if (hf_on) {
        put_event(t, action, entry->kind, fd, by, entry->gen, entry->aux, 0);
    }
    return 1;
}

static void child_begins(void);

int hf_enter(void) {
    if (!hf_on) {
        return 0;
    }
    // The page is empty in a child that has memory of its own, so this tells a child of fork from one of vfork.
    if (__builtin_expect(!hf_mine->pid, 0)) {
        child_begins();
        if (!hf_on) {
            return 0;
        }
    }
    if (__builtin_expect(hf_me.vforked || !hf_me.tid, 0)) {
        // A child of vfork or clone runs in the memory of its parent, until it calls exec: what it closes is not the
        // parent's. A child of clone may have thread-local memory of its own, which is empty at first.
        if ((uint32_t)HF_CALL1(SYS_getpid, 0) != hf.pid) {
            return 0;
        }
        hf_me.vforked &= 2;
    }
    if (hf_options & HF_ATTACHED) {
        __atomic_fetch_add(&hf.inside, 1, __ATOMIC_SEQ_CST);
        if (!__atomic_load_n(&hf_on, __ATOMIC_SEQ_CST)) {
            __atomic_fetch_sub(&hf.inside, 1, __ATOMIC_SEQ_CST);
            return 0;
        }
    }
    // A hook runs inside another one only in a signal handler. Nothing that it does needs the other one to end.
    if (hf_me.busy >= MAX_NESTED) {
        __atomic_fetch_add(&hf.header->reentrant, 1, __ATOMIC_RELAXED);
        if (hf_options & HF_ATTACHED) {
            __atomic_fetch_sub(&hf.inside, 1, __ATOMIC_SEQ_CST);
        }
        return 0;
    }
    hf_me.busy++;
    hf_thread_id();
    if (hf_options & HF_TIME_HOOKS) {
        hf_me.since = now_ns(CLOCK_MONOTONIC);
    }
    return 1;
}

void hf_leave(void) {
    if (hf_options & HF_TIME_HOOKS && hf.header) {
        __atomic_fetch_add(&hf.header->hook_ns, now_ns(CLOCK_MONOTONIC) - hf_me.since, __ATOMIC_RELAXED);
        __atomic_fetch_add(&hf.header->hooks, 1, __ATOMIC_RELAXED);
    }
    if (hf_me.busy) {
        hf_me.busy--; // 0 where the handler of a signal has forked
    }
    if (hf_options & HF_ATTACHED && __atomic_load_n(&hf.inside, __ATOMIC_RELAXED)) {
        __atomic_fetch_sub(&hf.inside, 1, __ATOMIC_SEQ_CST);
    }
}

static int is_kept(int fd) {
    if ((uint32_t)fd < hf.max_fds) {
        return 1;
    }
    __atomic_fetch_add(&hf.header->beyond, 1, __ATOMIC_RELAXED);
    return 0;
}

// Moves a new descriptor to a number that was not used for long, so that a stale owner gets EBADF and not a stranger's
// descriptor. Begins again at the bottom when the numbers run out.
static int without_reuse(int fd) {
    static uint32_t next = HF_FIRST_UNUSED;
    long flags = HF_CALL2(SYS_fcntl, fd, F_GETFD);
    uint32_t from = __atomic_fetch_add(&next, 1, __ATOMIC_RELAXED);
    for (int tries = 0; tries < 2; tries++, from = HF_FIRST_UNUSED) {
        if (from > HF_LAST_UNUSED) {
            continue;
        }
        // EINVAL: `from` is beyond the limit of this process. EMFILE: all numbers from there on are taken.
        long moved = HF_CALL3(SYS_fcntl, fd, flags & FD_CLOEXEC ? F_DUPFD_CLOEXEC : F_DUPFD, from);
        if (moved > (long)HF_LAST_UNUSED) {
            HF_CALL1(SYS_close, moved);
        } else if (moved >= 0) {
            uint32_t after = (uint32_t)moved + 1;
            if (tries || after > __atomic_load_n(&next, __ATOMIC_RELAXED)) {
                __atomic_store_n(&next, after, __ATOMIC_RELAXED);
            }
            HF_CALL1(SYS_close, fd);
            return (int)moved;
        }
    }
    return fd;
}

int hf_birth(int fd, unsigned kind, int aux, int movable, void *caller) {
    if (hf_options & HF_NO_REUSE && fd > 2 && movable) {
        fd = without_reuse(fd);
    }
    if (!is_kept(fd)) {
        return fd;
    }
    uint64_t t = now_ns(CLOCK_MONOTONIC);
    uint32_t slot = is_armed() ? stack_slot(caller) : 0;
    if (!hf_on) {
        return fd;
    }
    see_finalizing(t);
    if (hf.table[fd].flags & HF_LIVE) {
        __atomic_fetch_add(&hf.header->close_unseen, 1, __ATOMIC_RELAXED);
        enter_close(fd, 0, t, HF_CLOSE_UNSEEN);
    }
    enter_birth(fd, kind, aux, slot, t, 0);
    struct hf_counter *counter = counter_of(slot, kind);
    if (counter) {
        __atomic_fetch_add(&counter->born, 1, __ATOMIC_RELAXED);
        int32_t live = __atomic_add_fetch(&counter->live, 1, __ATOMIC_RELAXED);
        if (live > 0) {
            raise_to(&counter->peak, (uint32_t)live);
        }
    }
    if (hf_on) {
        put_event(t, HF_BIRTH, kind, fd, stack_id(slot), hf.table[fd].gen, aux, 0);
    }
    // The mapping stays: other threads may be in a hook.
    if (hf_options & HF_ATTACHED && __atomic_load_n(&hf.header->stop_requested, __ATOMIC_RELAXED)) {
        hf_on = 0;
    }
    return fd;
}

void hf_failed(unsigned call, void *caller) {
    int error = errno;
    uint64_t t = now_ns(CLOCK_MONOTONIC);
    uint32_t slot = stack_slot(caller);
    __atomic_fetch_add(&hf.header->failed, 1, __ATOMIC_RELAXED);
    if (hf_on) {
        put_event(t, HF_FAIL, 0, -1, stack_id(slot), 0, (int)call, error);
    }
}

int hf_close_begins(int fd, void *caller) {
    if (fd < 0 || !is_kept(fd)) {
        return 1;
    }
    if (!(hf.table[fd].flags & HF_LIVE)) {
        return 0;
    }
    uint64_t t = now_ns(CLOCK_MONOTONIC);
    uint32_t slot = is_armed() ? stack_slot(caller) : 0;
    if (!hf_on) {
        return 1;
    }
    see_finalizing(t);
    return enter_close(fd, stack_id(slot), t, HF_CLOSE);
}

void hf_close_ended(unsigned call, int fd, int known, int failed, void *caller) {
    if (failed && errno == EBADF) {
        // What was taken for open had been closed where no hook could see it, or the number is closed twice.
        if (fd >= 0) {
            hf_bad(call, fd, known, caller);
        }
    } else if (!known) {
        __atomic_fetch_add(&hf.header->birth_unseen, 1, __ATOMIC_RELAXED);
        uint32_t slot = is_armed() ? stack_slot(caller) : 0;
        if (hf_on) {
            put_event(now_ns(CLOCK_MONOTONIC), HF_BIRTH_UNSEEN, 0, fd, stack_id(slot), hf.table[fd].gen, 0, 0);
        }
    }
}

void hf_close_from(unsigned first, unsigned last, void *caller) {
    uint64_t t = now_ns(CLOCK_MONOTONIC);
    uint32_t slot = 0, found = 0;
    for (uint32_t fd = first; fd < hf.fds_end && fd <= last; fd++) {
        if (!(hf.table[fd].flags & HF_LIVE)) {
            continue;
        }
        if (!found++) {
            slot = is_armed() ? stack_slot(caller) : 0;
        }
        if (!hf_on) {
            return;
        }
        enter_close((int)fd, stack_id(slot), t, HF_CLOSE);
    }
}

void hf_bad(unsigned call, int fd, int is_close, void *caller) {
    uint64_t t = now_ns(CLOCK_MONOTONIC);
    uint32_t slot = stack_slot(caller);
    uint32_t gen = (uint32_t)fd < hf.max_fds ? hf.table[fd].gen : 0;
    __atomic_fetch_add(&hf.header->bad, 1, __ATOMIC_RELAXED);
    if (hf_on) {
        put_event(t, HF_BAD, (unsigned)is_close, fd, stack_id(slot), gen, (int)call, EBADF);
    }
}

// -- Beginning and end -----------------------------------------------------------------------------------------------

static char *put_text(char *to, const char *text) {
    while ((*to = *text++)) {
        to++;
    }
    return to;
}

static char *put_number(char *to, uint64_t number) {
    char digits[24];
    int n = 0;
    do {
        digits[n++] = (char)('0' + number % 10);
    } while (number /= 10);
    while (n) {
        *to++ = digits[--n];
    }
    *to = 0;
    return to;
}

static void read_small(const char *path, char *to, size_t size) {
    long fd = HF_CALL4(SYS_openat, AT_FDCWD, path, O_RDONLY | O_CLOEXEC, 0);
    if (fd < 0) {
        return;
    }
    long n = HF_CALL3(SYS_read, fd, to, size - 1);
    to[n > 0 ? n : 0] = 0;
    HF_CALL1(SYS_close, fd);
}

// Leaves an empty file that says that this process has no log, and why.
static void leave_word(int error) {
    char path[640];
    put_number(
        put_text(put_number(put_text(put_text(path, hf.directory), "/lost."), (uint64_t)HF_CALL1(SYS_getpid, 0)), "."),
        (uint64_t)error);
    long fd = HF_CALL4(SYS_openat, AT_FDCWD, path, O_WRONLY | O_CREAT | O_CLOEXEC, 0600);
    if (fd >= 0) {
        HF_CALL1(SYS_close, fd);
    }
}

// Creates and maps the log of this process image. Returns an errno.
static int open_log(void) {
    hf.pid = (uint32_t)HF_CALL1(SYS_getpid, 0);
    hf.start_ns = now_ns(CLOCK_MONOTONIC);
    char *end = put_text(put_text(hf.log_path, hf.directory), "/fd.");
    put_text(put_number(put_text(put_number(end, hf.pid), "."), hf.start_ns), ".log");
    uint64_t entries_at = HF_HEADER_BYTES;
    uint64_t ring_at = entries_at + (uint64_t)hf.max_fds * sizeof(struct hf_entry);
    uint64_t counters_at = ring_at + HF_RING_EVENTS * sizeof(struct hf_event);
    uint64_t records_at = counters_at + HF_STACK_SLOTS * sizeof(struct hf_counter);
    hf.file_bytes = records_at + HF_RECORD_BYTES;
    struct rlimit limit;
    if (!HF_CALL4(SYS_prlimit64, 0, RLIMIT_FSIZE, 0, &limit) && limit.rlim_cur < hf.file_bytes) {
        return EFBIG; // ftruncate would raise SIGXFSZ
    }
    long fd = HF_CALL4(SYS_openat, AT_FDCWD, hf.log_path, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
    if (fd < 0) {
        return (int)-fd;
    }
    long error = HF_CALL2(SYS_ftruncate, fd, hf.file_bytes);
    long map = error ? error
                     : hf_syscall6(SYS_mmap, 0, (long)hf.file_bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_NORESERVE,
                                   fd, 0);
    HF_CALL1(SYS_close, fd);
    int is_mapped = map >= 0 || map <= -4096;
    hf.map = (char *)map;
    if (!is_mapped || !back(hf.map, HF_HEADER_BYTES)) {
        if (is_mapped) {
            HF_CALL2(SYS_munmap, map, hf.file_bytes);
        }
        HF_CALL1(SYS_unlink, hf.log_path);
        return is_mapped ? ENOSPC : (int)-map;
    }
    hf.ring_ready = hf.counters_ready = hf.records_ready = 0;
    memset(hf.entries_ready, 0, sizeof hf.entries_ready);
    hf.header = (struct hf_header *)hf.map;
    hf.entries = (struct hf_entry *)(hf.map + entries_at);
    hf.ring = (struct hf_event *)(hf.map + ring_at);
    hf.counters = (struct hf_counter *)(hf.map + counters_at);
    hf.records = hf.map + records_at;
    struct hf_header *h = hf.header;
    h->version = HF_VERSION;
    h->header_bytes = HF_HEADER_BYTES;
    h->pid = hf.pid;
    h->start_ns = hf.start_ns;
    h->start_real_ns = now_ns(CLOCK_REALTIME);
    h->options = hf_options;
    h->python = hf_python_version();
    h->python_stacks = (uint32_t)hf_python_known();
    h->max_fds = hf.max_fds;
    h->ring_events = HF_RING_EVENTS;
    h->entries_at = entries_at;
    h->ring_at = ring_at;
    h->counters_at = counters_at;
    h->records_at = records_at;
    h->file_bytes = hf.file_bytes;
    hf.counter_base = hf.counter_end;
    hf.record_base = hf.record_end;
    h->counter_base = h->counter_end = hf.counter_base;
    h->record_base = h->record_end = hf.record_base;
    strncpy(h->calls, hf_call_names(), sizeof h->calls - 1);
    struct stat namespace;
    if (!HF_CALL4(SYS_newfstatat, AT_FDCWD, "/proc/self/ns/pid", &namespace, 0)) {
        h->pid_namespace = namespace.st_ino;
    }
    long n = HF_CALL4(SYS_readlinkat, AT_FDCWD, "/proc/self/exe", h->exe, sizeof h->exe - 1);
    if (n < 0) {
        h->exe[0] = 0;
    }
    read_small("/proc/self/cmdline", h->command, sizeof h->command);
    memcpy(h->magic, HF_MAGIC, 8); // last: a file without it is not complete
    return 0;
}

// Enters what is open already: it came by exec, or was made before this library was attached.
static void find_open(void) {
    long dir = HF_CALL4(SYS_openat, AT_FDCWD, "/proc/self/fd", O_RDONLY | O_DIRECTORY | O_CLOEXEC, 0);
    if (dir < 0) {
        return;
    }
    uint64_t t = now_ns(CLOCK_MONOTONIC);
    char buffer[4096];
    for (;;) {
        long n = HF_CALL3(SYS_getdents64, dir, buffer, sizeof buffer);
        if (n <= 0) {
            break;
        }
        for (long at = 0; at < n;) {
            char *item = buffer + at;
            at += *(uint16_t *)(item + 16);
            const char *name = item + 19;
            if (*name < '0' || *name > '9') {
                continue;
            }
            uint32_t fd = 0;
            while (*name) {
                fd = fd * 10 + (uint32_t)(*name++ - '0');
            }
            if (fd == (uint32_t)dir || fd >= hf.max_fds || hf.table[fd].flags & HF_LIVE) {
                continue;
            }
            enter_birth((int)fd, HF_UNKNOWN, 0, 0, t, HF_BEFORE);
            if (!hf_on) {
                break;
            }
            put_event(t, HF_FOUND, 0, (int)fd, 0, hf.table[fd].gen, 0, 0);
            // Another thread may have closed it since the folder was read.
            if (HF_CALL2(SYS_fcntl, fd, F_GETFD) == -EBADF) {
                enter_close((int)fd, 0, t, HF_CLOSE_UNSEEN);
            }
        }
    }
    HF_CALL1(SYS_close, dir);
}

static void child_begins(void) {
    struct hf_header *parent = hf.header;
    uint32_t parent_pid = hf.pid;
    uint64_t parent_start = hf.start_ns;
    char *at = hf.map;
    int was_busy = hf_me.busy;
    hf_me.tid = 0;
    hf_me.busy = hf_me.vforked = 0;
    hf_mine->pid = (uint32_t)HF_CALL1(SYS_getpid, 0);
    hf.header = NULL;
    hf.inside = 0;
    hf_forget_unwinder();
    int error = open_log();
    if (error) {
        __atomic_fetch_add(&parent->lost_children, 1, __ATOMIC_RELAXED);
        hf_on = 0;
        leave_word(error);
    } else {
        hf.header->parent_pid = parent_pid;
        hf.header->parent_start_ns = parent_start;
        hf.header->fds_end = hf.fds_end;
        for (uint32_t fd = 0; fd < hf.fds_end && hf_on; fd++) {
            struct hf_entry *entry = &hf.table[fd];
            if (!(entry->flags & HF_LIVE)) {
                continue;
            }
            entry->flags |= HF_INHERITED;
            if (!back_entry(fd)) {
                break;
            }
            hf.entries[fd] = *entry;
            hf.entries[fd].stack = stack_id(entry->stack);
            count_live(1);
        }
    }
    // A signal handler that forks may have interrupted a hook, which then goes on in both processes.
    if (!was_busy) {
        HF_CALL2(SYS_munmap, at, hf.file_bytes);
    }
}

static void in_parent(void) { hf_fork_ended(0); }

static void in_child(void) {
    hf_fork_ended(1);
    hf_me.tid = 0;
    if (hf_on && !hf_mine->pid) {
        child_begins();
    }
}

static void *private_memory(size_t bytes) {
    void *p = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    return p == MAP_FAILED ? NULL : p;
}

// Ends the recording and unmaps its log. Only an attached library counts who is inside; a thread that stays there (a
// signal handler that jumped away) keeps the log mapped.
static void let_go(void) {
    __atomic_store_n(&hf_on, 0, __ATOMIC_SEQ_CST);
    struct timespec pause = {0, 1000000};
    for (int tries = 0; __atomic_load_n(&hf.inside, __ATOMIC_SEQ_CST) && tries < 100; tries++) {
        HF_CALL2(SYS_nanosleep, &pause, 0);
    }
    if (hf_options & HF_ATTACHED && !hf.inside) {
        HF_CALL2(SYS_munmap, hf.map, hf.file_bytes);
        hf.header = NULL;
    }
}

// Whether a recording that somebody attached goes on without them: they have asked for its end, or were killed. A
// tracer holds a lock on the folder of the logs while it lives.
static int is_abandoned(void) {
    if (!(hf_options & HF_ATTACHED) || !hf.header) {
        return 0;
    }
    if (__atomic_load_n(&hf.header->stop_requested, __ATOMIC_RELAXED)) {
        return 1;
    }
    long folder = HF_CALL4(SYS_openat, AT_FDCWD, hf.directory, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC, 0);
    if (folder < 0) {
        return folder == -ENOENT; // the next tracer has removed it
    }
    long locked = HF_CALL2(SYS_flock, folder, LOCK_EX | LOCK_NB);
    HF_CALL1(SYS_close, folder);
    return !locked;
}

int hf_start(const char *directory, unsigned options, unsigned arm_above) {
    if (hf_on && !is_abandoned()) {
        return EBUSY;
    }
    if (strlen(directory) >= sizeof hf.directory) {
        return ENAMETOOLONG;
    }
    if (hf.header) { // of a recording that stopped by itself
        let_go();
    }
    strcpy(hf.directory, directory);
    hf.arm_above = arm_above;
    hf_options = options;
    struct rlimit limit = {1024, 1024};
    getrlimit(RLIMIT_NOFILE, &limit);
    if (!hf.table) {
        // A multiple of a page of entries; the hard limit, because a process may raise its soft one.
        hf.max_fds = limit.rlim_max < HF_MAX_FDS ? ((uint32_t)limit.rlim_max + 127) / 128 * 128 : HF_MAX_FDS;
        hf_mine = private_memory(4096);
        hf.table = private_memory((size_t)hf.max_fds * sizeof(struct hf_entry));
        hf.stack_slots = private_memory(HF_STACK_SLOTS * sizeof(uint64_t));
        hf.counter_slots = private_memory((HF_STACK_SLOTS + 1) * sizeof(uint32_t));
        hf.code_slots = private_memory(HF_CODE_SLOTS * sizeof(uint64_t));
        if (!hf_mine || !hf.table || !hf.stack_slots || !hf.counter_slots || !hf.code_slots) {
            return ENOMEM;
        }
        if (madvise(hf_mine, 4096, MADV_WIPEONFORK)) {
            return ENOSYS;
        }
        pthread_atfork(hf_fork_begins, in_parent, in_child);
        hf.record_end = 1;
    } else { // a second recording in this process: nothing of the first is valid in a new file
        memset(hf.table, 0, (size_t)hf.fds_end * sizeof(struct hf_entry));
        memset(hf.stack_slots, 0, HF_STACK_SLOTS * sizeof(uint64_t));
        memset(hf.counter_slots, 0, (HF_STACK_SLOTS + 1) * sizeof(uint32_t));
        memset(hf.code_slots, 0, HF_CODE_SLOTS * sizeof(uint64_t));
        hf.stacks = hf.codes = hf.counter_end = hf.fds_end = hf.inside = 0;
        hf.record_end = 1;
    }
    hf_find_python();
    int error = open_log();
    if (error) {
        leave_word(error);
        return error;
    }
    hf_mine->pid = hf.pid;
    hf_on = 1;
    hf_me.busy = 1;
    find_open();
    hf_me.busy = 0;
    return hf_on ? 0 : ENOSPC;
}

// Writes the memory map beside the log: it names the libraries of the return addresses.
static void keep_maps(void) {
    char path[640];
    put_text(put_text(path, hf.log_path), ".maps");
    long from = HF_CALL4(SYS_openat, AT_FDCWD, "/proc/self/maps", O_RDONLY | O_CLOEXEC, 0);
    if (from < 0) {
        return;
    }
    long to = HF_CALL4(SYS_openat, AT_FDCWD, path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
    char buffer[4096];
    long n;
    while (to >= 0 && (n = HF_CALL3(SYS_read, from, buffer, sizeof buffer)) > 0) {
        if (HF_CALL3(SYS_write, to, buffer, n) != n) {
            break;
        }
    }
    if (to >= 0) {
        HF_CALL1(SYS_close, to);
    }
    HF_CALL1(SYS_close, from);
}

void hf_stop(unsigned how) {
    if (!hf.header || !hf_mine->pid || (how != 3 && (!hf_on || hf.header->end_ns))) {
        return;
    }
    if ((uint32_t)HF_CALL1(SYS_getpid, 0) != hf.pid) {
        return; // a child of vfork or clone
    }
    if (hf_options & HF_NATIVE) {
        keep_maps();
    }
    hf.header->end_kind = how;
    hf.header->end_ns = now_ns(CLOCK_MONOTONIC);
    if (how != 3) {
        return;
    }
    let_go();
}

// -- Programs that are started ---------------------------------------------------------------------------------------

uint64_t hf_now(void) { return now_ns(CLOCK_MONOTONIC); }

int hf_has_library(char *const env[]) {
    for (; env && *env; env++) {
        if (!strncmp(*env, "LD_PRELOAD=", 11)) {
            return strstr(*env, "/_fdtrace.") != NULL;
        }
    }
    return 0;
}

// Runs in a child of vfork, too: it writes to its own stack only. `program` is NULL if only argv names it.
void hf_note_start(struct hf_note *note, long pid, uint64_t before, const char *program, char *const argv[],
                   char *const env[]) {
    char text[256];
    char *at = put_text(text, hf_has_library(env) ? "? " : "env ");
    for (size_t i = 0; argv && argv[i] && at < text + sizeof text - 1; i++) {
        const char *word = i == 0 && program ? program : argv[i];
        if (i) {
            *at++ = ' ';
        }
        while (*word && at < text + sizeof text - 1) {
            *at++ = *word++;
        }
    }
    *at = 0;
    char *end = put_number(put_text(put_text(note->path, hf.directory), "/exec."), (uint64_t)pid);
    put_number(put_text(end, "."), before);
    if (HF_CALL2(SYS_symlink, text, note->path) < 0) {
        note->path[0] = 0;
    }
}

void hf_note_failed(struct hf_note *note) {
    if (note->path[0]) {
        HF_CALL1(SYS_unlink, note->path);
    }
}

// -- What a loader calls ---------------------------------------------------------------------------------------------

static unsigned number_of(const char *text) { return text ? (unsigned)strtoul(text, NULL, 10) : 0; }

__attribute__((constructor(101))) static void begin(void) {
    const char *directory = getenv("HOLDFAST_FDTRACE_DIR");
    if (!directory || !*directory) {
        return;
    }
    hf_start(directory, number_of(getenv("HOLDFAST_FDTRACE_OPTIONS")) & ~(unsigned)HF_ATTACHED,
             number_of(getenv("HOLDFAST_FDTRACE_ARM_ABOVE")));
}

__attribute__((destructor)) static void end(void) {
    if (hf_on && hf_mine && hf_mine->pid) {
        hf_stop(1);
    }
}

HF_EXPORT int hf_trace_attach(const char *directory, unsigned options, unsigned arm_above) {
    int error = hf_start(directory, options | HF_ATTACHED, arm_above);
    if (!error) {
        hf_patch_loaded();
    }
    return error;
}

HF_EXPORT void hf_trace_stop(void) { hf_stop(3); }
HF_EXPORT int hf_trace_is_on(void) { return hf_on; }
HF_EXPORT const char *hf_trace_log(void) { return hf.log_path; }
