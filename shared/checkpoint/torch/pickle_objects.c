#include <string.h>

#include "shared/checkpoint/checkpoint_builder.h"
#include "shared/checkpoint/torch/pickle_globals.h"
#include "shared/checkpoint/torch/pickle_machine.h"

enum evq_status evq_opcode_empty(struct evq_pickle_machine *machine, unsigned argument)
{
    return evq_pickle_machine_push(
        machine, evq_pickle_machine_make(machine, (enum evq_pickle_kind)argument));
}

/* Makes a container of the values above the last mark. argument: its kind. */
enum evq_status evq_opcode_collect(struct evq_pickle_machine *machine, unsigned argument)
{
    size_t from = 0;

    if (!evq_pickle_machine_take_mark(machine, &from)) {
        return evq_pickle_machine_fault_no_mark(machine);
    }
    if (argument == EVQ_PICKLE_DICT && (machine->depth - from) % 2 != 0) {
        return evq_pickle_machine_fault(machine, "a key without a value");
    }
    struct evq_pickle_node *made = evq_pickle_machine_make(machine, (enum evq_pickle_kind)argument);
    enum evq_status status = made == NULL ? evq_pickle_machine_fault_no_memory(machine)
                                          : evq_pickle_machine_put_items(machine, made, from);
    return status == EVQ_OK ? evq_pickle_machine_push(machine, made) : status;
}

/* argument: number of values. */
enum evq_status evq_opcode_tuple(struct evq_pickle_machine *machine, unsigned argument)
{
    if (!evq_pickle_machine_has(machine, argument)) {
        return evq_pickle_machine_fault_underflow(machine);
    }
    struct evq_pickle_node *made = evq_pickle_machine_make(machine, EVQ_PICKLE_TUPLE);
    enum evq_status status =
        made == NULL ? evq_pickle_machine_fault_no_memory(machine)
                     : evq_pickle_machine_put_items(machine, made, machine->depth - argument);
    return status == EVQ_OK ? evq_pickle_machine_push(machine, made) : status;
}

/* Returns the container for new items of target: target itself if it has this kind, or the items of
 * an object. NULL: neither. */
static struct evq_pickle_node *container_of(struct evq_pickle_machine *machine,
                                            struct evq_pickle_node *target,
                                            enum evq_pickle_kind kind)
{
    if (target->kind == kind) {
        return target;
    }
    if (target->kind != EVQ_PICKLE_OBJECT) {
        return NULL;
    }
    struct evq_pickle_object *object = target->as.object;
    if (object->items == NULL) {
        object->items = evq_pickle_machine_make(machine, kind);
    }
    return object->items != NULL && object->items->kind == kind ? object->items : NULL;
}

static enum evq_status add_items(struct evq_pickle_machine *machine, size_t from,
                                 enum evq_pickle_kind kind)
{
    if (kind == EVQ_PICKLE_DICT && (machine->depth - from) % 2 != 0) {
        return evq_pickle_machine_fault(machine, "a key without a value");
    }
    struct evq_pickle_node *container = container_of(machine, machine->stack[from - 1], kind);
    if (container == NULL) {
        return evq_pickle_machine_fault(
            machine, kind == EVQ_PICKLE_DICT   ? "it sets an item of what is no dict"
                     : kind == EVQ_PICKLE_LIST ? "it appends to what is no list"
                                               : "it adds to what is no set");
    }
    return evq_pickle_machine_put_items(machine, container, from);
}

/* Adds the values above the last mark to the value below them. argument: the kind. */
enum evq_status evq_opcode_add_items(struct evq_pickle_machine *machine, unsigned argument)
{
    size_t from = 0;

    if (!evq_pickle_machine_take_mark(machine, &from)) {
        return evq_pickle_machine_fault_no_mark(machine);
    }
    if (from < evq_pickle_machine_floor_of(machine) + 1) {
        return evq_pickle_machine_fault_underflow(machine);
    }
    return add_items(machine, from, (enum evq_pickle_kind)argument);
}

enum evq_status evq_opcode_add_item(struct evq_pickle_machine *machine, unsigned argument)
{
    size_t count = argument == EVQ_PICKLE_DICT ? 2 : 1;

    if (!evq_pickle_machine_has(machine, count + 1)) {
        return evq_pickle_machine_fault_underflow(machine);
    }
    return add_items(machine, machine->depth - count, (enum evq_pickle_kind)argument);
}

