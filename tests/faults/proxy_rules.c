#include "tests/faults/proxy_rules.h"

#include <ctype.h>
#include <stdlib.h>
#include <string.h>

#define FUNCTIONS "evalq_v1_"

enum { RULES_MAX = 64, VERBS_MAX = 128, VERB_BYTES = 40, MS_DEFAULT = 500 };

static const char *const names[PROXY_FAULTS] = {"none",        "stall",     "half_close", "reset",
                                                "cut_request", "cut_reply", "cut_middle", "drip",
                                                "garbage",     "block"};

struct rule {
    enum proxy_fault fault;
    char verb[VERB_BYTES]; // "*": any.
    double chance;
    uint64_t every; // 0: not so.
    uint64_t only;  // 0: not so.
    uint64_t seen;
    int64_t ms;
};

struct verb {
    char name[VERB_BYTES];
    uint64_t requests;
    uint64_t happened[PROXY_FAULTS];
};

struct proxy_rules {
    struct rule rules[RULES_MAX];
    size_t rule_count;
    struct verb verbs[VERBS_MAX];
    int verb_count;
    uint64_t random;
};

struct proxy_rules *proxy_rules_new(uint64_t seed)
{
    struct proxy_rules *rules = calloc(1, sizeof *rules);

    if (rules != NULL) {
        rules->random = seed;
    }
    return rules;
}

void proxy_rules_free(struct proxy_rules *rules)
{
    free(rules);
}

uint64_t proxy_rules_random(struct proxy_rules *rules)
{
    uint64_t mixed = (rules->random += UINT64_C(0x9e3779b97f4a7c15)); // splitmix64.

    mixed = (mixed ^ (mixed >> 30)) * UINT64_C(0xbf58476d1ce4e5b9);
    mixed = (mixed ^ (mixed >> 27)) * UINT64_C(0x94d049bb133111eb);
    return mixed ^ (mixed >> 31);
}

static bool read_how(struct rule *rule, const char *part)
{
    char *end = NULL;

    if (strncmp(part, "p=", 2) == 0) {
        rule->chance = strtod(part + 2, &end);
        return *end == '\0' && rule->chance > 0 && rule->chance <= 1;
    }
    const char *equals = strchr(part, '=');
    if (equals == NULL || !isdigit((unsigned char)equals[1])) {
        return false;
    }
    const unsigned long long number = strtoull(equals + 1, &end, 10);
    if (*end != '\0' || number == 0) {
        return false;
    }
    if (strncmp(part, "every=", 6) == 0) {
        rule->every = number;
    } else if (strncmp(part, "k=", 2) == 0) {
        rule->only = number;
    } else if (strncmp(part, "ms=", 3) == 0 && number <= 600000) {
        rule->ms = (int64_t)number;
    } else {
        return false;
    }
    return true;
}

bool proxy_rules_add(struct proxy_rules *rules, const char *text)
{
    char copy[160];
    char *rest = copy;
    struct rule rule = {.ms = MS_DEFAULT};
    bool good = rules->rule_count < RULES_MAX && strlen(text) < sizeof copy;

    (void)snprintf(copy, sizeof copy, "%s", text);
    const char *kind = strsep(&rest, ":");
    for (int i = 1; i < PROXY_FAULTS; i++) {
        rule.fault = strcmp(kind, names[i]) == 0 ? (enum proxy_fault)i : rule.fault;
    }
    const char *verb = strsep(&rest, ":");
    good = good && rule.fault != PROXY_NONE && verb != NULL && *verb != '\0' &&
           strlen(verb) < sizeof rule.verb;
    while (good && rest != NULL) {
        good = read_how(&rule, strsep(&rest, ":"));
    }
    good = good && (rule.chance > 0) + (rule.every > 0) + (rule.only > 0) == 1;
    if (!good) {
        (void)fprintf(stderr,
                      "fault_proxy: '%s' is no rule (of %d at most); expected "
                      "KIND:VERB:p=CHANCE|every=N|k=N[:ms=N]\n",
                      text, RULES_MAX);
        return false;
    }
    (void)snprintf(rule.verb, sizeof rule.verb, "%s", verb);
    rules->rules[rules->rule_count++] = rule;
    return true;
}

void proxy_rules_clear(struct proxy_rules *rules)
{
    rules->rule_count = 0;
}

int proxy_rules_verb(struct proxy_rules *rules, const struct proxy_word *words, size_t count)
{
    char name[VERB_BYTES] = "?";
    struct proxy_word word = count > 0 ? words[0] : (struct proxy_word){"", 0};

    if (count > 1 && word.bytes >= 5 && strncasecmp(word.at, "fcall", 5) == 0) {
        word = words[1];
        if (word.bytes > strlen(FUNCTIONS) && memcmp(word.at, FUNCTIONS, strlen(FUNCTIONS)) == 0) {
            word.at += strlen(FUNCTIONS);
            word.bytes -= strlen(FUNCTIONS);
        }
    }
    for (size_t i = 0; i < word.bytes && i + 1 < sizeof name; i++) {
        const char byte = (char)tolower((unsigned char)word.at[i]);
        name[i] = isalnum((unsigned char)byte) || byte == '_' ? byte : '?';
        name[i + 1] = '\0';
    }
    for (int i = 0; i < rules->verb_count; i++) {
        if (strcmp(rules->verbs[i].name, name) == 0) {
            return i;
        }
    }
    if (rules->verb_count == VERBS_MAX) {
        return -1;
    }
    memcpy(rules->verbs[rules->verb_count].name, name, sizeof name);
    return rules->verb_count++;
}

const char *proxy_rules_verb_name(const struct proxy_rules *rules, int verb)
{
    return verb < 0 ? "?" : rules->verbs[verb].name;
}

enum proxy_fault proxy_rules_meet(struct proxy_rules *rules, int verb, int64_t *ret_ms)
{
    enum proxy_fault fault = PROXY_NONE;
    const char *name = proxy_rules_verb_name(rules, verb);

    if (verb >= 0) {
        rules->verbs[verb].requests++;
    }
    for (size_t i = 0; i < rules->rule_count; i++) {
        struct rule *rule = &rules->rules[i];
        if (strcmp(rule->verb, "*") != 0 && strcmp(rule->verb, name) != 0) {
            continue;
        }
        rule->seen++;
        bool met = rule->only > 0 ? rule->seen == rule->only
                                  : rule->every > 0 && rule->seen % rule->every == 0;
        if (rule->chance > 0) {
            met = (double)(proxy_rules_random(rules) >> 11) * 0x1p-53 < rule->chance;
        }
        if (met && fault == PROXY_NONE) { // One fault a request; each rule goes on counting.
            fault = rule->fault;
            *ret_ms = rule->ms;
        }
    }
    return fault;
}

void proxy_rules_happened(struct proxy_rules *rules, enum proxy_fault fault, int verb)
{
    if (verb >= 0) {
        rules->verbs[verb].happened[fault]++;
    }
}

void proxy_rules_print(const struct proxy_rules *rules, FILE *out)
{
    for (int i = 0; i < rules->verb_count; i++) {
        const struct verb *verb = &rules->verbs[i];
        (void)fprintf(out, "requests %s %llu\n", verb->name, (unsigned long long)verb->requests);
        for (int fault = 1; fault < PROXY_FAULTS; fault++) {
            if (verb->happened[fault] > 0) {
                (void)fprintf(out, "fault %s %s %llu\n", names[fault], verb->name,
                              (unsigned long long)verb->happened[fault]);
            }
        }
    }
}
