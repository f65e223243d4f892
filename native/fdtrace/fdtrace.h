// Records every descriptor that a process makes, copies, receives and closes, with the Python stack of the caller.
//
// One library, loaded by LD_PRELOAD (its symbols come before libc's) or into a running process (it then patches the
// GOT slots of what is loaded). It is not linked to Python. Everything that a hook does is async-signal-safe: no
// allocation, no locks, no Python API beyond PyGILState_GetThisThreadState, and errno is kept.
//
// The log of a process image is one file that is mapped MAP_SHARED, so what was recorded survives SIGKILL. Its
// layout is the structs below; src/holdfast/process/fdtrace/image.py reads it.
#ifndef HOLDFAST_FDTRACE_H
#define HOLDFAST_FDTRACE_H

#include <stdint.h>

#define HF_EXPORT __attribute__((visibility("default")))

#define HF_MAGIC "HFTRACE1"
#define HF_VERSION 1

// Bounds of one process image. The file is sparse: only what is used takes memory.
#define HF_HEADER_BYTES 4096
#define HF_MAX_FDS (1u << 20)     // numbers beyond are counted in `beyond`, not recorded
#define HF_RING_EVENTS (1u << 15) // 1 MiB of history; a power of two
// Each index of stacks and of code begins small, so that a fork copies little, and goes on in a larger part. Importing
// TensorFlow takes 8,000 stacks and 1,500 code objects, which are 7 MB of records.
#define HF_STACK_SLOTS_SMALL (1u << 14)
#define HF_STACK_SLOTS (HF_STACK_SLOTS_SMALL + (1u << 16)) // 3/4 for full stacks, the rest for those of two frames
#define HF_CODE_SLOTS_SMALL (1u << 13)
#define HF_CODE_SLOTS (HF_CODE_SLOTS_SMALL + (1u << 15))
#define HF_RECORD_BYTES (48u << 20) // code and stack records
#define HF_MAX_FRAMES 96
#define HF_MAX_NATIVE 32
#define HF_FIRST_UNUSED 64   // --no-reuse moves descriptors to this number or a higher one,
#define HF_LAST_UNUSED 1023u // but not beyond what fits into an fd_set: select() would write over its end

enum hf_action {
    HF_BIRTH = 1,
    HF_CLOSE = 2,
    HF_BAD =
        3, // EBADF: the number was used or closed while it was not open; `aux` is the call, the kind hf_bad's is_close
    HF_FAIL = 4,         // EMFILE or ENFILE; `aux` is the call
    HF_CLOSE_UNSEEN = 5, // the number was born again without a close that could be seen
    HF_BIRTH_UNSEEN = 6, // a close succeeded for a number whose birth was not seen
    HF_FOUND = 7,        // open when recording began
};

enum hf_kind {
    HF_UNKNOWN,
    HF_FILE,
    HF_DIR,
    HF_PIPE,
    HF_SOCKET,
    HF_EVENTFD,
    HF_TIMERFD,
    HF_SIGNALFD,
    HF_EPOLL,
    HF_INOTIFY,
    HF_FANOTIFY,
    HF_MEMFD,
    HF_SHM,
    HF_MQ,
    HF_PIDFD,
    HF_PTY,
    HF_DUP,
    HF_RECEIVED,
    HF_IO_URING,
};

// Flags of an entry of the descriptor table.
#define HF_LIVE 1u
#define HF_INHERITED 2u // by fork; the stack is the parent's
#define HF_BEFORE 4u    // open when recording began (exec, attach)

struct hf_event {
    uint64_t t_ns; // CLOCK_MONOTONIC; 0 while the event is being written
    uint32_t tid;
    int32_t fd;
    uint32_t stack;  // id of a stack record, 0 for none
    uint16_t action; // hf_action | hf_kind << 8
    uint16_t error;
    int32_t aux;  // open flags, socket domain, source descriptor or call, by kind
    uint32_t gen; // counts the lifetimes of the number
};

struct hf_entry {
    uint64_t t_ns;
    uint32_t stack; // private table: slot + 1 in the stack index; file: id of the stack record
    uint32_t gen;
    uint32_t tid;
    uint16_t kind;
    uint16_t flags;
    int32_t aux;
    uint32_t closed_by; // id of the stack record of the last close
};

// Exact counts of one stack in one process image, whatever the ring has dropped.
struct hf_counter {
    uint32_t stack;
    uint16_t kind;
    uint16_t reserved;
    uint32_t born;
    uint32_t closed;
    int32_t live;
    uint32_t peak;
    uint32_t inherited_closed; // closes of descriptors that came by fork
    uint32_t foreign_closed;   // closes by a thread other than the one of the birth
};

enum hf_record_type { HF_CODE = 1, HF_STACK = 2 };

struct hf_code_record {
    uint32_t bytes;
    uint16_t type;
    uint8_t file_width, name_width; // bytes a character
    uint32_t first_line;
    uint32_t file_bytes, name_bytes, table_bytes;
    // then the file name, the qualified name and the line table
};

struct hf_stack_record {
    uint32_t bytes;
    uint16_t type;
    uint16_t frames; // innermost first: {u32 code record, u32 offset of the instruction in bytes}
    uint16_t native; // return addresses, innermost first; the first is that of the hooked call
    uint16_t flags;  // 1: frames were cut off
    uint32_t reserved;
    // then the frames, then the addresses
};

