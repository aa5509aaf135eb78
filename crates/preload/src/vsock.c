/* AF_VSOCK for programs of a host without a VMCI kernel module: by LD_PRELOAD (`vmlane run`), or linked.
 *
 * A stream socket of the family is a Unix socket in truth. connect() takes it to the daemon, which
 * answers with one record; listen() takes it there too, and every connection then arrives as a record with a
 * descriptor. With the record comes memory for a ring (ring.c), through which read, write and their kin
 * move the bytes (calls.c) until the program does something with the descriptor that needs the kernel
 * (dup, fork, exec, epoll ...; escapes.c): from then on the daemon pumps the bytes through the Unix socket.
 * This file replaces the calls that name addresses and options.
 *
 * Datagram sockets: datagram.c.
 *
 * What is known of a socket is kept by its inode, which survives dup and fork; after exec the bytes
 * still flow, only its addresses are forgotten. Records: crates/wire/src/host.rs.
 */
#include "vsock.h"
#include <dlfcn.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/un.h>
#include <unistd.h>

#define GET_LOCAL_CID 0x7b9
#define MAGIC 0x684c4d56u /* "VMLh" */

struct request {
    uint32_t magic;
    uint16_t version, op;
    uint32_t cid, port, arg, flags;
};
/* ---- what is known of sockets ---- */

enum { PLACES = 16384, PROBES = 16 };
static struct known places[PLACES];
static unsigned next_victim;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

static void before_fork(void) {
    /* Two processes cannot share an end of a ring. */
    ring_switch_all(0);
    pthread_mutex_lock(&lock);
}
static void after_fork(void) { pthread_mutex_unlock(&lock); }

__attribute__((constructor)) static void start(void) { pthread_atfork(before_fork, after_fork, after_fork); }

static struct known *place_of(ino_t inode, dev_t device) {
    for (unsigned i = 0; i < PROBES; i++) {
        struct known *place = &places[(inode + i) % PLACES];
        if (place->type && place->inode == inode && place->device == device)
            return place;
    }
    return NULL;
}

int known_look(int fd, struct known *out) {
    struct stat info;
    int saved = errno, found = 0;
    if (fd >= 0 && fstat(fd, &info) == 0 && S_ISSOCK(info.st_mode)) {
        pthread_mutex_lock(&lock);
        struct known *place = place_of(info.st_ino, info.st_dev);
        if (place) {
            *out = *place;
            found = 1;
        }
        pthread_mutex_unlock(&lock);
    }
    errno = saved;
    return found;
}

void known_note(int fd, const struct known *what) {
    struct stat info;
    int saved = errno;
    if (fstat(fd, &info) == 0) {
        pthread_mutex_lock(&lock);
        struct known *place = place_of(info.st_ino, info.st_dev);
        for (unsigned i = 0; !place && i < PROBES; i++) {
            struct known *one = &places[(info.st_ino + i) % PLACES];
            if (!one->type)
                place = one;
        }
        /* Sockets that were closed leave their places behind: the next ones take them. */
        if (!place)
            place = &places[(info.st_ino + next_victim++ % PROBES) % PLACES];
        *place = *what;
        place->inode = info.st_ino;
        place->device = info.st_dev;
        pthread_mutex_unlock(&lock);
    }
    errno = saved;
}

/* ---- the calls behind ours ---- */

