/* The world of the fuzz target `host_library`: a program that uses the C library, a daemon that does what it
 * likes, and a kernel in which nothing sleeps: a call that would wait lets the daemon act instead, and time
 * passes by being asked for. One thread, so a run is a function of its input.
 */
#ifndef VMLANE_FUZZ_WORLD_H
#define VMLANE_FUZZ_WORLD_H
#define _GNU_SOURCE
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

/* The input, shared by the program and the daemon in the order in which they act; zeros once it is used up. */
uint8_t input_byte(void);
uint64_t input_number(int bytes);
int input_is_empty(void);

/* One act of the daemon; 0 once it is gone. */
int daemon_act(void);
/* A change of the shared memory, between two basic blocks of the library. */
void daemon_change_memory(void);
/* What has connected is the daemon's now. */
void daemon_accept(void);
void daemon_begin(void);
void daemon_end(void);
/* Not 0 before daemon_end. */
int daemon_is_there(void);

void kernel_begin(void);
/* The address at which the daemon listens, and its length. */
const void *kernel_address(unsigned *len);
/* Lets the daemon change the memory after so many basic blocks of the library. */
void kernel_interrupt_after(unsigned blocks);

void program_run(void);

#define MUST(what)                                                                                           \
    do {                                                                                                     \
        if (!(what)) {                                                                                       \
            fprintf(stderr, "%s:%d: %s does not hold\n", __FILE__, __LINE__, #what);                         \
            abort();                                                                                         \
        }                                                                                                    \
    } while (0)
#endif
