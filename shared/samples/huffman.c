#include "shared/samples/huffman.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

struct node {
    uint32_t count;
    uint16_t symbol; // Of a leaf.
    uint16_t parent; // Its index.
};

static int by_count(const void *a, const void *b)
{
    const struct node *x = a;
    const struct node *y = b;

    return x->count != y->count ? (x->count > y->count) - (x->count < y->count)
                                : (int)x->symbol - (int)y->symbol;
}

/* Joins the two rarest nodes until one is left, which is the last. Leaves are sorted, and the
 * joined nodes behind them become larger and larger, so the rarest is the first of one of the two.
 */
static void join(struct node *nodes, size_t leaves)
{
    size_t leaf = 0;
    size_t joined = leaves;

    for (size_t made = leaves; made < 2 * leaves - 1; made++) {
        nodes[made].count = 0;
        for (int i = 0; i < 2; i++) {
            const bool is_leaf =
                leaf < leaves && (joined == made || nodes[leaf].count <= nodes[joined].count);
            struct node *rarest = &nodes[is_leaf ? leaf++ : joined++];
            rarest->parent = (uint16_t)made;
            nodes[made].count += rarest->count;
        }
    }
}

/* Sets the number of bits of each symbol. Returns the largest. */
static int measure(const struct node *nodes, size_t leaves, struct evq_huffman_code *codes)
{
    uint16_t depth[2 * EVQ_HUFFMAN_SYMBOLS_MAX];
    int longest = 0;

    depth[2 * leaves - 2] = 0;
    for (size_t i = 2 * leaves - 2; i-- > 0;) {
        depth[i] = (uint16_t)(depth[nodes[i].parent] + 1);
        if (i < leaves) {
            codes[nodes[i].symbol].count = depth[i];
            longest = depth[i] > longest ? depth[i] : longest;
        }
    }
    return longest;
}

/* Numbers the codes: shorter ones first, equally long ones by symbol. */
static void number(struct evq_huffman_code *codes, size_t symbols)
{
    uint16_t next[EVQ_HUFFMAN_LENGTH_MAX + 2] = {0};

    for (size_t i = 0; i < symbols; i++) {
        next[codes[i].count + 1] += codes[i].count > 0;
    }
    for (int length = 2; length <= EVQ_HUFFMAN_LENGTH_MAX; length++) {
        next[length] = (uint16_t)((next[length] + next[length - 1]) << 1);
    }
    for (size_t i = 0; i < symbols; i++) {
        uint16_t value = next[codes[i].count];
        next[codes[i].count] += codes[i].count > 0;
        codes[i].bits = 0;
        for (int bit = 0; bit < codes[i].count; bit++, value >>= 1) {
            codes[i].bits = (uint16_t)(codes[i].bits << 1 | (value & 1));
        }
    }
}

void evq_huffman_build(const uint32_t *counts, size_t symbols, struct evq_huffman_code *ret_codes)
{
    struct node nodes[2 * EVQ_HUFFMAN_SYMBOLS_MAX];
    size_t leaves = 0;

    assert(symbols <= EVQ_HUFFMAN_SYMBOLS_MAX);
    memset(ret_codes, 0, symbols * sizeof *ret_codes);
    for (size_t i = 0; i < symbols; i++) {
        if (counts[i] > 0) {
            nodes[leaves++] = (struct node){.count = counts[i], .symbol = (uint16_t)i};
        }
    }
    if (leaves == 1) {
        ret_codes[nodes[0].symbol].count = 1;
    } else if (leaves > 1) {
        qsort(nodes, leaves, sizeof *nodes, by_count);
        join(nodes, leaves);
        while (measure(nodes, leaves, ret_codes) > EVQ_HUFFMAN_LENGTH_MAX) {
            for (size_t i = 0; i < leaves; i++) { // Counts that differ less make a flatter tree.
                nodes[i].count = nodes[i].count / 2 + 1;
            }
            join(nodes, leaves);
        }
    }
    number(ret_codes, symbols);
}
