#include "tests/gpu/emulator/emulator.h"

#include <csetjmp>
#include <cstdio>
#include <cstdlib>
#include <map>
#include <memory>
#include <ucontext.h>
#include <utility>
#include <vector>

#include "tests/gpu/emulator/control.h"
#include "tests/gpu/emulator/race.h"

#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/common_interface_defs.h>
#endif

#define WARP        32
#define STACK_BYTES ((size_t)256 << 10)
#define SHARED_FREE ((size_t)48 << 10) // What a kernel has without asking.
#define SHARED_MAX  ((size_t)99 << 10) // Of the smallest device that the module's PTX runs on.

emulator_index emulator_block, emulator_blocks, emulator_threads;

namespace
{

struct copy { // cp.async: 16 bytes on their way.
    void *to;
    const void *from;
    bool there;
    const void *code;
    uint32_t barriers; // That came before it.
};

enum wait { RUNS, AT_WARP, AT_BARRIER, LEFT };

struct fiber {
    ucontext_t context; // Where it begins and, under ASan, where it is.
    jmp_buf place;      // Else where it is: no system call to get there.
    bool begun;
    std::unique_ptr<unsigned char[]> stack;
    emulator_index thread;
    wait waits;
    const char *what; // It does with its warp.
    uint64_t given[8], taken[4];
    std::vector<std::vector<copy>> groups;
    std::vector<copy> open;
};

std::vector<std::unique_ptr<fiber>> fibers;
std::vector<unsigned char> shared;
size_t shared_bytes_now;
fiber *current;
const std::function<void()> *body_now;
std::map<std::pair<int, const void *>, size_t> allowed; // By device and kernel.
int order;
uint64_t random_state = 1;
#if defined(__SANITIZE_ADDRESS__)
const void *scheduler_stack;
size_t scheduler_stack_bytes;
#endif

[[noreturn]] void fault(const char *what)
{
    std::fprintf(stderr, "emulator: block %u, thread %u: %s\n", emulator_block.x,
                 current != nullptr ? current->thread.x : 0u, what);
    std::abort();
}

#if defined(__SANITIZE_ADDRESS__)

ucontext_t scheduler;

void resume(fiber *next)
{
    void *fake = nullptr;

    current = next;
    race_thread = (int)next->thread.x;
    __sanitizer_start_switch_fiber(&fake, next->stack.get(), STACK_BYTES);
    (void)swapcontext(&scheduler, &next->context);
    __sanitizer_finish_switch_fiber(fake, nullptr, nullptr);
    race_thread = -1;
    current = nullptr;
}

/* Back to the scheduler until this fiber runs again. */
void yield(wait why)
{
    fiber *self = current;
    void *fake = nullptr;

    self->waits = why;
    __sanitizer_start_switch_fiber(&fake, scheduler_stack, scheduler_stack_bytes);
    (void)swapcontext(&self->context, &scheduler);
    __sanitizer_finish_switch_fiber(fake, &scheduler_stack, &scheduler_stack_bytes);
}

#else

jmp_buf scheduler_place;

void resume(fiber *next)
{
    current = next;
    race_thread = (int)next->thread.x;
    if (_setjmp(scheduler_place) == 0) {
        if (next->begun) {
            _longjmp(next->place, 1);
        }
        next->begun = true;
        (void)setcontext(&next->context);
    }
    race_thread = -1;
    current = nullptr;
}

void yield(wait why)
{
    current->waits = why;
    if (_setjmp(current->place) == 0) {
        _longjmp(scheduler_place, 1);
    }
}

#endif

void fiber_main()
{
#if defined(__SANITIZE_ADDRESS__)
    __sanitizer_finish_switch_fiber(nullptr, &scheduler_stack, &scheduler_stack_bytes);
#endif
    for (;;) { // A block's threads run on the fibers of the one before.
        (*body_now)();
        yield(LEFT);
    }
}

void fiber_begin(fiber *next, unsigned int number)
{
    next->thread = {number, 0, 0};
    next->waits = RUNS;
    next->groups.clear();
    next->open.clear();
}

std::unique_ptr<fiber> fiber_new()
{
    std::unique_ptr<fiber> made = std::make_unique<fiber>();

    made->stack = std::make_unique<unsigned char[]>(STACK_BYTES);
    (void)getcontext(&made->context);
    made->context.uc_stack.ss_sp = made->stack.get();
    made->context.uc_stack.ss_size = STACK_BYTES;
    made->context.uc_link = nullptr; // It never ends.
    makecontext(&made->context, fiber_main, 0);
    return made;
}

unsigned int next_random()
{
    random_state ^= random_state << 13;
    random_state ^= random_state >> 7;
    random_state ^= random_state << 17;
    return (unsigned int)(random_state >> 20);
}

void open_barrier(unsigned int threads)
{
    unsigned int left = 0;

    for (unsigned int t = 0; t < threads; t++) {
        current = fibers[t].get();
        if (fibers[t]->waits == AT_WARP) {
            fault("waits for a warp whose other threads went elsewhere");
        }
        left += fibers[t]->waits == LEFT;
    }
    if (left > 0) {
        fault("another thread waits at a barrier that this block's threads do not all reach");
    }
    for (unsigned int t = 0; t < threads; t++) {
        fibers[t]->waits = RUNS;
    }
    race_barrier();
}

/* Lets `count` threads from `from` on go as far as they can, each once, `step` apart. */
bool run_threads(unsigned int from, unsigned int count, unsigned int first, unsigned int step)
{
    bool ran = false;

    for (unsigned int turn = 1; turn <= count; turn++) {
        fiber *next = fibers[from + (first + turn * step) % count].get();
        if (next->waits == RUNS) {
            resume(next);
            ran = true;
        }
    }
    return ran;
}

/* By number, backwards, or warp by warp in any order, each as far ahead of the others as barriers
 * let it. */
bool run_round(unsigned int threads)
{
    const unsigned int warps = threads / WARP;
    bool ran = false;

    if (order != EMULATOR_RANDOM) {
        return run_threads(0, threads, threads - 1, order == EMULATOR_FORWARD ? 1 : threads - 1);
    }
    const unsigned int start = next_random();
    for (unsigned int w = 0; w < warps; w++) {
        const unsigned int from = (start + w) % warps * WARP;
        while (run_threads(from, WARP, next_random() % WARP, next_random() % WARP | 1u)) {
            ran = true;
        }
    }
    return ran;
}

void run_block(unsigned int threads)
{
    for (unsigned int t = 0; t < threads; t++) {
        fiber_begin(fibers[t].get(), t);
    }
    std::memset(shared.data(), 0xff, shared.size());
    for (;;) {
        const bool ran = run_round(threads);
        unsigned int left = 0;
        for (unsigned int t = 0; t < threads; t++) {
            left += fibers[t]->waits == LEFT;
        }
        if (left == threads) {
            return;
        }
        if (!ran) {
            open_barrier(threads);
        }
    }
}

fiber *lane(unsigned int number)
{
    return fibers[current->thread.x / WARP * WARP + number].get();
}

/* The whole warp meets; the last to come works for all. */
void meet(const char *what, void (*work)())
{
    unsigned int there = 0;

    current->what = what;
    current->waits = AT_WARP;
    for (unsigned int l = 0; l < WARP; l++) {
        if (lane(l)->waits == AT_WARP) {
            there++;
            if (lane(l)->what != what) {
                fault("threads of a warp are at different instructions");
            }
        }
    }
    if (there < WARP) {
        yield(AT_WARP);
        return;
    }
    work();
    for (unsigned int l = 0; l < WARP; l++) {
        lane(l)->waits = RUNS;
    }
}

void check_shared(const void *at, size_t bytes)
{
    const unsigned char *byte = (const unsigned char *)at;
    if (byte < shared.data() || byte + bytes > shared.data() + shared_bytes_now ||
        (uintptr_t)at % 16 != 0) {
        fault("16 bytes of shared memory that are not there, or not aligned");
    }
}

float bf16_part(uint64_t pair, int which)
{
    const uint32_t bits = (uint32_t)(pair >> (16 * which) & 0xffff) << 16;
    float value;
    std::memcpy(&value, &bits, sizeof(value));
    return value;
}

void exchange_work()
{
    for (unsigned int l = 0; l < WARP; l++) {
        lane(l)->taken[0] = lane(l ^ (unsigned int)lane(l)->given[1])->given[0];
    }
}

void any_work()
{
    uint64_t any = 0;
    for (unsigned int l = 0; l < WARP; l++) {
        any |= lane(l)->given[0];
    }
    for (unsigned int l = 0; l < WARP; l++) {
        lane(l)->taken[0] = any;
    }
}

/* m16n8k16, row by column: each lane holds 8 values of A, 4 of B and 4 sums. */
void mma_work()
{
    float a[16][16];
    float b[16][8];

    for (unsigned int l = 0; l < WARP; l++) {
        const unsigned int group = l / 4;
        const unsigned int pair = l % 4 * 2;
        for (unsigned int r = 0; r < 4; r++) {
            for (int half = 0; half < 2; half++) {
                a[group + r % 2 * 8][pair + r / 2 * 8 + (unsigned int)half] =
                    bf16_part(lane(l)->given[r], half);
            }
        }
        for (unsigned int r = 0; r < 2; r++) {
            for (int half = 0; half < 2; half++) {
                b[pair + r * 8 + (unsigned int)half][group] =
                    bf16_part(lane(l)->given[4 + r], half);
            }
        }
    }
    for (unsigned int l = 0; l < WARP; l++) {
        for (unsigned int i = 0; i < 4; i++) {
            const unsigned int row = l / 4 + i / 2 * 8;
            const unsigned int column = l % 4 * 2 + i % 2;
            double sum = 0.0;
            for (int k = 0; k < 16; k++) {
                sum += (double)a[row][k] * (double)b[k][column];
            }
            const float product = (float)sum;
            uint32_t bits;
            std::memcpy(&bits, &product, sizeof(bits));
            lane(l)->taken[i] = bits;
        }
    }
}

/* Four matrices of 8 x 8: lane l gives the address of row l % 8 of matrix l / 8. */
void ldmatrix_work()
{
    uint16_t matrices[4][8][8];

    for (unsigned int l = 0; l < WARP; l++) {
        const void *row = (const void *)(uintptr_t)lane(l)->given[0];
        check_shared(row, 16);
        std::memcpy(matrices[l / 8][l % 8], row, 16);
    }
    for (unsigned int l = 0; l < WARP; l++) {
        for (unsigned int m = 0; m < 4; m++) {
            const unsigned int row = l / 4;
            const unsigned int pair = l % 4 * 2;
            const bool turned = lane(l)->given[1] != 0;
            const uint32_t low = turned ? matrices[m][pair][row] : matrices[m][row][pair];
            const uint32_t high = turned ? matrices[m][pair + 1][row] : matrices[m][row][pair + 1];
            lane(l)->taken[m] = low | high << 16;
        }
    }
}

} // namespace

