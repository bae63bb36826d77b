#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/fixture/check.h"
#include "worker/devices/devices.h"

static struct evq_devices machine(uint32_t count)
{
    struct evq_devices devices = {.count = count};

    for (uint32_t i = 0; i < count; i++) {
        (void)snprintf(devices.items[i].id, sizeof(devices.items[i].id), "%u", i);
        devices.items[i].memory_bytes = 100 + i;
    }
    return devices;
}

static void devices_are_dealt_out_whole_and_evenly(void **state)
{
    static const struct {
        uint32_t devices;
        uint32_t slots;
        const char *dealt; // Of all slots, in order.
    } rows[] = {
        {0, 1, "|"},        {0, 3, "|||"},      {1, 1, "0|"},
        {4, 4, "0|1|2|3|"}, {4, 2, "0,1|2,3|"}, {4, 1, "0,1,2,3|"},
        {3, 2, "0,1|2|"},   {2, 4, "0|1|0|1|"}, {1, 2, "0|0|"},
    };

    (void)state;
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        const struct evq_devices devices = machine(rows[i].devices);
        char all[256] = "";
        for (uint32_t slot = 0; slot < rows[i].slots; slot++) {
            char text[EVQ_DEVICES_TEXT];
            int32_t gpus = -1;
            int64_t memory = -1;
            evq_devices_deal(&devices, slot, rows[i].slots, text, &gpus, &memory);
            (void)strcat(strcat(all, text), "|");
            assert_true(gpus >= 0 && gpus <= (int32_t)rows[i].devices);
            assert_true(gpus == 0 ? memory == 0
                                  : memory == 100 + atoi(text)); // The smallest comes first here.
        }
        assert_string_equal(all, rows[i].dealt);
    }
}

static void instances_are_dealt_out_one_by_one(void **state)
{
    struct evq_devices devices = machine(3);
    char text[EVQ_DEVICES_TEXT];
    int32_t gpus = 0;
    int64_t memory = 0;

    (void)state;
    (void)snprintf(devices.items[0].id, sizeof(devices.items[0].id), "MIG-b");
    (void)snprintf(devices.items[2].id, sizeof(devices.items[2].id), "MIG-a");
    evq_devices_deal(&devices, 0, 1, text, &gpus, &memory);
    assert_string_equal(text, "MIG-b"); // CUDA sees no GPU beside it.
    assert_int_equal(gpus, 1);
    assert_int_equal(memory, 100);
    evq_devices_deal(&devices, 2, 3, text, &gpus, &memory);
    assert_string_equal(text, "MIG-a");
    (void)snprintf(devices.items[0].id, sizeof(devices.items[0].id), "GPU-c");
    evq_devices_deal(&devices, 0, 1, text, &gpus, &memory);
    assert_string_equal(text, "GPU-c,1");
    assert_int_equal(gpus, 2);
}

static void devices_refuses_what_is_no_list(void **state)
{
    static const char *const texts[] = {"gpu", "0,,1", "0;1", "-1", "0,x", ",0"};
    struct evq_devices devices;
    struct evq_error err;

    (void)state;
    for (size_t i = 0; i < sizeof(texts) / sizeof(texts[0]); i++) {
        assert_status(evq_devices_find(texts[i], &devices, &err), EVQ_E_INVALID);
    }
    assert_status_err(evq_devices_find("cpu", &devices, &err), EVQ_OK, &err);
    assert_int_equal(devices.count, 0);
    assert_status(evq_devices_find("977", &devices, &err), EVQ_E_NOT_FOUND);
}

static void devices_says_why_there_is_no_gpu(void **state)
{
    struct evq_devices devices;
    struct evq_error err;

    (void)state;
    assert_int_equal(setenv("CUDA_VISIBLE_DEVICES", "", 1), 0);
    assert_status_err(evq_devices_find("auto", &devices, &err), EVQ_OK, &err);
    assert_int_equal(devices.count, 0);
    assert_true(devices.note[0] != '\0');
    assert_int_equal(unsetenv("CUDA_VISIBLE_DEVICES"), 0);
    assert_status_err(evq_devices_find("auto", &devices, &err), EVQ_OK, &err);
    assert_true(devices.count > 0 || devices.note[0] != '\0');
    (void)printf("this machine: %u GPUs %s %s\n", devices.count, devices.items[0].name,
                 devices.note);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(devices_are_dealt_out_whole_and_evenly),
        cmocka_unit_test(instances_are_dealt_out_one_by_one),
        cmocka_unit_test(devices_refuses_what_is_no_list),
        cmocka_unit_test(devices_says_why_there_is_no_gpu),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