#define REAL(result, name, ...)                                                                              \
    static result (*real)(__VA_ARGS__);                                                                      \
    if (!real)                                                                                               \
    real = (result(*)(__VA_ARGS__))dlsym(RTLD_NEXT, #name)

static int real_connect(int fd, const struct sockaddr *to, socklen_t len) {
    REAL(int, connect, int, const struct sockaddr *, socklen_t);
    return real(fd, to, len);
}

static int real_socket(int family, int type, int protocol) {
    REAL(int, socket, int, int, int);
    return real(family, type, protocol);
}

/* ---- the daemon ---- */

int vsock_fail(int error) {
    errno = error;
    return -1;
}

static int socket_in(struct sockaddr_un *to, const char *directory, const char *name) {
    memset(to, 0, sizeof *to);
    to->sun_family = AF_UNIX;
    if (strlen(directory) + strlen(name) >= sizeof to->sun_path)
        return vsock_fail(ENAMETOOLONG);
    strcat(strcpy(to->sun_path, directory), name);
    return 0;
}

/* The directory that is named, else a daemon of the user's own, else the host's. */
static int address_of_daemon(struct sockaddr_un *to) {
    const char *directory = getenv("VMLANE_RUNTIME_DIR");
    if (directory && *directory)
        return socket_in(to, directory, "/host.sock");
    const char *own = geteuid() ? getenv("XDG_RUNTIME_DIR") : NULL;
    if (own && *own && !socket_in(to, own, "/vmlane/host.sock") && !access(to->sun_path, F_OK))
        return 0;
    return socket_in(to, "/run/vmlane", "/host.sock");
}

/* One record with at most two descriptors; `fds` are -1 where none came. */
static ssize_t record(int fd, struct reply *reply, int *fds, int flags) {
    union {
        struct cmsghdr header;
        char space[CMSG_SPACE(sizeof(int) * 2)];
    } control;
    struct iovec part = {reply, sizeof *reply};
    struct msghdr message = {.msg_iov = &part, .msg_iovlen = 1, .msg_control = &control,
                             .msg_controllen = sizeof control};
    fds[0] = fds[1] = -1;
    ssize_t got = real_recvmsg(fd, &message, flags);
    struct cmsghdr *rights = got > 0 ? CMSG_FIRSTHDR(&message) : NULL;
    if (rights && rights->cmsg_level == SOL_SOCKET && rights->cmsg_type == SCM_RIGHTS)
        memcpy(fds, CMSG_DATA(rights),
               rights->cmsg_len >= CMSG_LEN(sizeof(int) * 2) ? sizeof(int) * 2 : sizeof(int));
    return got;
}

static int converse(int fd, const struct request *request, struct reply *reply, int *sent) {
    int fds[2];
    ssize_t done;
    while ((done = real_send(fd, request, sizeof *request, MSG_NOSIGNAL)) < 0 && errno == EINTR)
        ;
    if (done < 0)
        return -1;
    while ((done = record(fd, reply, fds, MSG_CMSG_CLOEXEC | MSG_WAITALL)) < 0 && errno == EINTR)
        ;
    if (done < 0)
        return -1;
    if (fds[1] >= 0)
        real_close(fds[1]);
    if (sent)
        *sent = fds[0];
    else if (fds[0] >= 0)
        real_close(fds[0]);
    return done == sizeof *reply ? 0 : vsock_fail(ECONNRESET);
}

/* Takes `fd` to the daemon with a request. The daemon answers in bounded time. */
int daemon_ask(int fd, uint16_t op, uint32_t cid, uint32_t port, uint32_t arg, uint32_t ask_flags,
               struct reply *reply, int *sent) {
    struct sockaddr_un to;
    if (address_of_daemon(&to))
        return -1;
    int flags = fcntl(fd, F_GETFL);
    if (flags & O_NONBLOCK)
        fcntl(fd, F_SETFL, flags & ~O_NONBLOCK);
    struct timeval none = {0, 0}, before[2] = {{0, 0}, {0, 0}};
    socklen_t size = sizeof before[0];
    getsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &before[0], &size);
    setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &none, sizeof none);
    struct request request = {MAGIC, 1, op, cid, port, arg, ask_flags};
    int outcome = real_connect(fd, (struct sockaddr *)&to, sizeof to);
    if (outcome && (errno == ENOENT || errno == ECONNREFUSED))
        errno = ENODEV; /* no daemon: as if there were no vsock */
    if (!outcome)
        outcome = converse(fd, &request, reply, sent);
    int saved = errno;
    setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &before[0], sizeof before[0]);
    if (flags & O_NONBLOCK)
        fcntl(fd, F_SETFL, flags);
    errno = saved;
    if (!outcome && reply->magic != MAGIC)
        return vsock_fail(EPROTO);
    if (!outcome && reply->error)
        return vsock_fail(reply->error > 0 ? reply->error : EPROTO);
    return outcome;
}

static int ask(int fd, uint16_t op, uint32_t cid, uint32_t port, uint32_t arg, struct reply *reply,
               int *memory) {
    return daemon_ask(fd, op, cid, port, arg, ring_wanted() ? FLAG_RING : 0, reply, memory);
}

/* Puts a fresh socket in the place of `fd`, so that a program may try again with it. */
static int renew(int fd, const struct known *known, int family) {
    int saved = errno, flags = fcntl(fd, F_GETFL), own = fcntl(fd, F_GETFD);
    int fresh = real_socket(family, known->type, 0), done = -1;
    if (fresh >= 0) {
        fcntl(fresh, F_SETFL, flags);
        done = dup3(fresh, fd, own & FD_CLOEXEC ? O_CLOEXEC : 0);
        close(fresh);
        if (done >= 0 && family == AF_UNIX)
            known_note(fd, known);
    }
    errno = saved;
    return done < 0 ? -1 : 0;
}