struct hf_header {
    char magic[8];
    uint32_t version, header_bytes;
    uint32_t pid, parent_pid;         // the parent image by fork, 0 after exec
    uint64_t start_ns, start_real_ns; // the same moment on both clocks
    uint64_t parent_start_ns;
    uint32_t options, python; // Py_Version of the process, 0 for none
    uint32_t max_fds, ring_events;
    uint64_t entries_at, ring_at, counters_at, records_at, file_bytes;
    uint32_t counter_base, record_base; // ids below belong to the parent image
    // What follows changes while the process runs.
    uint64_t ring_head; // events written since the start
    uint32_t counter_end, record_end;
    uint32_t fds_end; // highest number seen + 1
    int32_t live;
    uint32_t peak;
    uint32_t stopped; // errno of what stopped the recording, 0
    uint64_t finalizing_ns, end_ns;
    uint32_t end_kind; // 1: exit, 2: _exit, 3: recording stopped
    uint32_t lost_stacks, lost_children, reentrant, beyond;
    uint32_t bad, failed, close_unseen, birth_unseen;
    uint32_t short_stacks;   // of two frames, because the tables were full
    uint64_t hook_ns, hooks; // with HF_TIME_HOOKS
    uint32_t python_stacks;  // 0: frames of this Python are not known
    uint32_t stop_requested; // written by the tracer of an attached process
    char calls[1792];        // names of the hooked calls by number, separated by spaces
    char exe[256];
    char command[1536];     // as in /proc/PID/cmdline
    uint64_t pid_namespace; // inode of the namespace that `pid` is a number of, 0 if it is not known
};
_Static_assert(sizeof(struct hf_header) <= HF_HEADER_BYTES, "header");
_Static_assert(sizeof(struct hf_event) == 32 && sizeof(struct hf_entry) == 32 && sizeof(struct hf_counter) == 32,
               "layout");

enum hf_option { HF_NATIVE = 1, HF_EBADF = 2, HF_NO_REUSE = 4, HF_TIME_HOOKS = 8, HF_ATTACHED = 16 };

// State of the calling thread. `vforked` is 1 between a vfork and the first hook that runs in the parent again, and 2
// after a clone, whose child may share this memory for longer.
struct hf_thread {
    uint32_t tid;
    uint8_t busy, vforked; // busy: hooks that the thread is in
    uint64_t since;        // with HF_TIME_HOOKS
};
extern __thread struct hf_thread hf_me __attribute__((tls_model("initial-exec"), visibility("hidden")));
extern int hf_on __attribute__((visibility("hidden")));
extern unsigned hf_options __attribute__((visibility("hidden")));

#pragma GCC visibility push(hidden)
// record.c
int hf_enter(void); // 0: this call is not recorded
void hf_leave(void);
int hf_birth(int fd, unsigned kind, int aux, int movable, void *caller); // returns the number to use
void hf_failed(unsigned call, void *caller);
int hf_close_begins(int fd, void *caller); // 1: the number was known to be open
void hf_close_ended(unsigned call, int fd, int known, int failed, void *caller);
void hf_close_from(unsigned first, unsigned last, void *caller);
void hf_bad(unsigned call, int fd, int is_close, void *caller); // is_close: the event before it is this call
int hf_start(const char *directory, unsigned options, unsigned arm_above);
void hf_stop(unsigned how);
uint32_t hf_thread_id(void);
// A link `exec.PID.TIME` in the folder of the logs that holds the command of a program: it needs no descriptor.
struct hf_note {
    char path[640];
};
uint64_t hf_now(void);
int hf_has_library(char *const env[]);
void hf_note_start(struct hf_note *note, long pid, uint64_t before, const char *program, char *const argv[],
                   char *const env[]);
void hf_note_failed(struct hf_note *note);

// frames.c
struct hf_frames {
    uint64_t hash;
    uint16_t count, native, cut;
    const char *code[HF_MAX_FRAMES];
    uint32_t instr[HF_MAX_FRAMES];
    void *address[HF_MAX_NATIVE];
};
void hf_find_python(void);
void hf_forget_unwinder(void);
uint32_t hf_python_version(void);
int hf_python_known(void);
int hf_python_finalizing(void);
uint64_t hf_code_identity(const char *code);
int hf_is_generated(const char *code);
int hf_is_library(const char *code);
void hf_capture(struct hf_frames *out, void *caller);
uint32_t hf_measure_code(const char *code); // bytes of its record
void hf_write_code(const char *code, struct hf_code_record *to);

// hooks.c
const char *hf_call_names(void);
void *hf_behind(unsigned call);

// got.c
void hf_patch_loaded(void);
void hf_fork_begins(void);
void hf_fork_ended(int in_child);
#pragma GCC visibility pop

// Raw system calls: they neither pass through the hooks nor touch errno.
static inline long hf_syscall6(long n, long a, long b, long c, long d, long e, long f) {
    register long r10 __asm__("r10") = d;
    register long r8 __asm__("r8") = e;
    register long r9 __asm__("r9") = f;
    long result;
    __asm__ volatile("syscall"
                     : "=a"(result)
                     : "a"(n), "D"(a), "S"(b), "d"(c), "r"(r10), "r"(r8), "r"(r9)
                     : "rcx", "r11", "memory");
    return result;
}
#define HF_CALL1(n, a) hf_syscall6(n, (long)(a), 0, 0, 0, 0, 0)
#define HF_CALL2(n, a, b) hf_syscall6(n, (long)(a), (long)(b), 0, 0, 0, 0)
#define HF_CALL3(n, a, b, c) hf_syscall6(n, (long)(a), (long)(b), (long)(c), 0, 0, 0)
#define HF_CALL4(n, a, b, c, d) hf_syscall6(n, (long)(a), (long)(b), (long)(c), (long)(d), 0, 0)

#endif