const emulator_index &emulator_thread()
{
    return current->thread;
}

unsigned char *emulator_shared()
{
    return shared.data();
}

void emulator_barrier()
{
    yield(AT_BARRIER);
}

uint64_t emulator_exchange(uint64_t bits, int offset)
{
    current->given[0] = bits;
    current->given[1] = (uint64_t)offset;
    meet("shuffle", exchange_work);
    return current->taken[0];
}

bool emulator_any(bool value)
{
    current->given[0] = value;
    meet("vote", any_work);
    return current->taken[0] != 0;
}

void emulator_mma(float *sums, const uint32_t *a, uint32_t b0, uint32_t b1)
{
    for (int i = 0; i < 4; i++) {
        current->given[i] = a[i];
    }
    current->given[4] = b0;
    current->given[5] = b1;
    meet("mma", mma_work);
    for (int i = 0; i < 4; i++) {
        const uint32_t bits = (uint32_t)current->taken[i];
        float product;
        std::memcpy(&product, &bits, sizeof(product));
        sums[i] += product;
    }
}

void emulator_ldmatrix(uint32_t *parts, const void *shared_row, bool turned)
{
    current->given[0] = (uint64_t)(uintptr_t)shared_row;
    current->given[1] = turned;
    race_touch(shared_row, 16, RACE_READ, RACE_LANES, __builtin_return_address(0));
    meet("ldmatrix", ldmatrix_work);
    for (int i = 0; i < 4; i++) {
        parts[i] = (uint32_t)current->taken[i];
    }
}

