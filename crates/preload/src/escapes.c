/* Calls after which a descriptor is used behind this library's back: by another process, by a program that
 * replaces this one, by the kernel on its own, by the C library inside. Its bytes leave the ring first. */
#include "vsock.h"
#include <dlfcn.h>
#include <fcntl.h>
#include <limits.h>
#include <spawn.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/epoll.h>
#include <sys/sendfile.h>
#include <unistd.h>

#define REAL(result, name, ...)                                                                              \
    static result (*real)(__VA_ARGS__);                                                                      \
    if (!real)                                                                                               \
    real = (result(*)(__VA_ARGS__))dlsym(RTLD_NEXT, #name)

extern char **environ;

/* ---- copies of descriptors ---- */

PUBLIC int dup(int fd) {
    REAL(int, dup, int);
    ring_switch(fd);
    return real(fd);
}

/* `to` is closed by this, unless it is `fd` itself. */
static void copies(int fd, int to) {
    ring_switch(fd);
    if (to >= 0 && to != fd)
        ring_forget((unsigned)to, (unsigned)to);
}

PUBLIC int dup2(int fd, int to) {
    REAL(int, dup2, int, int);
    copies(fd, to);
    return real(fd, to);
}

PUBLIC int dup3(int fd, int to, int flags) {
    REAL(int, dup3, int, int, int);
    copies(fd, to);
    return real(fd, to, flags);
}

#define FCNTL(name)                                                                                          \
    PUBLIC int name(int fd, int command, ...) {                                                              \
        REAL(int, name, int, int, void *);                                                                   \
        va_list rest;                                                                                        \
        va_start(rest, command);                                                                             \
        void *argument = va_arg(rest, void *);                                                               \
        va_end(rest);                                                                                        \
        /* Signals for readiness come from the kernel, too. */                                               \
        int given = command == F_SETFL && ((long)argument & O_ASYNC);                                        \
        if (command == F_DUPFD || command == F_DUPFD_CLOEXEC || given)                                       \
            ring_switch(fd);                                                                                 \
        return real(fd, command, argument);                                                                  \
    }
FCNTL(fcntl)
FCNTL(fcntl64)

PUBLIC int close_range(unsigned first, unsigned last, int flags) {
    REAL(int, close_range, unsigned, unsigned, int);
    if (!(flags & 4)) /* CLOSE_RANGE_CLOEXEC */
        ring_forget(first, last);
    return real(first, last, flags);
}

PUBLIC void closefrom(int first) {
    REAL(void, closefrom, int);
    ring_forget(first < 0 ? 0 : (unsigned)first, UINT_MAX);
    real(first);
}

/* ---- the kernel on its own ---- */

PUBLIC int epoll_ctl(int epoll, int operation, int fd, struct epoll_event *event) {
    REAL(int, epoll_ctl, int, int, int, struct epoll_event *);
    if (operation != EPOLL_CTL_DEL)
        ring_switch(fd);
    return real(epoll, operation, fd, event);
}

#define SENDFILE(name, offset_type)                                                                          \
    PUBLIC ssize_t name(int out, int in, offset_type *offset, size_t count) {                                \
        REAL(ssize_t, name, int, int, offset_type *, size_t);                                                \
        ring_switch(out);                                                                                    \
        return real(out, in, offset, count);                                                                 \
    }
SENDFILE(sendfile, off_t)
SENDFILE(sendfile64, off64_t)

PUBLIC ssize_t splice(int in, off64_t *in_at, int out, off64_t *out_at, size_t len, unsigned flags) {
    REAL(ssize_t, splice, int, off64_t *, int, off64_t *, size_t, unsigned);
    ring_switch(in);
    ring_switch(out);
    return real(in, in_at, out, out_at, len, flags);
}

PUBLIC int recvmmsg(int fd, struct mmsghdr *messages, unsigned count, int flags, struct timespec *timeout) {
    REAL(int, recvmmsg, int, struct mmsghdr *, unsigned, int, struct timespec *);
    struct known known;
    if (!datagram_is(fd, &known)) {
        ring_switch(fd);
        return real(fd, messages, count, flags, timeout);
    }
    uint64_t start = ring_now();
    unsigned done = 0;
    while (done < count) {
        int now = flags & ~MSG_WAITFORONE;
        ssize_t len = recvmsg(fd, &messages[done].msg_hdr, done && flags & MSG_WAITFORONE ? now | MSG_DONTWAIT : now);
        if (len < 0)
            break;
        messages[done++].msg_len = (unsigned)len;
        if (timeout &&
            ring_now() - start >= (uint64_t)timeout->tv_sec * 1000000000u + (uint64_t)timeout->tv_nsec)
            break;
    }
    return done ? (int)done : count ? -1 : 0;
}

PUBLIC int sendmmsg(int fd, struct mmsghdr *messages, unsigned count, int flags) {
    REAL(int, sendmmsg, int, struct mmsghdr *, unsigned, int);
    struct known known;
    if (!datagram_is(fd, &known)) {
        ring_switch(fd);
        return real(fd, messages, count, flags);
    }
    unsigned done = 0;
    for (; done < count; done++) {
        ssize_t len = sendmsg(fd, &messages[done].msg_hdr, flags);
        if (len < 0)
            break;
        messages[done].msg_len = (unsigned)len;
    }
    return done ? (int)done : count ? -1 : 0;
}

/* ---- the C library inside ---- */

PUBLIC FILE *fdopen(int fd, const char *mode) {
    REAL(FILE *, fdopen, int, const char *);
    ring_switch(fd);
    return real(fd, mode);
}

PUBLIC int vdprintf(int fd, const char *format, va_list rest) {
    REAL(int, vdprintf, int, const char *, va_list);
    ring_switch(fd);
    return real(fd, format, rest);
}

PUBLIC int dprintf(int fd, const char *format, ...) {
    va_list rest;
    va_start(rest, format);
    int done = vdprintf(fd, format, rest);
    va_end(rest);
    return done;
}

PUBLIC int __vdprintf_chk(int fd, int flag, const char *format, va_list rest) {
    REAL(int, __vdprintf_chk, int, int, const char *, va_list);
    ring_switch(fd);
    return real(fd, flag, format, rest);
}

PUBLIC int __dprintf_chk(int fd, int flag, const char *format, ...) {
    va_list rest;
    va_start(rest, format);
    int done = __vdprintf_chk(fd, flag, format, rest);
    va_end(rest);
    return done;
}

/* ---- other processes; fork is seen by its handlers (vsock.c) ---- */

PUBLIC pid_t vfork(void) { return fork(); }

PUBLIC int posix_spawn(pid_t *child, const char *path, const posix_spawn_file_actions_t *actions,
                       const posix_spawnattr_t *attributes, char *const arguments[], char *const environment[]) {
    REAL(int, posix_spawn, pid_t *, const char *, const posix_spawn_file_actions_t *,
         const posix_spawnattr_t *, char *const[], char *const[]);
    ring_switch_all(0);
    return real(child, path, actions, attributes, arguments, environment);
}

PUBLIC int posix_spawnp(pid_t *child, const char *file, const posix_spawn_file_actions_t *actions,
                        const posix_spawnattr_t *attributes, char *const arguments[], char *const environment[]) {
    REAL(int, posix_spawnp, pid_t *, const char *, const posix_spawn_file_actions_t *,
         const posix_spawnattr_t *, char *const[], char *const[]);
    ring_switch_all(0);
    return real(child, file, actions, attributes, arguments, environment);
}

PUBLIC int system(const char *line) {
    REAL(int, system, const char *);
    ring_switch_all(1);
    return real(line);
}

PUBLIC FILE *popen(const char *line, const char *mode) {
    REAL(FILE *, popen, const char *, const char *);
    ring_switch_all(1);
    return real(line, mode);
}

PUBLIC int execve(const char *path, char *const arguments[], char *const environment[]) {
    REAL(int, execve, const char *, char *const[], char *const[]);
    ring_switch_all(1);
    return real(path, arguments, environment);
}

PUBLIC int fexecve(int fd, char *const arguments[], char *const environment[]) {
    REAL(int, fexecve, int, char *const[], char *const[]);
    ring_switch_all(1);
    return real(fd, arguments, environment);
}

PUBLIC int execvpe(const char *file, char *const arguments[], char *const environment[]) {
    REAL(int, execvpe, const char *, char *const[], char *const[]);
    ring_switch_all(1);
    return real(file, arguments, environment);
}

PUBLIC int execv(const char *path, char *const arguments[]) { return execve(path, arguments, environ); }

PUBLIC int execvp(const char *file, char *const arguments[]) { return execvpe(file, arguments, environ); }

/* The arguments of execl and its kin as an array; `rest` stands behind the NULL then. */
#define ARGUMENTS(first, rest)                                                                               \
    size_t count = 1;                                                                                        \
    va_list counting;                                                                                        \
    va_start(counting, first);                                                                               \
    while (va_arg(counting, char *))                                                                         \
        count++;                                                                                             \
    va_end(counting);                                                                                        \
    char *arguments[count + 1];                                                                              \
    va_list rest;                                                                                            \
    va_start(rest, first);                                                                                   \
    arguments[0] = (char *)first;                                                                            \
    for (size_t at = 1; at <= count; at++)                                                                   \
        arguments[at] = va_arg(rest, char *)

PUBLIC int execl(const char *path, const char *first, ...) {
    ARGUMENTS(first, rest);
    va_end(rest);
    return execve(path, arguments, environ);
}

PUBLIC int execlp(const char *file, const char *first, ...) {
    ARGUMENTS(first, rest);
    va_end(rest);
    return execvpe(file, arguments, environ);
}

PUBLIC int execle(const char *path, const char *first, ...) {
    ARGUMENTS(first, rest);
    char *const *environment = va_arg(rest, char *const *);
    va_end(rest);
    return execve(path, arguments, environment);
}
