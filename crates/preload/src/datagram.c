/* Datagram sockets: a packet socket whose messages begin with an address (crates/wire/src/host.rs). The daemon
 * hands it out for a port, and the port is free again when the socket's last descriptor is closed. */
#include "vsock.h"
#include <fcntl.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { FLAG_ALONE = 2, MOST = 69608, SMALL = 16 };

struct peer {
    uint32_t cid, port;
};

int datagram_any;

static void inherit(int from, int to) {
    const int names[] = {SO_RCVTIMEO, SO_SNDTIMEO};
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
        struct timeval time;
        socklen_t size = sizeof time;
        if (getsockopt(from, SOL_SOCKET, names[i], &time, &size) == 0)
            setsockopt(to, SOL_SOCKET, names[i], &time, size);
    }
    fcntl(to, F_SETFL, fcntl(from, F_GETFL));
}

int datagram_bind(int fd, struct known *known, uint32_t port) {
    struct reply reply;
    int packets = -1, asking = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (asking < 0)
        return -1;
    int outcome = daemon_ask(asking, OP_DATAGRAM, 0, port, 0, FLAG_ALONE, &reply, &packets);
    int saved = errno;
    real_close(asking);
    errno = saved;
    if (!outcome && packets < 0)
        outcome = vsock_fail(EPROTO);
    if (!outcome) {
        inherit(fd, packets);
        outcome = dup3(packets, fd, fcntl(fd, F_GETFD) & FD_CLOEXEC ? O_CLOEXEC : 0) < 0 ? -1 : 0;
    }
    saved = errno;
    if (packets >= 0)
        real_close(packets);
    if (!outcome) {
        known->bound = 1;
        known->port = reply.port;
        known_note(fd, known);
    }
    errno = saved;
    return outcome;
}

/* The daemon is gone: takes the port again when the next one is there. */
static int again(int fd, struct known *known) {
    const struct timespec moment = {0, 50 * 1000 * 1000};
    for (uint64_t start = ring_now(); ring_now() - start < 5000000000u; nanosleep(&moment, NULL))
        if (datagram_bind(fd, known, known->port) == 0)
            return 0;
    return -1;
}

int datagram_is(int fd, struct known *known) {
    return __atomic_load_n(&datagram_any, __ATOMIC_RELAXED) && known_look(fd, known) && known->type == SOCK_DGRAM;
}

/* The parts with the header in front; `own` serves for few of them. */
static struct iovec *with_header(struct peer *header, const struct iovec *parts, size_t count, struct iovec *own) {
    struct iovec *all = count < SMALL ? own : malloc((count + 1) * sizeof *all);
    if (all) {
        all[0] = (struct iovec){header, sizeof *header};
        memcpy(all + 1, parts, count * sizeof *parts);
    }
    return all;
}

ssize_t datagram_send(int fd, const struct iovec *parts, size_t count, int flags, const struct sockaddr *to,
                      socklen_t size) {
    struct known known;
    if (!datagram_is(fd, &known))
        return PLAIN;
    struct peer header = {known.peer_cid, known.peer_port};
    const struct sockaddr_vsock *address = (const void *)to;
    if (to && size) {
        if (size < offsetof(struct sockaddr_vsock, flags) || to->sa_family != AF_VSOCK)
            return vsock_fail(EINVAL);
        header = (struct peer){address->cid, address->port};
    } else if (!known.connected) {
        return vsock_fail(EINVAL);
    }
    if (flags & MSG_OOB)
        return vsock_fail(EOPNOTSUPP);
    if (count >= IOV_MAX)
        return vsock_fail(EMSGSIZE);
    size_t len = 0;
    for (size_t i = 0; i < count; i++) {
        if (parts[i].iov_len > MOST - len)
            return vsock_fail(EMSGSIZE);
        len += parts[i].iov_len;
    }
    if (!known.bound && datagram_bind(fd, &known, PORT_ANY))
        return -1;
    struct iovec own[SMALL], *all = with_header(&header, parts, count, own);
    if (!all)
        return vsock_fail(ENOMEM);
    struct msghdr message = {.msg_iov = all, .msg_iovlen = count + 1};
    ssize_t sent = real_sendmsg(fd, &message, flags | MSG_NOSIGNAL);
    if (sent < 0 && (errno == EPIPE || errno == ECONNRESET) && again(fd, &known) == 0)
        sent = real_sendmsg(fd, &message, flags | MSG_NOSIGNAL);
    int saved = errno;
    if (all != own)
        free(all);
    errno = saved;
    return sent < 0 ? -1 : (ssize_t)len;
}

ssize_t datagram_receive(int fd, const struct iovec *parts, size_t count, int flags, struct sockaddr *from,
                         socklen_t *size, int *got) {
    struct known known;
    /* One without a port gets nothing, and waits. */
    if (!datagram_is(fd, &known) || !known.bound)
        return PLAIN;
    if (flags & (MSG_OOB | MSG_ERRQUEUE))
        return vsock_fail(EOPNOTSUPP);
    if (count >= IOV_MAX)
        return vsock_fail(EMSGSIZE);
    struct peer header;
    struct iovec own[SMALL], *all = with_header(&header, parts, count, own);
    if (!all)
        return vsock_fail(ENOMEM);
    ssize_t came;
    struct msghdr message;
    for (;;) {
        message = (struct msghdr){.msg_iov = all, .msg_iovlen = count + 1};
        came = real_recvmsg(fd, &message, flags);
        if (came >= (ssize_t)sizeof header || (came < 0 && errno != ECONNRESET))
            break;
        if (came > 0) {
            /* One without a whole header is dropped; where the caller only looks, it is still there. */
            if (flags & MSG_PEEK)
                real_recv(fd, &header, sizeof header, MSG_DONTWAIT);
        } else if (again(fd, &known)) {
            came = vsock_fail(ECONNRESET);
            break;
        }
    }
    int saved = errno;
    if (all != own)
        free(all);
    errno = saved;
    if (came < 0)
        return -1;
    if (got)
        *got = message.msg_flags & MSG_TRUNC;
    struct sockaddr_vsock address = {.family = AF_VSOCK, .port = header.port, .cid = header.cid};
    vsock_tell(&address, from, size);
    return came - (ssize_t)sizeof header;
}
