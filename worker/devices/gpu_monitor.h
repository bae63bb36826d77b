/*
 * Reads how busy, full and hot this machine's GPUs are. NVML may be slow, and may hang for a GPU
 * that has fallen off the bus, so each GPU has a thread of its own. A reader never waits. Readers:
 * one thread.
 */
#ifndef EVQ_WORKER_DEVICES_GPU_MONITOR_H
#define EVQ_WORKER_DEVICES_GPU_MONITOR_H

#include "worker/devices/devices.h"
#include "worker/devices/nvml.h"

struct evq_gpu_monitor;

/* Starts to read all devices every period_ms. Without NVML nothing is ever read. EVQ_E_NOMEM. */
enum evq_status evq_gpu_monitor_open(const struct evq_devices *devices, int64_t period_ms,
                                     struct evq_gpu_monitor **ret_monitor,
                                     struct evq_error *err) EVQ_CHECK_RESULT;

/* Accepts NULL. Threads that are still inside NVML after one second are abandoned with their
 * memory. */
void evq_gpu_monitor_close(struct evq_gpu_monitor *monitor);

/* The newest reading of the device with this id. False: there is none from the last five periods,
 * or monitor is NULL. */
bool evq_gpu_monitor_read(struct evq_gpu_monitor *monitor, const char *id,
                          struct evq_nvml_reading *ret_reading);

#endif
