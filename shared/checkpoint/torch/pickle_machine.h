/* The stack machine that executes a pickle's opcodes. For pickle.c and its opcodes only; one
 * thread. */
#ifndef EVQ_SHARED_CHECKPOINT_TORCH_PICKLE_MACHINE_H
#define EVQ_SHARED_CHECKPOINT_TORCH_PICKLE_MACHINE_H

#include "shared/base/arena.h"
#include "shared/checkpoint/torch/pickle.h"

struct evq_pickle_machine {
    struct evq_arena *arena; // Holds the tree.
    const uint8_t *data;
    size_t bytes;
    size_t at;        // The next byte.
    size_t opcode_at; // Position of the current opcode, for messages.
    struct evq_pickle_node **stack;
    size_t depth;
    size_t stack_capacity;
    size_t *marks; // Stack depths.
    size_t mark_count;
    size_t mark_capacity;
    struct evq_pickle_node **memo;
    size_t memo_count;
    size_t memo_capacity;
    struct evq_pickle_node **persistent; // All PERSISTENT nodes, in order.
    size_t persistent_count;
    size_t persistent_capacity;
    struct evq_error *err;
    bool stopped;
    bool cut; // It failed because the bytes ended.
};

/* Executes one opcode. argument comes from the opcode table. */
typedef enum evq_status (*evq_opcode_function)(struct evq_pickle_machine *machine,
                                               unsigned argument);

/* EVQ_E_CORRUPT with the position of the current opcode. */
enum evq_status evq_pickle_machine_fault(struct evq_pickle_machine *machine,
                                         const char *what) EVQ_CHECK_RESULT;

/* EVQ_E_LIMIT: the tree outgrew what a pickle of its size may need. */
enum evq_status
evq_pickle_machine_fault_no_memory(struct evq_pickle_machine *machine) EVQ_CHECK_RESULT;

/* Takes bytes of the operand; NULL: the pickle ends before them. */
const uint8_t *evq_pickle_machine_take(struct evq_pickle_machine *machine, size_t bytes);

/* Takes a little-endian number of 1 to 8 bytes. */
bool evq_pickle_machine_take_number(struct evq_pickle_machine *machine, unsigned bytes,
                                    uint64_t *ret_value);

/* EVQ_E_CORRUPT: the pickle ends inside an operand. */
enum evq_status evq_pickle_machine_fault_cut(struct evq_pickle_machine *machine) EVQ_CHECK_RESULT;

/* Makes room for one more item after count items. The caller frees the memory. False: out of
 * memory. */
bool evq_pickle_machine_reserve(void **items, size_t count, size_t *capacity, size_t item_bytes);

/* value may be NULL: out of memory. */
enum evq_status evq_pickle_machine_push(struct evq_pickle_machine *machine,
                                        struct evq_pickle_node *value) EVQ_CHECK_RESULT;

/* Stack depth that the last mark protects. */
size_t evq_pickle_machine_floor_of(const struct evq_pickle_machine *machine);

/* Whether at least count values are above the last mark. */
bool evq_pickle_machine_has(const struct evq_pickle_machine *machine, size_t count);

enum evq_status
evq_pickle_machine_fault_underflow(struct evq_pickle_machine *machine) EVQ_CHECK_RESULT;

/* Makes a node. NULL: out of memory. */
struct evq_pickle_node *evq_pickle_machine_make(struct evq_pickle_machine *machine,
                                                enum evq_pickle_kind kind);

/* Makes room for `more` items at the end of a container. */
bool evq_pickle_machine_grow(struct evq_pickle_machine *machine, struct evq_pickle_node *container,
                             size_t more);

/* Moves the values above `from` into container. */
enum evq_status evq_pickle_machine_put_items(struct evq_pickle_machine *machine,
                                             struct evq_pickle_node *container,
                                             size_t from) EVQ_CHECK_RESULT;

bool evq_pickle_machine_take_mark(struct evq_pickle_machine *machine, size_t *ret_from);

enum evq_status
evq_pickle_machine_fault_no_mark(struct evq_pickle_machine *machine) EVQ_CHECK_RESULT;

/* Containers, names and objects: pickle_objects.c. */
enum evq_status evq_opcode_empty(struct evq_pickle_machine *machine,
                                 unsigned argument) EVQ_CHECK_RESULT;
enum evq_status evq_opcode_collect(struct evq_pickle_machine *machine,
                                   unsigned argument) EVQ_CHECK_RESULT;
enum evq_status evq_opcode_tuple(struct evq_pickle_machine *machine,
                                 unsigned argument) EVQ_CHECK_RESULT;
enum evq_status evq_opcode_add_items(struct evq_pickle_machine *machine,
                                     unsigned argument) EVQ_CHECK_RESULT;
enum evq_status evq_opcode_add_item(struct evq_pickle_machine *machine,
                                    unsigned argument) EVQ_CHECK_RESULT;
enum evq_status evq_opcode_global(struct evq_pickle_machine *machine,
                                  unsigned argument) EVQ_CHECK_RESULT;
enum evq_status evq_opcode_stack_global(struct evq_pickle_machine *machine,
                                        unsigned argument) EVQ_CHECK_RESULT;
enum evq_status evq_opcode_call(struct evq_pickle_machine *machine,
                                unsigned argument) EVQ_CHECK_RESULT;
enum evq_status evq_opcode_build(struct evq_pickle_machine *machine,
                                 unsigned argument) EVQ_CHECK_RESULT;
enum evq_status evq_opcode_persistent(struct evq_pickle_machine *machine,
                                      unsigned argument) EVQ_CHECK_RESULT;

#endif
