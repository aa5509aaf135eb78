/* Streams whose bytes lie in memory shared with the daemon: one copy between the caller's buffer and the
 * ring, no system call while there is something to do. The descriptor is a Unix socket that carries signals
 * then. Layout, words and rules: crates/wire/src/host.rs; the other implementation: crates/sock/src/ring.rs.
 *
 * All state is in the ring's own words, so that the daemon can take it over at any moment (ring_switch):
 * before fork, exec, dup, epoll and whatever else would use the descriptor behind this library's back.
 */
#include "ring.h"
#include <dlfcn.h>
#include <fcntl.h>
#include <limits.h>
#include <pthread.h>
#include <sched.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#define REAL_CALL(result, name, params, args)                                                                \
    result real_##name params {                                                                              \
        static result(*real) params;                                                                         \
        if (!real)                                                                                           \
            real = (result(*) params)dlsym(RTLD_NEXT, #name);                                                \
        return real args;                                                                                    \
    }
REAL_CALLS
#undef REAL_CALL

/* Words of the index pages. */
enum { TAIL = 0, HEAD = 1, WANTS_BYTES = 2, WANTS_ROOM = 3, ANNOUNCED = 4, ENDED = 2 };
enum { FINISHED = 1, REFUSED = 2, DETACHED = 4, RESET = 8 };
enum { ANNOUNCED_SEND = 1, ANNOUNCED_RECEIVE = 2 };
/* Bytes of the signal line. */
enum { SIGNAL = 0, SWITCH = 1 };
enum { IN, OUT };
#define PAGE 4096u
/* How long the daemon may take to answer a switch. */
#define PATIENCE_MS 10000

struct ring {
    struct ring *next;
    unsigned char *base;
    uint64_t size;
    int users;     /* atomic; the table is one */
    int switched;  /* bytes go through the descriptor */
    int gone;      /* the daemon is, or it broke the rules */
    int finished;  /* this end sends no more */
    int sleepers[2];
    pthread_mutex_t half[2];
};

enum { DESCRIPTORS = 1 << 16 };
static struct ring *table[DESCRIPTORS];
/* Never freed: another thread may be about to hold one that was just given back. */
static struct ring *spare;
static pthread_mutex_t spares = PTHREAD_MUTEX_INITIALIZER;

static uint64_t *own(const struct ring *ring, int word) {
    return (uint64_t *)(void *)(ring->base + 2 * ring->size) + word;
}

static uint64_t *theirs(const struct ring *ring, int word) {
    return (uint64_t *)(void *)(ring->base + 2 * ring->size + PAGE) + word;
}

static uint64_t load(const uint64_t *word) { return __atomic_load_n(word, __ATOMIC_ACQUIRE); }

/* Ordered before every later load. */
static void store(uint64_t *word, uint64_t value) { __atomic_exchange_n(word, value, __ATOMIC_SEQ_CST); }

