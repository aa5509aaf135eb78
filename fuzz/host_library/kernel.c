/* What the library takes for the C library below it (see world.h). The names behind `real_NAME` are given out by
 * fuzz_dlsym; build.rs puts it, and the clock, in the place of the C library's. */
#include "world.h"
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/ioctl.h>
#include <sys/select.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

/* Nanoseconds, and how far each look at the clock moves it. */
static uint64_t now;
enum { TICK = 7000, MILLISECOND = 1000000 };
/* Calls of an execution: one that makes more does not end. */
enum { MOST_CALLS = 1 << 18 };
static unsigned calls;

void kernel_begin(void) {
    static int once;
    if (!once++)
        signal(SIGPIPE, SIG_IGN);
    calls = 0;
    kernel_interrupt_after(0);
}

const void *kernel_address(unsigned *len) {
    static struct sockaddr_un address = {.sun_family = AF_UNIX};
    int named = snprintf(address.sun_path + 1, sizeof address.sun_path - 1, "vmlane-fuzz-%d", (int)getpid());
    *len = (unsigned)(offsetof(struct sockaddr_un, sun_path) + 1 + (size_t)named);
    return &address;
}

static void count_call(void) { MUST(++calls < MOST_CALLS); }

/* ---- time ---- */

int fuzz_clock_gettime(clockid_t clock, struct timespec *out) {
    (void)clock;
    count_call();
    now += TICK;
    *out = (struct timespec){(time_t)(now / 1000000000u), (long)(now % 1000000000u)};
    return 0;
}

int fuzz_nanosleep(const struct timespec *wait, struct timespec *left) {
    (void)left;
    count_call();
    now += (uint64_t)wait->tv_sec * 1000000000u + (uint64_t)wait->tv_nsec;
    daemon_act();
    return 0;
}

int fuzz_raise(int signal) {
    (void)signal;
    return 0;
}

/* ---- waiting ---- */

static int fuzz_poll(struct pollfd *fds, nfds_t count, int timeout) {
    for (uint64_t end = now + (uint64_t)(timeout < 0 ? 0 : timeout) * MILLISECOND;; now += MILLISECOND) {
        count_call();
        int ready = poll(fds, count, 0);
        if (ready != 0 || timeout == 0 || (timeout > 0 && now >= end))
            return ready;
        if (!daemon_act()) {
            /* Nothing will come any more: the time passes, or a signal ends the wait. */
            now = timeout > 0 ? end : now;
            errno = EINTR;
            return timeout > 0 ? 0 : -1;
        }
    }
}

static int fuzz_ppoll(struct pollfd *fds, nfds_t count, const struct timespec *timeout, const sigset_t *mask) {
    (void)mask;
    int64_t wait = timeout ? (int64_t)timeout->tv_sec * 1000 + (timeout->tv_nsec + MILLISECOND - 1) / MILLISECOND : -1;
    return fuzz_poll(fds, count, wait > 1 << 30 ? 1 << 30 : (int)wait);
}

static int fuzz_select(int limit, fd_set *reading, fd_set *writing, fd_set *exceptional, struct timeval *timeout) {
    (void)timeout;
    struct timeval none = {0, 0};
    count_call();
    daemon_act();
    return select(limit, reading, writing, exceptional, &none);
}

static int fuzz_pselect(int limit, fd_set *reading, fd_set *writing, fd_set *exceptional,
                        const struct timespec *timeout, const sigset_t *mask) {
    (void)timeout, (void)mask;
    return fuzz_select(limit, reading, writing, exceptional, NULL);
}

static int may_wait(int fd, int flags) { return !(flags & MSG_DONTWAIT) && !(fcntl(fd, F_GETFL) & O_NONBLOCK); }

/* Whether `want` bytes can be read from `fd`, after the daemon has acted where that may help. */
static int has_bytes(int fd, int flags, size_t want) {
    for (;;) {
        struct pollfd one = {fd, POLLIN, 0};
        int there = 0;
        count_call();
        int ready = poll(&one, 1, 0);
        int whole = !(flags & MSG_WAITALL) || (one.revents & (POLLHUP | POLLERR | POLLNVAL)) ||
                    ioctl(fd, FIONREAD, &there) != 0 || (size_t)there >= want;
        if ((ready != 0 && whole) || !may_wait(fd, flags))
            return 1;
        if (!daemon_act()) {
            errno = ECONNRESET;
            return ready != 0;
        }
    }
}

static size_t sum(const struct iovec *parts, size_t count) {
    size_t total = 0;
    for (size_t i = 0; i < count; i++)
        total += parts[i].iov_len;
    return total;
}

static ssize_t fuzz_recvmsg(int fd, struct msghdr *message, int flags) {
    size_t want = sum(message->msg_iov, message->msg_iovlen);
    if (!has_bytes(fd, flags, want))
        return -1;
    /* AddressSanitizer takes an address that was cut for one that was written whole: it gets room here. */
    struct sockaddr_storage from;
    void *name = message->msg_name;
    socklen_t room = name ? message->msg_namelen : 0;
    if (name) {
        message->msg_name = &from;
        message->msg_namelen = sizeof from;
    }
    ssize_t got = recvmsg(fd, message, flags | MSG_DONTWAIT);
    message->msg_name = name;
    if (name && got >= 0)
        memcpy(name, &from, message->msg_namelen < room ? message->msg_namelen : room);
    else if (name)
        message->msg_namelen = room;
    return got;
}

