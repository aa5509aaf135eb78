/* What the files of the library share. The calls behind the ones that are replaced are real_NAME. */
#ifndef VMLANE_RING_H
#define VMLANE_RING_H
#define _GNU_SOURCE
#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/select.h>
#include <sys/socket.h>
#include <sys/types.h>
#include <sys/uio.h>
#include <time.h>

#define PUBLIC __attribute__((visibility("default")))

enum { FLAG_RING = 1 };

/* A connected stream whose bytes lie in memory shared with the daemon. */
struct ring;

/* An answer of ring_send and ring_receive: the bytes go through the descriptor (any more). */
enum { PLAIN = -2 };

/* Not 0 if streams shall have rings. */
int ring_wanted(void);
/* Makes a ring of `memory`, which is taken, and `fd`, its signal line. What cannot be mapped goes plain. */
void ring_adopt(int fd, int memory);
/* The ring of a descriptor, or NULL; to be given back. */
struct ring *ring_hold(int fd);
void ring_release(struct ring *ring);
/* Like sendmsg and recvmsg. */
ssize_t ring_send(struct ring *ring, int fd, const struct iovec *parts, int count, int flags);
ssize_t ring_receive(struct ring *ring, int fd, const struct iovec *parts, int count, int flags);
/* Bytes that can be read now. */
size_t ring_readable(struct ring *ring);
/* What poll would say of a socket in this state, of what `events` asks for. */
short ring_events(struct ring *ring, short events);
/* About to sleep for `events`: the descriptor polls readable once they may be there. */
void ring_arm(struct ring *ring, short events);
/* Awake again. `signalled`: the descriptor polled readable. */
void ring_disarm(struct ring *ring, int fd, short events, int signalled);
/* This end sends no more. */
void ring_finish(struct ring *ring, int fd);
/* From here on the daemon moves the bytes, and the descriptor is an ordinary socket: for whatever this
 * library does not replace, or cannot see. Waits for the daemon. */
void ring_switch(int fd);
/* All of them; `inherited`: those that survive exec. */
void ring_switch_all(int inherited);
/* The descriptors from `first` to `last` are closed. */
void ring_forget(unsigned first, unsigned last);
/* One iteration of a thread that polls; `round` counts them. */
void ring_pause(unsigned round);
uint64_t ring_now(void);
/* How long a call looks before it sleeps, in ns. */
#define SPIN 50000u

#define REAL_CALLS                                                                                           \
    REAL_CALL(int, poll, (struct pollfd * fds, nfds_t count, int timeout), (fds, count, timeout))            \
    REAL_CALL(int, ppoll, (struct pollfd * fds, nfds_t count, const struct timespec *timeout, const sigset_t *mask), \
              (fds, count, timeout, mask))                                                                   \
    REAL_CALL(ssize_t, read, (int fd, void *data, size_t len), (fd, data, len))                              \
    REAL_CALL(ssize_t, write, (int fd, const void *data, size_t len), (fd, data, len))                       \
    REAL_CALL(ssize_t, readv, (int fd, const struct iovec *parts, int count), (fd, parts, count))            \
    REAL_CALL(ssize_t, writev, (int fd, const struct iovec *parts, int count), (fd, parts, count))           \
    REAL_CALL(ssize_t, recv, (int fd, void *data, size_t len, int flags), (fd, data, len, flags))            \
    REAL_CALL(ssize_t, send, (int fd, const void *data, size_t len, int flags), (fd, data, len, flags))      \
    REAL_CALL(ssize_t, recvfrom,                                                                             \
              (int fd, void *data, size_t len, int flags, struct sockaddr *from, socklen_t *size),           \
              (fd, data, len, flags, from, size))                                                            \
    REAL_CALL(ssize_t, sendto,                                                                               \
              (int fd, const void *data, size_t len, int flags, const struct sockaddr *to, socklen_t size),  \
              (fd, data, len, flags, to, size))                                                              \
    REAL_CALL(ssize_t, recvmsg, (int fd, struct msghdr *message, int flags), (fd, message, flags))           \
    REAL_CALL(ssize_t, sendmsg, (int fd, const struct msghdr *message, int flags), (fd, message, flags))     \
    REAL_CALL(int, select,                                                                                   \
              (int limit, fd_set *reading, fd_set *writing, fd_set *exceptional, struct timeval *timeout),   \
              (limit, reading, writing, exceptional, timeout))                                               \
    REAL_CALL(int, pselect,                                                                                  \
              (int limit, fd_set *reading, fd_set *writing, fd_set *exceptional,                             \
               const struct timespec *timeout, const sigset_t *mask),                                        \
              (limit, reading, writing, exceptional, timeout, mask))                                         \
    REAL_CALL(int, shutdown, (int fd, int how), (fd, how))                                                   \
    REAL_CALL(int, close, (int fd), (fd))

#define REAL_CALL(result, name, params, args) result real_##name params;
REAL_CALLS
#undef REAL_CALL

#endif