static enum evq_status push_global(struct evq_pickle_machine *machine, const char *module,
                                   size_t module_bytes, const char *name, size_t name_bytes)
{
    struct evq_pickle_global *global = evq_arena_alloc(machine->arena, sizeof(*global));
    struct evq_pickle_node *made = evq_pickle_machine_make(machine, EVQ_PICKLE_GLOBAL);

    if (memchr(module, '\0', module_bytes) != NULL || memchr(name, '\0', name_bytes) != NULL ||
        module_bytes == 0 || name_bytes == 0) {
        return evq_pickle_machine_fault(machine, "a global whose name is empty or holds a NUL");
    }
    if (global == NULL || made == NULL) {
        return evq_pickle_machine_fault_no_memory(machine);
    }
    global->module = evq_arena_strndup(machine->arena, module, module_bytes);
    global->name = evq_arena_strndup(machine->arena, name, name_bytes);
    if (global->module == NULL || global->name == NULL) {
        return evq_pickle_machine_fault_no_memory(machine);
    }
    if (evq_pickle_denied(global->module, global->name)) {
        char shown[2][EVQ_SHOWN_BYTES];
        evq_error_escape(module, module_bytes, shown[0], sizeof(shown[0]));
        evq_error_escape(name, name_bytes, shown[1], sizeof(shown[1]));
        return evq_error_set(
            machine->err, EVQ_E_INVALID,
            "pickle byte %zu names '%s.%s', which no checkpoint needs: refused as hostile",
            machine->opcode_at, shown[0], shown[1]);
    }
    made->as.global = global;
    return evq_pickle_machine_push(machine, made);
}

enum evq_status evq_opcode_global(struct evq_pickle_machine *machine, unsigned argument)
{
    const char *lines[2];
    size_t bytes[2];

    (void)argument; // One opcode only.
    for (int i = 0; i < 2; i++) {
        lines[i] = (const char *)machine->data + machine->at;
        const char *end = memchr(lines[i], '\n', machine->bytes - machine->at);
        if (end == NULL) {
            return evq_pickle_machine_fault_cut(machine);
        }
        bytes[i] = (size_t)(end - lines[i]);
        machine->at += bytes[i] + 1;
    }
    return push_global(machine, lines[0], bytes[0], lines[1], bytes[1]);
}

enum evq_status evq_opcode_stack_global(struct evq_pickle_machine *machine, unsigned argument)
{
    (void)argument; // One opcode only.
    if (!evq_pickle_machine_has(machine, 2)) {
        return evq_pickle_machine_fault_underflow(machine);
    }
    const struct evq_pickle_node *name = machine->stack[machine->depth - 1];
    const struct evq_pickle_node *module = machine->stack[machine->depth - 2];
    if (name->kind != EVQ_PICKLE_TEXT || module->kind != EVQ_PICKLE_TEXT) {
        return evq_pickle_machine_fault(machine, "a global whose name is no text");
    }
    machine->depth -= 2;
    return push_global(machine, module->as.text, module->count, name->as.text, name->count);
}

/*
 * dict() and its subclasses become DICT nodes, filled by later opcodes and by pairs given at once.
 */
static bool is_dict_class(const struct evq_pickle_node *callable)
{
    return evq_pickle_is_global(callable, "collections", "OrderedDict") ||
           evq_pickle_is_global(callable, "collections", "defaultdict") ||
           evq_pickle_is_global(callable, "collections", "Counter") ||
           evq_pickle_is_global(callable, "builtins", "dict") ||
           evq_pickle_is_global(callable, "__builtin__", "dict");
}

