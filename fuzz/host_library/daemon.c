/* The daemon, as hostile as it likes: it answers requests with anything, or not, sends descriptors of any kind, and
 * writes any word of a ring at any moment. It holds what it does to the program to what a socket and a shared file
 * let it do. */
#include "world.h"
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

enum { LINES = 12, MEMORIES = 4, PAGE = 4096 };
static int listener = -1, there;
/* Sockets to the program: connections, the far ends of streams, of accepted streams and of datagram sockets. */
static int lines[LINES];
static int memories[MEMORIES];
static uint64_t sizes[MEMORIES];
static unsigned used_lines, used_memories;

static const uint8_t *input;
static size_t input_len;

uint8_t input_byte(void) {
    if (!input_len)
        return 0;
    input_len--;
    return *input++;
}

uint64_t input_number(int bytes) {
    uint64_t number = 0;
    for (int i = 0; i < bytes; i++)
        number |= (uint64_t)input_byte() << (8 * i);
    return number;
}

int input_is_empty(void) { return input_len == 0; }

int daemon_is_there(void) { return there; }

/* The daemon's descriptors are far from the program's, which may use any number near its own. */
enum { OWN = 512 };
static int own(int fd) {
    int moved = fcntl(fd, F_DUPFD_CLOEXEC, OWN);
    MUST(fd >= 0 && moved >= OWN);
    close(fd);
    return moved;
}

static void keep_line(int fd) {
    fd = own(fd);
    int *place = &lines[used_lines++ % LINES];
    if (*place >= 0)
        close(*place);
    *place = fd;
}

