#include "shared/checkpoint/torch/pickle.h"

#include <stdlib.h>
#include <string.h>

#include "shared/checkpoint/torch/pickle_machine.h"

#define TREE_BYTES_PER_BYTE 64u // How much memory one opcode byte may cost in nodes and items.
#define TREE_BYTES_MAX      ((size_t)2 << 30)
#define PROTOCOL_MIN        2
#define PROTOCOL_MAX        5

struct evq_pickle {
    struct evq_arena *arena;
    struct evq_pickle_node *root;
    struct evq_pickle_node **persistent;
    size_t persistent_count;
};

/* Shared by all trees. Nothing ever changes them. */
static struct evq_pickle_node none = {.kind = EVQ_PICKLE_NONE};
static struct evq_pickle_node yes = {.kind = EVQ_PICKLE_BOOL, .as = {.integer = 1}};
static struct evq_pickle_node no = {.kind = EVQ_PICKLE_BOOL};
static struct evq_pickle_node empty = {.kind = EVQ_PICKLE_TUPLE};

static enum evq_status op_proto(struct evq_pickle_machine *machine, unsigned argument)
{
    uint64_t version = 0;

    (void)argument; // One opcode only.
    if (!evq_pickle_machine_take_number(machine, 1, &version)) {
        return evq_pickle_machine_fault_cut(machine);
    }
    if (machine->opcode_at != 0 || version < PROTOCOL_MIN || version > PROTOCOL_MAX) {
        return evq_pickle_machine_fault(machine,
                                        "expected one protocol number of 2 to 5, at the start");
    }
    return EVQ_OK;
}

static enum evq_status op_frame(struct evq_pickle_machine *machine, unsigned argument)
{
    uint64_t bytes = 0;

    (void)argument; // One opcode only.
    if (!evq_pickle_machine_take_number(machine, 8, &bytes) ||
        bytes > machine->bytes - machine->at) {
        return evq_pickle_machine_fault_cut(machine);
    }
    return EVQ_OK;
}

static enum evq_status op_stop(struct evq_pickle_machine *machine, unsigned argument)
{
    (void)argument; // One opcode only.
    if (machine->depth != 1 || machine->mark_count != 0) {
        return evq_pickle_machine_fault(machine,
                                        "the stack does not hold exactly one value at the end");
    }
    machine->stopped = true;
    return EVQ_OK;
}

static enum evq_status op_mark(struct evq_pickle_machine *machine, unsigned argument)
{
    void *marks = machine->marks;

    (void)argument; // One opcode only.
    if (!evq_pickle_machine_reserve(&marks, machine->mark_count, &machine->mark_capacity,
                                    sizeof(*machine->marks))) {
        return evq_pickle_machine_fault_no_memory(machine);
    }
    machine->marks = marks;
    machine->marks[machine->mark_count++] = machine->depth;
    return EVQ_OK;
}

static enum evq_status op_pop(struct evq_pickle_machine *machine, unsigned argument)
{
    size_t from = 0;

    if (argument == 0 && evq_pickle_machine_has(machine, 1)) {
        machine->depth--;
        return EVQ_OK;
    }
    if (!evq_pickle_machine_take_mark(machine, &from)) {
        return argument == 0 ? evq_pickle_machine_fault_underflow(machine)
                             : evq_pickle_machine_fault_no_mark(machine);
    }
    machine->depth = from;
    return EVQ_OK;
}

static enum evq_status op_dup(struct evq_pickle_machine *machine, unsigned argument)
{
    (void)argument; // One opcode only.
    return evq_pickle_machine_has(machine, 1)
               ? evq_pickle_machine_push(machine, machine->stack[machine->depth - 1])
               : evq_pickle_machine_fault_underflow(machine);
}

static enum evq_status op_constant(struct evq_pickle_machine *machine, unsigned argument)
{
    return evq_pickle_machine_push(machine, argument == 'N'    ? &none
                                            : argument == 0x88 ? &yes
                                            : argument == 0x89 ? &no
                                                               : &empty);
}

/* argument: size of the number in bytes. A number of 4 bytes is signed. */
static enum evq_status op_int(struct evq_pickle_machine *machine, unsigned argument)
{
    uint64_t value = 0;

    if (!evq_pickle_machine_take_number(machine, argument, &value)) {
        return evq_pickle_machine_fault_cut(machine);
    }
    struct evq_pickle_node *made = evq_pickle_machine_make(machine, EVQ_PICKLE_INT);
    if (made != NULL) {
        made->as.integer = argument == 4 ? (int64_t)(int32_t)(uint32_t)value : (int64_t)value;
    }
    return evq_pickle_machine_push(machine, made);
}

