// Calls every hooked function once. Prints, line by line, what a log of it has to hold, and what each call returned:
//   + FD KIND   a birth          - FD   a close          ! FD CALL   EBADF          = WHAT RESULT ERRNO
#define _GNU_SOURCE
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <mqueue.h>
#include <poll.h>
#include <pty.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <spawn.h>
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
#include <sys/un.h>
#include <sys/wait.h>
#include <termios.h>
#include <unistd.h>

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

enum { KEPT_ERRNO = 1234, NOT_OPEN = 900 };
static char folder[512], text[1024];

static char *path(const char *name) {
    snprintf(text, sizeof text, "%s/%s", folder, name);
    return text;
}

#define SAY(...) dprintf(1, __VA_ARGS__)
#define RESULT(what, result) SAY("= %s %ld %d\n", what, (long)(result), errno)

static int made_as(const char *what, int fd, const char *kind) {
    RESULT(what, fd);
    SAY("= cloexec %d\n", fd < 0 ? 0 : fcntl(fd, F_GETFD));
    if (fd >= 0) {
        SAY("+ %d %s\n", fd, kind);
    }
    return fd;
}
#define MADE(call, kind) (errno = KEPT_ERRNO, made_as(#call, call, kind))

static void closed_as(const char *what, int fd, int result) {
    RESULT(what, result);
    SAY("- %d\n", fd);
}
#define CLOSED(call, fd) (errno = KEPT_ERRNO, closed_as(#call, fd, call))
#define MADE_AND_CLOSED(call, kind)                                                                                    \
    do {                                                                                                               \
        int fd_ = MADE(call, kind);                                                                                    \
        if (fd_ >= 0) {                                                                                                \
            CLOSED(close(fd_), fd_);                                                                                   \
        }                                                                                                              \
    } while (0)

static void pair_as(const char *what, int result, const int *fds, const char *kind) {
    RESULT(what, result);
    for (int i = 0; i < 2; i++) {
        SAY("+ %d %s\n", fds[i], kind);
    }
    for (int i = 0; i < 2; i++) {
        CLOSED(close(fds[i]), fds[i]);
    }
}
#define PAIR(call, fds, kind) (errno = KEPT_ERRNO, pair_as(#call, call, fds, kind))

static void files(void) {
    MADE_AND_CLOSED(open("/dev/null", O_RDONLY), "file");
    MADE_AND_CLOSED(open(path("a"), O_RDWR | O_CREAT | O_CLOEXEC, 0640), "file");
    struct stat about;
    stat(path("a"), &about);
    SAY("= mode %o\n", about.st_mode);
    MADE_AND_CLOSED(open(folder, O_RDWR | O_TMPFILE, 0600), "file");
    MADE_AND_CLOSED(open(folder, O_RDONLY | O_DIRECTORY), "directory");
    MADE_AND_CLOSED(open(path("absent"), O_RDONLY), "file");
    MADE_AND_CLOSED(open64(path("b"), O_RDWR | O_CREAT, 0600), "file");
    MADE_AND_CLOSED(openat(AT_FDCWD, path("c"), O_RDWR | O_CREAT, 0600), "file");
    MADE_AND_CLOSED(openat64(AT_FDCWD, path("c"), O_RDWR), "file");
    MADE_AND_CLOSED(__open_2("/dev/null", O_RDONLY), "file");
    MADE_AND_CLOSED(__open64_2("/dev/null", O_RDONLY), "file");
    MADE_AND_CLOSED(__openat_2(AT_FDCWD, "/dev/null", O_RDONLY), "file");
    MADE_AND_CLOSED(__openat64_2(AT_FDCWD, "/dev/null", O_RDONLY), "file");
    MADE_AND_CLOSED(creat(path("d"), 0600), "file");
    MADE_AND_CLOSED(creat64(path("d"), 0600), "file");
    MADE_AND_CLOSED(mkstemp(path("XXXXXX")), "file");
    MADE_AND_CLOSED(mkstemp64(path("XXXXXX")), "file");
    MADE_AND_CLOSED(mkostemp(path("XXXXXX"), O_CLOEXEC), "file");
    MADE_AND_CLOSED(mkostemp64(path("XXXXXX"), O_CLOEXEC), "file");
    MADE_AND_CLOSED(mkstemps(path("XXXXXX.x"), 2), "file");
    MADE_AND_CLOSED(mkstemps64(path("XXXXXX.x"), 2), "file");
    MADE_AND_CLOSED(mkostemps(path("XXXXXX.x"), 2, O_CLOEXEC), "file");
    MADE_AND_CLOSED(mkostemps64(path("XXXXXX.x"), 2, O_CLOEXEC), "file");
}

