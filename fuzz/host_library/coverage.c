/* Tells libFuzzer which basic blocks of the library ran: GCC knows no other way that libFuzzer understands. Also the
 * place where shared memory changes between two of them. Compiled without instrumentation of its own. */
#include "world.h"

enum { COUNTERS = 1 << 13 };
__attribute__((section("__libfuzzer_extra_counters"))) static uint8_t counters[COUNTERS];
static unsigned until_interrupt;

void kernel_interrupt_after(unsigned blocks) { until_interrupt = blocks; }

void fuzz_basic_block(void);
void fuzz_basic_block(void) {
    uintptr_t block = (uintptr_t)__builtin_return_address(0) - (uintptr_t)fuzz_basic_block;
    uint8_t *counter = &counters[(block ^ block >> 13) % COUNTERS];
    *counter += *counter < UINT8_MAX;
    if (until_interrupt && --until_interrupt == 0)
        daemon_change_memory();
}
