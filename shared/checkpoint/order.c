#include "shared/checkpoint/order.h"

#include <stdlib.h>
#include <string.h>

struct item {
    uint64_t key; // Eight bytes of the name, the first the most significant; 0 behind its end.
    const char *rest;
    size_t index;
};

static int by_key(const void *a, const void *b)
{
    const struct item *left = a;
    const struct item *right = b;

    return left->key < right->key ? -1 : left->key > right->key;
}

static void take_key(struct item *item)
{
    uint64_t key = 0;
    unsigned taken = 0;

    while (taken < 8 && *item->rest != '\0') {
        key = key << 8 | (uint8_t)*item->rest++;
        taken++;
    }
    item->key = taken == 0 ? 0 : key << (8 * (8 - taken));
}

/* Names that agree so far are sorted by their next eight bytes, and so on: as deep as the longest
 * name has eights. */
static void sort_items(struct item *items, size_t count)
{
    for (size_t i = 0; i < count; i++) {
        take_key(&items[i]);
    }
    qsort(items, count, sizeof(*items), by_key);
    for (size_t begin = 0; begin < count;) {
        size_t end = begin + 1;
        while (end < count && items[end].key == items[begin].key) {
            end++;
        }
        if (end - begin > 1 && (items[begin].key & 0xff) != 0) {
            sort_items(items + begin, end - begin);
        }
        begin = end;
    }
}

/* Puts tensors[items[i].index] into place i, in place: each cycle of moves goes around once. */
static void apply(struct evq_tensor *tensors, struct item *items, size_t count)
{
    for (size_t start = 0; start < count; start++) {
        struct evq_tensor first = tensors[start];
        size_t to = start;
        if (items[start].index == start) {
            continue;
        }
        for (size_t from = items[to].index; from != start; from = items[to].index) {
            tensors[to] = tensors[from];
            items[to].index = to; // Done.
            to = from;
        }
        tensors[to] = first;
        items[to].index = to;
    }
}

bool evq_order_by_name(struct evq_tensor *tensors, size_t count)
{
    struct item *items =
        calloc(count + 1, sizeof(*items)); // Bounded by EVQ_CHECKPOINT_TENSORS_MAX.

    if (items == NULL) {
        return false;
    }
    for (size_t i = 0; i < count; i++) {
        items[i] = (struct item){.rest = tensors[i].name, .index = i};
    }
    sort_items(items, count);
    apply(tensors, items, count);
    free(items);
    return true;
}
