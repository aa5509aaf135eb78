/* What a program finds of datagram sockets: a guest sends back whatever comes. Arguments: its CID and port. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <sys/uio.h>
#include <unistd.h>
#include <linux/vm_sockets.h>

#define CHECK(condition)                                                                                     \
    do {                                                                                                     \
        if (!(condition)) {                                                                                  \
            fprintf(stderr, "%s:%d: %s (%s)\n", __FILE__, __LINE__, #condition, strerror(errno));            \
            exit(1);                                                                                         \
        }                                                                                                    \
    } while (0)

enum { MOST = 69608 };
static char out[MOST + 1], in[MOST + 1];

static struct sockaddr_vm address(unsigned cid, unsigned port) {
    struct sockaddr_vm to = {.svm_family = AF_VSOCK, .svm_cid = cid, .svm_port = port};
    return to;
}

static int opened(unsigned port) {
    int fd = socket(AF_VSOCK, SOCK_DGRAM, 0);
    struct sockaddr_vm own = address(VMADDR_CID_ANY, port);
    CHECK(fd >= 0 && bind(fd, (struct sockaddr *)&own, sizeof own) == 0);
    return fd;
}

int main(int count, char **arguments) {
    CHECK(count == 3);
    struct sockaddr_vm guest = address((unsigned)atoi(arguments[1]), (unsigned)atoi(arguments[2])), peer, own;
    struct sockaddr *to = (struct sockaddr *)&guest;
    socklen_t size = sizeof peer;
    for (int i = 0; i <= MOST; i++)
        out[i] = (char)(i * 7);

    /* Bound, with its address, sizes up to the largest. */
    int fd = opened(500);
    size = sizeof own;
    CHECK(getsockname(fd, (struct sockaddr *)&own, &size) == 0 && size == sizeof own);
    CHECK(own.svm_family == AF_VSOCK && own.svm_cid == 2 && own.svm_port == 500);
    int type;
    size = sizeof type;
    CHECK(getsockopt(fd, SOL_SOCKET, SO_TYPE, &type, &size) == 0 && type == SOCK_DGRAM);
    const int sizes[] = {1, 100, 4096, MOST};
    for (int i = 0; i < 4; i++) {
        size = sizeof peer;
        CHECK(sendto(fd, out, (size_t)sizes[i], 0, to, sizeof guest) == sizes[i]);
        CHECK(recvfrom(fd, in, sizeof in, 0, (struct sockaddr *)&peer, &size) == sizes[i]);
        CHECK(size == sizeof peer && peer.svm_cid == guest.svm_cid && peer.svm_port == guest.svm_port);
        CHECK(!memcmp(in, out, (size_t)sizes[i]));
    }
    CHECK(sendto(fd, out, MOST + 1, 0, to, sizeof guest) < 0 && errno == EMSGSIZE);
    CHECK(send(fd, out, 1, 0) < 0 && errno == EINVAL);

    /* In parts, cut, looked at. */
    struct iovec parts[2] = {{out, 3}, {out + 3, 7}}, back[2] = {{in, 4}, {in + 4, 2}};
    struct msghdr message = {.msg_name = &guest, .msg_namelen = sizeof guest, .msg_iov = parts, .msg_iovlen = 2};
    CHECK(sendmsg(fd, &message, 0) == 10);
    CHECK(recv(fd, in, sizeof in, MSG_PEEK) == 10);
    message = (struct msghdr){.msg_name = &peer, .msg_namelen = sizeof peer, .msg_iov = back, .msg_iovlen = 2};
    CHECK(recvmsg(fd, &message, 0) == 6 && message.msg_flags & MSG_TRUNC && !memcmp(in, out, 6));
    CHECK(message.msg_namelen == sizeof peer && peer.svm_port == guest.svm_port);

    /* Not blocking, with a limit, and readiness. */
    CHECK(recv(fd, in, sizeof in, MSG_DONTWAIT) < 0 && errno == EAGAIN);
    struct timeval moment = {0, 20000};
    CHECK(setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &moment, sizeof moment) == 0);
    CHECK(recv(fd, in, sizeof in, 0) < 0 && errno == EAGAIN);
    moment = (struct timeval){0, 0};
    CHECK(setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &moment, sizeof moment) == 0);
    CHECK(sendto(fd, out, 5, 0, to, sizeof guest) == 5);
    struct pollfd ready = {fd, POLLIN, 0};
    CHECK(poll(&ready, 1, 60000) == 1 && ready.revents & POLLIN);
    CHECK(read(fd, in, sizeof in) == 5);

    /* The port is taken, and free again when the last descriptor has gone. */
    int copy = dup(fd), other = socket(AF_VSOCK, SOCK_DGRAM, 0);
    struct sockaddr_vm same = address(VMADDR_CID_ANY, 500);
    CHECK(bind(other, (struct sockaddr *)&same, sizeof same) < 0 && errno == EADDRINUSE);
    CHECK(listen(fd, 1) < 0 && errno == EOPNOTSUPP);
    close(fd);
    CHECK(sendto(copy, out, 6, 0, to, sizeof guest) == 6 && recv(copy, in, sizeof in, 0) == 6);
    close(copy);
    for (int i = 0; i < 600 && bind(other, (struct sockaddr *)&same, sizeof same); i++) {
        CHECK(errno == EADDRINUSE);
        usleep(100000);
    }
    size = sizeof own;
    CHECK(getsockname(other, (struct sockaddr *)&own, &size) == 0 && own.svm_port == 500);
    close(other);

    /* Connected without a port of its own; many at once. */
    fd = socket(AF_VSOCK, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    CHECK(connect(fd, to, sizeof guest) == 0 && fcntl(fd, F_GETFD) == FD_CLOEXEC);
    CHECK(write(fd, out, 9) == 9 && read(fd, in, sizeof in) == 9);
    struct mmsghdr many[3], got[3];
    struct iovec pieces[3], rooms[3];
    for (int i = 0; i < 3; i++) {
        pieces[i] = (struct iovec){out, (size_t)(11 + i)};
        rooms[i] = (struct iovec){in + 100 * i, 100};
        many[i] = (struct mmsghdr){.msg_hdr = {.msg_iov = &pieces[i], .msg_iovlen = 1}};
        got[i] = (struct mmsghdr){.msg_hdr = {.msg_iov = &rooms[i], .msg_iovlen = 1}};
    }
    CHECK(sendmmsg(fd, many, 3, 0) == 3 && many[2].msg_len == 13);
    CHECK(recvmmsg(fd, got, 3, 0, NULL) == 3 && got[0].msg_len == 11 && got[2].msg_len == 13);

    /* Ends the guest's part. */
    CHECK(send(fd, out, 0, 0) == 0 && recv(fd, in, sizeof in, 0) == 0);
    puts("done");
    return 0;
}
