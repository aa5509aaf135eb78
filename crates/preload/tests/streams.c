/* What programs do with stream sockets, against a VM that echoes: streams CID PORT. Every case moves bytes
 * before and after something that takes its descriptor out of the ring, or waits in another way. Knows
 * nothing of vmlane: it is run with the library preloaded.
 */
#define _GNU_SOURCE
#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/ioctl.h>
#include <sys/select.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <unistd.h>

#ifndef AF_VSOCK
#define AF_VSOCK 40
#endif
#undef assert
#define assert(what)                                                                                         \
    do {                                                                                                     \
        if (!(what)) {                                                                                       \
            fprintf(stderr, "%s:%d: %s (errno %d)\n", current, __LINE__, #what, errno);                      \
            exit(1);                                                                                         \
        }                                                                                                    \
    } while (0)

struct address {
    sa_family_t family;
    unsigned short reserved;
    unsigned port, cid;
    unsigned char zero[4];
};

static const char *current = "";
static unsigned cid, port;

static int open_stream(void) {
    int fd = socket(AF_VSOCK, SOCK_STREAM, 0);
    struct timeval patience = {60, 0};
    struct address to = {.family = AF_VSOCK, .port = port, .cid = cid};
    assert(fd >= 0 && setsockopt(fd, AF_VSOCK, 6, &patience, sizeof patience) == 0);
    assert(connect(fd, (struct sockaddr *)&to, sizeof to) == 0);
    return fd;
}

static unsigned char byte_at(size_t at) { return (unsigned char)((at * 7 + at / 251) & 0xff); }

static void fill(unsigned char *data, size_t at, size_t len) {
    for (size_t i = 0; i < len; i++)
        data[i] = byte_at(at + i);
}

static void check(const unsigned char *data, size_t at, size_t len) {
    for (size_t i = 0; i < len; i++)
        assert(data[i] == byte_at(at + i));
}

/* Positions `from` to `to` of the pattern, written whole or read whole. */
static void put(int fd, size_t from, size_t to) {
    unsigned char data[30000];
    while (from < to) {
        size_t len = to - from < sizeof data ? to - from : sizeof data;
        fill(data, from, len);
        for (size_t done = 0; done < len;) {
            ssize_t now = write(fd, data + done, len - done);
            assert(now > 0);
            done += (size_t)now;
        }
        from += len;
    }
}

static void get(int fd, size_t from, size_t to) {
    unsigned char data[20000];
    while (from < to) {
        size_t len = to - from < sizeof data ? to - from : sizeof data;
        ssize_t now = read(fd, data, len);
        assert(now > 0);
        check(data, from, (size_t)now);
        from += (size_t)now;
    }
}

static void ends(int fd) {
    char byte;
    assert(shutdown(fd, SHUT_WR) == 0 && read(fd, &byte, 1) == 0 && close(fd) == 0);
}

enum { MANY = 3 << 20, SOME = 100000 };

/* ---- both ways at once ---- */

static void *putting(void *fd) {
    put(*(int *)fd, 0, MANY);
    shutdown(*(int *)fd, SHUT_WR);
    return NULL;
}

static void two_threads(void) {
    int fd = open_stream();
    pthread_t thread;
    char byte;
    pthread_create(&thread, NULL, putting, &fd);
    get(fd, 0, MANY);
    assert(read(fd, &byte, 1) == 0);
    pthread_join(thread, NULL);
    close(fd);
}

/* One thread, by readiness; `wait` says for what the descriptor is ready. */
static void by_readiness(short (*wait)(int fd, short events)) {
    int fd = open_stream();
    unsigned char data[50000];
    size_t sent = 0, got = 0;
    fcntl(fd, F_SETFL, O_NONBLOCK);
    while (got < MANY) {
        short ready = wait(fd, (short)(POLLIN | (sent < MANY ? POLLOUT : 0)));
        if ((ready & POLLOUT) && sent < MANY) {
            size_t len = MANY - sent < sizeof data ? MANY - sent : sizeof data;
            fill(data, sent, len);
            ssize_t now = send(fd, data, len, 0);
            assert(now > 0 || errno == EAGAIN);
            sent += now > 0 ? (size_t)now : 0;
        }
        if (ready & POLLIN) {
            ssize_t now = recv(fd, data, sizeof data, 0);
            assert(now > 0 || (now < 0 && errno == EAGAIN));
            check(data, got, now > 0 ? (size_t)now : 0);
            got += now > 0 ? (size_t)now : 0;
        }
    }
    assert(recv(fd, data, 1, 0) == -1 && errno == EAGAIN);
    fcntl(fd, F_SETFL, 0);
    ends(fd);
}

static short with_poll(int fd, short events) {
    struct pollfd one[2] = {{-1, POLLIN, 0}, {fd, events, 0}};
    assert(poll(one, 2, 60000) == 1);
    return one[1].revents;
}

static short with_select(int fd, short events) {
    fd_set reading, writing;
    struct timeval wait = {60, 0};
    FD_ZERO(&reading);
    FD_ZERO(&writing);
    if (events & POLLIN)
        FD_SET(fd, &reading);
    if (events & POLLOUT)
        FD_SET(fd, &writing);
    assert(select(fd + 1, &reading, &writing, NULL, &wait) >= 1);
    return (short)((FD_ISSET(fd, &reading) ? POLLIN : 0) | (FD_ISSET(fd, &writing) ? POLLOUT : 0));
}

static int epoll = -1;
static short with_epoll(int fd, short events) {
    struct epoll_event event = {.events = (uint32_t)events, .data.fd = fd}, got;
    if (epoll < 0) {
        epoll = epoll_create1(EPOLL_CLOEXEC);
        assert(epoll_ctl(epoll, EPOLL_CTL_ADD, fd, &event) == 0);
    }
    assert(epoll_ctl(epoll, EPOLL_CTL_MOD, fd, &event) == 0 && epoll_wait(epoll, &got, 1, 60000) == 1);
    return (short)got.events;
}

static void polling(void) { by_readiness(with_poll); }
static void selecting(void) { by_readiness(with_select); }
static void epolling(void) {
    by_readiness(with_epoll);
    close(epoll);
    epoll = -1;
}

/* ---- calls of other shapes ---- */

static void shapes(void) {
    int fd = open_stream(), there = 0;
    char a[3] = {0}, b[4] = {0};
    struct iovec parts[2] = {{"one", 3}, {"two!", 4}}, into[2] = {{a, 3}, {b, 4}};
    struct msghdr message = {.msg_iov = into, .msg_iovlen = 2};
    struct timeval wait = {0, 30000};
    assert(writev(fd, parts, 2) == 7);
    char seen[7];
    assert(recv(fd, seen, 7, MSG_PEEK | MSG_WAITALL) == 7 && !memcmp(seen, "onetwo!", 7));
    assert(ioctl(fd, FIONREAD, &there) == 0 && there == 7);
    assert(recvmsg(fd, &message, 0) == 7 && !memcmp(a, "one", 3) && !memcmp(b, "two!", 4));
    assert(recv(fd, seen, 1, MSG_DONTWAIT) == -1 && errno == EAGAIN);
    assert(setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &wait, sizeof wait) == 0);
    assert(recv(fd, seen, 1, 0) == -1 && errno == EAGAIN);
    struct pollfd one = {fd, POLLIN, 0};
    assert(poll(&one, 1, 20) == 0 && poll(&one, 1, 0) == 0);
    wait = (struct timeval){0, 0};
    assert(setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &wait, sizeof wait) == 0);
    message.msg_iov = parts;
    assert(sendmsg(fd, &message, MSG_NOSIGNAL) == 7 && readv(fd, into, 2) > 0);
    signal(SIGPIPE, SIG_IGN);
    assert(shutdown(fd, SHUT_WR) == 0 && write(fd, "x", 1) == -1 && errno == EPIPE);
    close(fd);
}