void daemon_begin(void) {
    unsigned len;
    const void *address = kernel_address(&len);
    for (int i = 0; i < LINES; i++)
        lines[i] = -1;
    for (int i = 0; i < MEMORIES; i++)
        memories[i] = -1;
    used_lines = used_memories = 0;
    listener = own(socket(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
    MUST(bind(listener, address, len) == 0 && listen(listener, 64) == 0);
    there = 1;
}

void daemon_end(void) {
    if (!there)
        return;
    there = 0;
    close(listener);
    for (int i = 0; i < LINES; i++)
        if (lines[i] >= 0)
            close(lines[i]);
    for (int i = 0; i < MEMORIES; i++)
        if (memories[i] >= 0)
            close(memories[i]);
}

void daemon_accept(void) {
    int fd;
    while (there && (fd = accept4(listener, NULL, NULL, SOCK_NONBLOCK | SOCK_CLOEXEC)) >= 0)
        keep_line(fd);
}

/* ---- descriptors ---- */

static const uint64_t RINGS[] = {PAGE, 2 * PAGE, 1 << 16, 1 << 18, 1, 2, 8, 64};

/* A ring's file: as it should be, too short, of an odd length, without a seal. */
static int make_memory(void) {
    uint8_t kind = input_byte();
    uint64_t ring = RINGS[kind % 8], len = 2 * ring + 2 * PAGE;
    if ((kind >> 3) % 4 == 3) {
        uint8_t odd = input_byte();
        len = odd & 1 ? 2 * PAGE + odd / 2 % 8 : odd / 2 % 4 * PAGE + input_byte();
        ring = len > 2 * PAGE ? (len - 2 * PAGE) / 2 : 0;
    }
    int sealed = kind >> 5;
    int fd = memfd_create("ring", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    MUST(fd >= 0 && ftruncate(fd, (off_t)len) == 0);
    if (sealed != 7)
        fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK);
    unsigned place = used_memories++ % MEMORIES;
    if (memories[place] >= 0)
        close(memories[place]);
    memories[place] = fcntl(fd, F_DUPFD_CLOEXEC, OWN);
    sizes[place] = ring;
    return fd;
}

static int make_pair(int type) {
    int pair[2];
    MUST(socketpair(AF_UNIX, type | SOCK_CLOEXEC, 0, pair) == 0);
    fcntl(pair[0], F_SETFL, O_NONBLOCK);
    keep_line(pair[0]);
    return pair[1];
}

static int make_descriptor(uint8_t kind) {
    switch (kind % 8) {
    case 0:
    case 1:
    case 2:
        return make_memory();
    case 3:
    case 4:
        return make_pair(SOCK_STREAM);
    case 5:
        return make_pair(SOCK_SEQPACKET);
    case 6:
        return make_pair(SOCK_DGRAM);
    default:
        return open(input_byte() & 1 ? "/dev/zero" : "/dev/null", O_RDWR | O_CLOEXEC);
    }
}

/* ---- acts ---- */

struct record {
    uint32_t magic;
    int32_t error;
    uint32_t cid, port;
};

/* Bytes with up to three descriptors. */
static void say(int line, const void *bytes, size_t len, int fds[3], int count) {
    union {
        struct cmsghdr header;
        char space[CMSG_SPACE(3 * sizeof(int))];
    } control = {.header = {CMSG_LEN(0), SOL_SOCKET, SCM_RIGHTS}};
    struct iovec part = {(void *)bytes, len};
    struct msghdr message = {.msg_iov = &part, .msg_iovlen = 1};
    if (count > 0) {
        control.header.cmsg_len = CMSG_LEN((size_t)count * sizeof(int));
        memcpy(CMSG_DATA(&control.header), fds, (size_t)count * sizeof(int));
        message.msg_control = &control;
        message.msg_controllen = CMSG_SPACE((size_t)count * sizeof(int));
    }
    sendmsg(line, &message, MSG_DONTWAIT | MSG_NOSIGNAL);
    for (int i = 0; i < count; i++)
        close(fds[i]);
}

/* An answer, or an accepted connection: most often a sound one. */
static void answer(int line) {
    uint8_t how = input_byte();
    struct record record = {0x684c4d56u, 0, 5, input_byte()};
    size_t len = sizeof record;
    int fds[3], count = 0;
    if ((how & 7) == 7)
        record.error = (int32_t)input_number(1 + how / 64);
    if ((how & 56) == 56)
        record.magic = (uint32_t)input_number(4);
    if ((how & 192) == 192)
        len = input_byte() % (sizeof record + 1);
    uint8_t what = input_byte();
    for (int wanted = what % 4; count < wanted; count++)
        if ((fds[count] = make_descriptor(count == 0 ? what / 4 : input_byte())) < 0)
            break;
    say(line, &record, len, fds, count);
}

/* What an accepted stream with a ring looks like. */
static void offer_stream(int line) {
    struct record record = {0x684c4d56u, 0, 5, 77};
    int fds[3] = {make_pair(SOCK_STREAM), make_memory()};
    say(line, &record, sizeof record, fds, 2);
}

static void offer_ring(int line) {
    struct record record = {0x684c4d56u, 0, 5, 78};
    int fds[3] = {make_memory()};
    say(line, &record, sizeof record, fds, 1);
}

static void say_bytes(int line) {
    uint8_t bytes[64];
    size_t len = input_byte() % (sizeof bytes + 1);
    for (size_t i = 0; i < len; i++)
        bytes[i] = i < 12 ? input_byte() : (uint8_t)i;
    send(line, bytes, len, MSG_DONTWAIT | MSG_NOSIGNAL);
}

static void listen_to(int line) {
    uint8_t bytes[4096];
    for (int round = 0; round < 16 && recv(line, bytes, sizeof bytes, MSG_DONTWAIT) > 0; round++)
        ;
}

void daemon_change_memory(void) {
    unsigned place = input_byte() % MEMORIES;
    if (!there || memories[place] < 0)
        return;
    uint8_t which = input_byte();
    uint64_t size = sizes[place], value = input_byte();
    if (which & 64)
        value += size - 128;
    if (which & 128)
        value = input_number(8);
    /* A word of either page, the process's own as well: the file is the daemon's. */
    off_t at = (off_t)(2 * size + (which & 1 ? PAGE : 0) + (which >> 1) % 5 * 8);
    MUST(pwrite(memories[place], &value, sizeof value, at) >= 0);
}

int daemon_act(void) {
    if (input_is_empty())
        daemon_end();
    if (!there)
        return 0;
    daemon_accept();
    uint8_t act = input_byte();
    int line = lines[(act >> 4) % LINES];
    if (line < 0 && used_lines > 0)
        line = lines[(used_lines - 1) % LINES];
    switch (act % 16) {
    case 0:
    case 1:
    case 2:
        answer(line);
        break;
    case 3:
    case 4:
        offer_ring(line);
        break;
    case 5:
        offer_stream(line);
        break;
    case 6:
    case 7:
    case 8:
    case 9:
        daemon_change_memory();
        break;
    case 10:
        send(line, act & 16 ? "\1" : "\0", 1, MSG_DONTWAIT | MSG_NOSIGNAL);
        break;
    case 11:
        say_bytes(line);
        break;
    case 12:
        listen_to(line);
        break;
    case 13:
        for (int i = 0; i < LINES; i++) {
            if (lines[i] >= 0 && lines[i] == line) {
                close(line);
                lines[i] = -1;
            }
        }
        break;
    case 14:
        if (memories[(act >> 4) % MEMORIES] >= 0 && ftruncate(memories[(act >> 4) % MEMORIES], input_byte() * 512) != 0)
            break;
        break;
    default:
        kernel_interrupt_after(1 + input_byte());
    }
    return 1;
}

int host_library_run(const uint8_t *data, size_t len);
int host_library_run(const uint8_t *data, size_t len) {
    input = data;
    input_len = len;
    kernel_begin();
    daemon_begin();
    program_run();
    daemon_end();
    return 0;
}
