/* The calls that move bytes and that wait, for descriptors whose bytes lie in a ring. All others go to the
 * kernel as they are. */
#include "vsock.h"
#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <sys/select.h>

/* ---- moving bytes ---- */

static ssize_t other_send(int fd, const struct iovec *parts, int count, int flags) {
    return datagram_any ? datagram_send(fd, parts, (size_t)count, flags, NULL, 0) : PLAIN;
}

static ssize_t other_receive(int fd, const struct iovec *parts, int count, int flags) {
    return datagram_any ? datagram_receive(fd, parts, (size_t)count, flags, NULL, NULL, NULL) : PLAIN;
}

#define THROUGH_RING(direction, fd, parts, count, flags, otherwise)                                          \
    struct ring *ring = ring_hold(fd);                                                                       \
    if (ring) {                                                                                              \
        ssize_t moved = ring_##direction(ring, fd, parts, count, flags);                                     \
        ring_release(ring);                                                                                  \
        if (moved != PLAIN)                                                                                  \
            return moved;                                                                                    \
    } else {                                                                                                 \
        ssize_t moved = other_##direction(fd, parts, count, flags);                                          \
        if (moved != PLAIN)                                                                                  \
            return moved;                                                                                    \
    }                                                                                                        \
    return otherwise

PUBLIC ssize_t read(int fd, void *data, size_t len) {
    struct iovec part = {data, len};
    THROUGH_RING(receive, fd, &part, 1, 0, real_read(fd, data, len));
}

PUBLIC ssize_t write(int fd, const void *data, size_t len) {
    struct iovec part = {(void *)data, len};
    THROUGH_RING(send, fd, &part, 1, 0, real_write(fd, data, len));
}

PUBLIC ssize_t readv(int fd, const struct iovec *parts, int count) {
    THROUGH_RING(receive, fd, parts, count, 0, real_readv(fd, parts, count));
}

PUBLIC ssize_t writev(int fd, const struct iovec *parts, int count) {
    THROUGH_RING(send, fd, parts, count, 0, real_writev(fd, parts, count));
}

PUBLIC ssize_t recv(int fd, void *data, size_t len, int flags) {
    struct iovec part = {data, len};
    THROUGH_RING(receive, fd, &part, 1, flags, real_recv(fd, data, len, flags));
}

PUBLIC ssize_t send(int fd, const void *data, size_t len, int flags) {
    struct iovec part = {(void *)data, len};
    THROUGH_RING(send, fd, &part, 1, flags, real_send(fd, data, len, flags));
}

PUBLIC ssize_t recvfrom(int fd, void *data, size_t len, int flags, struct sockaddr *from, socklen_t *size) {
    struct iovec part = {data, len};
    struct ring *ring = ring_hold(fd);
    if (ring) {
        ssize_t moved = ring_receive(ring, fd, &part, 1, flags);
        ring_release(ring);
        if (moved >= 0 && from && size)
            *size = 0;
        if (moved != PLAIN)
            return moved;
    } else if (datagram_any) {
        ssize_t moved = datagram_receive(fd, &part, 1, flags, from, size, NULL);
        if (moved != PLAIN)
            return moved;
    }
    return real_recvfrom(fd, data, len, flags, from, size);
}

PUBLIC ssize_t sendto(int fd, const void *data, size_t len, int flags, const struct sockaddr *to,
                      socklen_t size) {
    struct iovec part = {(void *)data, len};
    if (to) {
        struct ring *ring = ring_hold(fd);
        if (ring) {
            ring_release(ring);
            errno = EISCONN;
            return -1;
        }
        ssize_t moved = datagram_any ? datagram_send(fd, &part, 1, flags, to, size) : PLAIN;
        if (moved != PLAIN)
            return moved;
    }
    THROUGH_RING(send, fd, &part, 1, flags, real_sendto(fd, data, len, flags, to, size));
}