/* Reads a two's complement number of any length. argument: size of its length field. */
static enum evq_status op_long(struct evq_pickle_machine *machine, unsigned argument)
{
    uint64_t bytes = 0;
    uint64_t value = 0;

    if (!evq_pickle_machine_take_number(machine, argument, &bytes) || bytes > INT32_MAX) {
        return evq_pickle_machine_fault_cut(machine);
    }
    const uint8_t *digits = evq_pickle_machine_take(machine, (size_t)bytes);
    if (digits == NULL) {
        return evq_pickle_machine_fault_cut(machine);
    }
    uint8_t fill = bytes > 0 && (digits[bytes - 1] & 0x80) != 0 ? 0xff : 0;
    for (unsigned i = 0; i < 8; i++) {
        value |= (uint64_t)(i < bytes ? digits[i] : fill) << (8 * i);
    }
    bool big = false;
    for (uint64_t i = 8; i < bytes; i++) {
        big = big || digits[i] != fill;
    }
    big = big || (bytes > 8 && (value >> 63 != 0) != (fill != 0));
    struct evq_pickle_node *made =
        evq_pickle_machine_make(machine, big ? EVQ_PICKLE_BIG_INT : EVQ_PICKLE_INT);
    if (made != NULL) {
        made->as.integer = (int64_t)value;
    }
    return evq_pickle_machine_push(machine, made);
}

static enum evq_status op_float(struct evq_pickle_machine *machine, unsigned argument)
{
    const uint8_t *at = evq_pickle_machine_take(machine, 8);
    uint64_t bits = 0;

    (void)argument; // One opcode only.
    if (at == NULL) {
        return evq_pickle_machine_fault_cut(machine);
    }
    for (unsigned i = 0; i < 8; i++) {
        bits = bits << 8 | at[i]; // The one big-endian operand.
    }
    struct evq_pickle_node *made = evq_pickle_machine_make(machine, EVQ_PICKLE_FLOAT);
    if (made != NULL) {
        memcpy(&made->as.real, &bits, sizeof(made->as.real));
    }
    return evq_pickle_machine_push(machine, made);
}

static enum evq_status push_text(struct evq_pickle_machine *machine, enum evq_pickle_kind kind,
                                 unsigned length_bytes)
{
    uint64_t bytes = 0;

    if (!evq_pickle_machine_take_number(machine, length_bytes, &bytes) || bytes > UINT32_MAX) {
        return evq_pickle_machine_fault_cut(machine);
    }
    const uint8_t *text = evq_pickle_machine_take(machine, (size_t)bytes);
    if (text == NULL) {
        return evq_pickle_machine_fault_cut(machine);
    }
    struct evq_pickle_node *made = evq_pickle_machine_make(machine, kind);
    if (made != NULL) {
        made->count = (uint32_t)bytes;
        made->as.text = (const char *)text;
    }
    return evq_pickle_machine_push(machine, made);
}

static enum evq_status op_text(struct evq_pickle_machine *machine, unsigned argument)
{
    return push_text(machine, EVQ_PICKLE_TEXT, argument);
}

static enum evq_status op_bytes(struct evq_pickle_machine *machine, unsigned argument)
{
    return push_text(machine, EVQ_PICKLE_BYTES, argument);
}

static enum evq_status remember(struct evq_pickle_machine *machine, uint64_t index)
{
    if (!evq_pickle_machine_has(machine, 1)) {
        return evq_pickle_machine_fault_underflow(machine);
    }
    if (index >= machine->bytes) { // Writers count from 0, and every store takes at least one byte.
        return evq_error_set(machine->err, EVQ_E_LIMIT,
                             "pickle byte %zu: memo index %llu in a pickle of %zu bytes",
                             machine->opcode_at, (unsigned long long)index, machine->bytes);
    }
    void *memo = machine->memo;
    size_t capacity = machine->memo_capacity;
    if (!evq_pickle_machine_reserve(&memo, (size_t)index, &capacity,
                                    sizeof(struct evq_pickle_node *))) {
        return evq_pickle_machine_fault_no_memory(machine);
    }
    machine->memo = memo;
    memset(machine->memo + machine->memo_capacity, 0,
           (capacity - machine->memo_capacity) * sizeof(struct evq_pickle_node *));
    machine->memo_capacity = capacity;
    machine->memo_count += machine->memo[index] == NULL ? 1 : 0;
    machine->memo[index] = machine->stack[machine->depth - 1];
    return EVQ_OK;
}

/* argument: size of the index in bytes; 0: the next index. */
static enum evq_status op_put(struct evq_pickle_machine *machine, unsigned argument)
{
    uint64_t index = machine->memo_count;