int vsock_tell(const struct sockaddr_vsock *address, struct sockaddr *out, socklen_t *len) {
    if (!out || !len)
        return 0;
    memcpy(out, address, *len < sizeof *address ? *len : sizeof *address);
    *len = sizeof *address;
    return 0;
}

/* ---- the calls ---- */

PUBLIC int socket(int family, int type, int protocol) {
    if (family != AF_VSOCK)
        return real_socket(family, type, protocol);
    int kind = type & ~(SOCK_NONBLOCK | SOCK_CLOEXEC);
    if (kind != SOCK_STREAM && kind != SOCK_DGRAM) /* the kernel's own family may have it */
        return real_socket(family, type, protocol);
    if (protocol != 0 && protocol != AF_VSOCK)
        return vsock_fail(EPROTONOSUPPORT);
    int fd = real_socket(AF_UNIX, type, 0);
    if (fd >= 0) {
        if (kind == SOCK_DGRAM)
            __atomic_store_n(&datagram_any, 1, __ATOMIC_RELAXED);
        struct known known = {.type = kind, .port = PORT_ANY, .size = 262144, .min = 128, .max = 262144};
        known_note(fd, &known);
    }
    return fd;
}

PUBLIC int bind(int fd, const struct sockaddr *to, socklen_t len) {
    REAL(int, bind, int, const struct sockaddr *, socklen_t);
    struct known known;
    if (!known_look(fd, &known))
        return real(fd, to, len);
    const struct sockaddr_vsock *address = (const void *)to;
    if (len < offsetof(struct sockaddr_vsock, flags) || to->sa_family != AF_VSOCK)
        return vsock_fail(EINVAL);
    if (address->cid != (unsigned)CID_ANY && address->cid != CID_HOST)
        return vsock_fail(EADDRNOTAVAIL);
    if (known.type == SOCK_DGRAM)
        return known.bound ? vsock_fail(EINVAL) : datagram_bind(fd, &known, address->port);
    known.port = address->port;
    known_note(fd, &known);
    return 0;
}

PUBLIC int listen(int fd, int backlog) {
    REAL(int, listen, int, int);
    struct known known;
    struct reply reply;
    if (!known_look(fd, &known))
        return real(fd, backlog);
    if (known.type == SOCK_DGRAM)
        return vsock_fail(EOPNOTSUPP);
    if (known.connected)
        return vsock_fail(EINVAL);
    if (known.listening)
        return 0;
    if (ask(fd, OP_LISTEN, 0, known.port, backlog < 0 ? 0 : (uint32_t)backlog, &reply, NULL)) {
        renew(fd, &known, AF_UNIX);
        return -1;
    }
    known.listening = 1;
    known.port = reply.port;
    known_note(fd, &known);
    return 0;
}

/* Whom send() means; a socket without a port gets one. */
static int connect_datagrams(int fd, struct known *known, const struct sockaddr_vsock *address) {
    known->connected = address->family != AF_UNSPEC;
    if (known->connected && address->family != AF_VSOCK)
        return vsock_fail(EAFNOSUPPORT);
    known->peer_cid = address->cid;
    known->peer_port = address->port;
    if (known->connected && !known->bound)
        return datagram_bind(fd, known, PORT_ANY);
    known_note(fd, known);
    return 0;
}

PUBLIC int connect(int fd, const struct sockaddr *to, socklen_t len) {
    struct known known;
    struct reply reply;
    if (!known_look(fd, &known))
        return real_connect(fd, to, len);
    const struct sockaddr_vsock *address = (const void *)to;
    if (len < offsetof(struct sockaddr_vsock, flags))
        return vsock_fail(EINVAL);
    if (known.type == SOCK_DGRAM)
        return connect_datagrams(fd, &known, address);
    if (to->sa_family != AF_VSOCK)
        return vsock_fail(EAFNOSUPPORT);
    if (known.connected)
        return vsock_fail(EISCONN);
    if (known.listening)
        return vsock_fail(EINVAL);
    uint64_t millis = (uint64_t)known.timeout.tv_sec * 1000 + (uint64_t)known.timeout.tv_usec / 1000;
    uint32_t patience = millis > 60000 ? 60000 : (uint32_t)millis;
    int memory = -1;
    if (ask(fd, OP_CONNECT, address->cid, address->port, patience, &reply, &memory)) {
        if (memory >= 0)
            real_close(memory);
        /* Not a VM of ours: another hypervisor's, if the kernel knows it. */
        if (errno == ENODEV && renew(fd, &known, AF_VSOCK) == 0)
            return real_connect(fd, to, len) == 0 ? 0 : vsock_fail(errno == EAFNOSUPPORT ? ENODEV : errno);
        renew(fd, &known, AF_UNIX);
        return -1;
    }
    known.connected = 1;
    known.port = reply.port;
    known.peer_cid = address->cid;
    known.peer_port = address->port;
    known_note(fd, &known);
    if (memory >= 0)
        ring_adopt(fd, memory);
    return 0;
}