PUBLIC ssize_t recvmsg(int fd, struct msghdr *message, int flags) {
    struct ring *ring = ring_hold(fd);
    if (ring) {
        ssize_t moved = ring_receive(ring, fd, message->msg_iov, (int)message->msg_iovlen, flags);
        ring_release(ring);
        if (moved >= 0) {
            message->msg_namelen = 0;
            message->msg_controllen = 0;
            message->msg_flags = 0;
        }
        if (moved != PLAIN)
            return moved;
    } else if (datagram_any) {
        int got = 0;
        ssize_t moved = datagram_receive(fd, message->msg_iov, message->msg_iovlen, flags, message->msg_name,
                                         message->msg_name ? &message->msg_namelen : NULL, &got);
        if (moved >= 0) {
            message->msg_controllen = 0;
            message->msg_flags = got;
        }
        if (moved != PLAIN)
            return moved;
    }
    return real_recvmsg(fd, message, flags);
}

PUBLIC ssize_t sendmsg(int fd, const struct msghdr *message, int flags) {
    /* A descriptor that goes to another process is an ordinary one. */
    for (struct cmsghdr *part = message->msg_controllen ? CMSG_FIRSTHDR(message) : NULL; part;
         part = CMSG_NXTHDR((struct msghdr *)message, part)) {
        if (part->cmsg_level != SOL_SOCKET || part->cmsg_type != SCM_RIGHTS || part->cmsg_len < CMSG_LEN(0))
            continue;
        for (size_t at = 0; at + sizeof(int) <= part->cmsg_len - CMSG_LEN(0); at += sizeof(int)) {
            int passed;
            memcpy(&passed, CMSG_DATA(part) + at, sizeof passed);
            ring_switch(passed);
        }
    }
    if (datagram_any) {
        ssize_t moved = datagram_send(fd, message->msg_iov, message->msg_iovlen, flags, message->msg_name,
                                      message->msg_namelen);
        if (moved != PLAIN)
            return moved;
    }
    THROUGH_RING(send, fd, message->msg_iov, (int)message->msg_iovlen, flags,
                 real_sendmsg(fd, message, flags));
}

/* What programs compiled with _FORTIFY_SOURCE call. */
void __chk_fail(void) __attribute__((noreturn));

PUBLIC ssize_t __read_chk(int fd, void *data, size_t len, size_t size) {
    if (len > size)
        __chk_fail();
    return read(fd, data, len);
}

PUBLIC ssize_t __recv_chk(int fd, void *data, size_t len, size_t size, int flags) {
    if (len > size)
        __chk_fail();
    return recv(fd, data, len, flags);
}

PUBLIC ssize_t __recvfrom_chk(int fd, void *data, size_t len, size_t size, int flags, struct sockaddr *from,
                              socklen_t *from_size) {
    if (len > size)
        __chk_fail();
    return recvfrom(fd, data, len, flags, from, from_size);
}

PUBLIC int shutdown(int fd, int how) {
    struct ring *ring = ring_hold(fd);
    if (!ring)
        return real_shutdown(fd, how);
    if (how == SHUT_WR) {
        ring_finish(ring, fd);
        ring_release(ring);
        return 0;
    }
    /* The kernel wakes any thread that is blocked in a call. */
    ring_release(ring);
    ring_switch(fd);
    return real_shutdown(fd, how);
}

PUBLIC int close(int fd) {
    if (fd >= 0)
        ring_forget((unsigned)fd, (unsigned)fd);
    return real_close(fd);
}

/* ---- waiting ---- */

enum { SMALL = 64 };

static int any_ring(const struct pollfd *fds, nfds_t count) {
    for (nfds_t i = 0; i < count; i++) {
        struct ring *ring = ring_hold(fds[i].fd);
        if (ring) {
            ring_release(ring);
            return 1;
        }
    }
    return 0;
}

/* Sets revents of those with rings. Returns how many have some. */
static int look(struct pollfd *fds, nfds_t count) {
    int ready = 0;
    for (nfds_t i = 0; i < count; i++) {
        struct ring *ring = ring_hold(fds[i].fd);
        if (!ring)
            continue;
        fds[i].revents = ring_events(ring, fds[i].events);
        ready += fds[i].revents != 0;
        ring_release(ring);
    }
    return ready;
}