/* ---- out of the ring, with bytes on the way in both directions ---- */

static void copied(void) {
    int fd = open_stream();
    put(fd, 0, SOME);
    int other = dup(fd);
    put(other, SOME, 2 * SOME);
    get(fd, 0, SOME);
    assert(dup2(fd, 100) == 100 && fcntl(fd, F_DUPFD_CLOEXEC, 200) == 200);
    get(100, SOME, 2 * SOME);
    put(200, 0, SOME);
    get(other, 0, SOME);
    close(200);
    close(100);
    close(other);
    ends(fd);
}

static void forked(void) {
    int fd = open_stream(), status;
    put(fd, 0, SOME);
    pid_t child = fork();
    if (child == 0) {
        get(fd, 0, SOME);
        put(fd, 0, SOME);
        _exit(0);
    }
    assert(waitpid(child, &status, 0) == child && status == 0);
    get(fd, 0, SOME);
    ends(fd);
}

/* A thread sleeps in a call while another one forks. */
static void *reading(void *fd) {
    get(*(int *)fd, 0, SOME);
    return NULL;
}

static void forked_beside_a_sleeper(void) {
    int fd = open_stream();
    pthread_t thread;
    pthread_create(&thread, NULL, reading, &fd);
    usleep(20000);
    pid_t child = fork();
    if (child == 0)
        _exit(0);
    waitpid(child, NULL, 0);
    put(fd, 0, SOME);
    pthread_join(thread, NULL);
    ends(fd);
}