void emulator_copy_begin(void *to, const void *from, bool there)
{
    check_shared(to, 16);
    if ((uintptr_t)from % 16 != 0) {
        fault("16 bytes of global memory that are not aligned");
    }
    const void *code = __builtin_return_address(0);
    if (there) {
        race_touch(from, 16, RACE_READ, current->thread.x, code);
    }
    race_touch(to, 16, RACE_COPY_BEGINS, current->thread.x, code);
    std::memset(to, 0xff, 16); // Until somebody waits.
    current->open.push_back({to, from, there, code, race_barriers()});
}

void emulator_copy_close()
{
    current->groups.push_back(current->open);
    current->open.clear();
}

void emulator_copy_wait(int open)
{
    while (current->groups.size() > (size_t)open) {
        for (const copy &part : current->groups.front()) {
            race_touch(part.to, 16, RACE_COPY_ENDS, current->thread.x, part.code);
            if (part.there) {
                // Nobody may write it from the beginning on, nor until now.
                race_touch(part.from, 16, RACE_READ, current->thread.x, part.code, part.barriers);
                race_touch(part.from, 16, RACE_READ, current->thread.x, part.code);
                std::memcpy(part.to, part.from, 16);
            } else {
                std::memset(part.to, 0, 16);
            }
        }
        current->groups.erase(current->groups.begin());
    }
}