static ssize_t fuzz_recvfrom(int fd, void *data, size_t len, int flags, struct sockaddr *from, socklen_t *size) {
    return has_bytes(fd, flags, len) ? recvfrom(fd, data, len, flags | MSG_DONTWAIT, from, size) : -1;
}

static ssize_t fuzz_recv(int fd, void *data, size_t len, int flags) {
    return has_bytes(fd, flags, len) ? recv(fd, data, len, flags | MSG_DONTWAIT) : -1;
}

static int is_socket(int fd) {
    struct stat info;
    return fstat(fd, &info) == 0 && S_ISSOCK(info.st_mode);
}

static ssize_t fuzz_readv(int fd, const struct iovec *parts, int count) {
    struct msghdr message = {.msg_iov = (struct iovec *)parts, .msg_iovlen = (size_t)count};
    return is_socket(fd) ? fuzz_recvmsg(fd, &message, 0) : has_bytes(fd, 0, 1) ? readv(fd, parts, count) : -1;
}

static ssize_t fuzz_read(int fd, void *data, size_t len) {
    if (len > 0 && is_socket(fd))
        return fuzz_recv(fd, data, len, 0);
    return has_bytes(fd, 0, 1) ? read(fd, data, len) : -1;
}

static ssize_t fuzz_sendmsg(int fd, const struct msghdr *message, int flags) {
    for (;;) {
        count_call();
        ssize_t sent = sendmsg(fd, message, flags | MSG_DONTWAIT | MSG_NOSIGNAL);
        if (sent >= 0 || errno != EAGAIN || !may_wait(fd, flags))
            return sent;
        if (!daemon_act()) {
            errno = EPIPE;
            return -1;
        }
    }
}

static ssize_t fuzz_sendto(int fd, const void *data, size_t len, int flags, const struct sockaddr *to, socklen_t size) {
    struct iovec part = {(void *)data, len};
    struct msghdr message = {.msg_name = (void *)to, .msg_namelen = to ? size : 0, .msg_iov = &part, .msg_iovlen = 1};
    return fuzz_sendmsg(fd, &message, flags);
}

static ssize_t fuzz_send(int fd, const void *data, size_t len, int flags) {
    return fuzz_sendto(fd, data, len, flags, NULL, 0);
}

static ssize_t fuzz_writev(int fd, const struct iovec *parts, int count) {
    struct msghdr message = {.msg_iov = (struct iovec *)parts, .msg_iovlen = (size_t)count};
    return is_socket(fd) ? fuzz_sendmsg(fd, &message, 0) : writev(fd, parts, count);
}

static ssize_t fuzz_write(int fd, const void *data, size_t len) {
    return is_socket(fd) ? fuzz_send(fd, data, len, 0) : write(fd, data, len);
}

/* ---- the way to the daemon ---- */

static int fuzz_connect(int fd, const struct sockaddr *to, socklen_t size) {
    unsigned len;
    const void *address = kernel_address(&len);
    (void)to, (void)size;
    count_call();
    daemon_accept();
    if (!daemon_is_there()) {
        errno = ECONNREFUSED;
        return -1;
    }
    int outcome = connect(fd, address, len);
    int error = errno;
    daemon_accept();
    errno = error;
    return outcome;
}

/* The machine's own AF_VSOCK is not part of it. */
static int fuzz_socket(int family, int type, int protocol) {
    if (family == AF_UNIX)
        return socket(family, type, protocol);
    errno = EAFNOSUPPORT;
    return -1;
}

#define OURS(name) {#name, (void *)fuzz_##name}
#define THEIRS(name) {#name, (void *)name}

/* All that the library looks up here, so that it is found without shared libraries, too. */
void *fuzz_dlsym(void *where, const char *name) {
    static const struct {
        const char *name;
        void *call;
    } table[] = {OURS(poll),          OURS(ppoll),         OURS(select),        OURS(pselect),      OURS(read),
                 OURS(readv),         OURS(recv),          OURS(recvfrom),      OURS(recvmsg),      OURS(write),
                 OURS(writev),        OURS(send),          OURS(sendto),        OURS(sendmsg),      OURS(connect),
                 OURS(socket),        THEIRS(accept),      THEIRS(accept4),     THEIRS(bind),       THEIRS(close),
                 THEIRS(close_range), THEIRS(dup),         THEIRS(dup2),        THEIRS(dup3),       THEIRS(epoll_ctl),
                 THEIRS(fcntl),       THEIRS(getpeername), THEIRS(getsockname), THEIRS(getsockopt), THEIRS(ioctl),
                 THEIRS(listen),      THEIRS(recvmmsg),    THEIRS(sendmmsg),    THEIRS(setsockopt), THEIRS(shutdown)};
    (void)where;
    for (size_t i = 0; i < sizeof table / sizeof *table; i++)
        if (!strcmp(table[i].name, name))
            return table[i].call;
    fprintf(stderr, "the library asks for %s, which is not in the table of kernel.c\n", name);
    abort();
}
