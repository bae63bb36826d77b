/* Text in the case that Python gives it: what is expected is what str.capitalize() returned. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <string.h>

#include <cmocka.h>

#include "worker/datasets/capitalize.h"

static const struct {
    const char *text, *wanted;
} cases[] = {
    {"", ""},
    {"the MAN", "The man"},
    {"éTÉ lÀ", "Été là"},
    {"ﬁne ﬁNE", "Fine ﬁne"},
    {"ǆunGLA ǆ", "ǅungla ǆ"},
    {"İI", "İi"},
    {"aİI", "Ai̇i"},
    {"ßEN", "Ssen"},
    {"ŉA", "ʼNa"},
    {"ΣΣΣ'Σ Σ ΑΣ'", "Σσσ'ς σ ας'"},
    {"ὈΔΥΣΣΕΎΣ", "Ὀδυσσεύς"},
    {"ΑΣ\xcc\x81", "Ας\xcc\x81"},
    {"Σ.Σ", "Σ.ς"},
    {"日本 ÀÉ", "日本 àé"},
    {"𐐀A𐐀", "𐐀a𐐨"},
    {"ᾳᾼ", "ᾼᾳ"},
    {"ΐ", "Ϊ\xcc\x81"},
    {"1st ΤΕΣΤ2Σ", "1st τεστ2σ"},
    {"ꭰꭱ", "Ꭰꭱ"},
    {"ᲐᲑ", "Აბ"},
    {"ა", "ა"},
    {"\xff"
     "ABC\xc3",
     "\xff"
     "abc\xc3"}, // Bytes that are no UTF-8 stay.
};

static void case_is_what_python_makes_of_it(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        struct evq_buffer out;
        evq_buffer_init(&out, 0);
        evq_capitalize(cases[i].text, strlen(cases[i].text), &out);
        assert_string_equal(evq_buffer_string(&out), cases[i].wanted);
        evq_buffer_free(&out);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(case_is_what_python_makes_of_it)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