static void stream(const char *what, FILE *file, const char *kind, int (*close_stream)(FILE *)) {
    RESULT(what, file != NULL);
    if (!file) {
        return;
    }
    int fd = fileno(file);
    SAY("+ %d %s\n", fd, kind);
    errno = KEPT_ERRNO;
    closed_as("its close", fd, close_stream(file));
}
#define STREAM(call, kind, close_stream) (errno = KEPT_ERRNO, stream(#call, call, kind, close_stream))

static void reopen(const char *what, FILE *(*call)(const char *, const char *, FILE *), const char *to) {
    FILE *file = fopen("/dev/null", "r");
    int fd = fileno(file);
    SAY("+ %d file\n", fd);
    errno = KEPT_ERRNO;
    file = call(to, "r", file);
    RESULT(what, file != NULL);
    SAY("- %d\n", fd);
    if (file) {
        SAY("+ %d file\n", fileno(file));
        CLOSED(fclose(file), fd);
    }
}

static void streams(void) {
    STREAM(fopen("/dev/null", "r"), "file", fclose);
    STREAM(fopen64("/dev/null", "re"), "file", fclose);
    STREAM(fopen(path("absent"), "r"), "file", fclose);
    STREAM(tmpfile(), "file", fclose);
    STREAM(tmpfile64(), "file", fclose);
    STREAM(popen("exit 3", "r"), "pipe", pclose);
    reopen("freopen", freopen, "/dev/zero");
    reopen("freopen64", freopen64, "/dev/zero");
    reopen("freopen that fails", freopen, "/nonexistent");
    char *memory;
    size_t size;
    FILE *file = open_memstream(&memory, &size);
    errno = KEPT_ERRNO;
    int result = fclose(file);
    RESULT("fclose(memstream)", result);
    free(memory);
    int fd = MADE(open("/dev/null", O_RDONLY), "file");
    file = fdopen(fd, "r");
    CLOSED(fclose(file), fd);

    errno = KEPT_ERRNO;
    DIR *dir = opendir(folder);
    RESULT("opendir", dir != NULL);
    SAY("+ %d directory\n", dirfd(dir));
    fd = dirfd(dir);
    CLOSED(closedir(dir), fd);
    fd = MADE(open(folder, O_RDONLY | O_DIRECTORY), "directory");
    dir = fdopendir(fd);
    CLOSED(closedir(dir), fd);
    dir = opendir("/nonexistent");
    RESULT("opendir that fails", dir != NULL);
    DIR *volatile none = NULL;
    result = closedir(none);
    RESULT("closedir(NULL)", result);
}

static void copies(void) {
    int fds[2];
    PAIR(pipe(fds), fds, "pipe");
    PAIR(pipe2(fds, O_CLOEXEC), fds, "pipe");
    MADE_AND_CLOSED(dup(0), "dup");
    MADE_AND_CLOSED(dup2(0, 50), "dup");
    MADE_AND_CLOSED(dup3(0, 51, O_CLOEXEC), "dup");
    MADE_AND_CLOSED(fcntl(0, F_DUPFD, 60), "dup");
    MADE_AND_CLOSED(fcntl(0, F_DUPFD_CLOEXEC, 61), "dup");
    MADE_AND_CLOSED(fcntl64(0, F_DUPFD_CLOEXEC, 62), "dup");
    int result = fcntl(0, F_GETFL);
    RESULT("fcntl(F_GETFL)", result >= 0);

    int fd = MADE(open("/dev/null", O_RDONLY), "file");
    result = dup2(fd, fd);
    RESULT("dup2 onto itself", result == fd);
    result = dup2(NOT_OPEN, fd);
    RESULT("dup2 of what is not open", result);
    SAY("! %d dup2\n", NOT_OPEN);
    result = dup2(fd, -1);
    RESULT("dup2 to a number that cannot be", result);
    SAY("! -1 dup2\n");
    SAY("- %d\n", fd);
    result = dup2(0, fd);
    RESULT("dup2 onto an open one", result == fd);
    SAY("+ %d dup\n", fd);
    CLOSED(close(fd), fd);
}

