/* What is known of the sockets that stand for AF_VSOCK's, and the way to the daemon. */
#ifndef VMLANE_VSOCK_H
#define VMLANE_VSOCK_H
#include "ring.h"
#include <sys/stat.h>
#include <sys/time.h>

#ifndef AF_VSOCK
#define AF_VSOCK 40
#endif
struct sockaddr_vsock {
    sa_family_t family;
    unsigned short reserved;
    unsigned int port;
    unsigned int cid;
    unsigned char flags;
    unsigned char zero[3];
};

enum { CID_ANY = -1, CID_LOCAL = 1, CID_HOST = 2 };
#define PORT_ANY 0xffffffffu

struct known {
    ino_t inode;
    dev_t device;
    int type;  /* SOCK_STREAM or SOCK_DGRAM; 0: a free place */
    int bound; /* a datagram socket that the daemon knows */
    int listening, connected;
    uint32_t port, peer_cid, peer_port;
    uint64_t size, min, max;
    struct timeval timeout;
};

struct reply {
    uint32_t magic;
    int32_t error;
    uint32_t cid, port;
};

/* A copy of what is known of `fd`; 0 if it is none of ours. */
int known_look(int fd, struct known *out);
void known_note(int fd, const struct known *what);
/* Takes `fd` to the daemon with a request; `fds`, if any, gets the descriptor that comes with the answer, or -1. */
int daemon_ask(int fd, uint16_t op, uint32_t cid, uint32_t port, uint32_t arg, uint32_t flags,
               struct reply *reply, int *sent);
int vsock_fail(int error);
/* Writes an address as the kernel does: as much as there is room for, and its true length. */
int vsock_tell(const struct sockaddr_vsock *address, struct sockaddr *out, socklen_t *len);

enum { OP_CONNECT = 1, OP_LISTEN = 2, OP_DATAGRAM = 3 };

/* ---- datagram.c ---- */

/* Takes a port (or any) for a datagram socket. */
int datagram_bind(int fd, struct known *known, uint32_t port);
/* Like sendmsg and recvmsg; PLAIN if `fd` is no datagram socket of ours. `got`: flags of what came. */
ssize_t datagram_send(int fd, const struct iovec *parts, size_t count, int flags, const struct sockaddr *to,
                      socklen_t size);
ssize_t datagram_receive(int fd, const struct iovec *parts, size_t count, int flags, struct sockaddr *from,
                         socklen_t *size, int *got);
int datagram_is(int fd, struct known *known);
/* Not 0 once there has been one: all others are spared the look. */
extern int datagram_any;
#endif
