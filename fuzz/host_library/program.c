/* A program that uses the library, with buffers of exactly the size that it names: what it may pass is any
 * descriptor, flag, length and order of calls; not an address that is none, which the library uses as itself does. */
#include "world.h"
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/ioctl.h>
#include <sys/select.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/time.h>
#include <sys/uio.h>
#include <unistd.h>

#ifndef AF_VSOCK
#define AF_VSOCK 40
#endif

/* The library's calls: build.rs puts `library_` in front of each. */
int library_socket(int family, int type, int protocol);
int library_bind(int fd, const struct sockaddr *to, socklen_t len);
int library_connect(int fd, const struct sockaddr *to, socklen_t len);
int library_listen(int fd, int backlog);
int library_accept4(int fd, struct sockaddr *peer, socklen_t *len, int flags);
int library_accept(int fd, struct sockaddr *peer, socklen_t *len);
int library_getsockname(int fd, struct sockaddr *out, socklen_t *len);
int library_getpeername(int fd, struct sockaddr *out, socklen_t *len);
int library_setsockopt(int fd, int level, int name, const void *value, socklen_t len);
int library_getsockopt(int fd, int level, int name, void *value, socklen_t *len);
int library_ioctl(int fd, unsigned long request, ...);
int library_fcntl(int fd, int command, ...);
ssize_t library_read(int fd, void *data, size_t len);
ssize_t library_write(int fd, const void *data, size_t len);
ssize_t library_recvfrom(int fd, void *data, size_t len, int flags, struct sockaddr *from, socklen_t *size);
ssize_t library_sendto(int fd, const void *data, size_t len, int flags, const struct sockaddr *to, socklen_t size);
ssize_t library_recvmsg(int fd, struct msghdr *message, int flags);
ssize_t library_sendmsg(int fd, const struct msghdr *message, int flags);
int library_recvmmsg(int fd, struct mmsghdr *messages, unsigned count, int flags, struct timespec *timeout);
int library_sendmmsg(int fd, struct mmsghdr *messages, unsigned count, int flags);
int library_poll(struct pollfd *fds, nfds_t count, int timeout);
int library_select(int limit, fd_set *reading, fd_set *writing, fd_set *exceptional, struct timeval *timeout);
int library_shutdown(int fd, int how);
int library_dup(int fd);
int library_dup2(int fd, int to);
int library_close(int fd);
int library_close_range(unsigned first, unsigned last, int flags);
int library_epoll_ctl(int epoll, int operation, int fd, struct epoll_event *event);

enum { SOCKETS = 6, DESCRIPTORS = 256 };

struct address {
    sa_family_t family;
    unsigned short reserved;
    unsigned port, cid;
    unsigned char zero[4];
};

/* Descriptors below this one are the fuzzer's own. */
static int first;
static int sockets[SOCKETS];
static unsigned used;

static int pick(void) { return sockets[input_byte() % SOCKETS]; }

static void keep(int fd) {
    MUST(fd >= -1);
    if (fd < 0)
        return;
    int *place = &sockets[used++ % SOCKETS];
    if (*place >= 0 && *place != fd)
        library_close(*place);
    *place = fd;
}

static int flags_of(uint8_t bits) {
    static const int FLAGS[] = {MSG_DONTWAIT, MSG_PEEK, MSG_WAITALL, MSG_TRUNC, MSG_NOSIGNAL, MSG_OOB, MSG_CTRUNC, MSG_EOR};
    int flags = 0;
    for (int i = 0; i < 8; i++)
        flags |= bits >> i & 1 ? FLAGS[i] : 0;
    return flags;
}

static size_t length(void) {
    uint8_t byte = input_byte();
    return byte < 200 ? byte : (size_t)(byte - 199) * 331;
}

/* What every call keeps: a count within what was asked for, or an error that has a number. */
static void check(ssize_t outcome, size_t most, int flags) {
    MUST(outcome >= -1);
    if (outcome < 0)
        MUST(errno > 0);
    else if (!(flags & MSG_TRUNC))
        MUST((size_t)outcome <= most);
}

static struct address any_address(void) {
    uint8_t how = input_byte();
    return (struct address){how & 128 ? AF_UNSPEC : AF_VSOCK, 0, how % 5, how & 64 ? 2 : (unsigned)(how >> 3) % 6 - 1, {0}};
}

static void plain(int fd) {
    size_t len = length();
    uint8_t *data = malloc(len ? len : 1);
    if (input_byte() & 1) {
        check(library_read(fd, data, len), len, 0);
    } else {
        memset(data, 7, len);
        check(library_write(fd, data, len), len, 0);
    }
    free(data);
}

