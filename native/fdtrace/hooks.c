// The hooked libc functions. A birth is recorded after the call, when it has succeeded; a close before it, because
// another thread may be given the number as soon as the kernel has let go of it.
#undef _FORTIFY_SOURCE
#include "fdtrace.h"

#include <dirent.h>
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <mqueue.h>
#include <poll.h>
#include <sched.h>
#include <pty.h>
#include <spawn.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/fanotify.h>
#include <sys/file.h>
#include <sys/inotify.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/select.h>
#include <sys/sendfile.h>
#include <sys/signalfd.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <sys/syscall.h>
#include <sys/timerfd.h>
#include <sys/uio.h>
#include <termios.h>
#include <unistd.h>

// glibc declares these only for other headers or older standards.
int __open_2(const char *, int);
int __open64_2(const char *, int);
int __openat_2(int, const char *, int);
int __openat64_2(int, const char *, int);
int pidfd_open(pid_t, unsigned);
int pidfd_getfd(int, int, unsigned);
ssize_t __read_chk(int, void *, size_t, size_t);
ssize_t __pread_chk(int, void *, size_t, off_t, size_t);
ssize_t __pread64_chk(int, void *, size_t, off64_t, size_t);
ssize_t __recv_chk(int, void *, size_t, size_t, int);
ssize_t __recvfrom_chk(int, void *, size_t, size_t, int, struct sockaddr *, socklen_t *);
int __poll_chk(struct pollfd *, nfds_t, int, size_t);
int __fxstat(int, int, struct stat *);
int __fxstat64(int, int, struct stat64 *);

enum {
#define HOOK(name) CALL_##name,
#define WATCH(name) CALL_##name,
#include "hooks.def"
#undef HOOK
#undef WATCH
    CALLS
};

static const char NAMES[] =
#define HOOK(name) #name " "
#define WATCH(name) #name " "
#include "hooks.def"
#undef HOOK
#undef WATCH
    ;

_Static_assert(sizeof NAMES <= sizeof((struct hf_header *)0)->calls, "calls");

const char *hf_call_names(void) { return NAMES; }

// -- The functions behind the hooks ----------------------------------------------------------------------------------

static void *behind[CALLS];

static const char *name_of(unsigned call, char *to, size_t size) {
    const char *from = NAMES;
    while (call--) {
        from = strchr(from, ' ') + 1;
    }
    size_t length = (size_t)(strchr(from, ' ') - from);
    if (length >= size) {
        length = size - 1;
    }
    memcpy(to, from, length);
    to[length] = 0;
    return to;
}

static long missing(void) {
    errno = ENOSYS;
    return -1;
}

static __attribute__((noinline, cold)) void *resolve(unsigned call) {
    int saved = errno;
    char name[32];
    name_of(call, name, sizeof name);
    void *found = dlsym(RTLD_NEXT, name);
    if (!found) { // the library was loaded into a running process: libc comes before it
        void *libc = dlopen("libc.so.6", RTLD_LAZY | RTLD_NOLOAD);
        if (libc) {
            found = dlsym(libc, name);
        }
    }
    if (!found) {
        found = (void *)missing;
    }
    __atomic_store_n(&behind[call], found, __ATOMIC_RELEASE);
    errno = saved;
    return found;
}

static inline void *function(unsigned call) {
    void *found = __atomic_load_n(&behind[call], __ATOMIC_RELAXED);
    return __builtin_expect(found != NULL, 1) ? found : resolve(call);
}

#define REAL(name) ((__typeof__(&name))function(CALL_##name))
#define CALLER __builtin_return_address(0)

// -- Shapes ----------------------------------------------------------------------------------------------------------

static int enter_born(unsigned call, int fd, unsigned kind, int aux, int movable, void *caller) {
    if (fd < 0 && errno != EMFILE && errno != ENFILE) {
        return fd;
    }
    int saved = errno;
    if (!hf_enter()) {
        return fd;
    }
    if (fd < 0) {
        hf_failed(call, caller);
    } else {
        fd = hf_birth(fd, kind, aux, movable, caller);
    }
    hf_leave();
    errno = saved;
    return fd;
}

static int born(unsigned call, int fd, unsigned kind, int aux, void *caller) {
    return enter_born(call, fd, kind, aux, 1, caller);
}

// The caller knows the number: it chose it (dup2), or it is in a FILE or DIR. --no-reuse must not move it.
static void born_here(unsigned call, int fd, unsigned kind, int aux, void *caller) {
    enter_born(call, fd, kind, aux, 0, caller);
}

static int born_pair(unsigned call, int result, int fds[2], unsigned kind, int aux, void *caller) {
    if (result < 0) {
        return born(call, result, kind, aux, caller);
    }
    int first = born(call, fds[0], kind, fds[1], caller);
    int second = born(call, fds[1], kind, first, caller);
    fds[0] = first, fds[1] = second;
    return result;
}

static int closing(int fd, void *caller) {
    int saved = errno, known = 1;
    if (hf_enter()) {
        known = hf_close_begins(fd, caller);
        hf_leave();
    }
    errno = saved;
    return known;
}

static void closed(unsigned call, int fd, int known, int failed, void *caller) {
    if (known && !failed) {
        return;
    }
    int saved = errno;
    if (hf_enter()) {
        errno = saved;
        hf_close_ended(call, fd, known, failed, caller);
        hf_leave();
    }
    errno = saved;
}

static int close_with(unsigned call, int fd, void *caller, int (*real)(int)) {
    if (!hf_on) {
        return real(fd);
    }
    int known = closing(fd, caller);
    int result = real(fd);
    closed(call, fd, known, result < 0, caller);
    return result;
}

// Returns whether this is a child of vfork, whose hooks record nothing.
static __attribute__((noinline, cold)) int is_vforked(void) {
    if (hf_enter()) {
        hf_leave();
        return 0;
    }
    return hf_me.vforked == 1;
}