/* Asks the kernel about all that have no ring, and about rings that a thread sleeps on. */
static int ask_kernel(struct pollfd *fds, struct pollfd *copy, nfds_t count, int asleep,
                      const struct timespec *wait, const sigset_t *mask) {
    int others = 0;
    for (nfds_t i = 0; i < count; i++) {
        struct ring *ring = ring_hold(fds[i].fd);
        copy[i] = fds[i];
        copy[i].revents = 0;
        others += !ring && fds[i].fd >= 0;
        if (ring) {
            copy[i].events = POLLIN;
            if (!asleep)
                copy[i].fd = -1;
            ring_release(ring);
        }
    }
    return others || asleep ? real_ppoll(copy, count, wait, mask) : 0;
}

/* Sleeps until there may be something, at most `wait`. */
static int sleep_on(struct pollfd *fds, struct pollfd *copy, struct ring **armed, nfds_t count,
                    const struct timespec *wait, const sigset_t *mask) {
    int ready = 0, outcome = 0;
    const struct timespec none = {0, 0};
    for (nfds_t i = 0; i < count; i++) {
        armed[i] = ring_hold(fds[i].fd);
        if (armed[i]) {
            ring_arm(armed[i], fds[i].events);
            ready |= ring_events(armed[i], fds[i].events);
        }
    }
    outcome = ask_kernel(fds, copy, count, 1, ready ? &none : wait, mask);
    int saved = errno;
    for (nfds_t i = 0; i < count; i++) {
        if (armed[i]) {
            ring_disarm(armed[i], fds[i].fd, fds[i].events, outcome > 0 && copy[i].revents);
            copy[i].revents = 0;
            ring_release(armed[i]);
        }
    }
    errno = saved;
    return outcome;
}

static int wait_many(struct pollfd *fds, nfds_t count, const struct timespec *timeout, const sigset_t *mask) {
    struct pollfd small[SMALL], *copy = small;
    struct ring *small_armed[SMALL], **armed = small_armed;
    const struct timespec none = {0, 0};
    uint64_t start = ring_now(), wait = UINT64_MAX;
    if (timeout)
        wait = (uint64_t)timeout->tv_sec * 1000000000u + (uint64_t)timeout->tv_nsec;
    if (count > SMALL) {
        copy = malloc(count * sizeof *copy);
        armed = malloc(count * sizeof *armed);
        if (!copy || !armed) {
            free(copy);
            free(armed);
            errno = ENOMEM;
            return -1;
        }
    }
    int total;
    for (unsigned round = 0;; round++) {
        int ready = look(fds, count);
        /* A mask is for the sleep; and others are to be looked at now and then. */
        if (ready || round == 0 || wait == 0) {
            int others = ask_kernel(fds, copy, count, 0, &none, NULL);
            total = others < 0 ? -1 : ready + others;
            if (total != 0 || wait == 0)
                break;
        }
        uint64_t passed = ring_now() - start;
        if (passed < SPIN && passed < wait) {
            ring_pause(round);
            continue;
        }
        uint64_t left = wait == UINT64_MAX ? wait : passed < wait ? wait - passed : 0;
        struct timespec rest = {(time_t)(left / 1000000000u), (long)(left % 1000000000u)};
        total = sleep_on(fds, copy, armed, count, wait == UINT64_MAX ? NULL : &rest, mask);
        if (total < 0)
            break;
        ready = look(fds, count);
        total = ready;
        for (nfds_t i = 0; i < count; i++)
            total += copy[i].revents != 0;
        if (total > 0 || left == 0)
            break;
    }
    if (total >= 0) {
        for (nfds_t i = 0; i < count; i++) {
            struct ring *ring = ring_hold(fds[i].fd);
            if (ring)
                ring_release(ring);
            else
                fds[i].revents = copy[i].revents;
        }
    }
    int saved = errno;
    if (copy != small) {
        free(copy);
        free(armed);
    }
    errno = saved;
    return total;
}

PUBLIC int poll(struct pollfd *fds, nfds_t count, int timeout) {
    if (!any_ring(fds, count))
        return real_poll(fds, count, timeout);
    struct timespec wait = {timeout / 1000, (long)(timeout % 1000) * 1000000};
    return wait_many(fds, count, timeout < 0 ? NULL : &wait, NULL);
}