void emulator_allow_shared(const void *kernel, size_t bytes)
{
    allowed[{emulator_device(), kernel}] = bytes;
}

bool emulator_check_launch(const void *kernel, unsigned int blocks, unsigned int threads,
                           size_t shared_bytes)
{
    const auto asked = allowed.find({emulator_device(), kernel});
    const size_t most = asked != allowed.end() ? asked->second : SHARED_FREE;
    const bool good = blocks >= 1 && blocks <= 0x7fffffffu && threads >= 1 && threads <= 1024 &&
                      threads % WARP == 0 && shared_bytes <= most && most <= SHARED_MAX;

    if (!good) {
        emulator_fail(cudaErrorInvalidConfiguration);
    }
    return good;
}

void emulator_run(unsigned int blocks, unsigned int threads, size_t shared_bytes,
                  const std::function<void()> &body)
{
    while (fibers.size() < threads) {
        fibers.push_back(fiber_new());
    }
    shared.assign(shared_bytes + 16, 0); // Its room stays: 16 aligned bytes come from malloc.
    shared_bytes_now = shared_bytes;
    race_shared(shared.data(), shared_bytes, shared.capacity() - shared_bytes);
    body_now = &body;
    emulator_blocks = {blocks, 1, 1};
    emulator_threads = {threads, 1, 1};
    for (unsigned int b = 0; b < blocks; b++) {
        emulator_block = {order == EMULATOR_BACKWARD ? blocks - 1 - b : b, 0, 0};
        race_block_begins(emulator_block.x);
        run_block(threads);
    }
}

void emulator_order(int wanted, uint64_t seed)
{
    order = wanted;
    random_state = seed != 0 ? seed : 1;
}