uint64_t ring_now(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

void ring_pause(unsigned round) {
    static int few = -1;
    if (few < 0) {
        cpu_set_t cpus;
        few = sched_getaffinity(0, sizeof cpus, &cpus) == 0 && CPU_COUNT(&cpus) <= 3;
    }
    /* The daemon and the VM are to run, too. */
    if (few || round % 64 == 63)
        sched_yield();
    else
        __builtin_ia32_pause();
}

int ring_wanted(void) {
    const char *plain = getenv("VMLANE_VSOCK_PLAIN");
    return !plain || !*plain;
}

/* ---- which descriptor has a ring ---- */

struct ring *ring_hold(int fd) {
    if (fd < 0 || fd >= DESCRIPTORS)
        return NULL;
    for (;;) {
        struct ring *ring = __atomic_load_n(&table[fd], __ATOMIC_ACQUIRE);
        if (!ring)
            return NULL;
        __atomic_add_fetch(&ring->users, 1, __ATOMIC_SEQ_CST);
        if (__atomic_load_n(&table[fd], __ATOMIC_SEQ_CST) == ring)
            return ring;
        ring_release(ring);
    }
}

void ring_release(struct ring *ring) {
    if (__atomic_sub_fetch(&ring->users, 1, __ATOMIC_SEQ_CST) != 0)
        return;
    pthread_mutex_lock(&spares);
    /* A thread that came too late and left again does not count as the last one twice. */
    if (ring->base && __atomic_load_n(&ring->users, __ATOMIC_SEQ_CST) == 0) {
        munmap(ring->base, 2 * ring->size + 2 * PAGE);
        ring->base = NULL;
        ring->next = spare;
        spare = ring;
    }
    pthread_mutex_unlock(&spares);
}

static struct ring *fresh(void) {
    pthread_mutex_lock(&spares);
    struct ring *ring = spare;
    if (ring)
        spare = ring->next;
    pthread_mutex_unlock(&spares);
    if (ring) {
        ring->switched = ring->gone = ring->finished = 0;
        return ring;
    }
    ring = calloc(1, sizeof *ring);
    if (ring) {
        pthread_mutex_init(&ring->half[IN], NULL);
        pthread_mutex_init(&ring->half[OUT], NULL);
    }
    return ring;
}

void ring_forget(unsigned first, unsigned last) {
    if (last >= DESCRIPTORS)
        last = DESCRIPTORS - 1;
    for (unsigned fd = first; fd <= last; fd++) {
        if (!__atomic_load_n(&table[fd], __ATOMIC_RELAXED))
            continue;
        struct ring *ring = __atomic_exchange_n(&table[fd], NULL, __ATOMIC_SEQ_CST);
        if (ring)
            ring_release(ring);
    }
}

/* ---- the signal line ---- */

static void signal_daemon(int fd) {
    char byte = SIGNAL;
    real_send(fd, &byte, 1, MSG_DONTWAIT | MSG_NOSIGNAL);
}

/* Takes the signals that have come; what was meant for others is asked for again. */
static void drain(struct ring *ring, int fd) {
    char bytes[64];
    int any = 0;
    ssize_t got;
    do {
        got = real_recv(fd, bytes, sizeof bytes, MSG_DONTWAIT);
        any |= got > 0;
    } while (got == (ssize_t)sizeof bytes);
    /* Its end, or an error, also that of a descriptor that is no stream. */
    if (got == 0 || (got < 0 && errno != EAGAIN && errno != EINTR))
        ring->gone = 1;
    if (any && (ring->sleepers[IN] || ring->sleepers[OUT]))
        signal_daemon(fd);
}

/* Says SWITCH and waits for the same word; what comes behind it are the stream's bytes. */
static void hand_over(int fd) {
    char byte = SWITCH;
    uint64_t deadline = ring_now() + PATIENCE_MS * 1000000ull;
    while (real_send(fd, &byte, 1, MSG_DONTWAIT | MSG_NOSIGNAL) < 0) {
        struct pollfd room = {fd, POLLOUT, 0};
        if ((errno != EAGAIN && errno != EINTR) || ring_now() > deadline)
            return;
        real_poll(&room, 1, 100);
    }
    for (byte = SIGNAL; byte != SWITCH;) {
        ssize_t got = real_recv(fd, &byte, 1, MSG_DONTWAIT);
        if (got == 0 || (got < 0 && errno != EAGAIN && errno != EINTR) || ring_now() > deadline)
            return;
        struct pollfd answer = {fd, POLLIN, 0};
        if (got < 0)
            real_poll(&answer, 1, 100);
    }
}

void ring_switch(int fd) {
    struct ring *ring = ring_hold(fd);
    if (!ring)
        return;
    int saved = errno;
    pthread_mutex_lock(&ring->half[IN]);
    pthread_mutex_lock(&ring->half[OUT]);
    if (!ring->switched) {
        store(own(ring, WANTS_BYTES), 0);
        store(own(ring, WANTS_ROOM), 0);
        hand_over(fd);
        ring->switched = 1;
        if (ring->finished)
            real_shutdown(fd, SHUT_WR);
    }
    pthread_mutex_unlock(&ring->half[OUT]);
    pthread_mutex_unlock(&ring->half[IN]);
    ring_forget((unsigned)fd, (unsigned)fd);
    ring_release(ring);
    errno = saved;
}

/* No descriptor above this one ever had a ring. */
static int highest = -1;

void ring_switch_all(int inherited) {
    for (int fd = 0; fd <= highest; fd++)
        if (__atomic_load_n(&table[fd], __ATOMIC_RELAXED) && (!inherited || !(fcntl(fd, F_GETFD) & FD_CLOEXEC)))
            ring_switch(fd);
}

/* Whether a file of `len` bytes is a ring's: whole pages of data, a power of two of each, on which all indices here
 * rely; and sealed, because to touch what is no longer there would end this process. */
static int is_ring(int memory, uint64_t len) {
    uint64_t size = len / 2 - PAGE;
    int seals = fcntl(memory, F_GET_SEALS);
    return len > 2 * PAGE && len % PAGE == 0 && size >= PAGE && (size & (size - 1)) == 0 && seals >= 0 &&
           (seals & F_SEAL_SHRINK);
}

void ring_adopt(int fd, int memory) {
    struct stat info;
    struct ring *ring = NULL;
    int saved = errno;
    uint64_t size = 0;
    void *base = MAP_FAILED;
    if (fd < DESCRIPTORS && fstat(memory, &info) == 0 && is_ring(memory, (uint64_t)info.st_size)) {
        size = (uint64_t)info.st_size / 2 - PAGE;
        base = mmap(NULL, (size_t)info.st_size, PROT_READ | PROT_WRITE, MAP_SHARED, memory, 0);
    }
    real_close(memory);
    if (base != MAP_FAILED)
        ring = fresh();
    if (ring) {
        /* In this order: one who held it in its former life may give it back right now. */
        __atomic_add_fetch(&ring->users, 1, __ATOMIC_SEQ_CST);
        ring->size = size;
        __atomic_store_n(&ring->base, base, __ATOMIC_SEQ_CST);
        ring_forget((unsigned)fd, (unsigned)fd);
        if (fd > highest)
            highest = fd;
        __atomic_store_n(&table[fd], ring, __ATOMIC_SEQ_CST);
    } else {
        if (base != MAP_FAILED)
            munmap(base, 2 * size + 2 * PAGE);
        hand_over(fd);
    }
    errno = saved;
}

/* ---- what the words say ---- */

/* An index of the daemon's; a wrong one ends the stream. */
static uint64_t index_of(struct ring *ring, int word) {
    uint64_t value = load(theirs(ring, word));
    if (value < ring->size)
        return value;
    ring->gone = 1;
    return load(own(ring, word == TAIL ? HEAD : TAIL)) & (ring->size - 1);
}

static int is_over(const struct ring *ring) {
    return ring->gone || (load(theirs(ring, ENDED)) & (FINISHED | DETACHED | RESET));
}

static int is_refused(const struct ring *ring) {
    return ring->gone || (load(theirs(ring, ENDED)) & (REFUSED | DETACHED | RESET));
}

size_t ring_readable(struct ring *ring) {
    return (index_of(ring, TAIL) - load(own(ring, HEAD))) & (ring->size - 1);
}

static size_t room(struct ring *ring) {
    return (index_of(ring, HEAD) - load(own(ring, TAIL)) - 1) & (ring->size - 1);
}

static int is_ready(struct ring *ring, int half, size_t need) {
    if (half == OUT)
        return is_refused(ring) || room(ring) >= need;
    return is_over(ring) || ring_readable(ring) >= need;
}

short ring_events(struct ring *ring, short events) {
    int over = is_over(ring);
    int detached = ring->gone || (load(theirs(ring, ENDED)) & (DETACHED | RESET));
    short now = 0;
    if (over || ring_readable(ring) > 0)
        now |= POLLIN | POLLRDNORM;
    if (over)
        now |= POLLRDHUP;
    if (is_refused(ring) || (!ring->finished && room(ring) > 0))
        now |= POLLOUT | POLLWRNORM;
    return (short)((now & events) | (detached ? POLLHUP : 0));
}

/* ---- waiting ---- */

/* With the half's lock held. */
static void arm(struct ring *ring, int half) {
    ring->sleepers[half]++;
    store(own(ring, half == OUT ? WANTS_ROOM : WANTS_BYTES), 1);
}

static void disarm(struct ring *ring, int half) {
    if (--ring->sleepers[half] == 0 && !ring->switched)
        store(own(ring, half == OUT ? WANTS_ROOM : WANTS_BYTES), 0);
}

void ring_arm(struct ring *ring, short events) {
    for (int half = IN; half <= OUT; half++) {
        pthread_mutex_lock(&ring->half[half]);
        /* Its end is to be heard of in any case. */
        if (half == IN || (events & (POLLOUT | POLLWRNORM)))
            arm(ring, half);
        pthread_mutex_unlock(&ring->half[half]);
    }
}

void ring_disarm(struct ring *ring, int fd, short events, int signalled) {
    for (int half = OUT; half >= IN; half--) {
        pthread_mutex_lock(&ring->half[half]);
        if (half == IN || (events & (POLLOUT | POLLWRNORM)))
            disarm(ring, half);
        if (half == IN && signalled && !ring->switched)
            drain(ring, fd);
        pthread_mutex_unlock(&ring->half[half]);
    }
}

/* The moment at which the socket's own timeout is over; 0: never. */
static uint64_t deadline_of(int fd, int half) {
    struct timeval wait = {0, 0};
    socklen_t size = sizeof wait;
    getsockopt(fd, SOL_SOCKET, half == OUT ? SO_SNDTIMEO : SO_RCVTIMEO, &wait, &size);
    uint64_t ns = (uint64_t)wait.tv_sec * 1000000000u + (uint64_t)wait.tv_usec * 1000u;
    return ns ? ring_now() + ns : 0;
}

/* Waits until the half may continue, with its lock held, which is released meanwhile. */
static int wait_for(struct ring *ring, int fd, int half, size_t need, int flags, uint64_t *deadline) {
    if ((flags & MSG_DONTWAIT) || (fcntl(fd, F_GETFL) & O_NONBLOCK)) {
        errno = EAGAIN;
        return -1;
    }
    uint64_t start = ring_now();
    for (unsigned round = 0; ring_now() - start < SPIN; round++) {
        if (is_ready(ring, half, need))
            return 0;
        ring_pause(round);
    }
    if (*deadline == UINT64_MAX)
        *deadline = deadline_of(fd, half);
    for (;;) {
        arm(ring, half);
        if (is_ready(ring, half, need)) {
            disarm(ring, half);
            return 0;
        }
        uint64_t now = ring_now();
        uint64_t left = *deadline > now ? (*deadline - now) / 1000000 + 1 : 0;
        struct pollfd line = {fd, POLLIN, 0};
        int polled = 0;
        pthread_mutex_unlock(&ring->half[half]);
        if (!*deadline || left)
            polled = real_poll(&line, 1, !*deadline ? -1 : left > INT_MAX ? INT_MAX : (int)left);
        int error = errno;
        pthread_mutex_lock(&ring->half[half]);
        disarm(ring, half);
        if (ring->switched)
            return 0;
        if (polled > 0)
            drain(ring, fd);
        if (is_ready(ring, half, need))
            return 0;
        if (polled <= 0 && (polled < 0 || *deadline)) {
            errno = polled < 0 ? error : EAGAIN;
            return -1;
        }
    }
}

/* ---- moving bytes ---- */

/* Copies `len` bytes between the ring's data and the parts, from their byte `skip` on. */
static void copy(unsigned char *data, uint64_t size, uint64_t at, const struct iovec *parts, size_t skip,
                 size_t len, int half) {
    for (; len > 0; parts++) {
        if (skip >= parts->iov_len) {
            skip -= parts->iov_len;
            continue;
        }
        unsigned char *part = (unsigned char *)parts->iov_base + skip;
        size_t here = parts->iov_len - skip;
        here = here < len ? here : len;
        size_t first = here < size - at ? here : (size_t)(size - at);
        if (half == OUT) {
            memcpy(data + at, part, first);
            memcpy(data, part + first, here - first);
        } else {
            memcpy(part, data + at, first);
            memcpy(part + first, data, here - first);
        }
        at = (at + here) & (size - 1);
        len -= here;
        skip = 0;
    }
}

static size_t put(struct ring *ring, int fd, const struct iovec *parts, size_t skip, size_t len) {
    size_t space = room(ring);
    len = len < space ? len : space;
    if (!len)
        return 0;
    uint64_t at = load(own(ring, TAIL)) & (ring->size - 1);
    copy(ring->base, ring->size, at, parts, skip, len, OUT);
    store(own(ring, TAIL), (at + len) & (ring->size - 1));
    /* The ring was empty before these bytes: the daemon may have gone to sleep on it. */
    if (load(theirs(ring, HEAD)) == at)
        signal_daemon(fd);
    return len;
}

static size_t get(struct ring *ring, int fd, const struct iovec *parts, size_t skip, size_t len, int peek) {
    size_t there = ring_readable(ring);
    len = len < there ? len : there;
    if (!len)
        return 0;
    uint64_t at = load(own(ring, HEAD)) & (ring->size - 1);
    copy(ring->base + ring->size, ring->size, at, parts, skip, len, IN);
    if (peek)
        return len;
    store(own(ring, HEAD), (at + len) & (ring->size - 1));
    /* The ring was full: the daemon may have gone to sleep on it. */
    if (((load(theirs(ring, TAIL)) + 1) & (ring->size - 1)) == at)
        signal_daemon(fd);
    return len;
}

static size_t sum(const struct iovec *parts, int count) {
    size_t total = 0;
    for (int i = 0; i < count; i++)
        total += parts[i].iov_len;
    return total;
}

ssize_t ring_send(struct ring *ring, int fd, const struct iovec *parts, int count, int flags) {
    size_t total = sum(parts, count), done = 0;
    uint64_t deadline = UINT64_MAX;
    int error = 0;
    if (flags & MSG_OOB) {
        errno = EOPNOTSUPP;
        return -1;
    }
    pthread_mutex_lock(&ring->half[OUT]);
    while (done < total && !error && !ring->switched) {
        if (is_refused(ring) || ring->finished) {
            error = EPIPE;
            break;
        }
        done += put(ring, fd, parts, done, total - done);
        if (done < total && wait_for(ring, fd, OUT, 1, flags, &deadline))
            error = errno;
    }
    int switched = ring->switched;
    pthread_mutex_unlock(&ring->half[OUT]);
    if (done > 0 || total == 0)
        return (ssize_t)done;
    if (switched)
        return PLAIN;
    if (error == EPIPE && !(flags & MSG_NOSIGNAL))
        raise(SIGPIPE);
    errno = error;
    return -1;
}

ssize_t ring_receive(struct ring *ring, int fd, const struct iovec *parts, int count, int flags) {
    size_t total = sum(parts, count), done = 0;
    uint64_t deadline = UINT64_MAX;
    int error = 0, peek = flags & MSG_PEEK;
    if (flags & MSG_OOB) {
        errno = EINVAL;
        return -1;
    }
    pthread_mutex_lock(&ring->half[IN]);
    while (done < total && !ring->switched) {
        /* Before the bytes: none come behind those that are there then. */
        int over = is_over(ring);
        if (peek)
            done = 0;
        done += get(ring, fd, parts, done, total - done, peek);
        if (over || done == total || (done > 0 && !(flags & MSG_WAITALL)))
            break;
        size_t most = (size_t)ring->size - 1, need = peek && done ? (total < most ? total : most) : 1;
        if (need > 1 && done >= need)
            break;
        if (wait_for(ring, fd, IN, need, flags, &deadline)) {
            error = errno;
            break;
        }
    }
    int switched = ring->switched;
    pthread_mutex_unlock(&ring->half[IN]);
    if (done > 0 || (!error && !switched) || total == 0)
        return (ssize_t)done;
    if (switched)
        return PLAIN;
    errno = error;
    return -1;
}

void ring_finish(struct ring *ring, int fd) {
    pthread_mutex_lock(&ring->half[OUT]);
    ring->finished = 1;
    store(own(ring, ANNOUNCED), load(own(ring, ANNOUNCED)) | ANNOUNCED_SEND);
    if (!ring->switched)
        signal_daemon(fd);
    pthread_mutex_unlock(&ring->half[OUT]);
}