/* The daemon is gone and the port with it: takes it again when the next one is there. */
static int listen_again(int fd, const struct known *listener) {
    struct reply reply;
    const struct timespec moment = {0, 50 * 1000 * 1000};
    for (uint64_t start = ring_now(); ring_now() - start < 5000000000u; nanosleep(&moment, NULL)) {
        if (renew(fd, listener, AF_UNIX))
            return -1;
        if (ask(fd, OP_LISTEN, 0, listener->port, 0, &reply, NULL) == 0)
            return 0;
    }
    /* Programs try again after this one. */
    return vsock_fail(ECONNABORTED);
}

static int take(int fd, struct sockaddr *peer, socklen_t *len, int flags, const struct known *listener) {
    struct reply reply;
    int fds[2];
    ssize_t got;
    while ((got = record(fd, &reply, fds, flags & SOCK_CLOEXEC ? MSG_CMSG_CLOEXEC : 0)) == 0 ||
           (got < 0 && errno == ECONNRESET))
        if (listen_again(fd, listener))
            return -1;
    if (got < 0)
        return -1;
    if (got != sizeof reply || fds[0] < 0) {
        for (int i = 0; i < 2; i++)
            if (fds[i] >= 0)
                real_close(fds[i]);
        return vsock_fail(ECONNABORTED);
    }
    int taken = fds[0];
    if (flags & SOCK_NONBLOCK)
        fcntl(taken, F_SETFL, fcntl(taken, F_GETFL) | O_NONBLOCK);
    struct known known = *listener;
    known.listening = 0;
    known.connected = 1;
    known.peer_cid = reply.cid;
    known.peer_port = reply.port;
    known_note(taken, &known);
    if (fds[1] >= 0)
        ring_adopt(taken, fds[1]);
    struct sockaddr_vsock address = {.family = AF_VSOCK, .port = reply.port, .cid = reply.cid};
    vsock_tell(&address, peer, len);
    return taken;
}

PUBLIC int accept4(int fd, struct sockaddr *peer, socklen_t *len, int flags) {
    REAL(int, accept4, int, struct sockaddr *, socklen_t *, int);
    struct known known;
    if (!known_look(fd, &known))
        return real(fd, peer, len, flags);
    if (known.type == SOCK_DGRAM)
        return vsock_fail(EOPNOTSUPP);
    return known.listening ? take(fd, peer, len, flags, &known) : vsock_fail(EINVAL);
}

PUBLIC int accept(int fd, struct sockaddr *peer, socklen_t *len) {
    REAL(int, accept, int, struct sockaddr *, socklen_t *);
    struct known known;
    if (!known_look(fd, &known))
        return real(fd, peer, len);
    if (known.type == SOCK_DGRAM)
        return vsock_fail(EOPNOTSUPP);
    return known.listening ? take(fd, peer, len, 0, &known) : vsock_fail(EINVAL);
}

PUBLIC int getsockname(int fd, struct sockaddr *out, socklen_t *len) {
    REAL(int, getsockname, int, struct sockaddr *, socklen_t *);
    struct known known;
    if (!known_look(fd, &known))
        return real(fd, out, len);
    struct sockaddr_vsock address = {.family = AF_VSOCK, .port = known.port, .cid = CID_HOST};
    if (!known.connected && !known.listening && !known.bound)
        address.cid = (unsigned)CID_ANY;
    return vsock_tell(&address, out, len);
}

PUBLIC int getpeername(int fd, struct sockaddr *out, socklen_t *len) {
    REAL(int, getpeername, int, struct sockaddr *, socklen_t *);
    struct known known;
    if (!known_look(fd, &known))
        return real(fd, out, len);
    if (!known.connected)
        return vsock_fail(ENOTCONN);
    struct sockaddr_vsock address = {.family = AF_VSOCK, .port = known.peer_port, .cid = known.peer_cid};
    return vsock_tell(&address, out, len);
}

