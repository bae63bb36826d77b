#include "tests/gpu/emulator/race.h"

#include <cstdio>
#include <cstdlib>
#include <map>
#include <memory>

#include "tests/gpu/emulator/control.h"

enum { PLACE_BYTES = 2, PAGE_PLACES = 4096, COPYING = 0x8000 };
#define MANY_BLOCKS UINT32_MAX

extern "C" const char __executable_start;

int race_thread = -1;

namespace
{

struct given { // A work: which one of which stream.
    uint32_t stream, number;
};

struct access {
    uint32_t work, block; // Work 0: nobody's.
    uint32_t code;
    uint16_t barriers, thread;
};

/* Who wrote last, and who has read since. Of a work's readers those count that came last: who reads
 * behind a barrier comes after all who read before it. */
struct place {
    access write, read;
    uint32_t other; // The work of a reader in another stream, if nothing orders it before the last.
};

struct memory {
    size_t bytes, more;
    int device;
    std::vector<std::unique_ptr<place[]>> pages;
};

struct loan {
    const unsigned char *data;
    size_t bytes;
    uint32_t work;
    bool writes;
};

std::vector<given> works = {{0, 0}};
std::vector<loan> loans;
std::map<const unsigned char *, memory> memories;
const unsigned char *shared_data;
memory shared_memory;
CUstream_st first_stream;
race_clock all, host; // What was given to the streams; what the host has waited for.
const race_work *running;
uint32_t block_now;
uint32_t barriers_now;
bool counts;
size_t races;

CUstream_st *stream_of(cudaStream_t stream)
{
    return stream != nullptr ? stream : &first_stream;
}

void join(race_clock &into, const race_clock &from)
{
    if (into.size() < from.size()) {
        into.resize(from.size());
    }
    for (size_t i = 0; i < from.size(); i++) {
        into[i] = into[i] > from[i] ? into[i] : from[i];
    }
}

bool knows(const race_clock &clock, uint32_t work)
{
    const given &at = works[work];
    return at.stream < clock.size() && at.number <= clock[at.stream];
}

/* 0: a library's. */
uint32_t code_of(const void *code)
{
    return code != nullptr ? (uint32_t)((const char *)code - &__executable_start) : 0;
}

void print_access(const access &at, const char *does)
{
    const given &work = works[at.work];
    std::fprintf(stderr, "  %s by work %u of stream %u", does, work.number, work.stream);
    if (at.block == MANY_BLOCKS) {
        std::fprintf(stderr, ", several blocks");
    } else {
        std::fprintf(stderr, ", block %u", at.block);
    }
    const unsigned int thread = at.thread & ~(unsigned int)COPYING;
    if (thread == RACE_LANES) {
        std::fprintf(stderr, ", several threads");
    } else {
        std::fprintf(stderr, ", thread %u", thread);
    }
    std::fprintf(stderr, ", after %u barriers%s: 0x%x\n", at.barriers,
                 at.thread >= COPYING ? ", a copy on its way" : "", at.code);
}

/* Neither comes before the other. */
void report(const access &before, const char *did, const access &now, const char *does)
{
    races++;
    if (counts) {
        return;
    }
    std::fprintf(stderr, "emulator: a race (addr2line -Cfie this program 0x...)\n");
    print_access(before, did);
    print_access(now, does);
    std::abort();
}

bool ordered(const access &before, const access &now)
{
    if (before.work == 0) {
        return true;
    }
    if (before.work != now.work) {
        return knows(running->known, before.work);
    }
    return before.block == now.block && before.thread < COPYING &&
           (before.barriers < now.barriers || before.thread == now.thread);
}

void add_reader(place &at, const access &now)
{
    if (at.read.work != now.work) {
        if (!ordered(at.read, now)) {
            at.other = at.read.work;
        }
        at.read = now;
    } else if (at.read.block != now.block) {
        at.read.block = MANY_BLOCKS;
    } else if (at.read.barriers < now.barriers) {
        at.read = now;
    } else if (at.read.barriers == now.barriers && at.read.thread != now.thread) {
        at.read.thread = RACE_LANES;
    }
}

void touch_place(place &at, race_kind kind, const access &now)
{
    if (kind != RACE_COPY_ENDS && !ordered(at.write, now)) {
        report(at.write, "written", now, kind == RACE_READ ? "read" : "written");
    }
    if (kind == RACE_READ) {
        add_reader(at, now);
        return;
    }
    if (!ordered(at.read, now)) {
        report(at.read, "read", now, "written");
    }
    if (!knows(running->known, at.other)) {
        report({at.other, MANY_BLOCKS, 0, 0, RACE_LANES}, "read", now, "written");
    }
    at.write = now; // Readers before it are in its order too.
}

[[noreturn]] void beyond(size_t bytes, race_kind kind, size_t room, const void *code)
{
    std::fprintf(stderr, "emulator: thread %d: %s %zu bytes that end behind a block of %zu: 0x%x\n",
                 race_thread, kind == RACE_READ ? "reads" : "writes", bytes, room, code_of(code));
    std::abort();
}

memory *memory_of(const unsigned char *data, size_t *at)
{
    if (data >= shared_data && data < shared_data + shared_memory.bytes + shared_memory.more) {
        *at = (size_t)(data - shared_data);
        return &shared_memory;
    }
    auto found = memories.upper_bound(data);
    if (found == memories.begin()) {
        return nullptr;
    }
    found--;
    *at = (size_t)(data - found->first);
    return *at < found->second.bytes + found->second.more ? &found->second : nullptr;
}

place &place_of(memory &room, size_t number)
{
    std::unique_ptr<place[]> &page = room.pages[number / PAGE_PLACES];
    if (page == nullptr) {
        page = std::make_unique<place[]>(PAGE_PLACES);
    }
    return page[number % PAGE_PLACES];
}

/* What the block before did with shared memory is not about this one. */
void renew(place &at, const access &now)
{
    if (at.write.work != now.work || at.write.block != now.block) {
        at.write = {};
    }
    if (at.read.work != now.work || at.read.block != now.block) {
        at.read = {};
    }
}

void set_memory(memory &room, size_t bytes, size_t more)
{
    room.bytes = bytes;
    room.more = more;
    room.pages.resize((bytes / PLACE_BYTES) / PAGE_PLACES + 1);
}

} // namespace