    if (argument > 0 && !evq_pickle_machine_take_number(machine, argument, &index)) {
        return evq_pickle_machine_fault_cut(machine);
    }
    return remember(machine, index);
}

static enum evq_status op_get(struct evq_pickle_machine *machine, unsigned argument)
{
    uint64_t index = 0;

    if (!evq_pickle_machine_take_number(machine, argument, &index)) {
        return evq_pickle_machine_fault_cut(machine);
    }
    if (index >= machine->memo_capacity || machine->memo[index] == NULL) {
        return evq_pickle_machine_fault(machine, "it reads a memo entry that was never stored");
    }
    return evq_pickle_machine_push(machine, machine->memo[index]);
}

static enum evq_status op_refused(struct evq_pickle_machine *machine, unsigned argument)
{
    (void)argument; // The message names the opcode.
    return evq_error_set(machine->err, EVQ_E_UNSUPPORTED,
                         "pickle byte %zu: opcode 0x%02x is one that torch.save never writes",
                         machine->opcode_at, machine->data[machine->opcode_at]);
}

static const struct {
    evq_opcode_function function;
    unsigned argument;
} opcodes[256] = {
    [0x80] = {op_proto, 0},
    [0x95] = {op_frame, 0},
    ['.'] = {op_stop, 0},
    ['('] = {op_mark, 0},
    ['0'] = {op_pop, 0},
    ['1'] = {op_pop, 1},
    ['2'] = {op_dup, 0},
    ['N'] = {op_constant, 'N'},
    [0x88] = {op_constant, 0x88},
    [0x89] = {op_constant, 0x89},
    [')'] = {op_constant, ')'},
    ['J'] = {op_int, 4},
    ['K'] = {op_int, 1},
    ['M'] = {op_int, 2},
    [0x8a] = {op_long, 1},
    [0x8b] = {op_long, 4},
    ['G'] = {op_float, 0},
    ['X'] = {op_text, 4},
    [0x8c] = {op_text, 1},
    [0x8d] = {op_text, 8},
    ['U'] = {op_text, 1},
    ['T'] = {op_text, 4},
    ['C'] = {op_bytes, 1},
    ['B'] = {op_bytes, 4},
    [0x8e] = {op_bytes, 8},
    [0x96] = {op_bytes, 8},
    [']'] = {evq_opcode_empty, EVQ_PICKLE_LIST},
    ['}'] = {evq_opcode_empty, EVQ_PICKLE_DICT},
    [0x8f] = {evq_opcode_empty, EVQ_PICKLE_SET},
    ['t'] = {evq_opcode_collect, EVQ_PICKLE_TUPLE},
    ['l'] = {evq_opcode_collect, EVQ_PICKLE_LIST},
    ['d'] = {evq_opcode_collect, EVQ_PICKLE_DICT},
    [0x91] = {evq_opcode_collect, EVQ_PICKLE_SET},
    [0x85] = {evq_opcode_tuple, 1},
    [0x86] = {evq_opcode_tuple, 2},
    [0x87] = {evq_opcode_tuple, 3},
    ['e'] = {evq_opcode_add_items, EVQ_PICKLE_LIST},
    ['u'] = {evq_opcode_add_items, EVQ_PICKLE_DICT},
    [0x90] = {evq_opcode_add_items, EVQ_PICKLE_SET},
    ['a'] = {evq_opcode_add_item, EVQ_PICKLE_LIST},
    ['s'] = {evq_opcode_add_item, EVQ_PICKLE_DICT},
    ['q'] = {op_put, 1},
    ['r'] = {op_put, 4},
    [0x94] = {op_put, 0},
    ['h'] = {op_get, 1},
    ['j'] = {op_get, 4},
    ['c'] = {evq_opcode_global, 0},
    [0x93] = {evq_opcode_stack_global, 0},
    ['R'] = {evq_opcode_call, 1},
    [0x81] = {evq_opcode_call, 1},
    [0x92] = {evq_opcode_call, 2},
    ['b'] = {evq_opcode_build, 0},
    ['Q'] = {evq_opcode_persistent, 0},
};

static enum evq_status run(struct evq_pickle_machine *machine)
{
    enum evq_status status = EVQ_OK;

    while (status == EVQ_OK && !machine->stopped) {
        if (machine->at >= machine->bytes) {
            machine->cut = true;
            return evq_error_set(machine->err, EVQ_E_CORRUPT,
                                 "pickle of %zu bytes ends without STOP", machine->bytes);
        }
        machine->opcode_at = machine->at++;
        uint8_t opcode = machine->data[machine->opcode_at];
        if (machine->opcode_at == 0 && opcode != 0x80) {
            return evq_pickle_machine_fault(
                machine, "expected a protocol number first (protocols 0 and 1 are not read)");
        }
        evq_opcode_function function = opcodes[opcode].function;
        status =
            function == NULL ? op_refused(machine, 0) : function(machine, opcodes[opcode].argument);
    }
    return status;
}