/* Old and new layouts of a timeout are one where longs have 64 bits. */
static int is_timeout(int name) { return name == 6 || name == 8; }

PUBLIC int setsockopt(int fd, int level, int name, const void *value, socklen_t len) {
    REAL(int, setsockopt, int, int, int, const void *, socklen_t);
    struct known known;
    if (level != AF_VSOCK || !known_look(fd, &known))
        return real(fd, level, name, value, len);
    if (is_timeout(name)) {
        if (len < sizeof known.timeout)
            return vsock_fail(EINVAL);
        memcpy(&known.timeout, value, sizeof known.timeout);
        if (known.timeout.tv_sec < 0 || known.timeout.tv_usec < 0 || known.timeout.tv_usec > 999999)
            return vsock_fail(EDOM);
    } else if (name >= 0 && name <= 2) {
        uint64_t *fields[] = {&known.size, &known.min, &known.max};
        if (len < sizeof *fields[0])
            return vsock_fail(EINVAL);
        memcpy(fields[name], value, sizeof *fields[0]);
        known.size = known.size > known.max ? known.max : known.size;
        known.size = known.size < known.min ? known.min : known.size;
    } else {
        return vsock_fail(ENOPROTOOPT);
    }
    known_note(fd, &known);
    return 0;
}

static int give(const void *from, socklen_t size, void *value, socklen_t *len) {
    if (!value || !len || *len < size)
        return vsock_fail(EINVAL);
    memcpy(value, from, size);
    *len = size;
    return 0;
}

PUBLIC int getsockopt(int fd, int level, int name, void *restrict value, socklen_t *restrict len) {
    REAL(int, getsockopt, int, int, int, void *, socklen_t *);
    struct known known;
    int family = AF_VSOCK;
    int ours = level == AF_VSOCK || (level == SOL_SOCKET && (name == SO_DOMAIN || name == SO_ACCEPTCONN || name == SO_TYPE));
    if (!ours || !known_look(fd, &known))
        return real(fd, level, name, value, len);
    if (level == SOL_SOCKET)
        return give(name == SO_DOMAIN ? &family : name == SO_TYPE ? &known.type : &known.listening, sizeof(int),
                    value, len);
    if (is_timeout(name)) {
        struct timeval two = {2, 0};
        int set = known.timeout.tv_sec || known.timeout.tv_usec;
        return give(set ? &known.timeout : &two, sizeof two, value, len);
    }
    if (name < 0 || name > 2)
        return vsock_fail(ENOPROTOOPT);
    const uint64_t *fields[] = {&known.size, &known.min, &known.max};
    return give(fields[name], sizeof *fields[0], value, len);
}

/* ---- /dev/vsock, which tells the local CID ---- */

static int is_device(const char *path) { return path && !strcmp(path, "/dev/vsock") && access(path, F_OK); }

PUBLIC int ioctl(int fd, unsigned long request, ...) {
    REAL(int, ioctl, int, unsigned long, void *);
    va_list rest;
    va_start(rest, request);
    void *argument = va_arg(rest, void *);
    va_end(rest);
    if (request == GET_LOCAL_CID && argument) {
        *(unsigned int *)argument = CID_HOST;
        return 0;
    }
    struct ring *ring = request == FIONREAD && argument ? ring_hold(fd) : NULL;
    if (ring) {
        *(int *)argument = (int)ring_readable(ring);
        ring_release(ring);
        return 0;
    }
    return real(fd, request, argument);
}

#define OPEN(name)                                                                                           \
    PUBLIC int name(const char *path, int flags, ...) {                                                      \
        REAL(int, name, const char *, int, mode_t);                                                          \
        va_list rest;                                                                                        \
        va_start(rest, flags);                                                                               \
        mode_t mode = flags & (O_CREAT | O_TMPFILE) ? va_arg(rest, mode_t) : 0;                              \
        va_end(rest);                                                                                        \
        return real(is_device(path) ? "/dev/null" : path, flags, mode);                                      \
    }
OPEN(open)
OPEN(open64)

/* ---- the names of the VMCI Sockets Programming Guide ---- */

PUBLIC int VMCISock_GetAFValue(void) { return AF_VSOCK; }

PUBLIC int VMCISock_GetAFValueFd(int *fd) {
    if (fd)
        *fd = -1;
    return AF_VSOCK;
}

PUBLIC void VMCISock_ReleaseAFValueFd(int fd) { (void)fd; }

PUBLIC unsigned int VMCISock_GetLocalCID(void) { return CID_HOST; }

PUBLIC unsigned int VMCISock_Version(void) { return 0xffffffffu; }