static void send_rights(int to, int count, const int *fds) {
    union {
        struct cmsghdr header;
        char bytes[CMSG_SPACE(sizeof(int) * 2)];
    } control = {0};
    struct iovec part = {"x", 1};
    struct msghdr message = {.msg_iov = &part,
                             .msg_iovlen = 1,
                             .msg_control = control.bytes,
                             .msg_controllen = CMSG_SPACE(sizeof(int) * count)};
    struct cmsghdr *header = CMSG_FIRSTHDR(&message);
    header->cmsg_level = SOL_SOCKET;
    header->cmsg_type = SCM_RIGHTS;
    header->cmsg_len = CMSG_LEN(sizeof(int) * count);
    memcpy(CMSG_DATA(header), fds, sizeof(int) * count);
    sendmsg(to, &message, 0);
}

static void take_rights(struct msghdr *message) {
    struct cmsghdr *header = CMSG_FIRSTHDR(message);
    int count = (int)((header->cmsg_len - CMSG_LEN(0)) / sizeof(int)), fds[8];
    memcpy(fds, CMSG_DATA(header), sizeof(int) * (size_t)count);
    for (int i = 0; i < count; i++) {
        SAY("= cloexec %d\n", fcntl(fds[i], F_GETFD));
        SAY("+ %d received\n", fds[i]);
    }
    for (int i = 0; i < count; i++) {
        CLOSED(close(fds[i]), fds[i]);
    }
}

static void sockets(void) {
    MADE_AND_CLOSED(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0), "socket");
    int fds[2];
    PAIR(socketpair(AF_UNIX, SOCK_STREAM, 0, fds), fds, "socket");
    int listener = MADE(socket(AF_UNIX, SOCK_STREAM, 0), "socket");
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    memcpy(address.sun_path, "\0holdfast every call ", 21);
    snprintf(address.sun_path + 21, 16, "%d", getpid());
    bind(listener, (struct sockaddr *)&address, sizeof address);
    listen(listener, 4);
    for (int i = 0; i < 2; i++) {
        int client = MADE(socket(AF_UNIX, SOCK_STREAM, 0), "socket");
        connect(client, (struct sockaddr *)&address, sizeof address);
        if (i) {
            MADE_AND_CLOSED(accept4(listener, NULL, NULL, SOCK_CLOEXEC), "socket");
        } else {
            MADE_AND_CLOSED(accept(listener, NULL, NULL), "socket");
        }
        CLOSED(close(client), client);
    }
    CLOSED(close(listener), listener);

    socketpair(AF_UNIX, SOCK_DGRAM, 0, fds);
    SAY("+ %d socket\n+ %d socket\n", fds[0], fds[1]);
    char byte, controls[2][256];
    struct iovec part = {&byte, 1};
    for (int flags = 0; flags < 2; flags++) {
        send_rights(fds[0], 2, (int[]){0, 1});
        struct msghdr message = {
            .msg_iov = &part, .msg_iovlen = 1, .msg_control = controls[0], .msg_controllen = sizeof controls[0]};
        errno = KEPT_ERRNO;
        ssize_t got = recvmsg(fds[1], &message, flags ? MSG_CMSG_CLOEXEC : 0);
        RESULT("recvmsg", got);
        take_rights(&message);
    }
    struct mmsghdr messages[2];
    memset(messages, 0, sizeof messages);
    for (int i = 0; i < 2; i++) {
        send_rights(fds[0], 1, (int[]){i});
        messages[i].msg_hdr = (struct msghdr){
            .msg_iov = &part, .msg_iovlen = 1, .msg_control = controls[i], .msg_controllen = sizeof controls[i]};
    }
    errno = KEPT_ERRNO;
    int count = recvmmsg(fds[1], messages, 2, 0, NULL);
    RESULT("recvmmsg", count);
    int numbers[2];
    for (int i = 0; i < 2; i++) {
        memcpy(&numbers[i], CMSG_DATA(CMSG_FIRSTHDR(&messages[i].msg_hdr)), sizeof(int));
        SAY("+ %d received\n", numbers[i]);
    }
    for (int i = 0; i < 2; i++) {
        CLOSED(close(numbers[i]), numbers[i]);
        CLOSED(close(fds[i]), fds[i]);
    }
}