static void with_address(int fd) {
    size_t len = length();
    int flags = flags_of(input_byte());
    uint8_t *data = calloc(1, len ? len : 1);
    socklen_t size = input_byte() % 24;
    struct sockaddr *peer = malloc(size ? size : 1);
    if (input_byte() & 1) {
        socklen_t room = size;
        check(library_recvfrom(fd, data, len, flags, peer, &room), len, flags);
    } else {
        struct address to = any_address();
        check(library_sendto(fd, data, len, flags, (void *)&to, sizeof to), len, 0);
    }
    free(peer);
    free(data);
}

enum { PARTS = 20 };

/* A message of many parts; the caller frees them. */
static size_t make_parts(struct iovec *parts, size_t count) {
    size_t total = 0;
    for (size_t i = 0; i < count; i++) {
        size_t len = length();
        parts[i] = (struct iovec){calloc(1, len ? len : 1), len};
        total += len;
    }
    return total;
}

static void free_parts(struct iovec *parts, size_t count) {
    for (size_t i = 0; i < count; i++)
        free(parts[i].iov_base);
}

static void message(int fd) {
    struct iovec parts[PARTS];
    uint8_t how = input_byte();
    size_t count = how % (PARTS + 1), total = make_parts(parts, count);
    int flags = flags_of(input_byte());
    struct address peer = any_address();
    struct msghdr message = {.msg_iov = parts, .msg_iovlen = count};
    if (how & 128) {
        message.msg_name = &peer;
        message.msg_namelen = sizeof peer;
    }
    if (how & 64)
        check(library_recvmsg(fd, &message, flags), total, flags);
    else
        check(library_sendmsg(fd, &message, flags), total, 0);
    free_parts(parts, count);
}

/* A descriptor to another process, which has gone since. */
static void pass_on(int fd) {
    int pair[2], passed = pick();
    union {
        struct cmsghdr header;
        char space[CMSG_SPACE(sizeof(int))];
    } control = {.header = {CMSG_LEN(sizeof(int)), SOL_SOCKET, SCM_RIGHTS}};
    struct iovec part = {"x", 1};
    struct msghdr message = {.msg_iov = &part, .msg_iovlen = 1, .msg_control = &control, .msg_controllen = sizeof control};
    memcpy(CMSG_DATA(&control.header), &passed, sizeof passed);
    MUST(socketpair(AF_UNIX, SOCK_STREAM, 0, pair) == 0);
    check(library_sendmsg(input_byte() & 1 ? fd : pair[0], &message, 0), 1, 0);
    library_close(pair[0]);
    library_close(pair[1]);
}

static void several(int fd) {
    struct iovec parts[2];
    struct mmsghdr messages[2];
    struct timespec timeout = {0, input_byte() * 1000};
    size_t total = make_parts(parts, 2);
    memset(messages, 0, sizeof messages);
    for (int i = 0; i < 2; i++)
        messages[i].msg_hdr = (struct msghdr){.msg_iov = &parts[i], .msg_iovlen = 1};
    if (input_byte() & 1)
        check(library_recvmmsg(fd, messages, 2, MSG_DONTWAIT, &timeout), 2, 0);
    else
        check(library_sendmmsg(fd, messages, 2, MSG_DONTWAIT), total + 2, 0);
    free_parts(parts, 2);
}

static void wait_for_many(void) {
    nfds_t count = input_byte() % 80;
    struct pollfd *fds = malloc((count ? count : 1) * sizeof *fds);
    for (nfds_t i = 0; i < count; i++)
        fds[i] = (struct pollfd){sockets[i % SOCKETS], (short)(i < SOCKETS ? input_byte() : POLLIN), 0x55};
    check(library_poll(fds, count, (int)input_byte() - 1), count, 0);
    free(fds);
}

static void choose(void) {
    fd_set reading, writing;
    uint8_t which = input_byte();
    struct timeval wait = {0, which * 100};
    FD_ZERO(&reading);
    FD_ZERO(&writing);
    for (int i = 0; i < SOCKETS; i++) {
        if (sockets[i] < 0)
            continue;
        if (which & 1)
            FD_SET(sockets[i], &reading);
        if (which & 2)
            FD_SET(sockets[i], &writing);
    }
    check(library_select(DESCRIPTORS, &reading, &writing, NULL, which & 4 ? NULL : &wait), 2 * SOCKETS, 0);
}