PUBLIC int ppoll(struct pollfd *fds, nfds_t count, const struct timespec *timeout, const sigset_t *mask) {
    if (!any_ring(fds, count))
        return real_ppoll(fds, count, timeout, mask);
    return wait_many(fds, count, timeout, mask);
}

PUBLIC int __poll_chk(struct pollfd *fds, nfds_t count, int timeout, size_t size) {
    if (size / sizeof *fds < count)
        __chk_fail();
    return poll(fds, count, timeout);
}

PUBLIC int __ppoll_chk(struct pollfd *fds, nfds_t count, const struct timespec *timeout, const sigset_t *mask,
                       size_t size) {
    if (size / sizeof *fds < count)
        __chk_fail();
    return ppoll(fds, count, timeout, mask);
}

static int in(const fd_set *set, int fd) { return set && FD_ISSET(fd, set); }

static int selects_ring(int limit, const fd_set *reading, const fd_set *writing) {
    for (int fd = 0; fd < limit; fd++) {
        struct ring *ring = in(reading, fd) || in(writing, fd) ? ring_hold(fd) : NULL;
        if (ring) {
            ring_release(ring);
            return 1;
        }
    }
    return 0;
}

/* select() by poll(): what it means is in its manual page. */
static int by_poll(int limit, fd_set *reading, fd_set *writing, fd_set *exceptional,
                   const struct timespec *timeout, const sigset_t *mask) {
    struct pollfd fds[FD_SETSIZE];
    nfds_t count = 0;
    if (limit < 0 || limit > FD_SETSIZE) {
        errno = EINVAL;
        return -1;
    }
    for (int fd = 0; fd < limit; fd++) {
        short events = (short)((in(reading, fd) ? POLLIN : 0) | (in(writing, fd) ? POLLOUT : 0) |
                               (in(exceptional, fd) ? POLLPRI : 0));
        if (events)
            fds[count++] = (struct pollfd){fd, events, 0};
    }
    int polled = wait_many(fds, count, timeout, mask), total = 0;
    if (polled < 0)
        return -1;
    for (nfds_t i = 0; i < count; i++) {
        if (fds[i].revents & POLLNVAL) {
            errno = EBADF;
            return -1;
        }
    }
    for (nfds_t i = 0; i < count; i++) {
        int fd = fds[i].fd, got = fds[i].revents;
        if (in(reading, fd) && !(got & (POLLIN | POLLHUP | POLLERR)))
            FD_CLR(fd, reading);
        if (in(writing, fd) && !(got & (POLLOUT | POLLERR)))
            FD_CLR(fd, writing);
        if (in(exceptional, fd) && !(got & POLLPRI))
            FD_CLR(fd, exceptional);
        total += in(reading, fd) + in(writing, fd) + in(exceptional, fd);
    }
    return total;
}

PUBLIC int select(int limit, fd_set *reading, fd_set *writing, fd_set *exceptional, struct timeval *timeout) {
    if (!selects_ring(limit < FD_SETSIZE ? limit : FD_SETSIZE, reading, writing))
        return real_select(limit, reading, writing, exceptional, timeout);
    struct timespec wait = {0, 0};
    if (timeout)
        wait = (struct timespec){timeout->tv_sec, timeout->tv_usec * 1000};
    uint64_t start = ring_now();
    int total = by_poll(limit, reading, writing, exceptional, timeout ? &wait : NULL, NULL);
    if (timeout) {
        /* Linux tells what is left. */
        int64_t left = (int64_t)wait.tv_sec * 1000000 + wait.tv_nsec / 1000 - (int64_t)((ring_now() - start) / 1000);
        left = left > 0 ? left : 0;
        *timeout = (struct timeval){left / 1000000, left % 1000000};
    }
    return total;
}

PUBLIC int pselect(int limit, fd_set *reading, fd_set *writing, fd_set *exceptional,
                   const struct timespec *timeout, const sigset_t *mask) {
    if (!selects_ring(limit < FD_SETSIZE ? limit : FD_SETSIZE, reading, writing))
        return real_pselect(limit, reading, writing, exceptional, timeout, mask);
    return by_poll(limit, reading, writing, exceptional, timeout, mask);
}