// A child of vfork has the memory, the stack and the descriptors of its parent. What is not open there was closed by the
// parent, which gets the error: subprocess.Popen(stdout=a closed number).
static __attribute__((noinline, cold)) void bad(unsigned call, int fd, void *caller) {
    int saved = errno, child = is_vforked();
    hf_me.vforked ^= (uint8_t)child;
    if (hf_enter()) {
        hf_bad(call, fd, 0, caller);
        hf_leave();
    }
    hf_me.vforked ^= (uint8_t)child;
    errno = saved;
}

#define IS_BAD(failed) (__builtin_expect(failed, 0) && errno == EBADF && hf_on && hf_options & HF_EBADF)

#define BIRTH(kind, name, parameters, arguments, aux)                                                                  \
    HF_EXPORT int name parameters {                                                                                    \
        int fd = REAL(name) arguments;                                                                                 \
        return __builtin_expect(hf_on, 1) ? born(CALL_##name, fd, kind, aux, CALLER) : fd;                             \
    }

#define USE(type, name, parameters, arguments)                                                                         \
    HF_EXPORT type name parameters {                                                                                   \
        type result = REAL(name) arguments;                                                                            \
        if (IS_BAD(result == (type) - 1))                                                                              \
            bad(CALL_##name, fd, CALLER);                                                                              \
        return result;                                                                                                 \
    }

// -- Files -----------------------------------------------------------------------------------------------------------

static inline mode_t mode_of(int flags, va_list list) {
    return flags & O_CREAT || (flags & O_TMPFILE) == O_TMPFILE ? va_arg(list, mode_t) : 0;
}

#define OPEN(name, at, parameters, ...)                                                                                \
    HF_EXPORT int name parameters {                                                                                    \
        va_list list;                                                                                                  \
        va_start(list, flags);                                                                                         \
        mode_t mode = mode_of(flags, list);                                                                            \
        va_end(list);                                                                                                  \
        int fd = REAL(name)(__VA_ARGS__, flags, mode);                                                                 \
        if (IS_BAD(fd < 0))                                                                                            \
            bad(CALL_##name, at, CALLER);                                                                              \
        return __builtin_expect(hf_on, 1)                                                                              \
                   ? born(CALL_##name, fd, (flags & O_TMPFILE) == O_DIRECTORY ? HF_DIR : HF_FILE, flags, CALLER)       \
                   : fd;                                                                                               \
    }
OPEN(open, -1, (const char *path, int flags, ...), path)
OPEN(open64, -1, (const char *path, int flags, ...), path)
OPEN(openat, folder, (int folder, const char *path, int flags, ...), folder, path)
OPEN(openat64, folder, (int folder, const char *path, int flags, ...), folder, path)
BIRTH(HF_FILE, __open_2, (const char *path, int flags), (path, flags), flags)
BIRTH(HF_FILE, __open64_2, (const char *path, int flags), (path, flags), flags)
BIRTH(HF_FILE, __openat_2, (int at, const char *path, int flags), (at, path, flags), flags)
BIRTH(HF_FILE, __openat64_2, (int at, const char *path, int flags), (at, path, flags), flags)
BIRTH(HF_FILE, creat, (const char *path, mode_t mode), (path, mode), O_CREAT)
BIRTH(HF_FILE, creat64, (const char *path, mode_t mode), (path, mode), O_CREAT)
BIRTH(HF_FILE, mkstemp, (char *path), (path), 0)
BIRTH(HF_FILE, mkstemp64, (char *path), (path), 0)
BIRTH(HF_FILE, mkostemp, (char *path, int flags), (path, flags), flags)
BIRTH(HF_FILE, mkostemp64, (char *path, int flags), (path, flags), flags)
BIRTH(HF_FILE, mkstemps, (char *path, int suffix), (path, suffix), 0)
BIRTH(HF_FILE, mkstemps64, (char *path, int suffix), (path, suffix), 0)
BIRTH(HF_FILE, mkostemps, (char *path, int suffix, int flags), (path, suffix, flags), flags)
BIRTH(HF_FILE, mkostemps64, (char *path, int suffix, int flags), (path, suffix, flags), flags)

#define STREAM(kind, name, parameters, arguments)                                                                      \
    HF_EXPORT FILE *name parameters {                                                                                  \
        FILE *file = REAL(name) arguments;                                                                             \
        if (__builtin_expect(hf_on, 1))                                                                                \
            born_here(CALL_##name, file ? fileno(file) : -1, kind, 0, CALLER);                                         \
        return file;                                                                                                   \
    }
STREAM(HF_FILE, fopen, (const char *path, const char *mode), (path, mode))
STREAM(HF_FILE, fopen64, (const char *path, const char *mode), (path, mode))
STREAM(HF_FILE, tmpfile, (void), ())
STREAM(HF_FILE, tmpfile64, (void), ())

// The headers promise the compiler that a stream is not NULL, but libc answers EINVAL to one that is.
static inline void *maybe_null(void *stream) {
    __asm__("" : "+r"(stream));
    return stream;
}

// A stream without a descriptor (memory, a cookie) has the number -1.
static int number_of(FILE *file) {
    int saved = errno;
    file = maybe_null(file);
    int fd = file ? fileno(file) : -1;
    errno = saved;
    return fd;
}

#define REOPEN(name)                                                                                                   \
    HF_EXPORT FILE *name(const char *path, const char *mode, FILE *file) {                                             \
        int old = hf_on ? number_of(file) : -1;                                                                        \
        if (old >= 0)                                                                                                  \
            closing(old, CALLER);                                                                                      \
        FILE *result = REAL(name)(path, mode, file);                                                                   \
        if (hf_on)                                                                                                     \
            born_here(CALL_##name, number_of(result), HF_FILE, 0, CALLER);                                             \
        return result;                                                                                                 \
    }
REOPEN(freopen)
REOPEN(freopen64)

#define CLOSE_STREAM(name)                                                                                             \
    HF_EXPORT int name(FILE *file) {                                                                                   \
        int fd = hf_on ? number_of(file) : -1;                                                                         \
        int known = fd < 0 || closing(fd, CALLER);                                                                     \
        int result = REAL(name)(file);                                                                                 \
        if (fd >= 0)                                                                                                   \
            closed(CALL_##name, fd, known, result < 0, CALLER);                                                        \
        return result;                                                                                                 \
    }
CLOSE_STREAM(fclose)
CLOSE_STREAM(pclose)

HF_EXPORT DIR *opendir(const char *path) {
    DIR *dir = REAL(opendir)(path);
    if (hf_on) {
        born_here(CALL_opendir, dir ? dirfd(dir) : -1, HF_DIR, 0, CALLER);
    }
    return dir;
}

HF_EXPORT int closedir(DIR *dir) {
    int fd = hf_on && maybe_null(dir) ? dirfd(dir) : -1;
    int known = fd < 0 || closing(fd, CALLER);
    int result = REAL(closedir)(dir);
    if (fd >= 0) {
        closed(CALL_closedir, fd, known, result < 0, CALLER);
    }
    return result;
}

// -- Pipes, copies, sockets ------------------------------------------------------------------------------------------

HF_EXPORT int pipe(int fds[2]) {
    int result = REAL(pipe)(fds);
    return hf_on ? born_pair(CALL_pipe, result, fds, HF_PIPE, 0, CALLER) : result;
}

HF_EXPORT int pipe2(int fds[2], int flags) {
    int result = REAL(pipe2)(fds, flags);
    return hf_on ? born_pair(CALL_pipe2, result, fds, HF_PIPE, flags, CALLER) : result;
}

HF_EXPORT int socketpair(int domain, int type, int protocol, int fds[2]) {
    int result = REAL(socketpair)(domain, type, protocol, fds);
    return hf_on ? born_pair(CALL_socketpair, result, fds, HF_SOCKET, domain, CALLER) : result;
}

// Of two numbers of a call that has failed with EBADF, returns the one that is not open.
static int bad_of(int fd, int other) { return HF_CALL2(SYS_fcntl, fd, F_GETFD) == -EBADF ? fd : other; }

// dup2 replaces the number in one step, so no other thread can be given it in between: all is recorded afterwards.
static void copied(unsigned call, int from, int to, int fd, void *caller) {
    if (fd < 0 && errno == EBADF && hf_options & HF_EBADF) {
        bad(call, bad_of(from, to), caller);
    }
    if (from == to) {
        return;
    }
    if (fd >= 0) {
        closing(to, caller);
    }
    born_here(call, fd, HF_DUP, from, caller);
}

HF_EXPORT int dup(int from) {
    int fd = REAL(dup)(from);
    if (IS_BAD(fd < 0)) {
        bad(CALL_dup, from, CALLER);
    }
    return hf_on ? born(CALL_dup, fd, HF_DUP, from, CALLER) : fd;
}

HF_EXPORT int dup2(int from, int to) {
    int fd = REAL(dup2)(from, to);
    if (hf_on) {
        copied(CALL_dup2, from, to, fd, CALLER);
    }
    return fd;
}

HF_EXPORT int dup3(int from, int to, int flags) {
    int fd = REAL(dup3)(from, to, flags);
    if (hf_on) {
        copied(CALL_dup3, from, to, fd, CALLER);
    }
    return fd;
}

#define FCNTL(name)                                                                                                      \
    HF_EXPORT int name(int fd, int command, ...) {                                                                       \
        va_list list;                                                                                                    \
        va_start(list, command);                                                                                         \
        void *argument = va_arg(list, void *);                                                                           \
        va_end(list);                                                                                                    \
        int result = REAL(name)(fd, command, argument);                                                                  \
        /* F_GETFD only asks whether the number is open, except in a child of vfork: pass_fds. */                        \
        if (IS_BAD(result < 0) && (command != F_GETFD || is_vforked()))                                                  \
            bad(CALL_##name, fd, CALLER);                                                                                \
        if ((command != F_DUPFD && command != F_DUPFD_CLOEXEC) || !hf_on)                                                \
            return result;                                                                                               \
        /* The caller asked for a number that is at least `argument`; --no-reuse moves it to HF_FIRST_UNUSED or more. */ \
        return enter_born(CALL_##name, result, HF_DUP, fd, (long)argument <= HF_FIRST_UNUSED, CALLER);                   \
    }
FCNTL(fcntl)
FCNTL(fcntl64)

BIRTH(HF_SOCKET, socket, (int domain, int type, int protocol), (domain, type, protocol), domain)
#define ACCEPT(name, parameters, arguments)                                                                            \
    HF_EXPORT int name parameters {                                                                                    \
        int result = REAL(name) arguments;                                                                             \
        if (IS_BAD(result < 0))                                                                                        \
            bad(CALL_##name, fd, CALLER);                                                                              \
        return hf_on ? born(CALL_##name, result, HF_SOCKET, fd, CALLER) : result;                                      \
    }
ACCEPT(accept, (int fd, struct sockaddr *address, socklen_t *length), (fd, address, length))
ACCEPT(accept4, (int fd, struct sockaddr *address, socklen_t *length, int flags), (fd, address, length, flags))

static void received(unsigned call, struct msghdr *message, void *caller) {
    for (struct cmsghdr *part = CMSG_FIRSTHDR(message); part; part = CMSG_NXTHDR(message, part)) {
        if (part->cmsg_level != SOL_SOCKET || part->cmsg_type != SCM_RIGHTS) {
            continue;
        }
        for (size_t at = CMSG_LEN(0); at + sizeof(int) <= part->cmsg_len; at += sizeof(int)) {
            int fd;
            memcpy(&fd, (char *)part + at, sizeof fd);
            fd = born(call, fd, HF_RECEIVED, 0, caller);
            memcpy((char *)part + at, &fd, sizeof fd);
        }
    }
}

HF_EXPORT ssize_t recvmsg(int fd, struct msghdr *message, int flags) {
    ssize_t result = REAL(recvmsg)(fd, message, flags);
    if (hf_on && result >= 0 && message->msg_controllen) {
        received(CALL_recvmsg, message, CALLER);
    }
    if (IS_BAD(result < 0)) {
        bad(CALL_recvmsg, fd, CALLER);
    }
    return result;
}

HF_EXPORT int recvmmsg(int fd, struct mmsghdr *messages, unsigned count, int flags, struct timespec *timeout) {
    int result = REAL(recvmmsg)(fd, messages, count, flags, timeout);
    for (int i = 0; hf_on && i < result; i++) {
        if (messages[i].msg_hdr.msg_controllen) {
            received(CALL_recvmmsg, &messages[i].msg_hdr, CALLER);
        }
    }
    if (IS_BAD(result < 0)) {
        bad(CALL_recvmmsg, fd, CALLER);
    }
    return result;
}

// -- The kernel's other descriptors ----------------------------------------------------------------------------------

BIRTH(HF_EVENTFD, eventfd, (unsigned initial, int flags), (initial, flags), flags)
BIRTH(HF_TIMERFD, timerfd_create, (clockid_t clock, int flags), (clock, flags), flags)
BIRTH(HF_EPOLL, epoll_create, (int size), (size), 0)
BIRTH(HF_EPOLL, epoll_create1, (int flags), (flags), flags)
BIRTH(HF_INOTIFY, inotify_init, (void), (), 0)
BIRTH(HF_INOTIFY, inotify_init1, (int flags), (flags), flags)
BIRTH(HF_FANOTIFY, fanotify_init, (unsigned flags, unsigned event_flags), (flags, event_flags), (int)flags)
BIRTH(HF_MEMFD, memfd_create, (const char *name, unsigned flags), (name, flags), (int)flags)
BIRTH(HF_SHM, shm_open, (const char *name, int flags, mode_t mode), (name, flags, mode), flags)
BIRTH(HF_PIDFD, pidfd_open, (pid_t pid, unsigned flags), (pid, flags), pid)
BIRTH(HF_RECEIVED, pidfd_getfd, (int pidfd, int target, unsigned flags), (pidfd, target, flags), pidfd)
BIRTH(HF_PTY, posix_openpt, (int flags), (flags), flags)
BIRTH(HF_PTY, getpt, (void), (), 0)

HF_EXPORT int signalfd(int fd, const sigset_t *mask, int flags) {
    int result = REAL(signalfd)(fd, mask, flags);
    return hf_on && fd == -1 ? born(CALL_signalfd, result, HF_SIGNALFD, flags, CALLER) : result;
}

HF_EXPORT mqd_t mq_open(const char *name, int flags, ...) {
    va_list list;
    va_start(list, flags);
    mode_t mode = flags & O_CREAT ? va_arg(list, mode_t) : 0;
    struct mq_attr *attributes = flags & O_CREAT ? va_arg(list, struct mq_attr *) : NULL;
    va_end(list);
    mqd_t result = REAL(mq_open)(name, flags, mode, attributes);
    return hf_on ? born(CALL_mq_open, result, HF_MQ, flags, CALLER) : result;
}

HF_EXPORT int mq_close(mqd_t queue) { return close_with(CALL_mq_close, queue, CALLER, REAL(mq_close)); }

HF_EXPORT int openpty(int *controller, int *worker, char *name, const struct termios *mode,
                      const struct winsize *size) {
    int result = REAL(openpty)(controller, worker, name, mode, size);
    if (!hf_on) {
        return result;
    }
    if (result < 0) {
        return born(CALL_openpty, result, HF_PTY, 0, CALLER);
    }
    *controller = born(CALL_openpty, *controller, HF_PTY, 0, CALLER);
    *worker = born(CALL_openpty, *worker, HF_PTY, *controller, CALLER);
    return result;
}

HF_EXPORT int forkpty(int *controller, char *name, const struct termios *mode, const struct winsize *size) {
    int pid = REAL(forkpty)(controller, name, mode, size);
    if (hf_on && pid > 0) {
        *controller = born(CALL_forkpty, *controller, HF_PTY, 0, CALLER);
    }
    return pid;
}

// -- Closes ----------------------------------------------------------------------------------------------------------

HF_EXPORT int close(int fd) { return close_with(CALL_close, fd, CALLER, REAL(close)); }

static void closing_from(unsigned first, unsigned last, void *caller) {
    int saved = errno;
    if (hf_enter()) {
        hf_close_from(first, last, caller);
        hf_leave();
    }
    errno = saved;
}

// A call that would fail closes nothing. An empty range at the end asks whether the kernel has the call (Linux 5.9).
static int closes_range(unsigned first, unsigned last, unsigned flags) {
    return first <= last && !(flags & ~2u) && !HF_CALL3(SYS_close_range, ~0u, ~0u, 0); // 2: CLOSE_RANGE_UNSHARE
}

HF_EXPORT int close_range(unsigned first, unsigned last, int flags) {
    if (hf_on && closes_range(first, last, (unsigned)flags)) {
        closing_from(first, last, CALLER);
    }
    return REAL(close_range)(first, last, flags);
}

HF_EXPORT void closefrom(int first) {
    if (hf_on) {
        closing_from(first < 0 ? 0 : (unsigned)first, ~0u, CALLER);
    }
    REAL(closefrom)(first);
}

// -- Processes -------------------------------------------------------------------------------------------------------

__attribute__((visibility("hidden"))) void *hf_vfork_begins(void) {
    hf_me.vforked = 1;
    return function(CALL_vfork);
}

// The child returns through this frame before the parent does, so it must leave nothing on the stack: a jump.
__asm__(
    ".text\n.globl vfork\n.type vfork,@function\nvfork:\n.cfi_startproc\nendbr64\n"
    "sub $8, %rsp\n.cfi_adjust_cfa_offset 8\ncall hf_vfork_begins\nadd $8, %rsp\n.cfi_adjust_cfa_offset -8\njmp *%rax\n"
    ".cfi_endproc\n.size vfork, . - vfork\n");

__attribute__((visibility("hidden"))) void *hf_clone_begins(void) {
    hf_me.vforked = 2;
    return function(CALL_clone);
}

// A jump as well: clone takes up to seven arguments.
__asm__(".text\n.globl clone\n.type clone,@function\nclone:\n.cfi_startproc\nendbr64\n"
        "push %rdi\npush %rsi\npush %rdx\npush %rcx\npush %r8\npush %r9\n.cfi_adjust_cfa_offset 48\n"
        "sub $8, %rsp\n.cfi_adjust_cfa_offset 8\ncall hf_clone_begins\nadd $8, %rsp\n.cfi_adjust_cfa_offset -8\n"
        "pop %r9\npop %r8\npop %rcx\npop %rdx\npop %rsi\npop %rdi\n.cfi_adjust_cfa_offset -48\njmp *%rax\n"
        ".cfi_endproc\n.size clone, . - clone\n");

HF_EXPORT void _exit(int status) {
    if (hf_on) {
        hf_stop(2);
    }
    REAL(_exit)(status);
    __builtin_unreachable();
}

HF_EXPORT void _Exit(int status) {
    if (hf_on) {
        hf_stop(2);
    }
    REAL(_Exit)(status);
    __builtin_unreachable();
}

// -- Programs that are started ---------------------------------------------------------------------------------------

// The collector compares what was started with the logs that appear: a program that runs without this library (another
// environment, setuid, static) has none. The note is made before the call, after which nothing of this image runs, and
// is removed if the call fails, as it does for most folders of PATH.
#define EXEC(name, parameters, arguments, program, argv, env)                                                          \
    HF_EXPORT int name parameters {                                                                                    \
        struct hf_note note;                                                                                           \
        note.path[0] = 0;                                                                                              \
        if (hf_on)                                                                                                     \
            hf_note_start(&note, HF_CALL1(SYS_getpid, 0), hf_now(), program, argv, env);                               \
        int result = REAL(name) arguments;                                                                             \
        hf_note_failed(&note);                                                                                         \
        return result;                                                                                                 \
    }
EXEC(execve, (const char *path, char *const argv[], char *const env[]), (path, argv, env), path, argv, env)
EXEC(execv, (const char *path, char *const argv[]), (path, argv), path, argv, environ)
EXEC(execvp, (const char *file, char *const argv[]), (file, argv), file, argv, environ)
EXEC(execvpe, (const char *file, char *const argv[], char *const env[]), (file, argv, env), file, argv, env)
EXEC(fexecve, (int fd, char *const argv[], char *const env[]), (fd, argv, env), NULL, argv, env)
EXEC(execveat, (int folder, const char *path, char *const argv[], char *const env[], int flags),
     (folder, path, argv, env, flags), NULL, argv, env)

// The arguments stand one after the other, NULL after the last one, and then the environment of execle.
#define EXEC_LIST(name, has_env, real)                                                                                 \
    HF_EXPORT int name(const char *path, const char *first, ...) {                                                     \
        va_list list;                                                                                                  \
        size_t count = 1;                                                                                              \
        va_start(list, first);                                                                                         \
        for (const char *one = first; one; one = va_arg(list, const char *))                                           \
            count++;                                                                                                   \
        va_end(list);                                                                                                  \
        char *argv[count];                                                                                             \
        argv[0] = (char *)first;                                                                                       \
        va_start(list, first);                                                                                         \
        for (size_t i = 1; i < count; i++)                                                                             \
            argv[i] = va_arg(list, char *);                                                                            \
        char **env = has_env ? va_arg(list, char **) : environ;                                                        \
        va_end(list);                                                                                                  \
        return real(path, argv, env);                                                                                  \
    }
EXEC_LIST(execl, 0, execve)
EXEC_LIST(execlp, 0, execvpe)
EXEC_LIST(execle, 1, execve)

#define SPAWN(name)                                                                                                    \
    HF_EXPORT int name(pid_t *pid, const char *path, const posix_spawn_file_actions_t *actions,                        \
                       const posix_spawnattr_t *attributes, char *const argv[], char *const env[]) {                   \
        pid_t started = 0;                                                                                             \
        uint64_t before = hf_on ? hf_now() : 0;                                                                        \
        int error = REAL(name)(&started, path, actions, attributes, argv, env);                                        \
        if (!error && before)                                                                                          \
            hf_note_start(&(struct hf_note){{0}}, started, before, path, argv, env);                                   \
        if (!error && pid)                                                                                             \
            *pid = started;                                                                                            \
        return error;                                                                                                  \
    }
SPAWN(posix_spawn)
SPAWN(posix_spawnp)

// libc does not tell the number of this process. The shell has the environment of this one, where the library is unless
// the program removed it or was attached to.
static void note_shell(const char *command) {
    char *const argv[] = {"sh", "-c", (char *)command, NULL};
    if (hf_on && command && !hf_has_library(environ)) {
        hf_note_start(&(struct hf_note){{0}}, 0, hf_now(), "sh", argv, environ);
    }
}

HF_EXPORT int system(const char *command) {
    note_shell(command);
    return REAL(system)(command);
}

HF_EXPORT FILE *popen(const char *command, const char *mode) {
    note_shell(command);
    FILE *file = REAL(popen)(command, mode);
    if (hf_on) {
        born_here(CALL_popen, file ? fileno(file) : -1, HF_PIPE, 0, CALLER);
    }
    return file;
}

// -- syscall() -------------------------------------------------------------------------------------------------------

// Numbers that syscall() passes to hf_syscall_seen; everything else goes straight on, with the registers untouched. 2:
// the child may share this memory.
__attribute__((visibility("hidden"))) unsigned char hf_syscalls_seen[512] = {
    [SYS_open] = 1,
    [SYS_openat] = 1,
    [SYS_openat2] = 1,
    [SYS_creat] = 1,
    [SYS_close] = 1,
    [SYS_close_range] = 1,
    [SYS_pipe] = 1,
    [SYS_pipe2] = 1,
    [SYS_dup] = 1,
    [SYS_dup2] = 1,
    [SYS_dup3] = 1,
    [SYS_socket] = 1,
    [SYS_socketpair] = 1,
    [SYS_accept] = 1,
    [SYS_accept4] = 1,
    [SYS_eventfd] = 1,
    [SYS_eventfd2] = 1,
    [SYS_timerfd_create] = 1,
    [SYS_signalfd4] = 1,
    [SYS_epoll_create] = 1,
    [SYS_epoll_create1] = 1,
    [SYS_inotify_init] = 1,
    [SYS_inotify_init1] = 1,
    [SYS_memfd_create] = 1,
    [SYS_pidfd_open] = 1,
    [SYS_pidfd_getfd] = 1,
    [SYS_io_uring_setup] = 1,
    [SYS_perf_event_open] = 1,
    [SYS_userfaultfd] = 1,
    [SYS_fanotify_init] = 1,
    [SYS_open_by_handle_at] = 1,
    [SYS_clone] = 2,
    [SYS_clone3] = 2,
    [SYS_vfork] = 2,
};
__attribute__((visibility("hidden"))) void *hf_syscall_real;
_Static_assert(offsetof(struct hf_thread, vforked) == 5, "the asm below");

static unsigned kind_of_syscall(long number) {
    switch (number) {
    case SYS_pipe:
    case SYS_pipe2:
        return HF_PIPE;
    case SYS_dup:
    case SYS_dup2:
    case SYS_dup3:
        return HF_DUP;
    case SYS_socket:
    case SYS_socketpair:
    case SYS_accept:
    case SYS_accept4:
        return HF_SOCKET;
    case SYS_eventfd:
    case SYS_eventfd2:
        return HF_EVENTFD;
    case SYS_timerfd_create:
        return HF_TIMERFD;
    case SYS_signalfd4:
        return HF_SIGNALFD;
    case SYS_epoll_create:
    case SYS_epoll_create1:
        return HF_EPOLL;
    case SYS_inotify_init:
    case SYS_inotify_init1:
        return HF_INOTIFY;
    case SYS_memfd_create:
        return HF_MEMFD;
    case SYS_pidfd_open:
        return HF_PIDFD;
    case SYS_pidfd_getfd:
        return HF_RECEIVED;
    case SYS_io_uring_setup:
        return HF_IO_URING;
    case SYS_fanotify_init:
        return HF_FANOTIFY;
    case SYS_perf_event_open:
    case SYS_userfaultfd:
        return HF_UNKNOWN;
    default:
        return HF_FILE;
    }
}

__attribute__((visibility("hidden"))) long hf_syscall_seen(long number, long a, long b, long c, long d, long e,
                                                           long f) {
    void *caller = CALLER;
    int known = 1;
    if (hf_on) {
        if (number == SYS_close) {
            known = closing((int)a, caller);
        }
        if (number == SYS_close_range && closes_range((unsigned)a, (unsigned)b, (unsigned)c)) {
            closing_from((unsigned)a, (unsigned)b, caller);
        }
    }
    long result = hf_syscall6(number, a, b, c, d, e, f);
    if (result < 0 && result > -4096) {
        errno = (int)-result;
        result = -1;
    }
    if (!hf_on) {
        return result;
    }
    if (number == SYS_close) {
        closed(CALL_syscall, (int)a, known, result < 0, caller);
    } else if (number == SYS_pipe || number == SYS_pipe2) {
        born_pair(CALL_syscall, (int)result, (int *)a, HF_PIPE, 0, caller);
    } else if (number == SYS_socketpair) {
        born_pair(CALL_syscall, (int)result, (int *)d, HF_SOCKET, (int)a, caller);
    } else if (number == SYS_dup2 || number == SYS_dup3) {
        copied(CALL_syscall, (int)a, (int)b, (int)result, caller);
    } else if (number != SYS_close_range && !(number == SYS_signalfd4 && (int)a != -1)) {
        result = born(CALL_syscall, (int)result, kind_of_syscall(number), 0, caller);
    }
    return result;
}

__asm__(".text\n.globl syscall\n.type syscall,@function\nsyscall:\n.cfi_startproc\nendbr64\n"
        "cmp $512, %rdi\njae 1f\nlea hf_syscalls_seen(%rip), %rax\ncmpb $1, (%rax,%rdi)\nje hf_syscall_seen\nja 2f\n"
        "1: mov hf_syscall_real(%rip), %rax\ntest %rax, %rax\nje hf_syscall_seen\njmp *%rax\n"
        "2: mov hf_me@gottpoff(%rip), %rax\nmovb $2, %fs:5(%rax)\njmp 1b\n"
        ".cfi_endproc\n.size syscall, . - syscall\n");

// Now, because dlsym may allocate, and the first call of a hook may be in a signal handler or a child of vfork.
__attribute__((constructor(102))) static void find_all(void) {
    for (unsigned call = 0; call < CALLS; call++) {
        function(call);
    }
    hf_syscall_real = function(CALL_syscall);
}

// -- Uses, for EBADF -------------------------------------------------------------------------------------------------

USE(ssize_t, read, (int fd, void *to, size_t size), (fd, to, size))
USE(ssize_t, write, (int fd, const void *from, size_t size), (fd, from, size))
USE(ssize_t, pread, (int fd, void *to, size_t size, off_t at), (fd, to, size, at))
USE(ssize_t, pread64, (int fd, void *to, size_t size, off64_t at), (fd, to, size, at))
USE(ssize_t, pwrite, (int fd, const void *from, size_t size, off_t at), (fd, from, size, at))
USE(ssize_t, pwrite64, (int fd, const void *from, size_t size, off64_t at), (fd, from, size, at))
USE(ssize_t, readv, (int fd, const struct iovec *parts, int count), (fd, parts, count))
USE(ssize_t, writev, (int fd, const struct iovec *parts, int count), (fd, parts, count))
USE(ssize_t, recv, (int fd, void *to, size_t size, int flags), (fd, to, size, flags))
USE(ssize_t, recvfrom, (int fd, void *to, size_t size, int flags, struct sockaddr *address, socklen_t *length),
    (fd, to, size, flags, address, length))
USE(ssize_t, send, (int fd, const void *from, size_t size, int flags), (fd, from, size, flags))
USE(ssize_t, sendto,
    (int fd, const void *from, size_t size, int flags, const struct sockaddr *address, socklen_t length),
    (fd, from, size, flags, address, length))
USE(ssize_t, sendmsg, (int fd, const struct msghdr *message, int flags), (fd, message, flags))
USE(off_t, lseek, (int fd, off_t at, int whence), (fd, at, whence))
USE(off64_t, lseek64, (int fd, off64_t at, int whence), (fd, at, whence))
USE(int, fstat, (int fd, struct stat *to), (fd, to))
USE(int, fstat64, (int fd, struct stat64 *to), (fd, to))
USE(int, epoll_wait, (int fd, struct epoll_event *events, int count, int timeout), (fd, events, count, timeout))
USE(void *, mmap, (void *at, size_t size, int protection, int flags, int fd, off_t offset),
    (at, size, protection, flags, fd, offset))
USE(void *, mmap64, (void *at, size_t size, int protection, int flags, int fd, off64_t offset),
    (at, size, protection, flags, fd, offset))
USE(int, ftruncate, (int fd, off_t size), (fd, size))
USE(int, ftruncate64, (int fd, off64_t size), (fd, size))
USE(int, fsync, (int fd), (fd))
USE(int, fdatasync, (int fd), (fd))
USE(int, connect, (int fd, const struct sockaddr *address, socklen_t length), (fd, address, length))
USE(int, bind, (int fd, const struct sockaddr *address, socklen_t length), (fd, address, length))
USE(int, listen, (int fd, int backlog), (fd, backlog))
USE(int, shutdown, (int fd, int how), (fd, how))
USE(int, setsockopt, (int fd, int level, int name, const void *value, socklen_t length),
    (fd, level, name, value, length))
USE(int, getsockopt, (int fd, int level, int name, void *value, socklen_t *length), (fd, level, name, value, length))
USE(int, getsockname, (int fd, struct sockaddr *address, socklen_t *length), (fd, address, length))
USE(int, getpeername, (int fd, struct sockaddr *address, socklen_t *length), (fd, address, length))
USE(int, flock, (int fd, int operation), (fd, operation))
USE(int, tcgetattr, (int fd, struct termios *to), (fd, to))
USE(int, tcsetattr, (int fd, int when, const struct termios *from), (fd, when, from))
USE(int, fchdir, (int fd), (fd))
USE(int, fchmod, (int fd, mode_t mode), (fd, mode))
USE(int, fstatat, (int fd, const char *path, struct stat *to, int flags), (fd, path, to, flags))
USE(int, fstatat64, (int fd, const char *path, struct stat64 *to, int flags), (fd, path, to, flags))
USE(int, unlinkat, (int fd, const char *path, int flags), (fd, path, flags))
USE(int, mkdirat, (int fd, const char *path, mode_t mode), (fd, path, mode))
USE(int, fchown, (int fd, uid_t user, gid_t group), (fd, user, group))
USE(int, futimens, (int fd, const struct timespec times[2]), (fd, times))
USE(int, fstatvfs, (int fd, struct statvfs *to), (fd, to))
USE(int, fstatvfs64, (int fd, struct statvfs64 *to), (fd, to))
USE(int, lockf, (int fd, int command, off_t size), (fd, command, size))
USE(int, lockf64, (int fd, int command, off64_t size), (fd, command, size))
USE(ssize_t, readlinkat, (int fd, const char *path, char *to, size_t size), (fd, path, to, size))
USE(int, faccessat, (int fd, const char *path, int mode, int flags), (fd, path, mode, flags))
USE(ssize_t, preadv, (int fd, const struct iovec *parts, int count, off_t at), (fd, parts, count, at))
USE(ssize_t, preadv64, (int fd, const struct iovec *parts, int count, off64_t at), (fd, parts, count, at))
USE(ssize_t, pwritev, (int fd, const struct iovec *parts, int count, off_t at), (fd, parts, count, at))
USE(ssize_t, pwritev64, (int fd, const struct iovec *parts, int count, off64_t at), (fd, parts, count, at))
USE(ssize_t, preadv64v2, (int fd, const struct iovec *parts, int count, off64_t at, int flags),
    (fd, parts, count, at, flags))
USE(ssize_t, pwritev64v2, (int fd, const struct iovec *parts, int count, off64_t at, int flags),
    (fd, parts, count, at, flags))
USE(int, eventfd_read, (int fd, eventfd_t *to), (fd, to))
USE(int, eventfd_write, (int fd, eventfd_t value), (fd, value))
USE(int, __fxstat, (int version, int fd, struct stat *to), (version, fd, to))
USE(int, __fxstat64, (int version, int fd, struct stat64 *to), (version, fd, to))
USE(ssize_t, __read_chk, (int fd, void *to, size_t size, size_t room), (fd, to, size, room))
USE(ssize_t, __pread_chk, (int fd, void *to, size_t size, off_t at, size_t room), (fd, to, size, at, room))
USE(ssize_t, __pread64_chk, (int fd, void *to, size_t size, off64_t at, size_t room), (fd, to, size, at, room))
USE(ssize_t, __recv_chk, (int fd, void *to, size_t size, size_t room, int flags), (fd, to, size, room, flags))
USE(ssize_t, __recvfrom_chk,
    (int fd, void *to, size_t size, size_t room, int flags, struct sockaddr *address, socklen_t *length),
    (fd, to, size, room, flags, address, length))

HF_EXPORT int epoll_ctl(int fd, int operation, int target, struct epoll_event *event) {
    int result = REAL(epoll_ctl)(fd, operation, target, event);
    if (IS_BAD(result < 0)) {
        bad(CALL_epoll_ctl, bad_of(target, fd), CALLER);
    }
    return result;
}

#define SENDFILE(name, offset)                                                                                         \
    HF_EXPORT ssize_t name(int to, int from, offset *at, size_t size) {                                                \
        ssize_t result = REAL(name)(to, from, at, size);                                                               \
        if (IS_BAD(result < 0))                                                                                        \
            bad(CALL_##name, bad_of(from, to), CALLER);                                                                \
        return result;                                                                                                 \
    }
HF_EXPORT ssize_t copy_file_range(int from, off64_t *from_at, int to, off64_t *to_at, size_t size, unsigned flags) {
    ssize_t result = REAL(copy_file_range)(from, from_at, to, to_at, size, flags);
    if (IS_BAD(result < 0)) {
        bad(CALL_copy_file_range, bad_of(from, to), CALLER);
    }
    return result;
}

HF_EXPORT ssize_t splice(int from, off64_t *from_at, int to, off64_t *to_at, size_t size, unsigned flags) {
    ssize_t result = REAL(splice)(from, from_at, to, to_at, size, flags);
    if (IS_BAD(result < 0)) {
        bad(CALL_splice, bad_of(from, to), CALLER);
    }
    return result;
}

SENDFILE(sendfile, off_t)
SENDFILE(sendfile64, off64_t)

HF_EXPORT int ioctl(int fd, unsigned long request, ...) {
    va_list list;
    va_start(list, request);
    void *argument = va_arg(list, void *);
    va_end(list);
    int result = REAL(ioctl)(fd, request, argument);
    if (IS_BAD(result == -1)) {
        bad(CALL_ioctl, fd, CALLER);
    }
    return result;
}

// select says only that one of the numbers is not open.
static __attribute__((noinline, cold)) void look_for_closed(unsigned call, int end, fd_set *const sets[3],
                                                            void *caller) {
    for (int fd = 0; fd < end; fd++) {
        int is_asked = 0;
        for (int i = 0; i < 3; i++) {
            is_asked |= sets[i] && FD_ISSET(fd, sets[i]);
        }
        if (is_asked && HF_CALL2(SYS_fcntl, fd, F_GETFD) == -EBADF) {
            bad(call, fd, caller);
        }
    }
}

#define SELECT(name, parameters, ...)                                                                                  \
    HF_EXPORT int name parameters {                                                                                    \
        int result = REAL(name)(end, in, out, other, __VA_ARGS__);                                                     \
        if (IS_BAD(result < 0))                                                                                        \
            look_for_closed(CALL_##name, end, (fd_set *const[]){in, out, other}, CALLER);                              \
        return result;                                                                                                 \
    }
SELECT(select, (int end, fd_set *in, fd_set *out, fd_set *other, struct timeval *timeout), timeout)
SELECT(pselect, (int end, fd_set *in, fd_set *out, fd_set *other, const struct timespec *timeout, const sigset_t *mask),
       timeout, mask)

// poll reports a number that is not open in the item, not as an error.
static void look_for_invalid(unsigned call, const struct pollfd *items, nfds_t count, void *caller) {
    for (nfds_t i = 0; i < count; i++) {
        if (items[i].revents & POLLNVAL) {
            bad(call, items[i].fd, caller);
        }
    }
}

HF_EXPORT int poll(struct pollfd *items, nfds_t count, int timeout) {
    int result = REAL(poll)(items, count, timeout);
    if (result > 0 && hf_on && hf_options & HF_EBADF) {
        look_for_invalid(CALL_poll, items, count, CALLER);
    }
    return result;
}

HF_EXPORT int __poll_chk(struct pollfd *items, nfds_t count, int timeout, size_t room) {
    int result = REAL(__poll_chk)(items, count, timeout, room);
    if (result > 0 && hf_on && hf_options & HF_EBADF) {
        look_for_invalid(CALL___poll_chk, items, count, CALLER);
    }
    return result;
}

HF_EXPORT int ppoll(struct pollfd *items, nfds_t count, const struct timespec *timeout, const sigset_t *mask) {
    int result = REAL(ppoll)(items, count, timeout, mask);
    if (result > 0 && hf_on && hf_options & HF_EBADF) {
        look_for_invalid(CALL_ppoll, items, count, CALLER);
    }
    return result;
}

// -- Addresses for got.c ---------------------------------------------------------------------------------------------

// Returns the function that a hook calls, NULL if this process has none that could be found.
void *hf_behind(unsigned call) {
    void *found = function(call);
    return found == (void *)missing ? NULL : found;
}

__attribute__((visibility("hidden"))) const struct hf_hook {
    const char *name;
    void *hook;
} hf_hooks[] = {
#define HOOK(name) {#name, (void *)name},
#define WATCH(name) {#name, (void *)name},
#include "hooks.def"
#undef HOOK
#undef WATCH
    {NULL, NULL},
};