static void option(int fd) {
    uint8_t how = input_byte();
    socklen_t size = (how >> 4) + 1u;
    uint64_t *value = calloc(1, size);
    int name = how % 11 - 1;
    if (size >= 8)
        *value = input_number(how & 8 ? 8 : 1);
    if (input_byte() & 1)
        check(library_setsockopt(fd, AF_VSOCK, name, value, size), 0, 0);
    else
        check(library_getsockopt(fd, AF_VSOCK, name, value, &size), 0, 0);
    free(value);
}

static void names(int fd) {
    socklen_t size = input_byte() % 24, room = size;
    struct sockaddr *out = malloc(size ? size : 1);
    check(library_getsockname(fd, out, &room), 0, 0);
    room = size;
    check(library_getpeername(fd, out, &room), 0, 0);
    free(out);
}

static void take_stream(int fd) {
    socklen_t size = input_byte() % 24, room = size;
    struct sockaddr *peer = malloc(size ? size : 1);
    uint8_t how = input_byte();
    int flags = (how & 1 ? SOCK_CLOEXEC : 0) | (how & 2 ? SOCK_NONBLOCK : 0);
    keep(how & 4 ? library_accept(fd, peer, &room) : library_accept4(fd, peer, &room, flags));
    free(peer);
}

static void use_elsewhere(int fd) {
    struct epoll_event event = {.events = EPOLLIN};
    switch (input_byte() % 5) {
    case 0:
        keep(library_dup(fd));
        break;
    case 1:
        library_dup2(fd, pick());
        break;
    case 2:
        library_fcntl(fd, F_SETFL, (long)(input_byte() & 1 ? O_NONBLOCK : 0));
        break;
    case 3:
        library_epoll_ctl(-1, EPOLL_CTL_ADD, fd, &event);
        break;
    default:
        keep(library_fcntl(fd, F_DUPFD_CLOEXEC, (long)(first + input_byte() % 16)));
    }
}

static void one_call(void) {
    uint8_t call = input_byte();
    int fd = pick(), there;
    struct address to;
    switch (call % 24) {
    case 0:
    case 1:
        keep(library_socket(AF_VSOCK, (call & 128 ? SOCK_DGRAM : SOCK_STREAM) | (call & 64 ? SOCK_NONBLOCK : 0), 0));
        break;
    case 2:
    case 3:
        to = any_address();
        check(library_connect(fd, (void *)&to, call & 128 ? input_byte() % sizeof to : sizeof to), 0, 0);
        break;
    case 4:
        to = any_address();
        check(library_bind(fd, (void *)&to, sizeof to), 0, 0);
        break;
    case 5:
        check(library_listen(fd, call), 0, 0);
        break;
    case 6:
        take_stream(fd);
        break;
    case 7:
    case 8:
    case 9:
        plain(fd);
        break;
    case 10:
    case 11:
        with_address(fd);
        break;
    case 12:
    case 13:
        message(fd);
        break;
    case 14:
        several(fd);
        break;
    case 15:
        wait_for_many();
        break;
    case 16:
        choose();
        break;
    case 17:
        option(fd);
        break;
    case 18:
        names(fd);
        break;
    case 19:
        library_shutdown(fd, call / 24 % 3);
        break;
    case 20:
        use_elsewhere(fd);
        break;
    case 21:
        if (library_ioctl(fd, FIONREAD, &there) == 0)
            MUST(there >= 0);
        break;
    case 22:
        if (call & 128)
            pass_on(fd);
        else if (fd >= first)
            library_close(fd);
        break;
    default:
        daemon_act();
    }
}

/* Which descriptors there are. */
static void look(struct stat *seen) {
    for (int i = 0; i < DESCRIPTORS; i++)
        if (fstat(i, &seen[i]) != 0)
            memset(&seen[i], 0, sizeof seen[i]);
}

void program_run(void) {
    struct stat before[DESCRIPTORS], after[DESCRIPTORS];
    look(before);
    first = open("/dev/null", O_RDONLY | O_CLOEXEC);
    MUST(first >= 0);
    close(first);
    for (int i = 0; i < SOCKETS; i++)
        sockets[i] = -1;
    used = 0;
    while (!input_is_empty())
        one_call();
    daemon_end();
    for (int i = 0; i < SOCKETS; i++)
        if (sockets[i] >= 0)
            library_close(sockets[i]);
    look(after);
    /* One more: neither the program nor the daemon has it, so the library has kept it. Those that were open are the same
     * files still; what else became of them, such as a pipe that no one reads any more, is not the library's doing. */
    for (int i = 0; i < DESCRIPTORS; i++)
        MUST(before[i].st_mode == after[i].st_mode && before[i].st_dev == after[i].st_dev &&
             before[i].st_ino == after[i].st_ino);
}