static void kernel_objects(void) {
    sigset_t none;
    sigemptyset(&none);
    MADE_AND_CLOSED(eventfd(0, EFD_CLOEXEC), "eventfd");
    MADE_AND_CLOSED(timerfd_create(CLOCK_MONOTONIC, 0), "timerfd");
    MADE_AND_CLOSED(epoll_create(1), "epoll");
    MADE_AND_CLOSED(epoll_create1(EPOLL_CLOEXEC), "epoll");
    MADE_AND_CLOSED(inotify_init(), "inotify");
    MADE_AND_CLOSED(inotify_init1(0), "inotify");
    MADE_AND_CLOSED(fanotify_init(FAN_CLASS_NOTIF, O_RDONLY), "fanotify");
    MADE_AND_CLOSED(memfd_create("x", 0), "memfd");
    char name[64];
    snprintf(name, sizeof name, "/holdfast-every-call-%d", getpid());
    MADE_AND_CLOSED(shm_open(name, O_RDWR | O_CREAT, 0600), "shm");
    shm_unlink(name);
    struct mq_attr attributes = {.mq_maxmsg = 1, .mq_msgsize = 8};
    int queue = MADE((int)mq_open(name, O_RDWR | O_CREAT, 0600, &attributes), "mq");
    if (queue >= 0) {
        CLOSED(mq_close(queue), queue);
        mq_unlink(name);
    }
    int self = MADE(pidfd_open(getpid(), 0), "pidfd");
    MADE_AND_CLOSED(pidfd_getfd(self, 0, 0), "received");
    CLOSED(close(self), self);
    int fd = MADE(signalfd(-1, &none, 0), "signalfd");
    int result = signalfd(fd, &none, 0);
    RESULT("signalfd of an open one", result == fd);
    CLOSED(close(fd), fd);
    MADE_AND_CLOSED(posix_openpt(O_RDWR | O_NOCTTY), "pty");
    MADE_AND_CLOSED(getpt(), "pty");
    int fds[2];
    PAIR(openpty(&fds[0], &fds[1], NULL, NULL, NULL), fds, "pty");
    errno = KEPT_ERRNO;
    int pid = forkpty(&fd, NULL, NULL, NULL);
    if (!pid) {
        _exit(0);
    }
    RESULT("forkpty", pid > 0);
    SAY("+ %d pty\n", fd);
    waitpid(pid, &result, 0);
    CLOSED(close(fd), fd);
}

static int three(int *fds) {
    for (int i = 0; i < 3; i++) {
        fds[i] = MADE(open("/dev/null", O_RDONLY), "file");
    }
    return fds[0];
}

static int close_in_clone(void *fds) {
    close(*(int *)fds);
    closefrom(3);
    _exit(6);
}

static void closes(void) {
    int fds[3];
    three(fds);
    errno = KEPT_ERRNO;
    int result = close_range((unsigned)fds[0], (unsigned)fds[2], 64);
    RESULT("close_range with flags that do not exist", result);
    result = close_range((unsigned)fds[0], (unsigned)fds[2], 4);
    RESULT("close_range that marks close-on-exec", result);
    errno = KEPT_ERRNO;
    result = close_range((unsigned)fds[0], (unsigned)fds[1], 0);
    RESULT("close_range", result);
    SAY("- %d\n- %d\n", fds[0], fds[1]);
    errno = KEPT_ERRNO;
    closefrom(fds[2]);
    RESULT("closefrom", 0);
    SAY("- %d\n", fds[2]);
    result = close(fds[2]);
    RESULT("a second close", result);
    SAY("! %d close\n", fds[2]);
    result = close(-1);
    RESULT("close(-1)", result);
    three(fds);
    pid_t pid = vfork();
    if (!pid) {
        close(fds[0]);
        closefrom(3);
        dup2(0, fds[2]);
        _exit(5);
    }
    waitpid(pid, &result, 0);
    RESULT("vfork", result);
    // With CLONE_VM the child shares this memory; with CLONE_VFORK the parent waits for it.
    static char stack[65536] __attribute__((aligned(16)));
    pid = clone(close_in_clone, stack + sizeof stack, CLONE_VM | CLONE_VFORK | SIGCHLD, fds);
    waitpid(pid, &result, 0);
    RESULT("clone", result);
    for (int i = 0; i < 3; i++) {
        CLOSED(close(fds[i]), fds[i]);
    }
}