/* A program that knows nothing of it takes the descriptor over. */
static void executed(void) {
    int fd = open_stream(), result[2], status;
    char line[32] = {0};
    assert(pipe(result) == 0 && write(fd, "hello\n", 6) == 6);
    pid_t child = vfork();
    if (child == 0) {
        dup2(fd, 0);
        dup2(result[1], 1);
        execlp("head", "head", "-n", "1", (char *)NULL);
        _exit(9);
    }
    assert(waitpid(child, &status, 0) == child && status == 0);
    assert(read(result[0], line, sizeof line) == 6 && !strcmp(line, "hello\n"));
    close(result[0]);
    close(result[1]);
    ends(fd);
}

static void buffered(void) {
    int fd = open_stream();
    char line[32];
    put(fd, 0, SOME);
    get(fd, 0, SOME);
    FILE *file = fdopen(fd, "r+");
    assert(dprintf(fd, "a line %d\n", 5) == 9 && fgets(line, sizeof line, file) && !strcmp(line, "a line 5\n"));
    assert(fclose(file) == 0);
}

static void passed_on(void) {
    int fd = open_stream(), pair[2];
    put(fd, 0, SOME);
    assert(socketpair(AF_UNIX, SOCK_STREAM, 0, pair) == 0);
    union {
        struct cmsghdr header;
        char space[CMSG_SPACE(sizeof(int))];
    } control = {.header = {CMSG_LEN(sizeof(int)), SOL_SOCKET, SCM_RIGHTS}};
    struct iovec part = {"x", 1};
    struct msghdr message = {.msg_iov = &part, .msg_iovlen = 1, .msg_control = &control,
                             .msg_controllen = sizeof control};
    memcpy(CMSG_DATA(&control.header), &fd, sizeof fd);
    assert(sendmsg(pair[0], &message, 0) == 1);
    close(fd);
    char byte;
    part.iov_base = &byte;
    assert(recvmsg(pair[1], &message, 0) == 1);
    memcpy(&fd, CMSG_DATA(&control.header), sizeof fd);
    get(fd, 0, SOME);
    put(fd, 0, SOME);
    get(fd, 0, SOME);
    close(pair[0]);
    close(pair[1]);
    ends(fd);
}

/* Descriptors are reused: what was known of the one before is gone. */
static void reused(void) {
    for (int round = 0; round < 20; round++) {
        int fd = open_stream();
        put(fd, 0, 1000);
        get(fd, 0, 1000);
        int file = open("/dev/zero", O_RDONLY);
        char byte = 1;
        if (round % 2) {
            close(fd);
            assert(dup(file) == fd && read(fd, &byte, 1) == 1 && byte == 0);
        } else {
            assert(dup2(file, fd) == fd && read(fd, &byte, 1) == 1 && byte == 0);
        }
        close(fd);
        close(file);
    }
}

int main(int argc, char **argv) {
    static const struct {
        const char *name;
        void (*run)(void);
    } cases[] = {{"two threads", two_threads},
                 {"poll", polling},
                 {"select", selecting},
                 {"epoll", epolling},
                 {"shapes", shapes},
                 {"dup", copied},
                 {"fork", forked},
                 {"fork beside a sleeper", forked_beside_a_sleeper},
                 {"exec", executed},
                 {"stdio", buffered},
                 {"passed on", passed_on},
                 {"reused", reused}};
    if (argc < 3)
        return 2;
    cid = (unsigned)atoi(argv[1]);
    port = (unsigned)atoi(argv[2]);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        current = cases[i].name;
        if (argc > 3 && strcmp(argv[3], current))
            continue;
        fprintf(stderr, "%s\n", current);
        cases[i].run();
    }
    printf("done\n");
    return 0;
}