static enum evq_status read_machine(struct evq_pickle_machine *machine,
                                    struct evq_pickle **ret_pickle)
{
    size_t limit = machine->bytes > TREE_BYTES_MAX / TREE_BYTES_PER_BYTE - ((size_t)1 << 14)
                       ? TREE_BYTES_MAX
                       : machine->bytes * TREE_BYTES_PER_BYTE + ((size_t)1 << 20);
    struct evq_pickle *pickle = calloc(1, sizeof(*pickle));
    enum evq_status status;

    if (pickle != NULL) {
        pickle->arena = evq_arena_new(limit);
    }
    if (pickle == NULL || pickle->arena == NULL) {
        status = evq_error_set(machine->err, EVQ_E_NOMEM, "a pickle of %zu bytes", machine->bytes);
        goto out;
    }
    machine->arena = pickle->arena;
    status = run(machine);
    if (status == EVQ_OK) {
        pickle->root = machine->stack[0];
        pickle->persistent = machine->persistent;
        pickle->persistent_count = machine->persistent_count;
        machine->persistent = NULL; // The pickle owns it now.
        *ret_pickle = pickle;
        pickle = NULL; // The caller owns it now.
    }
out:
    free(machine->stack);
    free(machine->marks);
    free(machine->memo);
    free(machine->persistent);
    evq_pickle_free(pickle);
    return status;
}

enum evq_status evq_pickle_read(const uint8_t *data, size_t bytes, struct evq_pickle **ret_pickle,
                                struct evq_error *err)
{
    struct evq_pickle_machine machine = {.data = data, .bytes = bytes, .err = err};
    struct evq_pickle *pickle = NULL;
    enum evq_status status = read_machine(&machine, &pickle);

    if (status == EVQ_OK && machine.at != bytes) {
        evq_pickle_free(pickle);
        return evq_error_set(err, EVQ_E_CORRUPT, "%zu bytes follow the end of the pickle",
                             bytes - machine.at);
    }
    if (status == EVQ_OK) {
        *ret_pickle = pickle;
    }
    return status;
}

enum evq_status evq_pickle_read_first(const uint8_t *data, size_t bytes,
                                      struct evq_pickle **ret_pickle, size_t *ret_bytes,
                                      struct evq_error *err)
{
    struct evq_pickle_machine machine = {.data = data, .bytes = bytes, .err = err};
    enum evq_status status = read_machine(&machine, ret_pickle);

    if (status == EVQ_E_CORRUPT && machine.cut) {
        return evq_error_set(
            err, EVQ_E_INCOMPLETE,
            "the pickle does not end within %zu bytes: still being written, or cut", bytes);
    }
    if (status == EVQ_OK) {
        *ret_bytes = machine.at;
    }
    return status;
}

void evq_pickle_free(struct evq_pickle *pickle)
{
    if (pickle != NULL) {
        evq_arena_free(pickle->arena);
        free(pickle->persistent);
        free(pickle);
    }
}

const struct evq_pickle_node *evq_pickle_root(const struct evq_pickle *pickle)
{
    return pickle->root;
}

size_t evq_pickle_persistent(const struct evq_pickle *pickle,
                             struct evq_pickle_node *const **ret_nodes)
{
    *ret_nodes = pickle->persistent;
    return pickle->persistent_count;
}

bool evq_pickle_is_text(const struct evq_pickle_node *value, const char *text)
{
    return value->kind == EVQ_PICKLE_TEXT && value->count == strlen(text) &&
           memcmp(value->as.text, text, value->count) == 0;
}

int evq_pickle_text_compare(const struct evq_pickle_node *left, const struct evq_pickle_node *right)
{
    const size_t bytes = left->count < right->count ? left->count : right->count;
    const int order = bytes == 0 ? 0 : memcmp(left->as.text, right->as.text, bytes);

    return order != 0 ? order : (left->count > right->count) - (left->count < right->count);
}

const struct evq_pickle_node *evq_pickle_get(const struct evq_pickle_node *dict, const char *key)
{
    if (dict->kind != EVQ_PICKLE_DICT) {
        return NULL;
    }
    for (uint32_t i = dict->count; i >= 2; i -= 2) {
        if (evq_pickle_is_text(dict->as.items[i - 2], key)) {
            return dict->as.items[i - 1];
        }
    }
    return NULL;
}