/* OrderedDict([[key, value], ...]) as Python 2 wrote it. */
static enum evq_status push_dict(struct evq_pickle_machine *machine,
                                 const struct evq_pickle_node *arguments)
{
    struct evq_pickle_node *dict = evq_pickle_machine_make(machine, EVQ_PICKLE_DICT);
    const struct evq_pickle_node *last =
        arguments->count == 0 ? NULL : arguments->as.items[arguments->count - 1];

    if (dict == NULL) {
        return evq_pickle_machine_fault_no_memory(machine);
    }
    if (last != NULL && last->kind == EVQ_PICKLE_DICT && last->count > 0) {
        if (!evq_pickle_machine_grow(machine, dict, last->count)) {
            return evq_pickle_machine_fault_no_memory(machine);
        }
        memcpy(dict->as.items, last->as.items, last->count * sizeof(struct evq_pickle_node *));
        dict->count = last->count;
    } else if (last != NULL && last->kind == EVQ_PICKLE_LIST) {
        for (uint32_t i = 0; i < last->count; i++) {
            const struct evq_pickle_node *pair = last->as.items[i];
            if ((pair->kind != EVQ_PICKLE_LIST && pair->kind != EVQ_PICKLE_TUPLE) ||
                pair->count != 2) {
                return evq_pickle_machine_fault(machine, "a dict made of what are no pairs");
            }
            if (!evq_pickle_machine_grow(machine, dict, 2)) {
                return evq_pickle_machine_fault_no_memory(machine);
            }
            dict->as.items[dict->count++] = pair->as.items[0];
            dict->as.items[dict->count++] = pair->as.items[1];
        }
    }
    return evq_pickle_machine_push(machine, dict);
}

/* argument: number of values after the callable (2: NEWOBJ_EX, with keyword arguments). */
enum evq_status evq_opcode_call(struct evq_pickle_machine *machine, unsigned argument)
{
    if (!evq_pickle_machine_has(machine, argument + 1)) {
        return evq_pickle_machine_fault_underflow(machine);
    }
    machine->depth -= argument + 1;
    struct evq_pickle_node *callable = machine->stack[machine->depth];
    struct evq_pickle_node *arguments = machine->stack[machine->depth + 1];
    // A legacy stream names a module's class by a persistent id with its source text.
    if (callable->kind != EVQ_PICKLE_GLOBAL && callable->kind != EVQ_PICKLE_OBJECT &&
        callable->kind != EVQ_PICKLE_PERSISTENT) {
        return evq_pickle_machine_fault(machine, "it calls what is no class or function");
    }
    if (arguments->kind != EVQ_PICKLE_TUPLE) {
        return evq_pickle_machine_fault(machine, "its arguments are no tuple");
    }
    if (evq_pickle_call_denied(callable, arguments)) {
        return evq_error_set(
            machine->err, EVQ_E_INVALID,
            "pickle byte %zu calls getattr on more than a class: refused as hostile",
            machine->opcode_at);
    }
    if (is_dict_class(callable)) {
        return push_dict(machine, arguments);
    }
    struct evq_pickle_object *object = evq_arena_alloc(machine->arena, sizeof(*object));
    struct evq_pickle_node *made = evq_pickle_machine_make(machine, EVQ_PICKLE_OBJECT);
    if (object == NULL || made == NULL) {
        return evq_pickle_machine_fault_no_memory(machine);
    }
    *object = (struct evq_pickle_object){.callable = callable, .arguments = arguments};
    made->as.object = object;
    return evq_pickle_machine_push(machine, made);
}

enum evq_status evq_opcode_build(struct evq_pickle_machine *machine, unsigned argument)
{
    (void)argument; // One opcode only.
    if (!evq_pickle_machine_has(machine, 2)) {
        return evq_pickle_machine_fault_underflow(machine);
    }
    struct evq_pickle_node *state = machine->stack[--machine->depth];
    struct evq_pickle_node *target = machine->stack[machine->depth - 1];
    if (target->kind == EVQ_PICKLE_OBJECT) {
        target->as.object->state = state;
    } else if (target->kind !=
               EVQ_PICKLE_DICT) { // Attributes of an OrderedDict (_metadata) are not needed.
        return evq_pickle_machine_fault(machine, "it gives state to what is no object");
    }
    return EVQ_OK;
}

enum evq_status evq_opcode_persistent(struct evq_pickle_machine *machine, unsigned argument)
{
    (void)argument; // One opcode only.
    if (!evq_pickle_machine_has(machine, 1)) {
        return evq_pickle_machine_fault_underflow(machine);
    }
    struct evq_pickle_node *made = evq_pickle_machine_make(machine, EVQ_PICKLE_PERSISTENT);
    void *persistent = machine->persistent;
    if (made == NULL || !evq_pickle_machine_reserve(&persistent, machine->persistent_count,
                                                    &machine->persistent_capacity,
                                                    sizeof(struct evq_pickle_node *))) {
        return evq_pickle_machine_fault_no_memory(machine);
    }
    machine->persistent = persistent;
    machine->persistent[machine->persistent_count++] = made;
    made->as.id = machine->stack[--machine->depth];
    return evq_pickle_machine_push(machine, made);
}