static void system_calls(void) {
    int fds[2], result;
    MADE_AND_CLOSED((int)syscall(SYS_open, "/dev/null", O_RDONLY, 0), "file");
    MADE_AND_CLOSED((int)syscall(SYS_openat, AT_FDCWD, "/dev/null", O_RDONLY, 0), "file");
    unsigned long long how[3] = {0};
    MADE_AND_CLOSED((int)syscall(SYS_openat2, AT_FDCWD, "/dev/null", how, sizeof how), "file");
    MADE_AND_CLOSED((int)syscall(SYS_creat, path("d"), 0600), "file");
    PAIR((int)syscall(SYS_pipe, fds), fds, "pipe");
    PAIR((int)syscall(SYS_pipe2, fds, 0), fds, "pipe");
    MADE_AND_CLOSED((int)syscall(SYS_dup, 0), "dup");
    MADE_AND_CLOSED((int)syscall(SYS_dup2, 0, 50), "dup");
    MADE_AND_CLOSED((int)syscall(SYS_dup3, 0, 50, O_CLOEXEC), "dup");
    MADE_AND_CLOSED((int)syscall(SYS_socket, AF_UNIX, SOCK_STREAM, 0), "socket");
    PAIR((int)syscall(SYS_socketpair, AF_UNIX, SOCK_STREAM, 0, fds), fds, "socket");
    MADE_AND_CLOSED((int)syscall(SYS_eventfd2, 0, 0), "eventfd");
    MADE_AND_CLOSED((int)syscall(SYS_timerfd_create, CLOCK_MONOTONIC, 0), "timerfd");
    MADE_AND_CLOSED((int)syscall(SYS_epoll_create1, 0), "epoll");
    MADE_AND_CLOSED((int)syscall(SYS_inotify_init1, 0), "inotify");
    MADE_AND_CLOSED((int)syscall(SYS_memfd_create, "x", 0), "memfd");
    MADE_AND_CLOSED((int)syscall(SYS_pidfd_open, getpid(), 0), "pidfd");
    char parameters[256] = {0};
    MADE_AND_CLOSED((int)syscall(SYS_io_uring_setup, 4, parameters), "io_uring");
    int fd = MADE((int)syscall(SYS_openat, AT_FDCWD, "/dev/null", O_RDONLY, 0), "file");
    CLOSED((int)syscall(SYS_close, fd), fd);
    result = (int)syscall(SYS_close, fd);
    RESULT("a second close", result);
    SAY("! %d syscall\n", fd);
    fd = MADE((int)syscall(SYS_openat, AT_FDCWD, "/dev/null", O_RDONLY, 0), "file");
    CLOSED((int)syscall(SYS_close_range, fd, fd, 0), fd);
    result = (int)syscall(SYS_getppid) == getppid();
    RESULT("a system call that is not looked at", result);
    char *map = (char *)syscall(SYS_mmap, NULL, 4096, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    RESULT("one with six arguments", *map);
}

#define BAD(name, call)                                                                                                \
    do {                                                                                                               \
        errno = 0;                                                                                                     \
        long result_ = (long)(call);                                                                                   \
        RESULT(#name, result_);                                                                                        \
        SAY("! %d " #name "\n", NOT_OPEN);                                                                             \
    } while (0)

static void bad_uses(void) {
    char b[64] = {0};
    struct iovec part = {b, 1};
    struct msghdr message = {.msg_iov = &part, .msg_iovlen = 1};
    struct mmsghdr many = {.msg_hdr = message};
    struct stat about;
    struct stat64 about64;
    struct epoll_event event = {0};
    struct pollfd item = {.fd = NOT_OPEN, .events = POLLIN};
    int bad = NOT_OPEN;
    BAD(read, read(bad, b, 1));
    BAD(write, write(bad, b, 1));
    BAD(pread, pread(bad, b, 1, 0));
    BAD(pread64, pread64(bad, b, 1, 0));
    BAD(pwrite, pwrite(bad, b, 1, 0));
    BAD(pwrite64, pwrite64(bad, b, 1, 0));
    BAD(readv, readv(bad, &part, 1));
    BAD(writev, writev(bad, &part, 1));
    BAD(recv, recv(bad, b, 1, 0));
    BAD(recvfrom, recvfrom(bad, b, 1, 0, NULL, NULL));
    BAD(send, send(bad, b, 1, 0));
    BAD(sendto, sendto(bad, b, 1, 0, NULL, 0));
    BAD(sendmsg, sendmsg(bad, &message, 0));
    BAD(lseek, lseek(bad, 0, SEEK_SET));
    BAD(lseek64, lseek64(bad, 0, SEEK_SET));
    BAD(fstat, fstat(bad, &about));
    BAD(fstat64, fstat64(bad, &about64));
    BAD(poll, poll(&item, 1, 0));
    BAD(epoll_wait, epoll_wait(bad, &event, 1, 0));
    BAD(mmap, mmap(NULL, 4096, PROT_READ, MAP_SHARED, bad, 0));
    BAD(mmap64, mmap64(NULL, 4096, PROT_READ, MAP_SHARED, bad, 0));
    BAD(ftruncate, ftruncate(bad, 0));
    BAD(ftruncate64, ftruncate64(bad, 0));
    BAD(fsync, fsync(bad));
    BAD(fdatasync, fdatasync(bad));
    BAD(ioctl, ioctl(bad, FIONREAD, b));
    BAD(__read_chk, __read_chk(bad, b, 1, sizeof b));
    BAD(__pread_chk, __pread_chk(bad, b, 1, 0, sizeof b));
    BAD(__pread64_chk, __pread64_chk(bad, b, 1, 0, sizeof b));
    BAD(__recv_chk, __recv_chk(bad, b, 1, sizeof b, 0));
    BAD(__recvfrom_chk, __recvfrom_chk(bad, b, 1, sizeof b, 0, NULL, NULL));
    BAD(__poll_chk, __poll_chk(&item, 1, 0, sizeof item));
    BAD(recvmsg, recvmsg(bad, &message, 0));
    BAD(recvmmsg, recvmmsg(bad, &many, 1, 0, NULL));
    BAD(accept, accept(bad, NULL, NULL));
    BAD(accept4, accept4(bad, NULL, NULL, 0));
    BAD(dup, dup(bad));
    BAD(dup3, dup3(bad, 50, 0));
    BAD(fcntl, fcntl(bad, F_GETFL));
    errno = KEPT_ERRNO;
    int asked = fcntl(bad, F_GETFD); // only asks
    RESULT("fcntl(F_GETFD)", asked);
    fd_set set;
    FD_ZERO(&set);
    FD_SET(40, &set); // the kernel ignores numbers beyond the highest that was ever open
    struct timeval now = {0, 0};
    struct timespec at_once = {0, 0};
    struct termios terminal;
    asked = select(41, &set, NULL, NULL, &now);
    RESULT("select", asked);
    asked = pselect(41, NULL, &set, NULL, &at_once, NULL);
    RESULT("pselect", asked);
    SAY("! 40 select\n! 40 pselect\n");
    BAD(ppoll, ppoll(&item, 1, &at_once, NULL));
    BAD(connect, connect(bad, (struct sockaddr *)b, 16));
    BAD(bind, bind(bad, (struct sockaddr *)b, 16));
    BAD(listen, listen(bad, 1));
    BAD(shutdown, shutdown(bad, SHUT_RDWR));
    BAD(setsockopt, setsockopt(bad, SOL_SOCKET, SO_KEEPALIVE, b, 4));
    BAD(getsockopt, getsockopt(bad, SOL_SOCKET, SO_KEEPALIVE, b, &(socklen_t){4}));
    BAD(getsockname, getsockname(bad, (struct sockaddr *)b, &(socklen_t){1}));
    BAD(getpeername, getpeername(bad, (struct sockaddr *)b, &(socklen_t){1}));
    BAD(flock, flock(bad, LOCK_SH));
    BAD(sendfile, sendfile(bad, 0, NULL, 1));
    BAD(sendfile64, sendfile64(1, bad, NULL, 1));
    BAD(tcgetattr, tcgetattr(bad, &terminal));
    BAD(tcsetattr, tcsetattr(bad, TCSANOW, &terminal));
    BAD(fchdir, fchdir(bad));
    BAD(eventfd_read, eventfd_read(bad, (eventfd_t *)b));
    BAD(eventfd_write, eventfd_write(bad, 1));
    struct statvfs files;
    struct statvfs64 files64;
    BAD(fchown, fchown(bad, 0, 0));
    BAD(futimens, futimens(bad, NULL));
    BAD(fstatvfs, fstatvfs(bad, &files));
    BAD(fstatvfs64, fstatvfs64(bad, &files64));
    BAD(lockf, lockf(bad, F_LOCK, 0));
    BAD(lockf64, lockf64(bad, F_LOCK, 0));
    BAD(readlinkat, readlinkat(bad, "a", b, 1));
    BAD(faccessat, faccessat(bad, "a", R_OK, 0));
    BAD(preadv, preadv(bad, &part, 1, 0));
    BAD(preadv64, preadv64(bad, &part, 1, 0));
    BAD(pwritev, pwritev(bad, &part, 1, 0));
    BAD(pwritev64, pwritev64(bad, &part, 1, 0));
    BAD(preadv64v2, preadv64v2(bad, &part, 1, 0, 0));
    BAD(pwritev64v2, pwritev64v2(bad, &part, 1, 0, 0));
    BAD(copy_file_range, copy_file_range(bad, NULL, 1, NULL, 1, 0));
    BAD(splice, splice(bad, NULL, 1, NULL, 1, 0));
    BAD(fchmod, fchmod(bad, 0600));
    BAD(openat, openat(bad, "a", O_RDONLY));
    BAD(openat64, openat64(bad, "a", O_RDONLY));
    BAD(fstatat, fstatat(bad, "a", &about, 0));
    BAD(fstatat64, fstatat64(bad, "a", &about64, 0));
    BAD(unlinkat, unlinkat(bad, "a", 0));
    BAD(mkdirat, mkdirat(bad, "a", 0700));
    BAD(__fxstat, __fxstat(1, bad, &about));
    BAD(__fxstat64, __fxstat64(1, bad, &about64));
    BAD(fcntl64, fcntl64(bad, F_DUPFD, 0));
    int epoll = MADE(epoll_create1(0), "epoll");
    BAD(epoll_ctl, epoll_ctl(epoll, EPOLL_CTL_ADD, bad, &event));
    CLOSED(close(epoll), epoll);
    BAD(epoll_ctl, epoll_ctl(bad, EPOLL_CTL_ADD, 0, &event));
    int result = (int)read(-1, b, 1);
    RESULT("read(-1)", result);
    SAY("! -1 read\n");
}

// Programs that do not exist: the calls fail, and leave nothing behind.
static void started_as(const char *what, int result) { RESULT(what, result); }
#define STARTED(what, call) (errno = KEPT_ERRNO, started_as(what, call))

static void starts(void) {
    char *const argv[] = {"no-such-program", NULL}, *const env[] = {"A=1", NULL};
    int pid = 0, here = MADE(open(folder, O_PATH), "file");
    STARTED("execve", execve("/no/such", argv, env));
    STARTED("execv", execv("/no/such", argv));
    STARTED("execvp", execvp("no-such-program", argv));
    STARTED("execvpe", execvpe("no-such-program", argv, env));
    STARTED("execl", execl("/no/such", "a", "b", (char *)NULL));
    STARTED("execlp", execlp("no-such-program", "a", "b", "c", (char *)NULL));
    STARTED("execle", execle("/no/such", "a", (char *)NULL, env));
    STARTED("fexecve", fexecve(here, argv, env));
    STARTED("execveat", execveat(here, "none", argv, env, 0));
    STARTED("posix_spawn", posix_spawn(&pid, "/no/such", NULL, NULL, argv, env));
    STARTED("posix_spawnp", posix_spawnp(&pid, "no-such-program", NULL, NULL, argv, env));
    STARTED("system", system("exit 3"));
    CLOSED(close(here), here);
}

int main(int count, char **arguments) {
    if (count < 2 || strlen(arguments[1]) >= sizeof folder) {
        return 2;
    }
    strcpy(folder, arguments[1]);
    files();
    streams();
    copies();
    sockets();
    kernel_objects();
    closes();
    system_calls();
    bad_uses();
    starts();
    if (fork() == 0) {
        _Exit(7);
    }
    int status;
    wait(&status);
    RESULT("_Exit", status);
    return 0;
}