cudaStream_t race_stream_new(int device)
{
    static uint32_t count;

    count++;
    return new CUstream_st{count, {}, device};
}

race_work race_give(cudaStream_t given_to)
{
    CUstream_st *stream = stream_of(given_to);

    join(stream->known, host);
    if (stream->known.size() <= stream->number) {
        stream->known.resize(stream->number + 1);
    }
    stream->known[stream->number]++;
    join(all, stream->known);
    works.push_back({stream->number, stream->known[stream->number]});
    return {(uint32_t)works.size() - 1, stream->known, stream->device};
}

void race_record(cudaEvent_t event, cudaStream_t stream)
{
    event->known = stream_of(stream)->known;
}

void race_stream_waits(cudaStream_t stream, cudaEvent_t event)
{
    join(stream_of(stream)->known, event->known);
}

void race_host_waits(const race_clock &known)
{
    size_t left = 0;

    join(host, known);
    for (const loan &at : loans) {
        if (!knows(host, at.work)) {
            loans[left++] = at;
        }
    }
    loans.resize(left);
}

void race_host_waits_for(cudaStream_t stream)
{
    race_host_waits(stream_of(stream)->known);
}

void race_host_waits_for_all(void)
{
    race_host_waits(all);
}

void race_runs(const race_work *work)
{
    running = work;
    race_block_begins(0);
}

int race_device(void)
{
    return running->device;
}

void race_block_begins(unsigned int block)
{
    block_now = block;
    barriers_now = 0;
}

void race_barrier(void)
{
    barriers_now++;
    if (barriers_now > UINT16_MAX) {
        std::fprintf(stderr, "emulator: more barriers than are counted\n");
        std::abort();
    }
}

uint32_t race_barriers(void)
{
    return barriers_now;
}

void race_memory_begins(const void *data, size_t bytes, size_t more, int device)
{
    memory &room = memories[(const unsigned char *)data];

    set_memory(room, bytes, more);
    room.device = device;
}

void race_memory_ends(const void *data)
{
    memories.erase((const unsigned char *)data);
}

void race_shared(const void *data, size_t bytes, size_t more)
{
    shared_data = (const unsigned char *)data;
    set_memory(shared_memory, bytes, more);
}

void race_lend(const race_work &work, const void *data, size_t bytes, bool writes)
{
    loans.push_back({(const unsigned char *)data, bytes, work.number, writes});
}

void race_touch(const void *data, size_t bytes, race_kind kind, unsigned int thread,
                const void *code, uint32_t barriers)
{
    const access now = {running->number, block_now, code_of(code), (uint16_t)barriers,
                        (uint16_t)(kind == RACE_COPY_BEGINS ? thread | COPYING : thread)};
    size_t at = 0;

    memory *room = memory_of((const unsigned char *)data, &at);
    if (room == nullptr || bytes == 0) {
        return; // Of the thread's own.
    }
    if (at + bytes > room->bytes) {
        beyond(bytes, kind, room->bytes, code);
    }
    if (room != &shared_memory && running->device != RACE_ANY_DEVICE &&
        room->device != running->device) {
        std::fprintf(stderr, "emulator: work of device %d %s memory of device %d: 0x%x\n",
                     running->device, kind == RACE_READ ? "reads" : "writes", room->device,
                     code_of(code));
        std::abort();
    }
    for (size_t i = at / PLACE_BYTES; i <= (at + bytes - 1) / PLACE_BYTES; i++) {
        place &here = place_of(*room, i);
        if (room == &shared_memory) {
            renew(here, now);
        }
        touch_place(here, kind, now);
    }
}

void race_touch_host(const void *data, size_t bytes, bool writes, const void *code)
{
    const unsigned char *byte = (const unsigned char *)data;

    if (running != nullptr) {
        return; // The emulator's own.
    }
    for (const loan &at : loans) {
        if (byte < at.data + at.bytes && at.data < byte + bytes && (writes || at.writes)) {
            races++;
            if (!counts) {
                std::fprintf(stderr,
                             "emulator: a race: the host %s what work %u of stream %u %s: 0x%x\n",
                             writes ? "writes or frees" : "reads", works[at.work].number,
                             works[at.work].stream, at.writes ? "writes" : "reads", code_of(code));
                std::abort();
            }
        }
    }
}

void emulator_count_races(bool wanted)
{
    counts = wanted;
    races = 0;
}

size_t emulator_races(void)
{
    return races;
}
