#include "shared/checkpoint/torch/pickle_machine.h"

#include <stdlib.h>
#include <string.h>

enum evq_status evq_pickle_machine_fault(struct evq_pickle_machine *machine, const char *what)
{
    return evq_error_set(machine->err, EVQ_E_CORRUPT, "pickle byte %zu (opcode 0x%02x): %s",
                         machine->opcode_at, machine->data[machine->opcode_at], what);
}

enum evq_status evq_pickle_machine_fault_no_memory(struct evq_pickle_machine *machine)
{
    return evq_error_set(machine->err, EVQ_E_LIMIT,
                         "pickle byte %zu: more objects than a pickle of %zu bytes may hold",
                         machine->opcode_at, machine->bytes);
}

const uint8_t *evq_pickle_machine_take(struct evq_pickle_machine *machine, size_t bytes)
{
    if (bytes > machine->bytes - machine->at) {
        return NULL;
    }
    const uint8_t *at = machine->data + machine->at;
    machine->at += bytes;
    return at;
}

bool evq_pickle_machine_take_number(struct evq_pickle_machine *machine, unsigned bytes,
                                    uint64_t *ret_value)
{
    const uint8_t *at = evq_pickle_machine_take(machine, bytes);
    uint64_t value = 0;

    if (at == NULL) {
        return false;
    }
    for (unsigned i = 0; i < bytes; i++) {
        value |= (uint64_t)at[i] << (8 * i);
    }
    *ret_value = value;
    return true;
}

enum evq_status evq_pickle_machine_fault_cut(struct evq_pickle_machine *machine)
{
    machine->cut = true;
    return evq_pickle_machine_fault(machine, "its operand reaches past the end of the pickle");
}

bool evq_pickle_machine_reserve(void **items, size_t count, size_t *capacity, size_t item_bytes)
{
    if (count < *capacity) {
        return true;
    }
    size_t wanted = count < 64 ? 128 : count * 2; // Counts are bounded by the bytes of the pickle.
    void *grown = realloc(*items, wanted * item_bytes);
    if (grown == NULL) {
        return false;
    }
    *items = grown;
    *capacity = wanted;
    return true;
}

enum evq_status evq_pickle_machine_push(struct evq_pickle_machine *machine,
                                        struct evq_pickle_node *value)
{
    void *stack = machine->stack;

    if (value == NULL ||
        !evq_pickle_machine_reserve(&stack, machine->depth, &machine->stack_capacity,
                                    sizeof(struct evq_pickle_node *))) {
        return evq_pickle_machine_fault_no_memory(machine);
    }
    machine->stack = stack;
    machine->stack[machine->depth++] = value;
    return EVQ_OK;
}

size_t evq_pickle_machine_floor_of(const struct evq_pickle_machine *machine)
{
    return machine->mark_count == 0 ? 0 : machine->marks[machine->mark_count - 1];
}

bool evq_pickle_machine_has(const struct evq_pickle_machine *machine, size_t count)
{
    return machine->depth - evq_pickle_machine_floor_of(machine) >= count;
}

enum evq_status evq_pickle_machine_fault_underflow(struct evq_pickle_machine *machine)
{
    return evq_pickle_machine_fault(machine, "the stack holds too little");
}

struct evq_pickle_node *evq_pickle_machine_make(struct evq_pickle_machine *machine,
                                                enum evq_pickle_kind kind)
{
    struct evq_pickle_node *made = evq_arena_alloc(machine->arena, sizeof(*made));

    if (made != NULL) {
        made->kind = kind;
    }
    return made;
}

bool evq_pickle_machine_grow(struct evq_pickle_machine *machine, struct evq_pickle_node *container,
                             size_t more)
{
    size_t needed = (size_t)container->count + more;

    if (needed <= container->capacity) {
        return true;
    }
    size_t capacity =
        needed > 2 * (size_t)container->capacity ? needed : 2 * (size_t)container->capacity;
    struct evq_pickle_node **items =
        capacity > UINT32_MAX ? NULL : evq_arena_array(machine->arena, capacity, sizeof(*items));
    if (items == NULL) {
        return false;
    }
    if (container->count > 0) {
        memcpy(items, container->as.items, container->count * sizeof(*items));
    }
    container->as.items = items;
    container->capacity = (uint32_t)capacity;
    return true;
}

enum evq_status evq_pickle_machine_put_items(struct evq_pickle_machine *machine,
                                             struct evq_pickle_node *container, size_t from)
{
    size_t count = machine->depth - from;

    if (count > 0) {
        if (!evq_pickle_machine_grow(machine, container, count)) {
            return evq_pickle_machine_fault_no_memory(machine);
        }
        memcpy(container->as.items + container->count, machine->stack + from,
               count * sizeof(struct evq_pickle_node *));
        container->count += (uint32_t)count;
    }
    machine->depth = from;
    return EVQ_OK;
}

bool evq_pickle_machine_take_mark(struct evq_pickle_machine *machine, size_t *ret_from)
{
    if (machine->mark_count == 0) {
        return false;
    }
    *ret_from = machine->marks[--machine->mark_count];
    return true;
}

enum evq_status evq_pickle_machine_fault_no_mark(struct evq_pickle_machine *machine)
{
    return evq_pickle_machine_fault(machine, "there is no mark on the stack");
}
